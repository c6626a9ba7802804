// What pages are made of: questions to the service's own routes, and el(), which takes text as text.
export const ROOT = new URL(".", import.meta.url).pathname;
const MOST_ROWS = 100, expanded = new Set(); // rows of a table, until somebody asks for all; tables of which somebody did
const SVG = "http://www.w3.org/2000/svg", SVG_TAGS = new Set(["svg", "g", "path", "line", "rect", "text", "title"]);
export const $ = id => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  node.append(...children.flat(9).filter(child => child !== null && child !== undefined && child !== false));
  return node;
}

// What is asked

let asking = new AbortController();
export function leave() { // what an older page still waits for would keep the browser's few connections
  asking.abort();
  asking = new AbortController();
}

export async function ask(path, { type, version, ...options } = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { ...(key && { Authorization: "Bearer " + key }), ...(type && { "Content-Type": type }), ...(version && { "If-Match": `"${version}"` }) };
  const { signal } = asking, changes = options.method && options.method != "GET"; // a change is not broken off
  const answer = await fetch(ROOT + path, { ...(!changes && { signal }), ...options, headers }).catch(error => {
    throw error.name == "AbortError" ? error : Error(`The service cannot be reached: ${error.message}`);
  });
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text.slice(0, 500);
  try { message = JSON.parse(text).error.message; } catch { /* not ours: a proxy's */ }
  throw Object.assign(Error(message || `The service answered with status ${answer.status}.`), { status: answer.status });
}
export const json = async (path, options) => (await ask(path, options)).json();
// With a version, the service refuses the change unless that is the version of the settings in force.
export const send = (path, method, body, version) => ask(path, { method, body: JSON.stringify(body), type: "application/json", version });

// Browsers take "." and ".." out of a path, however they are written: a request would be about something else.
export function segment(id) {
  if (id == "." || id == "..") throw Error(`The id “${id}” cannot be part of an address in a browser. Use another client.`);
  return encodeURIComponent(id);
}
export const loopPath = loop => `v1/loops/${segment(loop)}`;

export function say(text, error = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", error);
}

// Numbers and words

export const count = n => n === null || n === undefined ? "–" : n.toLocaleString("en");
export const number = (n, digits = 3) => n === null || n === undefined || !isFinite(n) ? "–" : String(+n.toPrecision(digits));
export const average = n => n === null || n === undefined || !isFinite(n) ? "–" : Math.abs(n) < 1000 ? n.toPrecision(3) : count(Math.round(n)); // of a column: 0.500 below 0.625
export const percent = n => n === null || n === undefined ? "–" : (100 * n).toFixed(n < 0.1 ? 1 : 0) + "%";
export const seconds = s => s < 60 ? `${number(s)} s` : s < 3600 ? `${number(s / 60)} min` : s < 86400 ? `${number(s / 3600)} h` : `${number(s / 86400)} d`;
const fixed = (n, places) => n.toFixed(places).replace(/^-(0(\.0*)?)$/, "$1"); // no "-0.00"
export function bounds(b) { // as many decimals as the width of the interval deserves
  if (!b) return "–";
  const places = Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(b.high - b.low || 1))));
  return `${fixed(b.value, places)} (${fixed(b.low, places)} to ${fixed(b.high, places)})`;
}
export const several = (n, noun) => `${count(n)} ${noun}${n == 1 ? "" : "s"}`;
export const when = time => new Date(time).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
const clock = (t, span) => new Date(t * 1000).toLocaleString("en-GB", span > 172800
  ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", ...(span < 300 && { second: "2-digit" }) });

// Parts of pages

export const section = (title, ...children) => el("section", {}, title && el("h2", {}, title), ...children);
export const wide = node => (node.classList.add("wide"), node);
export const figures = pairs => el("dl", { class: "figures" }, pairs.map(([name, value]) =>
  el("div", {}, el("dt", {}, name), el("dd", {}, value))));
export const link = (text, ...path) => el("a", { href: "#/" + path.map(encodeURIComponent).join("/") }, text);

export function table(heads, rows, numeric = []) {
  const cell = (tag, content, k) => el(tag, { class: numeric.includes(k) ? "n" : null, scope: tag == "th" ? "col" : null }, content);
  const line = row => el("tr", {}, row.map((content, k) => cell("td", content, k)));
  const name = heads.join(), body = el("tbody", {}, rows.slice(0, expanded.has(name) ? rows.length : MOST_ROWS).map(line));
  const more = body.children.length < rows.length && el("button", { onclick: () => {
    expanded.add(name);
    body.append(...rows.slice(MOST_ROWS).map(line));
    more.remove();
  } }, `Show all ${count(rows.length)}`);
  return el("div", { class: "scroll", tabindex: rows.length ? 0 : null, role: "group", "aria-label": "Table" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head, k) => cell("th", head, k)))), body), more);
}
export const asTable = (...words) => el("details", {}, el("summary", {}, "As a table"), table(...words));
const key = (name, style) => el("li", {}, el("svg", { viewBox: "0 0 12 7", "aria-hidden": "true" },
  el("rect", { width: 12, height: 7, class: "s" + style })), name);
export const legend = names => el("ul", { class: "legend" }, names.map((name, k) => key(name, k)));

// Charts in SVG, about as wide as they are shown, so that letters keep their size

export const BOX = { left: 46, right: 0, top: 10, bottom: 212 };
function setWidth(columns) {
  const room = Math.min(innerWidth, 1152) - 70;
  BOX.right = Math.max(260, columns == 1 || innerWidth < 980 ? room : room / 2) - 8;
}
function roundSteps(low, high) { // steps of 1, 2 or 5 times a power of ten
  const rough = (high - low) / 5 || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => +((first + k) * step).toPrecision(12));
}
function frame(label, high, low, ticks) {
  const y = v => BOX.bottom - (BOX.bottom - BOX.top) * (v - low) / (high - low || 1);
  const grid = roundSteps(low, high).map(v => [
    el("line", { class: "axis", x1: BOX.left, x2: BOX.right, y1: y(v), y2: y(v) }),
    el("text", { x: BOX.left - 6, y: y(v) + 4, "text-anchor": "end" }, String(v))]);
  const names = ticks.map(([x, text, anchor = "middle"]) => el("text", { x, y: 230, "text-anchor": anchor }, text));
  return { y, svg: el("svg", { viewBox: `0 0 ${BOX.right + 8} 240`, role: "img", "aria-label": label }, el("title", {}, label), grid, names) };
}
export function timeTicks(ends) {
  const span = ends.at(-1) - ends[0];
  return [[BOX.left, clock(ends[0], span), "start"], [(BOX.left + BOX.right) / 2, clock(ends[ends.length >> 1], span)],
    [BOX.right, clock(ends.at(-1), span), "end"]];
}
export const iso = t => new Date(t * 1000).toISOString();
const along = n => k => BOX.left + (BOX.right - BOX.left) * (n < 2 ? 0.5 : k / (n - 1));

const FEWEST = 20; // events of a point of a curve: fewer are joined with those before, or a line of few events is all spikes
export function joined(line) {
  const n = line.reward.length, made = { reward: Array(n).fill(null), low: Array(n).fill(null), high: Array(n).fill(null), events: Array(n).fill(0) };
  let group = [];
  const close = () => {
    const events = group.reduce((sum, k) => sum + line.events[k], 0), mean = group.reduce((sum, k) => sum + line.events[k] * line.reward[k], 0) / events;
    const wide = group.filter(k => line.low[k] !== null), spread = wide.map(k => line.events[k] * Math.max(line.high[k] - line.reward[k], line.reward[k] - line.low[k]));
    const half = Math.hypot(...spread) / events, last = group.at(-1);
    made.reward[last] = mean, made.events[last] = events;
    if (wide.length) made.low[last] = mean - half, made.high[last] = mean + half;
    group = [];
  };
  for (let k = 0; k < n; k++) {
    if (line.reward[k] === null) continue;
    group.push(k);
    if (group.reduce((sum, one) => sum + line.events[one], 0) >= FEWEST) close();
  }
  if (group.length && made.reward.every(v => v === null)) close(); // else the newest few wait for more
  return made;
}

export function curves(label, ends, lines, range) { // of rewards: an axis does not leave it for the sake of a band
  setWidth(1);
  const x = along(ends.length), spread = lines.flatMap(([, line]) => [...line.reward, ...line.low, ...line.high]).filter(v => v !== null);
  const values = lines.flatMap(([, line]) => line.reward).filter(v => v !== null);
  const low = Math.min(0, ...values), top = Math.max(low, ...values) || 0.01;
  const high = Math.max(top, Math.min(Math.max(...spread, top), low + 1.6 * (top - low), range?.[1] ?? Infinity));
  const { svg, y } = frame(label, high, low, timeTicks(ends)), clip = v => y(Math.min(high, Math.max(low, v)));
  for (const [, line, style] of lines) {
    const at = line.reward.map((v, k) => v === null ? -1 : k).filter(k => k >= 0), banded = at.filter(k => line.low[k] !== null);
    const path = (places, values) => places.map(k => `${x(k).toFixed(1)},${clip(values[k]).toFixed(1)}`).join("L");
    if (banded.length > 1)
      svg.append(el("path", { class: `band s${style}`, d: `M${path(banded, line.low)}L${path(banded.toReversed(), line.high)}Z` }));
    if (at.length) svg.append(el("path", { class: `curve s${style}`, d: `M${path(at, line.reward)}${at.length < 2 ? "h2" : ""}` }));
  }
  return svg;
}

export function sparkline(label, values) { // as wide as a cell; missing values are left out
  const at = values.map((v, k) => [k, v]).filter(([, v]) => v !== null), seen = at.map(([, v]) => v);
  if (at.length < 2) return "–";
  const low = Math.min(0, ...seen), high = Math.max(...seen, low + 1e-9), x = k => 2 + 96 * k / (values.length - 1), y = v => 22 - 20 * (v - low) / (high - low);
  return el("svg", { class: "spark", viewBox: "0 0 100 24", role: "img", "aria-label": label }, el("title", {}, label),
    el("path", { class: "curve s0", d: "M" + at.map(([k, v]) => `${x(k).toFixed(1)},${y(v).toFixed(1)}`).join("L") }));
}

export function bars(label, names, stacks, makeTicks) { // stacks: for each place, the parts of a bar
  setWidth(2);
  const high = Math.max(1, ...stacks.map(parts => parts.reduce((a, b) => a + b, 0)));
  const { svg, y } = frame(label, high, 0, makeTicks()), width = (BOX.right - BOX.left) / stacks.length;
  stacks.forEach((parts, place) => {
    let from = 0;
    parts.forEach((n, k) => {
      if (n) svg.append(el("rect", { class: `bar s${k}`, x: BOX.left + place * width, width: Math.max(width - 1, 1),
        y: y(from + n), height: y(from) - y(from + n) }, el("title", {}, `${names[k]}: ${count(n)}`)));
      from += n;
    });
  });
  return svg;
}

// Buttons and questions

export function act(job) { // for buttons: one click at a time, and what goes wrong is said
  return async event => {
    const button = event.currentTarget, { textContent } = button;
    button.disabled = true;
    button.textContent = "Working…";
    try { await job(); } catch (error) { if (error.name != "AbortError") say(error.message, true); }
    button.textContent = textContent;
    button.disabled = false;
  };
}

export function confirm(title, parts, word, job) { // returns the button that does it
  const button = el("button", { class: "danger", onclick: () => {
    dialog.close();
    job().catch(error => say(error.message, true));
  } }, word);
  const dialog = el("dialog", { "aria-labelledby": "dialog-title", onclose: () => dialog.remove() }, el("h2", { id: "dialog-title" }, title), parts,
    el("p", {}, button, " ", el("button", { onclick: () => dialog.close() }, "Cancel")));
  document.body.append(dialog);
  dialog.showModal();
  return button;
}

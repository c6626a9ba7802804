// What pages are made of: requests to the service's own routes, messages, and el(), which takes
// text as text.
export const ROOT = new URL(".", import.meta.url).pathname;
const MOST_ROWS = 100;
const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "line", "rect", "circle", "text", "title"]);
export const $ = id => document.getElementById(id);

// Characters that are invisible or turn the direction of text are shown as their codes: an id with
// one of them would read as another id.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
export const visible = text => String(text).replace(
  UNSEEN, one => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function el(tag, attributes = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : name == "aria-label" ? visible(value) : value);
  }
  const parts = children.flat(9).filter(child => child !== null && child !== undefined && child !== false);
  node.append(...parts.map(part => part instanceof Node ? part : visible(part)));
  return node;
}

// Requests

let leaving = new AbortController();
export function leave() { // requests of an older page would keep the browser's few connections
  leaving.abort();
  leaving = new AbortController();
}

async function failureOf(response) {
  const text = await response.text();
  let error = { message: text.slice(0, 500) };
  try { error = JSON.parse(text).error; } catch { /* not ours: a proxy's */ }
  const message = error.message || `The service responded with status ${response.status}.`;
  return Object.assign(Error(message), { status: response.status, code: error.code, target: error.target });
}

export async function ask(path, { type, version, ...options } = {}) {
  const key = storedKey();
  const headers = {
    ...(key && { Authorization: "Bearer " + key }),
    ...(type && { "Content-Type": type }),
    ...(version && { "If-Match": `"${version}"` }),
  };
  const isChange = options.method && options.method != "GET"; // which leaving a page does not break off
  const signal = isChange ? undefined : leaving.signal;
  const response = await fetch(ROOT + path, { signal, ...options, headers }).catch(error => {
    if (error.name == "AbortError") throw error;
    throw Object.assign(Error(`The service cannot be reached: ${error.message}`), { isOutage: true });
  });
  if (response.ok) return response;
  throw await failureOf(response);
}
export const json = async (path, options) => (await ask(path, options)).json();
// With a version, the service refuses the change unless that is the version of the settings in force.
export const send = (path, method, body, version) =>
  ask(path, { method, body: JSON.stringify(body), type: "application/json", version });

export const storedKey = () => sessionStorage.getItem("key") ?? localStorage.getItem("key") ?? "";
export function storeKey(key, remember) {
  sessionStorage.removeItem("key");
  localStorage.removeItem("key");
  if (key) (remember ? localStorage : sessionStorage).setItem("key", key);
}

// Browsers take "." and ".." out of a path, however they are written: a request would be about
// something else.
export function segment(id) {
  if (id == "." || id == "..")
    throw Error(`The id “${id}” cannot be part of an address in a browser. Use another client.`);
  return encodeURIComponent(id);
}
export const loopPath = loop => `v1/loops/${segment(loop)}`;

// Messages: one line that stays in view while the page scrolls

export function say(text, isError = false, ...more) {
  const status = $("status");
  status.replaceChildren(...(text ? [visible(text), ...more] : []));
  status.classList.toggle("error", isError);
}

// Numbers and words

const minus = text => text.replace(/^-/, "−");
const isMissing = n => n === null || n === undefined || !isFinite(n);
export const count = n => n === null || n === undefined ? "–" : n.toLocaleString("en");
export const number = (n, digits = 3) => isMissing(n) ? "–" : minus(String(+n.toPrecision(digits)));
export const average = n => // of a column: 0.500 below 0.625
  isMissing(n) ? "–" : minus(Math.abs(n) < 1000 ? n.toPrecision(3) : count(Math.round(n)));
export const percent = n =>
  n === null || n === undefined ? "–" : minus((100 * n).toFixed(Math.abs(n) < 0.1 && n ? 1 : 0)) + "%";
export function seconds(s) {
  if (s < 60) return `${number(s)} s`;
  if (s < 3600) return `${number(s / 60)} min`;
  return s < 86400 ? `${number(s / 3600)} h` : `${number(s / 86400)} d`;
}
const fixed = (n, places) => minus(n.toFixed(places).replace(/^-(0(\.0*)?)$/, "$1")); // no "−0.00"
export function bounds(b) { // as many decimals as the width of the interval deserves
  if (!b) return "–";
  const places = Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(b.high - b.low || 1))));
  return `${fixed(b.value, places)} (${fixed(b.low, places)} to ${fixed(b.high, places)})`;
}
export const several = (n, noun) => `${count(n)} ${noun}${n == 1 ? "" : "s"}`;

// Times: local with the zone's name; the tooltip has UTC

const LOCAL = { dateStyle: "medium", timeStyle: "short" };
const ZONE = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" })
  .formatToParts(new Date()).find(part => part.type == "timeZoneName").value;
export const when = time => `${new Date(time).toLocaleString("en-GB", LOCAL)} ${ZONE}`;
export const moment = time =>
  el("time", { datetime: new Date(time).toISOString(), title: new Date(time).toISOString() }, when(time));
export const ago = time => `${seconds(Math.max(0, Math.round((Date.now() - new Date(time)) / 1000)))} ago`;

// Parts of pages

export const section = (title, ...children) => el("section", {}, title && el("h2", {}, title), ...children);
export const wide = node => (node.classList.add("wide"), node);
export const note = (...words) => el("p", { class: "note" }, ...words);
export const figures = pairs => el("dl", { class: "figures" }, pairs.map(([name, value]) =>
  el("div", {}, el("dt", {}, name), el("dd", {}, value))));
export const address = (...path) => "#/" + path.map(encodeURIComponent).join("/");
export const link = (text, ...path) => el("a", { href: address(...path) }, text);
export const below = loop => el("p", {}, "in ", link(loop, "loops", loop));

// Tables: sorted by a click on a head; the order and the number of rows last while the page does

const tables = new Map(); // by name: what somebody chose
const sortKey = cell => cell instanceof Node ? cell.dataset.sort ?? cell.textContent : String(cell ?? "");
const asNumber = text => parseFloat(text.replaceAll(",", "").replace("−", "-").replace("–", "NaN"));

function sorted(rows, { column, isDown }) {
  if (column === undefined) return rows;
  const compare = (a, b) => {
    const difference = asNumber(a) - asNumber(b);
    return isNaN(difference) ? a.localeCompare(b, "en", { numeric: true }) : difference;
  };
  const order = [...rows].sort((a, b) => compare(sortKey(a[column]), sortKey(b[column])));
  return isDown ? order.reverse() : order;
}

export function table(heads, rows, numeric = [], label = "Table", most = MOST_ROWS) {
  const name = [label, ...heads].join();
  const chosen = tables.get(name) ?? {};
  tables.set(name, chosen);
  const holder = el("div", { class: "scroll", tabindex: rows.length ? 0 : null, role: "group", "aria-label": label });
  const style = k => numeric.includes(k) ? "n" : null;
  const cell = (content, k) => el("td", { class: style(k), "data-label": heads[k] }, content);
  const head = (text, k) => el("th", {
    class: style(k), scope: "col",
    "aria-sort": chosen.column === k ? chosen.isDown ? "descending" : "ascending" : null,
  }, text ? el("button", { class: "sort", onclick: () => sortBy(k) }, text) : el("span", { class: "unseen" }, "actions"));
  function sortBy(k) {
    chosen.isDown = chosen.column === k ? !chosen.isDown : numeric.includes(k);
    chosen.column = k;
    fill();
    holder.querySelectorAll("th")[k].querySelector("button").focus();
  }
  function fill() {
    const shown = chosen.showsAll ? rows.length : most;
    const lines = sorted(rows, chosen).slice(0, shown);
    const more = rows.length > lines.length && el("button", { onclick: () => {
      chosen.showsAll = true;
      fill();
    } }, `Show all ${count(rows.length)}`);
    holder.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, heads.map(head))),
      el("tbody", {}, lines.map(row => el("tr", {}, row.map(cell))))), ...(more ? [more] : []));
  }
  fill();
  return holder;
}

export const asTable = (heads, rows, numeric = [], label = "Values") =>
  el("details", {}, el("summary", {}, "As a table"), table(heads, rows, numeric, label),
    el("button", { onclick: act(() => navigator.clipboard.writeText(csv(heads, rows))) }, "Copy as CSV"));
const quoted = cell => `"${sortKey(cell).replaceAll('"', '""')}"`;
export const csv = (heads, rows) => [heads, ...rows].map(row => row.map(quoted).join(",")).join("\n") + "\n";

// Buttons, fields and questions

export function act(job) { // for buttons: one click at a time; an error goes to its field, or to the status
  return async event => {
    const button = event.currentTarget;
    const { textContent } = button;
    button.disabled = true;
    button.textContent = "Working…";
    try { await job(); } catch (error) { if (error.name != "AbortError") report(error); }
    button.textContent = textContent;
    button.disabled = false;
  };
}

// Show an error at its field, which gets the focus; without one, in the status line.
export function report(error) {
  const field = error.field ?? (error.target && $("setting-" + error.target));
  if (!field?.isConnected) return say(error.message, true);
  const id = `${field.id}-error`;
  $(id)?.remove();
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", `${id} ${field.id}-about`);
  field.after(el("p", { id, class: "error" }, error.message));
  say(error.message, true);
  field.focus();
}

export function clearErrors(fields) {
  for (const field of fields) {
    field.removeAttribute("aria-invalid");
    field.setAttribute("aria-describedby", `${field.id}-about`);
    $(`${field.id}-error`)?.remove();
  }
}

export function confirm(title, parts, word, job, style = "danger") { // returns the button that does it
  const button = el("button", { class: style, onclick: () => {
    dialog.close();
    job().catch(report);
  } }, word);
  const dialog = el("dialog", { "aria-labelledby": "dialog-title", onclose: () => dialog.remove() },
    el("h2", { id: "dialog-title" }, title), parts,
    el("p", {}, button, " ", el("button", { onclick: () => dialog.close() }, "Cancel")));
  document.body.append(dialog);
  dialog.showModal();
  return button;
}

export const again = () => dispatchEvent(new Event("hashchange")); // shows the page anew

// Charts in SVG, about as wide as they are shown, so that letters keep their size.
import { average, count, el, number, visible, when } from "./parts.js";

export const BOX = { left: 46, right: 0, top: 10, bottom: 212 };
function setWidth(columns) {
  const room = Math.min(innerWidth, 1152) - 70;
  BOX.right = Math.max(260, columns == 1 || innerWidth < 980 ? room : room / 2) - 8;
}

const clock = (t, span) => new Date(t * 1000).toLocaleString("en-GB", span > 172800
  ? { day: "numeric", month: "short" }
  : { hour: "2-digit", minute: "2-digit", ...(span < 300 && { second: "2-digit" }) });
export const iso = t => new Date(t * 1000).toISOString();

function roundSteps(low, high) { // steps of 1, 2 or 5 times a power of ten
  const rough = (high - low) / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => +((first + k) * step).toPrecision(12));
}

function frame(label, high, low, ticks) {
  const y = v => BOX.bottom - (BOX.bottom - BOX.top) * (v - low) / (high - low || 1);
  const grid = roundSteps(low, high).map(v => [
    el("line", { class: "axis", x1: BOX.left, x2: BOX.right, y1: y(v), y2: y(v) }),
    el("text", { x: BOX.left - 6, y: y(v) + 4, "text-anchor": "end" },
      Math.abs(v) >= 1000 ? count(v) : String(v).replace("-", "−"))]);
  const names = ticks.map(([x, text, anchor = "middle"]) => el("text", { x, y: 230, "text-anchor": anchor }, text));
  const box = { viewBox: `0 0 ${BOX.right + 8} 240`, role: "img", "aria-label": label };
  return { y, svg: el("svg", box, el("title", {}, label), grid, names) };
}

export function timeTicks(ends) {
  const span = ends.at(-1) - ends[0];
  return [[BOX.left, clock(ends[0], span), "start"],
    [(BOX.left + BOX.right) / 2, clock(ends[ends.length >> 1], span)],
    [BOX.right, clock(ends.at(-1), span), "end"]];
}
const along = n => k => BOX.left + (BOX.right - BOX.left) * (n < 2 ? 0.5 : k / (n - 1));

// A chart is drawn again when the window's width changes. The values of a point are read by pointing
// at it, or with the arrow keys; ``read`` returns those of a place as text.
function chart(label, n, draw, read) {
  const holder = el("div", { class: "chart", "data-chart": true });
  const reading = el("p", { class: "reading", "aria-live": "polite" });
  let place = n - 1;
  function show(k) {
    place = Math.max(0, Math.min(n - 1, k));
    const x = along(n)(place);
    const cursor = holder.querySelector(".cursor");
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    reading.textContent = visible(read(place));
  }
  holder.redraw = () => {
    const svg = draw();
    svg.append(el("line", { class: "cursor", x1: -9, x2: -9, y1: BOX.top, y2: BOX.bottom }));
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * (BOX.right + 8);
      show(Math.round((x - BOX.left) / (BOX.right - BOX.left) * (n - 1)));
    });
    holder.replaceChildren(svg, reading);
  };
  holder.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(place + step);
  });
  holder.tabIndex = 0;
  holder.setAttribute("role", "group");
  holder.setAttribute("aria-label", `${label}: arrow keys read the values`);
  holder.redraw();
  return holder;
}
export function redrawCharts() {
  for (const holder of document.querySelectorAll("[data-chart]")) holder.redraw();
}

const FEWEST = 20; // events of a point: fewer are joined with those before, or the line is all spikes
export function joined(line) {
  const n = line.reward.length;
  const empty = () => Array(n).fill(null);
  const points = { reward: empty(), low: empty(), high: empty(), events: Array(n).fill(0), seen: line.events };
  let group = [];
  const close = () => {
    const events = group.reduce((sum, k) => sum + line.events[k], 0);
    const mean = group.reduce((sum, k) => sum + line.events[k] * line.reward[k], 0) / events;
    const banded = group.filter(k => line.low[k] !== null);
    const spread = banded.map(k => line.events[k] * Math.max(line.high[k] - line.reward[k], line.reward[k] - line.low[k]));
    const half = Math.hypot(...spread) / events;
    const last = group.at(-1);
    points.reward[last] = mean;
    points.events[last] = events;
    if (banded.length) {
      points.low[last] = mean - half;
      points.high[last] = mean + half;
    }
    group = [];
  };
  for (let k = 0; k < n; k++) {
    if (line.reward[k] === null) continue;
    group.push(k);
    if (group.reduce((sum, one) => sum + line.events[one], 0) >= FEWEST) close();
  }
  if (group.length && points.reward.every(v => v === null)) close(); // else the newest few wait for more
  return points;
}

const LONGEST_GAP = 3; // spans of time without events that a line may cross

// Return the places of a line in pieces: it breaks where nothing happened for several spans of time.
function pieces(line) {
  const seen = line.seen ?? line.events;
  const places = line.reward.map((value, k) => value === null ? -1 : k).filter(k => k >= 0);
  const parts = [[]];
  places.forEach((place, k) => {
    const between = k ? seen.slice(places[k - 1] + 1, place) : [];
    let run = 0;
    const longest = between.reduce((most, n) => Math.max(most, run = n ? 0 : run + 1), 0);
    if (longest >= LONGEST_GAP) parts.push([]);
    parts.at(-1).push(place);
  });
  return parts;
}

function drawLine(svg, line, style, x, clip) {
  const path = (places, values) => places.map(k => `${x(k).toFixed(1)},${clip(values[k]).toFixed(1)}`).join("L");
  for (const places of pieces(line)) {
    const banded = places.filter(k => line.low[k] !== null);
    if (banded.length > 1) svg.append(el("path", { class: `band s${style}`,
      d: `M${path(banded, line.low)}L${path(banded.toReversed(), line.high)}Z` }));
    if (places.length > 1) svg.append(el("path", { class: `curve s${style}`, d: `M${path(places, line.reward)}` }));
    else if (places.length) svg.append(el("circle", { class: `s${style}`, cx: x(places[0]), cy: clip(line.reward[places[0]]), r: 4 }));
  }
}

function drawMarks(svg, ends, marks) {
  const span = ends.at(-1) - ends[0] || 1;
  for (const { time, text } of marks.filter(mark => mark.time >= ends[0] && mark.time <= ends.at(-1))) {
    const x = BOX.left + (BOX.right - BOX.left) * (time - ends[0]) / span;
    svg.append(el("g", { class: "mark" }, el("line", { x1: x, x2: x, y1: BOX.top, y2: BOX.bottom }),
      el("title", {}, `${when(time * 1000)}: ${text}`)));
  }
}

// Curves of rewards: an axis does not leave their range for the sake of a band.
export function curves(label, ends, lines, { range, marks = [] } = {}) {
  const numbers = parts => lines.flatMap(([, line]) => parts.flatMap(part => line[part])).filter(v => v !== null);
  const spread = numbers(["reward", "low", "high"]);
  const values = numbers(["reward"]);
  const low = Math.min(0, ...values);
  const top = Math.max(low, ...values) || 0.01;
  const high = Math.max(top, Math.min(Math.max(...spread, top), low + 1.6 * (top - low), range?.[1] ?? Infinity));
  const draw = () => {
    setWidth(1);
    const { svg, y } = frame(label, high, low, timeTicks(ends));
    const clip = v => y(Math.min(high, Math.max(low, v)));
    drawMarks(svg, ends, marks);
    for (const [, line, style] of lines) drawLine(svg, line, style, along(ends.length), clip);
    return svg;
  };
  return chart(label, ends.length, draw, k => `Until ${when(ends[k] * 1000)}: ` + lines.map(([name, line]) =>
    `${name} ${average(line.reward[k])}` + (line.low[k] === null ? "" : ` (${number(line.low[k])} to ${number(line.high[k])})`)).join(", "));
}

export function bars(label, names, stacks, makeTicks, nameOf) { // stacks: for each place, the parts of a bar
  const high = Math.max(1, ...stacks.map(parts => parts.reduce((a, b) => a + b, 0)));
  const draw = () => {
    setWidth(2);
    const { svg, y } = frame(label, high, 0, makeTicks());
    const width = (BOX.right - BOX.left) / stacks.length;
    stacks.forEach((parts, place) => {
      let from = 0;
      parts.forEach((n, k) => {
        if (n) svg.append(el("rect", { class: `bar s${k}`, x: BOX.left + place * width, width: Math.max(width - 1, 1),
          y: y(from + n), height: y(from) - y(from + n) }));
        from += n;
      });
    });
    return svg;
  };
  const read = place => `${nameOf(place)}: ` + (stacks[place].map((n, k) => n && `${names[k]} ${count(n)}`).filter(Boolean).join(", ") || "none");
  return chart(label, stacks.length, draw, read);
}

const key = (name, style) => el("li", {}, el("svg", { viewBox: "0 0 12 7", "aria-hidden": "true" },
  el("rect", { width: 12, height: 7, class: "s" + style })), name);
export const legend = names => el("ul", { class: "legend" }, names.map((name, k) => key(name, k)));

// A small chart of rewards with the control group's as a second line; its ends are written beside it.
export function sparkline(label, policy, control = []) {
  const seen = [...policy, ...control].filter(v => v !== null);
  if (policy.filter(v => v !== null).length < 2) return el("span", {}, "–");
  const low = Math.min(0, ...seen);
  const high = Math.max(...seen, low + 1e-9);
  const x = k => 3 + 154 * k / (policy.length - 1);
  const y = v => 37 - 34 * (v - low) / (high - low);
  const path = values => values.map((v, k) => [k, v]).filter(([, v]) => v !== null)
    .map(([k, v]) => `${x(k).toFixed(1)},${y(v).toFixed(1)}`).join("L");
  return el("svg", { class: "spark", viewBox: "0 0 160 40", role: "img", "aria-label": label }, el("title", {}, label),
    el("line", { class: "axis", x1: 3, x2: 157, y1: y(low), y2: y(low) }),
    control.some(v => v !== null) && el("path", { class: "curve s1", d: "M" + path(control) }),
    el("path", { class: "curve s0", d: "M" + path(policy) }));
}

// An interval on a line with its zero, as wide as a cell.
export function intervalBar(label, { value, low, high }) {
  const left = Math.min(0, low);
  const span = Math.max(0, high) - left || 1;
  const x = v => 3 + 154 * (v - left) / span;
  return el("svg", { class: "interval", viewBox: "0 0 160 14", role: "img", "aria-label": label },
    el("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 14 }),
    el("line", { class: "reach", x1: x(low), x2: x(high), y1: 7, y2: 7 }),
    el("circle", { class: "s0", cx: x(value), cy: 7, r: 4 }));
}

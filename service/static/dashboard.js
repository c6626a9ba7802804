// The dashboard: asks the service's own routes, and builds all it shows with el(), which takes text as text.
const ROOT = new URL(".", import.meta.url).pathname;
const REFRESH = { status: 5000, report: 30000 };
const SVG = "http://www.w3.org/2000/svg", SVG_TAGS = new Set(["svg", "g", "path", "line", "rect", "text", "title"]);
export const $ = id => document.getElementById(id);
let shown = 0; // counts pages, so that late answers of an older one are dropped

export function el(tag, attributes = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  node.append(...children.flat(9).filter(child => child !== null && child !== undefined && child !== false));
  return node;
}

// What is asked

export async function ask(path, { type, ...options } = {}) {
  const key = sessionStorage.getItem("key"), headers = { ...(key && { Authorization: "Bearer " + key }), ...(type && { "Content-Type": type }) };
  const answer = await fetch(ROOT + path, { ...options, headers });
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text;
  try { message = JSON.parse(text).error.message; } catch { /* not ours: a proxy's */ }
  throw Object.assign(Error(message), { status: answer.status });
}
export const json = async path => (await ask(path)).json();
const loopPath = loop => `v1/loops/${encodeURIComponent(loop)}`;

export function say(text, error = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", error);
}

// Numbers and words

const count = n => n === null || n === undefined ? "–" : n.toLocaleString("en");
export const number = (n, digits = 3) => n === null || n === undefined || !isFinite(n) ? "–" : String(+n.toPrecision(digits));
const percent = n => n === null || n === undefined ? "–" : (100 * n).toFixed(n < 0.1 ? 1 : 0) + "%";
const seconds = s => s < 60 ? `${s} s` : s < 3600 ? `${s / 60} min` : s < 86400 ? `${s / 3600} h` : `${s / 86400} d`;
const bounds = b => b ? `${number(b.value)} (${number(b.low)} to ${number(b.high)})` : "–";
const clock = (t, span) => new Date(t * 1000).toLocaleString("en-GB", span > 172800
  ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit" });

// Parts of pages

const section = (title, ...children) => el("section", {}, title && el("h2", {}, title), ...children);
const wide = node => (node.classList.add("wide"), node);
const figures = pairs => el("dl", { class: "figures" }, pairs.map(([name, value]) =>
  el("div", {}, el("dt", {}, name), el("dd", {}, value))));
const link = (text, ...path) => el("a", { href: "#/" + path.map(encodeURIComponent).join("/") }, text);

function table(heads, rows, numeric = []) {
  const cell = (tag, content, k) => el(tag, { class: numeric.includes(k) ? "n" : null, scope: tag == "th" ? "col" : null }, content);
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head, k) => cell("th", head, k)))),
    el("tbody", {}, rows.map(row => el("tr", {}, row.map((content, k) => cell("td", content, k)))))));
}
const asTable = (...words) => el("details", {}, el("summary", {}, "As a table"), table(...words));
const key = (name, style) => el("li", {}, el("svg", { viewBox: "0 0 12 7", "aria-hidden": "true" },
  el("rect", { width: 12, height: 7, class: "s" + style })), name);
const legend = names => el("ul", { class: "legend" }, names.map((name, k) => key(name, k)));

// Charts in SVG, about as wide as they are shown, so that letters keep their size

const BOX = { left: 46, right: 0, top: 10, bottom: 212 };
function setWidth(columns) {
  const room = Math.min(innerWidth, 1152) - 70;
  BOX.right = Math.max(260, columns == 1 || innerWidth < 980 ? room : room / 2) - 8;
}
function frame(label, high, low, ticks) {
  const y = v => BOX.bottom - (BOX.bottom - BOX.top) * (v - low) / (high - low || 1);
  const grid = [0, 1, 2, 3, 4].map(k => low + (high - low) * k / 4).map(v => [
    el("line", { class: "axis", x1: BOX.left, x2: BOX.right, y1: y(v), y2: y(v) }),
    el("text", { x: BOX.left - 6, y: y(v) + 4, "text-anchor": "end" }, number(v, 2))]);
  const names = ticks.map(([x, text, anchor = "middle"]) => el("text", { x, y: 230, "text-anchor": anchor }, text));
  return { y, svg: el("svg", { viewBox: `0 0 ${BOX.right + 8} 240`, role: "img", "aria-label": label }, el("title", {}, label), grid, names) };
}
function timeTicks(ends) {
  const span = ends.at(-1) - ends[0];
  return [[BOX.left, clock(ends[0], span), "start"], [(BOX.left + BOX.right) / 2, clock(ends[ends.length >> 1], span)],
    [BOX.right, clock(ends.at(-1), span), "end"]];
}
const along = n => k => BOX.left + (BOX.right - BOX.left) * (n < 2 ? 0.5 : k / (n - 1));

function curves(label, ends, lines) {
  setWidth(1);
  const x = along(ends.length), spread = lines.flatMap(([, line]) => [...line.reward, ...line.low, ...line.high]).filter(v => v !== null);
  const values = lines.flatMap(([, line]) => line.reward).filter(v => v !== null);
  const top = Math.max(...values, 0.01), low = Math.min(0, ...values);
  const high = Math.min(Math.max(...spread, top), low + 1.6 * (top - low));
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

function bars(label, names, stacks, makeTicks) { // stacks: for each place, the parts of a bar
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

// Pages

const PAGES = [
  [/^$/, overview, REFRESH.status],
  [/^operations$/, operations, REFRESH.status],
  [/^loops\/([^/]+)$/, loopPage, REFRESH.report],
  [/^loops\/([^/]+)\/events\/([^/]+)$/, eventPage, 0],
  [/^loops\/([^/]+)\/users\/([^/]+)$/, userPage, 0],
];

async function overview() {
  const { loops } = await json("v1/status");
  const rows = Object.entries(loops).map(([name, g]) => [link(name, "loops", name), count(g.ranks), number(g.policy_reward),
    number(g.control_reward), count(g.waiting_events), count(g.users), number(g.learner_lag_seconds, 2) + " s"]);
  const empty = Object.values(loops).every(g => !g.ranks);
  return [el("h1", {}, "Loops"), section(null,
    table(["loop", "decisions", "mean reward", "control", "waiting", "users with a model", "learner lag"], rows, [1, 2, 3, 4, 5, 6])),
    empty && first()];
}

function first() {
  const url = location.origin + ROOT, post = "-H 'Content-Type: application/json' -d";
  return section("Nothing to show yet", el("p", {}, "A first decision and its reward:"), el("pre", {},
    `curl -s ${url}v1/rank ${post} '{"event_id": "first", "actions": [{"id": "tea"}, {"id": "juice"}]}'\n` +
    `curl -s ${url}v1/events/first/reward ${post} '{"value": 1}'`));
}

async function operations() {
  const s = await json("v1/status");
  return [el("h1", {}, "Operations"),
    s.trouble && alarm("Trouble", s.trouble),
    section("Log and learner", figures([["store", s.store], ["records", count(s.position)], ["learned", count(s.learned_position)],
      ["behind", count(s.position - s.learned_position)], ["last heard of the learner", number(s.staleness_seconds, 2) + " s ago"],
      ["published", `${number(s.published_bytes / 2 ** 20)} MiB`], ["rebuilt from the log", count(s.rebuilt)]])),
    section("Processes", table(["role", "pid", "up", "restarts"], s.processes.map(p =>
      [p.role, p.pid, seconds(Math.round(p.uptime_seconds)), count(p.restarts)]), [1, 2, 3])),
    section("Quotas", table(["of a loop", "at most"], Object.entries(s.quotas).map(([name, n]) => [name, count(n)]), [1])),
    el("p", {}, el("a", { href: ROOT + "metrics" }, "Metrics for Prometheus"))];
}

const alarm = (title, text) => el("section", { class: "alarm", role: "alert" }, el("strong", {}, title), " ", text);

async function loopPage(loop) {
  const gauges = json("v1/status").then(status => status.loops[loop], () => undefined); // not for a key of one loop
  const report = await json(`${loopPath(loop)}/report`);
  return loopParts(loop, await gauges, report);
}

const mean = line => line.reward.reduce((sum, v, k) => sum + (v ?? 0) * line.events[k], 0) / line.events.reduce((a, b) => a + b, 0);

function loopParts(loop, g, r) {
  const ends = r.bucket_ends, lines = [["policy", r.policy, 0], ["control group", r.control, 1], ["uniform, estimated, all until then", r.uniform, 2]]
    .filter(([, line]) => line.reward.some(v => v !== null));
  const action = name => name === null ? "all others" : name;
  return [el("h1", {}, "Loop ", loop),
    r.alarms.map(one => alarm("Alarm:", one.message)),
    section(null, figures([["decisions", count(r.funnel.ranked)], ["mean reward", number(g ? g.policy_reward : mean(r.policy))],
      ["control group", number(g ? g.control_reward : mean(r.control))],
      ...(g ? [["users with a model", count(g.users)], ["learner lag", number(g.learner_lag_seconds, 2) + " s"]] : [])]),
      g && g.waiting_events > (g.learned_events + g.waiting_events) / 20 && el("p", { class: "note" }, "The figures are provisional: events count " +
        `once they are rewarded or their wait time is over. If no reward follows, the mean of all is ${number(g.provisional_reward)}.`)),
    section("Does it pay?", el("p", { class: "lead" }, r.lift ? r.lift.sentence :
      "There is no control group, so this is estimated from the policy's own decisions."),
      r.lift && el("p", { class: "note" }, `Experiment “${r.lift.experiment}” since ${r.lift.began}: ${count(r.lift.treatment.users)} users with the ` +
        `policy, ${count(r.lift.control.users)} in the control group (${r.lift.baseline}).`),
      r.lift?.outcomes.length > 0 && table(["outcome per event", "control group", "policy", "difference"], r.lift.outcomes.map(o =>
        [o.outcome, number(o.control), number(o.treatment), bounds(o.absolute)])),
      r.values.length ? table(["policy", "reward per event", "difference to the logged policy", "note"], r.values.map(v =>
        [v.policy, bounds(v.reward), v.difference ? bounds(v.difference) : "", v.warning])) : el("p", { class: "note" },
        "Policies are valued from 100 decisions on in which every action had a chance.")),
    ends.length ? el("div", { class: "grid" },
      wide(section("Reward over time", legend(lines.map(([name]) => name)),
        curves(`mean reward by time: ${lines.map(([name]) => name).join(", ")}`, ends, lines.map(([n, l], k) => [n, l, k])),
        el("p", { class: "note" }, "Bands are 95% intervals of each point alone."),
        asTable(["until", ...lines.flatMap(([name]) => [name, "from", "to", "events"])], ends.map((end, k) => [new Date(end * 1000).toISOString(),
          ...lines.flatMap(([, l]) => [number(l.reward[k]), number(l.low[k]), number(l.high[k]), count(l.events[k])])])))),
      section("Traffic by action", legend(r.traffic.actions.map(action)),
        bars("decisions of the policy by time and action", r.traffic.actions.map(action),
          ends.map((_, k) => r.traffic.events.map(events => events[k])), () => timeTicks(ends)),
        el("p", { class: "note" }, `Evenness (1: all actions alike, 0: one action) at the end: ${number(r.traffic.evenness.findLast(v => v !== null), 2)}`),
        asTable(["until", ...r.traffic.actions.map(action), "evenness"], ends.map((end, k) =>
          [new Date(end * 1000).toISOString(), ...r.traffic.events.map(e => count(e[k])), number(r.traffic.evenness[k], 2)]))),
      section("From decision to reward", table(["", "events", "share of decisions"], Object.entries(r.funnel).map(([name, n]) =>
        [name, count(n), percent(n / Math.max(1, r.funnel.ranked))]), [1, 2]),
        el("h2", {}, "Delay of rewards"),
        bars("rewards by delay", ["rewards"], r.delays.events.map(n => [n]), () => r.delays.up_to_seconds.map((s, k) => [s, k])
          .filter(([, k]) => k % 3 == 1).map(([s, k]) => [BOX.left + (BOX.right - BOX.left) * (k + 1) / r.delays.events.length, seconds(s)])),
        asTable(["up to", "rewards"], r.delays.events.map((n, k) => [k < r.delays.up_to_seconds.length ? seconds(r.delays.up_to_seconds[k]) : "longer", count(n)]), [1])),
      wide(section("Features of the newest events", table(["of", "feature", "importance", "coverage", "values", ""], r.features.map(f =>
        [f.kind, f.name, number(f.importance, 2), percent(f.coverage), count(f.values), f.values < 2 ? "constant: says nothing" : ""]), [2, 3, 4])))) : null,
    $("access") && search(loop),
    el("p", { class: "note" }, `As of position ${count(r.position)}, ${r.time}; series are about the newest ${count(r.events)} finished events.`)];
}

function search(loop) {
  const form = (name, what) => {
    const input = el("input", { id: "find-" + name, required: true, maxlength: 200, autocomplete: "off" });
    return el("form", { class: "inline", role: "search", onsubmit: event => {
      event.preventDefault();
      location.hash = "#/" + ["loops", loop, what, input.value].map(encodeURIComponent).join("/");
    } }, el("label", { for: "find-" + name }, name + " id "), input, el("button", {}, "Show"));
  };
  return section("Look up", el("div", { class: "grid" }, form("event", "events"), form("user", "users")),
    el("p", { class: "note" }, "Events and users need an admin key, where the service has keys."));
}

function story(loop, s, open) {
  const e = s.event, explained = new Map(s.explanations.map(one => [one.id, one]));
  const why = one => one ? one.strongest.slice(0, 5).map(p =>
    `${[p.context, p.action].filter(Boolean).join(" × ") || "constant"} ${number(p.shared + p.personal, 2)}`).join("; ") : "";
  return [
    figures([["action", e.action], ["probability", number(e.probability)], ["reward", number(e.reward)], ["status", e.status],
      ["arm", e.arm ?? "–"], ["user", e.user === null ? "–" : link(e.user, "loops", loop, "users", e.user)]]),
    el("details", { open }, el("summary", {}, "Why, and what else could have been taken"),
      table(["action", "probability", "score then", "shared now", "personal now", "strongest parts now"], s.ranking.map(one => {
        const now = explained.get(one.id);
        return [one.id, number(one.probability), number(one.score), number(now?.shared), number(now?.personal), why(now)];
      }), [1, 2, 3, 4])),
    el("details", { open }, el("summary", {}, "What was logged"), table(["time", "what", "value", "id"], s.records.map(one =>
      [one.time, one.kind, one.value === undefined ? "" : number(one.value), one.id ?? ""])),
      el("pre", {}, JSON.stringify({ context: e.context, actions: e.actions, model_version: e.model_version, position: e.position }, null, 1))),
  ];
}

async function eventPage(loop, event) {
  const s = await json(`${loopPath(loop)}/events/${encodeURIComponent(event)}`);
  return [el("h1", {}, "Event ", event), el("p", {}, "in ", link(loop, "loops", loop)), section(null, story(loop, s, true))];
}

async function userPage(loop, user) {
  const found = await json(`${loopPath(loop)}/users/${encodeURIComponent(user)}/decisions`);
  const parts = found.decisions.flatMap(s => s.explanations.filter(one => one.id == s.event.action));
  const own = parts.reduce((sum, one) => sum + Math.abs(one.personal), 0), all = own + parts.reduce((sum, one) => sum + Math.abs(one.shared), 0);
  return [el("h1", {}, "User ", user), el("p", {}, "in ", link(loop, "loops", loop)),
    section(null, figures([["newest decisions", count(found.decisions.length)], ["personal part of their scores", percent(all ? own / all : null)]]),
      el("p", {}, el("button", { onclick: () => exportUser(loop, user) }, "Export events"), " ",
        el("button", { class: "danger", onclick: () => erase(loop, user) }, "Erase…"))),
    found.decisions.map(s => section(null, el("h2", {}, link(s.event.event_id, "loops", loop, "events", s.event.event_id), ` at ${s.event.time}`), story(loop, s, false)))];
}

async function exportUser(loop, user) {
  try {
    const blob = await (await ask(`${loopPath(loop)}/users/${encodeURIComponent(user)}/events`)).blob();
    const node = el("a", { href: URL.createObjectURL(blob), download: "events.jsonl" });
    node.click();
    URL.revokeObjectURL(node.href);
  } catch (error) { say(error.message, true); }
}

function erase(loop, user) {
  const input = el("input", { id: "confirm", autocomplete: "off", oninput: () => button.disabled = input.value != user });
  const button = el("button", { class: "danger", disabled: true, onclick: async () => {
    dialog.close();
    say("Erasing…");
    try {
      await ask(`${loopPath(loop)}/users/${encodeURIComponent(user)}`, { method: "DELETE" });
      say("");
      $("main").replaceChildren(section(null, el("p", {}, "The user was erased."), link("Back to the loop", "loops", loop)));
    } catch (error) { say(error.message, true); }
  } }, "Erase for good");
  const dialog = el("dialog", { "aria-labelledby": "erase-title", onclose: () => dialog.remove() }, el("h2", { id: "erase-title" }, "Erase this user?"),
    el("p", {}, "The user's model and events go from every file. This cannot be undone. What the shared model learned stays."),
    el("p", {}, el("label", { for: "confirm" }, "Type the user's id to confirm: "), input),
    el("p", {}, button, " ", el("button", { onclick: () => dialog.close() }, "Cancel")));
  document.body.append(dialog);
  dialog.showModal();
}

// Which page

async function show(isNew, moved = false) {
  const path = decodeURI(location.hash).startsWith("#/") ? location.hash.slice(2) : "", turn = ++shown;
  const found = PAGES.map(([form, page, every]) => [path.match(form), page, every]).find(([match]) => match);
  if (isNew) { $("main").replaceChildren(); say("Loading…"); }
  try {
    if (!found) throw Error("There is no such page.");
    const parts = await found[1](...found[0].slice(1).map(decodeURIComponent));
    if (turn != shown) return;
    const open = [...$("main").querySelectorAll("details")].map(one => one.open);
    $("main").replaceChildren(...parts.flat(9).filter(Boolean));
    if (!isNew) [...$("main").querySelectorAll("details")].forEach((one, k) => one.open = open[k] ?? one.open);
    const title = $("main").querySelector("h1")?.textContent;
    document.title = title ? `${title} – fedres` : "fedres";
    if (isNew) say("");
    if (moved) $("main").focus();
  } catch (error) {
    if (turn != shown) return;
    const hint = error.status == 401 ? " Enter a key above." : "";
    say(error.message + hint, true);
    if (isNew) document.title = "fedres";
  }
  if (found?.[2] && turn == shown) setTimeout(() => turn == shown && refresh(turn), found[2]);
}

// Not while somebody types or has a dialog open, and not in a tab that nobody sees.
function refresh(turn) {
  if (!document.hidden && !document.querySelector("dialog") && document.activeElement?.tagName != "INPUT") show(false);
  else setTimeout(() => turn == shown && refresh(turn), 1000);
}

if ($("access")) {
  $("key").value = sessionStorage.getItem("key") ?? "";
  $("access").addEventListener("submit", event => event.preventDefault());
  $("key").addEventListener("change", () => { sessionStorage.setItem("key", $("key").value); show(true); });
  addEventListener("hashchange", () => show(true, true));
  document.querySelector(".skip").addEventListener("click", event => { event.preventDefault(); $("main").focus(); });
  show(true);
} else if ($("report")) { // a file of `fedres report`
  const { loop, report } = JSON.parse($("report").textContent);
  document.title = `Loop ${loop} – fedres`;
  $("main").append(...loopParts(loop, null, report).flat(9).filter(Boolean));
}

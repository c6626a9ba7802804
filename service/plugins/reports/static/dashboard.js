// The dashboard: its pages, and which one is shown.
import { $, BOX, ROOT, act, ask, asTable, average, bars, bounds, confirm, count, curves, el, figures, iso, joined, json, leave, legend, link, loopPath, number, percent, say, seconds, section, segment, send, several, sparkline, table, timeTicks, when, wide } from "./parts.js";
import { cataloguePage, controlGroupButton, newestEventsPage, newLoop, settingsPage } from "./manage.js";

const REFRESH = { status: 5000, report: 30000 };
const LOADING = "Loading…";
let shown = 0; // counts pages, so that late answers of an older one are dropped
let filter = ""; // of loops
const told = new Set(); // alarms that were read out

const PAGES = [
  [/^$/, overview, REFRESH.status],
  [/^operations$/, operations, REFRESH.status],
  [/^loops\/([^/]+)$/, loopPage, REFRESH.report],
  [/^loops\/([^/]+)\/settings$/, settingsPage, 0],
  [/^loops\/([^/]+)\/actions$/, cataloguePage, 0],
  [/^loops\/([^/]+)\/events$/, newestEventsPage, 0],
  [/^loops\/([^/]+)\/events\/([^/]+)$/, eventPage, 0],
  [/^loops\/([^/]+)\/users\/([^/]+)$/, userPage, 0],
];

const summaries = new Map(); // by loop: its reward over time, lift and alarms, as of some time
const SUMMARY_AGE = 60000, MOST_SUMMARIES = 50;

function summaryCells(name) { // filled in when the report of the loop is there
  const known = summaries.get(name), cell = part => el("span", { "data-loop": name, "data-part": part }, known ? known[part]() : "…");
  return ["reward", "lift", "alarms"].map(cell);
}

const READABLE = 10; // a share of control beyond which the difference says more
function gain({ relative, absolute }) { // as a share of control, or as a difference while control may be near 0
  const share = v => (v > 0 ? "+" : "") + Math.round(100 * v) + "%";
  return relative && relative.high < READABLE ? `${share(relative.value)} (${share(relative.low)} to ${share(relative.high)})` : absolute ? bounds(absolute) : "too early";
}

async function summarize(names) { // one report at a time, and no more once the page is left
  const turn = shown;
  for (const name of names) {
    if (Date.now() - (summaries.get(name)?.at ?? -Infinity) < SUMMARY_AGE) continue;
    const r = await json(`${loopPath(name)}/report`).catch(error => error.name == "AbortError" ? error : null);
    if (r instanceof Error || turn != shown) return;
    summaries.set(name, { at: Date.now(), reward: () => r ? sparkline(`Reward of ${name} over time`, joined(r.policy).reward) : "–",
      lift: () => r?.lift ? gain(r.lift) : "–", alarms: () => r?.alarms.length ? r.alarms.map(one => one.code).join(", ") : "" });
    for (const node of document.querySelectorAll("[data-loop]"))
      if (node.dataset.loop == name) node.replaceChildren(summaries.get(name)[node.dataset.part]());
  }
}

async function overview() {
  const { loops, processes } = await json("v1/status");
  const all = Object.entries(loops).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })), holder = el("div"), input = el("input", { id: "filter", type: "search", value: filter, autocomplete: "off", oninput: fill });
  function fill() {
    filter = input.value;
    const found = all.filter(([name]) => name.toLowerCase().includes(filter.trim().toLowerCase()));
    const heads = ["loop", "reward over time", "lift", "alarms", "decisions", "mean reward", "control", "pending", "users", "learner lag"];
    holder.replaceChildren(table(heads, found.map(([name, g]) => [link(name, "loops", name), ...(g.ranks ? summaryCells(name) : ["", "", ""]),
      count(g.ranks), average(g.policy_reward), average(g.control_reward), count(g.waiting_events), count(g.users), number(g.learner_lag_seconds, 2) + " s"]),
    [4, 5, 6, 7, 8, 9]),
      ...(found.length ? [] : [el("p", { class: "note" }, "No loop has this name.")]));
  }
  fill();
  setTimeout(() => summarize(all.filter(([, g]) => g.ranks).map(([name]) => name).slice(0, MOST_SUMMARIES))); // once the page is shown
  return [el("h1", {}, "Loops"), section(null,
    all.length > 10 && el("p", {}, el("label", { for: "filter" }, "Name has "), input), holder, newLoop()),
    processes.some(one => one.role == "demo") && section("Demo", el("p", {}, el("a", { href: ROOT + "demo" }, "A news site that learns from you"), ", beside its simulated readers.")),
    all.every(([, g]) => !g.ranks) && firstDecision("v1")];
}

function firstDecision(path) {
  const url = location.origin + ROOT + path, post = "-H 'Content-Type: application/json' -d";
  return section("Nothing to show yet", el("p", {}, "A first decision and its reward:"), el("pre", {},
    `curl -s '${url}/rank' ${post} '{"event_id": "first", "actions": [{"id": "tea"}, {"id": "juice"}]}'\n` +
    `curl -s '${url}/events/first/reward' ${post} '{"value": 1}'`),
    el("p", { class: "note" }, "Where the service has keys, add -H 'Authorization: Bearer KEY'."));
}

async function operations() {
  const s = await json("v1/status");
  return [el("h1", {}, "Operations"),
    s.trouble && alarm("Trouble", s.trouble),
    section("Log and learner", figures([["version", s.version], ["store", s.store], ["records", count(s.position)], ["learned", count(s.learned_position)],
      ["behind", count(s.position - s.learned_position)], ["last heard of the learner", number(s.staleness_seconds, 2) + " s ago"],
      ["published", `${number(s.published_bytes / 2 ** 20)} MiB`], ["rebuilt from the log", count(s.rebuilt)]])),
    section("Processes", table(["role", "pid", "up", "restarts"], s.processes.map(p =>
      [p.role, p.pid, seconds(p.uptime_seconds), count(p.restarts)]), [1, 2, 3])),
    section("Quotas", table(["quota", "at most"], Object.entries(s.quotas).map(([name, n]) => [name, count(n)]), [1])),
    el("p", {}, el("a", { href: ROOT + "metrics" }, "Metrics for Prometheus"))];
}

function alarm(title, text) { // read out once, and not again whenever the page is renewed
  const role = told.has(text) ? null : "alert";
  told.add(text);
  return el("section", { class: "alarm", role }, el("strong", {}, title), " ", text);
}

async function loopPage(loop, preview) {
  const gauges = json("v1/status").then(status => status.loops[loop], () => undefined); // not for a key of one loop
  const personal = json(`${loopPath(loop)}/personal`).catch(() => undefined);
  const report = json(`${loopPath(loop)}/report`);
  report.catch(() => undefined); // awaited below
  const g = await gauges;
  if (g) preview([el("h1", {}, "Loop ", loop), section(null, numbers(g, g.ranks), el("p", { class: "note" }, "The report is being computed…"))]);
  return loopParts(loop, g, await report, await personal);
}

const numbers = (g, ranks, r) => figures([["decisions", count(ranks)], ["mean reward", average(g ? g.policy_reward : mean(r.policy))],
  ["control group", average(g ? g.control_reward : mean(r.control))],
  ...(g ? [["users with a model", count(g.users)], ["learner lag", number(g.learner_lag_seconds, 2) + " s"]] : [])]);

const pagesOf = loop => el("nav", { class: "pages", "aria-label": "Pages of the loop" },
  [["Settings", "settings"], ["Catalogue", "actions"], ["Newest events", "events"]].map(([name, page]) => link(name, "loops", loop, page)));

const mean = line => line.reward.reduce((sum, v, k) => sum + (v ?? 0) * line.events[k], 0) / line.events.reduce((a, b) => a + b, 0);

function loopParts(loop, g, r, personal) {
  const live = $("access") !== null; // else it is a file
  return [el("h1", {}, "Loop ", loop),
    r.alarms.map(one => alarm("Alarm:", one.message)),
    live && pagesOf(loop),
    section(null, numbers(g, r.funnel.ranked, r),
      g && g.waiting_events > (g.learned_events + g.waiting_events) / 20 && el("p", { class: "note" }, "The figures are provisional: events count " +
        `once they are rewarded or their wait time is over. If no reward follows, the mean of all is ${number(g.provisional_reward)}.`)),
    live && !r.funnel.ranked ? firstDecision(loopPath(loop)) : [doesItPay(loop, r, live), live && whatIf(loop)],
    r.bucket_ends.length ? el("div", { class: "grid" }, rewards(r), traffic(r), pages(r.pages), funnel(r), drift(r.drift), howPersonal(personal), devices(loop, r.devices, g, live), features(r)) : null,
    live && search(loop),
    el("p", { class: "note" }, `As of position ${count(r.position)}, ${when(r.time)}; charts show the newest ${several(r.events, "finished event")}.` +
      (r.one_in > 1 ? ` They are one in ${count(r.one_in)}, as decisions of this loop are large.` : "") +
      (r.older_left_out ? " Older ones are in the counts only." : "") +
      (r.events_since ? ` Events from before ${when(r.events_since)} were removed.` : ""))];
}

const POLICIES = {
  logged: "logged: what the policy earned.", first: "first: always the first action of the request.",
  uniform: "uniform: any action with the same probability.", likeliest: "likeliest: always the action that the policy prefers.",
};

function doesItPay(loop, r, live) {
  const values = r.values.filter(v => v.policy != r.lift?.baseline); // the control group measures that one
  return section("Does it earn more?", el("p", { class: "lead" }, r.lift ? r.lift.sentence :
    "This loop has no control group. What other policies would have earned is estimated from the policy's own decisions."),
    r.lift ? el("p", { class: "note" }, `Experiment “${r.lift.experiment}” since ${when(r.lift.began)}: ${several(r.lift.treatment.users, "user")} with the ` +
      `policy, ${several(r.lift.control.users, "user")} in the control group (${r.lift.baseline}).`) : live && controlGroupButton(loop),
    r.lift?.outcomes.length > 0 && table(["outcome per event", "control group", "policy", "difference"], r.lift.outcomes.map(o =>
      [o.outcome, number(o.control), number(o.treatment), bounds(o.absolute)])),
    values.length ? [table(["policy", "reward per event", "difference to logged", "note"], values.map(v =>
      [v.policy, bounds(v.reward), v.difference ? bounds(v.difference) : "", v.warning])),
      el("p", { class: "note" }, values.map(v => POLICIES[v.policy]).join(" ") + " All but logged are estimates.")] : el("p", { class: "note" },
      "Other policies are estimated once 100 decisions are finished in which every action had a chance."));
}

function rewards(r) {
  const ends = r.bucket_ends, lines = [["policy", r.policy], ["control group", r.control], ["uniform, estimated, all until then", r.uniform]]
    .filter(([, line]) => line.reward.some(v => v !== null));
  return wide(section("Reward over time", legend(lines.map(([name]) => name)),
    curves(`mean reward by time: ${lines.map(([name]) => name).join(", ")}`, ends, lines.map(([n, l], k) => [n, k < 2 && l !== r.uniform ? joined(l) : l, k]), r.reward_range),
    el("p", { class: "note" }, "Bands are about 95% intervals of single points, each of 20 events or more; the table has all spans of time."),
    asTable(["until", ...lines.flatMap(([name]) => [name, "from", "to", "events"])], ends.map((end, k) => [iso(end),
      ...lines.flatMap(([, l]) => [number(l.reward[k]), number(l.low[k]), number(l.high[k]), count(l.events[k])])]))));
}

function traffic(r) {
  const ends = r.bucket_ends, names = r.traffic.actions.map(name => name ?? "all others");
  return section("Traffic by action", legend(names),
    bars("decisions of the policy by time and action", names, ends.map((_, k) => r.traffic.events.map(events => events[k])), () => timeTicks(ends)),
    el("p", { class: "note" }, `Evenness (1: all actions alike, 0: one action) at the end: ${number(r.traffic.evenness.findLast(v => v !== null), 2)}`),
    asTable(["until", ...names, "evenness"], ends.map((end, k) => [iso(end), ...r.traffic.events.map(e => count(e[k])), number(r.traffic.evenness[k], 2)])));
}

const pages = p => p && section("Recommended items", figures([["items in the catalogue", count(p.items)], ["shown so far", percent(p.items ? p.shown / p.items : null)],
  ["places of new items", percent(p.new_share)]]),
  table(["place", "events", "reward per event"], p.places.map(one => [one.place, count(one.events), number(one.reward)]), [0, 1, 2]),
  el("p", { class: "note" }, "An item is new until it was shown ten times. Places differ by what is shown there, and by how many people look that far."));

const funnel = r => section("From decision to reward", table(["", "events", "share of decisions"], Object.entries(r.funnel).map(([name, n]) =>
  [name == "waiting" ? "pending" : name, count(n), percent(n / Math.max(1, r.funnel.ranked))]), [1, 2]),
  el("h2", {}, "Delay of rewards"),
  bars("rewards by delay", ["rewards"], r.delays.events.map(n => [n]), () => r.delays.up_to_seconds.map((s, k) => [s, k])
    .filter(([, k]) => k % 3 == 1).map(([s, k]) => [BOX.left + (BOX.right - BOX.left) * (k + 1) / r.delays.events.length, seconds(s)])),
  asTable(["up to", "rewards"], r.delays.events.map((n, k) => [k < r.delays.up_to_seconds.length ? seconds(r.delays.up_to_seconds[k]) : "longer", count(n)]), [1]));

function drift(d) {
  if (!d) return section("Drift", el("p", { class: "note" }, "From 500 finished events of the policy on, the newest fifth is compared with the others. Both parts need 20 users."));
  const names = { reward: "reward", bias: "reward less prediction", squared_error: "squared error of the prediction" };
  return section("Drift", el("p", {}, d.is_drifting ? "Recent rewards differ from predictions." : "Recent predictions are as good as before, or the difference is too small to tell."),
    table(["per event", "before", "recent", "difference"], Object.entries(names).map(([key, name]) =>
      [name, number(d[key].earlier), number(d[key].recent), bounds(d[key].difference)]), [1, 2]),
    el("p", { class: "note" }, `Recent: the newest ${count(d.recent_events)} events of the policy, since ${when(1000 * d.recent_since)}. Before: ${count(d.earlier_events)} events. ` +
      "Differences are ± 4 standard errors."));
}

const howPersonal = p => p && section("How personal", figures([["personal part of scores", percent(p.share)], ["users with a model", count(p.users_with_model)],
  ...(p.trust === null ? [] : [["trust in users' own data", percent(p.trust)]])]),
  el("p", { class: "note" }, `Of the actions taken in the newest decisions of ${several(p.looked_at, "user")}, ${count(p.with_model)} of whom have a personal model.` +
    (p.trust === null ? "" : " Trust is how much of the uncertainty about what is special about a user the user's own data has taken away: 0% for a new user.")));

function devices(loop, d, g, live) {
  if (!d) return null;
  const holder = el("div"), list = el("button", { onclick: act(async () => {
    const found = await json(`${loopPath(loop)}/devices`);
    holder.replaceChildren(table(["device", "last upload", "uploads", "records behind"], found.devices.map(one => [one.client, one.last, count(one.uploads), count(one.lag)]), [2, 3]));
  }) }, "List devices");
  return section("Devices", figures([["devices", count(d.devices)], ["in the last hour", count(d.last_hour)], ["in the last day", count(d.last_day)],
    ["uploads", count(d.uploads)], ...(g ? [["learned from", count(g.learned_uploads)], ["ignored by the defenses", count(g.passed_over_uploads)]] : []),
    ["records behind (median)", count(d.median_lag)]]),
    el("p", { class: "note" }, "Behind: records logged between the model that a device used and its newest upload."), live && el("p", {}, list), holder);
}

const NOTES = { constant: "constant: no information", gone: "gone: earlier events had it", "never taken": "only in the catalogue: no chosen action has it" };
const features = r => wide(section("Features of the newest events", table(["of", "feature", "importance", "coverage", "values", ""], r.features.map(f =>
  [f.kind, f.name, number(f.importance, 2), percent(f.coverage), count(f.values), NOTES[f.note] ?? f.note]), [2, 3, 4])));

const described = changes => Object.entries(changes).map(([name, value]) => `${name} = ${value ?? "default"}`).join(", ");
const estimates = new Map(); // by loop: what was asked for stays while the page is renewed

function whatIf(loop) {
  const holder = el("div"), fill = found => holder.replaceChildren(
    el("p", { class: "note" }, `Estimated from the newest ${count(found.events)} decisions of the policy, with the models that made them. They earned ${bounds(found.logged)} per event.`),
    table(["settings", "reward per event", "difference", "note", ""], found.estimates.map(one => [described(one.settings), bounds(one.reward), bounds(one.difference), one.warning,
      one.reward && el("button", { onclick: () => apply(loop, one) }, "Apply…")])));
  const button = el("button", { onclick: act(async () => {
    estimates.set(loop, await (await send(`${loopPath(loop)}/what-if`, "POST", {})).json());
    fill(estimates.get(loop));
  }) }, "Estimate other settings");
  if (estimates.has(loop)) fill(estimates.get(loop));
  return section("What if it explored differently?", el("p", {}, button), holder);
}

const apply = (loop, one) => confirm("Change these settings?", [el("p", {}, described(one.settings)),
  el("p", {}, `The estimated difference is ${bounds(one.difference)} per event. It takes effect at once, and needs an admin key.`)], "Apply", async () => {
  await send(`${loopPath(loop)}/settings`, "PATCH", one.settings);
  estimates.delete(loop);
  await show(false);
  say("The settings are changed.");
});

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
      [one.time, one.outcome ? `${one.kind}: ${one.outcome}` : one.kind, one.value === undefined ? "" : number(one.value), one.id ?? ""])),
      e.actions.length > 50 && el("p", { class: "note" }, `The first 50 of ${count(e.actions.length)} actions:`),
      el("pre", {}, JSON.stringify({ context: e.context, outcomes: e.outcomes, actions: e.actions.slice(0, 50), model_version: e.model_version, position: e.position }, null, 1))),
  ];
}

async function eventPage(loop, event) {
  const s = await json(`${loopPath(loop)}/events/${segment(event)}`);
  return [el("h1", {}, "Event ", event), el("p", {}, "in ", link(loop, "loops", loop)), section(null, story(loop, s, true))];
}

async function userPage(loop, user) {
  const found = await json(`${loopPath(loop)}/users/${segment(user)}/decisions`);
  if (!found.decisions.length && !await hasEvents(loop, user))
    return [el("h1", {}, "User ", user), el("p", {}, "in ", link(loop, "loops", loop)), section(null, el("p", {}, "The log has nothing of this user in this loop."))];
  const parts = found.decisions.flatMap(s => s.explanations.filter(one => one.id == s.event.action));
  const own = parts.reduce((sum, one) => sum + Math.abs(one.personal), 0), all = own + parts.reduce((sum, one) => sum + Math.abs(one.shared), 0);
  return [el("h1", {}, "User ", user), el("p", {}, "in ", link(loop, "loops", loop)),
    section(null, !found.decisions.length && el("p", {}, "This user has older decisions only."),
      figures([["newest decisions", count(found.decisions.length)], ["personal part of their scores", percent(all ? own / all : null)]]),
      el("p", {}, el("button", { onclick: act(() => exportUser(loop, user)) }, "Export events"), " ",
        el("button", { class: "danger", onclick: () => erase(loop, user) }, "Erase…"))),
    found.decisions.map(s => section(null, el("h2", {}, link(s.event.event_id, "loops", loop, "events", s.event.event_id), ` at ${when(s.event.time)}`), story(loop, s, false)))];
}

async function hasEvents(loop, user) {
  const reader = (await ask(`${loopPath(loop)}/users/${segment(user)}/events`)).body.getReader(), { value } = await reader.read();
  reader.cancel();
  return Boolean(value?.length);
}

async function exportUser(loop, user) {
  const blob = await (await ask(`${loopPath(loop)}/users/${segment(user)}/events`)).blob();
  const node = el("a", { href: URL.createObjectURL(blob), download: "events.jsonl" });
  node.click();
  setTimeout(() => URL.revokeObjectURL(node.href), 60000);
}

function erase(loop, user) {
  const input = el("input", { id: "typed", autocomplete: "off", oninput: () => button.disabled = input.value != user });
  const button = confirm("Erase this user?", [
    el("p", {}, "The user's personal model and events are deleted from every file. This cannot be undone. The shared model keeps what it learned."),
    el("p", {}, el("label", { for: "typed" }, "Type the user's id to confirm: "), input)], "Erase for good", async () => {
    say("Erasing…");
    await ask(`${loopPath(loop)}/users/${segment(user)}`, { method: "DELETE" });
    say("");
    $("main").replaceChildren(section(null, el("p", {}, "The user was erased."), link("Back to the loop", "loops", loop)));
  });
  button.disabled = true;
}

// Which page

const FOCUSABLE = "a, button, input, summary, [tabindex]";
const parsed = hash => { try { return decodeURI(hash).startsWith("#/") ? hash.slice(2) : ""; } catch { return "?"; } };

async function show(isNew, moved = false) {
  const path = parsed(location.hash), turn = ++shown;
  const found = PAGES.map(([form, page, every]) => [path.match(form), page, every]).find(([match]) => match);
  leave();
  if (isNew) { $("main").replaceChildren(); say(LOADING); told.clear(); }
  for (const one of document.querySelectorAll("nav a"))
    one.hash && one.hash == (location.hash || "#/") ? one.setAttribute("aria-current", "page") : one.removeAttribute("aria-current");
  try {
    if (!found) throw Error("There is no such page.");
    const preview = parts => isNew && turn == shown && replace(parts, true); // what is known before the slow part
    const parts = await found[1](...found[0].slice(1).map(decodeURIComponent), preview);
    if (turn != shown) return;
    replace(parts.flat(9).filter(Boolean), isNew);
    if ($("status").textContent == LOADING || $("status").classList.contains("error")) say(""); // not what an action has just said
    if (moved) $("main").focus();
  } catch (error) {
    if (turn != shown || error.name == "AbortError") return;
    const hint = error.status == 401 ? " Enter a key above." : "";
    say(error.message + hint, true);
    if (isNew) document.title = "fedres";
  }
  if (found?.[2] && turn == shown) setTimeout(() => turn == shown && refresh(turn), found[2]);
}

function replace(parts, isNew) { // a renewed page keeps what is open, the focus, and how far tables are moved
  const main = $("main"), all = what => [...main.querySelectorAll(what)];
  const open = all("details").map(one => one.open), moved = all(".scroll").map(one => one.scrollLeft), at = all(FOCUSABLE).indexOf(document.activeElement);
  main.replaceChildren(...parts);
  const title = main.querySelector("h1")?.textContent;
  document.title = title ? `${title} – fedres` : "fedres";
  main.setAttribute("aria-label", title ?? "");
  if (isNew) return;
  all("details").forEach((one, k) => one.open = open[k] ?? one.open);
  all(".scroll").forEach((one, k) => one.scrollLeft = moved[k] ?? 0);
  if (at >= 0) all(FOCUSABLE)[at]?.focus({ preventScroll: true });
}

// Not while somebody types, marks text, has a dialog open or waits for an answer, and not in a tab that nobody sees.
function refresh(turn) {
  const busy = document.hidden || document.querySelector("dialog, main button[disabled]") || document.activeElement?.tagName == "INPUT" || String(getSelection());
  if (!busy) show(false);
  else setTimeout(() => turn == shown && refresh(turn), 1000);
}

if ($("access")) {
  $("key").value = sessionStorage.getItem("key") ?? "";
  $("access").addEventListener("submit", event => event.preventDefault());
  $("key").addEventListener("change", () => { sessionStorage.setItem("key", $("key").value.trim()); show(true); });
  addEventListener("hashchange", () => show(true, true));
  document.querySelector(".skip").addEventListener("click", event => { event.preventDefault(); $("main").focus(); });
  show(true);
} else if ($("report")) { // a file of `fedres report`
  const { loop, report } = JSON.parse($("report").textContent);
  document.title = `Loop ${loop} – fedres`;
  $("main").append(...loopParts(loop, null, report, null).flat(9).filter(Boolean));
}

// The page of a loop: the verdict, what it earns, what it decides, and whether the data are good.
import { BOX, bars, curves, iso, joined, legend, timeTicks } from "./charts.js";
import { controlGroupButton, holdButton, resumeButton } from "./manage.js";
import { firstDecision, stateMark } from "./overview.js";
import { $, act, again, ago, asTable, average, bounds, confirm, count, el, figures, json, link, loopPath, moment, note, number, percent, say, seconds, section, send, several, table, when, wide } from "./parts.js";

const REPORT_AGE = 30000; // milliseconds of a report before newer records make a new one worth its work
let shownLoop = {}; // what was read of the loop that is shown: its state, report and personalization

// One request for a poll: the state, or a new report once the state has shown newer records.
export async function loopPage(loop, preview) {
  if (shownLoop.loop != loop || shownLoop.isStale) shownLoop = { loop, more: {} };
  const data = shownLoop;
  const wantsReport = data.report && data.state.position > data.report.position && Date.now() - data.reportAt > REPORT_AGE;
  if (!data.report || !wantsReport) data.state = await json(`${loopPath(loop)}/state`);
  if (!data.report) {
    preview([heading(loop, data.state), verdict(loop, data.state, null), section(null, numbers(data.state, null), note("The report is being computed…"))]);
    readMore(data);
  }
  if (!data.report || wantsReport) {
    data.report = await json(`${loopPath(loop)}/report`);
    data.reportAt = Date.now();
  }
  await data.reading;
  return { parts: loopParts(loop, data.state, data.report, data.more), wrong: data.state.hold ? 1 : 0,
    unchanged: JSON.stringify([data.state, data.report.position]) };
}
export function forgetLoop() { shownLoop.isStale = true; } // its settings have changed

// Read what changes slowly once for a visit of the page: a part that fails is left out.
function readMore(data) {
  const read = part => json(`${loopPath(data.loop)}/${part}`).catch(() => undefined);
  data.reading = Promise.all([read("personal"), read("actions/report")]).then(([personal, decisions]) => {
    data.more = { personal, ...decisions };
  });
}

const LOOP_PAGES = [["Settings", "settings"], ["Catalogue", "actions"], ["Newest events", "events"], ["History", "history"]];
const pagesOf = loop => el("nav", { class: "pages", "aria-label": "Pages of the loop" },
  LOOP_PAGES.map(([name, page]) => el("span", { class: page == "history" ? null : "admin" }, link(name, "loops", loop, page))));

function heading(loop, state) {
  return el("div", { class: "heading" }, el("h1", {}, "Loop ", loop),
    state && !state.hold && holdButton(loop));
}

// The verdict comes first; while the loop is held, with the cause, the evidence and the way back.
function verdict(loop, state, report) {
  if (!state) return report.alarms.map(alarm => el("section", { class: "alarm" }, el("strong", {}, "Alarm:"), " ", alarm.message));
  const { verdict: { state: name, sentence, next_step, since } } = state;
  const isUrgent = ["held", "alarm", "worse"].includes(name);
  return el("section", { class: isUrgent ? "alarm verdict" : "verdict", role: isUrgent && !told.has(sentence) && told.add(sentence) ? "alert" : null },
    el("p", { class: "lead" }, stateMark(name), " ", sentence),
    since && note("Since ", moment(since), `, ${ago(since)}.`),
    state.hold && report?.lift && note("Evidence up to the hold: ", report.lift.sentence),
    el("p", {}, el("strong", {}, "Next: "), next_step, " ", state.hold && resumeButton(loop, state)),
    state.alarms.filter(alarm => alarm.code != "held" && !sentence.includes(alarm.message)).map(alarm =>
      el("p", {}, el("strong", {}, "Also: "), alarm.message, alarm.since && [" Since ", moment(alarm.since * 1000), "."])));
}
const told = new Set(); // verdicts that were read out, which a renewed page does not repeat

function numbers(state, report) {
  const lift = report?.lift;
  const arm = (name, one) => [name, one.reward === null ? "–" : [average(one.reward), note(`${several(one.users, "user")}, ${several(one.events, "event")}`)]];
  return figures([["decisions", count(state ? state.decisions : report.funnel.ranked)],
    ...(state ? [["in the last 24 hours", count(state.decisions_day ?? undefined)]] : []),
    ...(lift ? [arm("reward with the policy", lift.treatment), arm("reward of the control group", lift.control)]
      : [["mean reward", average(state ? state.reward : mean(report.policy))]]),
    ...(state ? [["users with a model", count(state.users)], ["pending", count(state.pending)]] : [])]);
}
const mean = line => line.reward.reduce((sum, v, k) => sum + (v ?? 0) * line.events[k], 0) / line.events.reduce((a, b) => a + b, 0);

export function loopParts(loop, state, r, more = {}) {
  const live = $("status") !== null; // else it is a file
  return [live ? heading(loop, state) : el("h1", {}, "Loop ", loop),
    verdict(loop, state, r),
    live && pagesOf(loop),
    section(null, numbers(state, r), state && state.pending > r.events / 20 && note("The figures are provisional: events count " +
      "once they are rewarded or their wait time is over.")),
    live && !r.funnel.ranked ? firstDecision(loopPath(loop), loop) : [doesItPay(loop, r, live), live && whatIf(loop, state)],
    r.bucket_ends.length ? el("div", { class: "grid" }, rewards(r), decided(more), traffic(r), pages(r.pages), funnel(r), drift(r.drift),
      howPersonal(more.personal), devices(loop, r.devices, state, live), whoGetsWhat(more), features(r)) : null,
    live && search(loop),
    el("p", { class: "note" }, `As of position ${count(r.position)}, `, moment(r.time), `; charts show the newest ${several(r.events, "finished event")}.` +
      (r.one_in > 1 ? ` They are one in ${count(r.one_in)}, as decisions of this loop are large.` : "") +
      (r.older_left_out ? " Older ones are in the counts only." : "") +
      (r.events_since ? ` Events from before ${when(r.events_since)} were removed.` : ""))];
}

// What it earns

const POLICIES = {
  logged: "logged: what the policy earned.", first: "first: always the first action of the request.",
  uniform: "uniform: any action with the same probability.", likeliest: "likeliest: always the action that the policy prefers.",
};

function doesItPay(loop, r, live) {
  const values = r.values.filter(v => v.policy != r.lift?.baseline); // the control group measures that one
  const broken = r.alarms.some(alarm => alarm.code == "guardrail");
  return section("Does it earn more?",
    broken && el("p", { class: "lead" }, el("strong", {}, "Do not ship: a guardrail is broken.")),
    el("p", { class: broken ? null : "lead" }, r.lift ? r.lift.sentence :
      "This loop has no control group. What other policies would have earned is estimated from the policy's own decisions."),
    r.lift ? note(`Experiment “${r.lift.experiment}” since `, moment(r.lift.began), `: ${several(r.lift.treatment.users, "user")} with the ` +
      `policy, ${several(r.lift.control.users, "user")} in the control group (${r.lift.baseline}).`,
    r.lift.paused_seconds > 0 && ` It was held for ${seconds(r.lift.paused_seconds)}, which does not count.`) : live && controlGroupButton(loop),
    r.lift?.outcomes.length > 0 && table(["outcome per event", "control group", "policy", "difference"], r.lift.outcomes.map(o =>
      [o.outcome, number(o.control), number(o.treatment), bounds(o.absolute)]), [1, 2, 3], "Outcomes"),
    values.length ? [table(["policy", "reward per event", "difference to logged", "note"], values.map(v =>
      [v.policy, bounds(v.reward), v.difference ? bounds(v.difference) : "", v.warning]), [1, 2], "Other policies"),
    note(values.map(v => POLICIES[v.policy]).join(" ") + " All but logged are estimates.")]
      : note("Other policies are estimated once 100 decisions are finished in which every action had a chance."));
}

function rewards(r) {
  const ends = r.bucket_ends;
  const lines = [["policy", r.policy], ["control group", r.control], ["uniform, estimated, all until then", r.uniform]]
    .filter(([, line]) => line.reward.some(v => v !== null));
  const drawn = lines.map(([name, line], k) => [name, k < 2 && line !== r.uniform ? joined(line) : line, k]);
  const marks = r.changes ?? [];
  return wide(section("Reward over time", legend(lines.map(([name]) => name)),
    curves(`mean reward by time: ${lines.map(([name]) => name).join(", ")}`, ends, drawn, { range: r.reward_range, marks }),
    note("Bands are about 95% intervals of single points, each of 20 events or more; the table has all spans of time. Lines break where nothing was decided."),
    marks.length > 0 && el("details", {}, el("summary", {}, `${several(marks.length, "change")} of the settings`),
      el("ul", {}, marks.map(mark => el("li", {}, moment(mark.time * 1000), ": ", mark.text)))),
    asTable(["until (UTC)", ...lines.flatMap(([name]) => [name, "from", "to", "events"])], ends.map((end, k) => [iso(end),
      ...lines.flatMap(([, l]) => [number(l.reward[k]), number(l.low[k]), number(l.high[k]), count(l.events[k])])]), [], "Reward over time")));
}

// What it decides, and for whom

function decided({ actions, segments = [] }) {
  if (!actions?.length) return null;
  const bestFor = action => segments.flatMap(segment => segment.rows.filter(row => leads(segment, row, action))
    .map(row => `${segment.feature} = ${row.value}`)).slice(0, 3).join(", ");
  return wide(section("What it decides", table(["action", "share now", "share before", "reward per event", "events", "taken most where"], actions.map(one =>
    [one.action, percent(one.share_now), percent(one.share_before), one.reward ? bounds(one.reward) : `${average(one.mean)} (${several(one.users, "user")})`,
      count(one.events), bestFor(one.action)]), [1, 2, 3, 4], "What it decides"),
  note("Shares of the policy's decisions: of the newest fifth, and of those before. Rewards are means of the decisions that took the action, " +
    "each with its 95% interval: the policy takes an action where it expects much of it, so they are not what the action would earn elsewhere.")));
}

function leads(segment, row, action) {
  const shares = row.cells.map(cell => cell.share);
  return segment.actions[shares.indexOf(Math.max(...shares))] == action;
}

function whoGetsWhat({ segments = [] }) {
  return segments.map(segment => wide(section(`Who gets what: ${segment.feature}`,
    table(["value", "events", ...segment.actions], segment.rows.map(row => [row.value, count(row.events),
      ...row.cells.map(cell => el("span", { class: "cell", "data-sort": cell.share },
        el("meter", { min: 0, max: 1, value: cell.share, "aria-hidden": "true" }), ` ${percent(cell.share)}`,
        cell.reward === null ? "" : ` · ${average(cell.reward)}`))]), [1], `Who gets what: ${segment.feature}`),
    note("Share of the policy's decisions, and mean reward, by value of a context feature."))));
}

function traffic(r) {
  const ends = r.bucket_ends;
  const names = r.traffic.actions.map(name => name ?? "all others");
  return section("Traffic by action", legend(names),
    bars("decisions of the policy by time and action", names, ends.map((_, k) => r.traffic.events.map(events => events[k])),
      () => timeTicks(ends), k => `Until ${when(ends[k] * 1000)}`),
    note(`Evenness (1: all actions alike, 0: one action) at the end: ${number(r.traffic.evenness.findLast(v => v !== null), 2)}`),
    asTable(["until (UTC)", ...names, "evenness"], ends.map((end, k) => [iso(end), ...r.traffic.events.map(e => count(e[k])),
      number(r.traffic.evenness[k], 2)]), [], "Traffic by action"));
}

const pages = p => p && section("Recommended items", figures([["items in the catalogue", count(p.items)], ["shown so far", percent(p.items ? p.shown / p.items : null)],
  ["places of new items", percent(p.new_share)]]),
table(["place", "events", "reward per event"], p.places.map(one => [one.place, count(one.events), number(one.reward)]), [0, 1, 2], "Recommended items"),
note("An item is new until it was shown ten times. Places differ by what is shown there, and by how many people look that far."));

// Whether the data are good

const funnel = r => section("From decision to reward", table(["step", "events", "share of decisions"], Object.entries(r.funnel).map(([name, n]) =>
  [name == "waiting" ? "pending" : name, count(n), percent(n / Math.max(1, r.funnel.ranked))]), [1, 2], "From decision to reward"),
el("h2", {}, "Delay of rewards"),
bars("rewards by delay", ["rewards"], r.delays.events.map(n => [n]), () => r.delays.up_to_seconds.map((s, k) => [s, k])
  .filter(([, k]) => k % 3 == 1).map(([s, k]) => [BOX.left + (BOX.right - BOX.left) * (k + 1) / r.delays.events.length, seconds(s)]),
k => delayName(r.delays, k)),
asTable(["up to", "rewards"], r.delays.events.map((n, k) => [delayName(r.delays, k), count(n)]), [1], "Delay of rewards"));
const delayName = (delays, k) => k < delays.up_to_seconds.length ? `up to ${seconds(delays.up_to_seconds[k])}` : "longer";

const BETTER = { reward: 1, squared_error: -1 }; // the direction that is good; a bias has none
function comparison(name, { earlier, recent, difference }) {
  if (difference.low <= 0 && difference.high >= 0) return "cannot tell";
  if (name == "bias") return Math.abs(recent) > Math.abs(earlier) ? "worse" : "better";
  return (difference.low > 0 ? 1 : -1) == BETTER[name] ? "better" : "worse";
}

function drift(d) {
  if (!d) return section("Drift", note("From 500 finished events of the policy on, the newest fifth is compared with the others. Both parts need 20 users."));
  const names = { reward: "reward", bias: "reward less prediction", squared_error: "squared error of the prediction" };
  const judged = Object.keys(names).map(name => [name, comparison(name, d[name])]);
  const words = word => judged.filter(([, one]) => one == word).map(([name]) => names[name]).join(", ");
  const sentence = ["worse", "better", "cannot tell"].map(word => words(word) && `${word}: ${words(word)}`).filter(Boolean).join("; ");
  return section("Drift", el("p", {}, d.is_drifting ? "Recent rewards differ from predictions. " : "", `Recent decisions against those before: ${sentence}.`),
    table(["per event", "before", "recent", "difference", "judgment"], judged.map(([name, word]) =>
      [names[name], number(d[name].earlier), number(d[name].recent), bounds(d[name].difference), word]), [1, 2, 3], "Drift"),
    note(`Recent: the newest ${count(d.recent_events)} events of the policy, since `, moment(1000 * d.recent_since), `. Before: ${count(d.earlier_events)} events. ` +
      "Differences are ± 4 standard errors."));
}

const howPersonal = p => p && section("How personal", figures([["personal part of scores", percent(p.share)], ["users with a model", count(p.users_with_model)],
  ...(p.trust === null ? [] : [["trust in users' own data", percent(p.trust)]])]),
note(`Of the actions taken in the newest decisions of ${several(p.looked_at, "user")}, ${count(p.with_model)} of whom have a personal model.` +
    (p.trust === null ? "" : " Trust is how much of the uncertainty about what is special about a user the user's own data has taken away: 0% for a new user.")));

function devices(loop, d, state, live) {
  if (!d) return null;
  const holder = el("div");
  const list = el("button", { onclick: act(async () => {
    const found = await json(`${loopPath(loop)}/devices`);
    holder.replaceChildren(table(["device", "last upload", "uploads", "records behind"],
      found.devices.map(one => [one.client, moment(one.last), count(one.uploads), count(one.lag)]), [2, 3], "Devices"));
  }) }, "List devices");
  return section("Devices", figures([["devices", count(d.devices)], ["in the last hour", count(d.last_hour)], ["in the last day", count(d.last_day)],
    ["uploads", count(d.uploads)],
    ...(state ? [["learned from", count(state.learned_uploads)], ["ignored by the defenses", count(state.ignored_uploads)]] : []),
    ["records behind (median)", count(d.median_lag)]]),
  note("Behind: records logged between the model that a device used and its newest upload."), live && el("p", {}, list), holder);
}

const NOTES = { constant: "constant: no information", gone: "gone: earlier events had it", "never taken": "only in the catalogue: no chosen action has it" };
const features = r => wide(section("Features of the newest events", table(["of", "feature", "importance", "coverage", "values", "remark"], r.features.map(f =>
  [f.kind, f.name, number(f.importance, 2), percent(f.coverage), count(f.values), NOTES[f.note] ?? f.note]), [2, 3, 4], "Features of the newest events")));

// Other settings of exploration

const described = changes => Object.entries(changes).map(([name, value]) => `${name} = ${value ?? "default"}`).join(", ");
const estimates = new Map(); // by loop: what was requested stays while the page is renewed

function whatIf(loop, state) {
  const holder = el("div");
  const fill = ({ found, now }) => holder.replaceChildren(
    note("Less exploration looks better here than it is in the long run: the estimate ignores what the models would have learned otherwise."),
    note(`Estimated from the newest ${count(found.events)} decisions of the policy, with the models that made them. They earned ${bounds(found.logged)} per event.`),
    table(["settings", "reward per event", "difference", "note", "change"], [[`now: ${now}`, bounds(found.logged), "", "", ""],
      ...found.estimates.map(one => [described(one.settings), bounds(one.reward), bounds(one.difference), one.warning,
        one.reward && !(one.difference?.high < 0) && el("button", { onclick: () => apply(loop, state, one, now) }, "Apply…")])], [1, 2], "Other settings"));
  const button = el("button", { onclick: act(async () => {
    const found = await (await send(`${loopPath(loop)}/what-if`, "POST", {})).json();
    estimates.set(loop, { found, now: described(found.now) });
    fill(estimates.get(loop));
  }) }, "Estimate other settings");
  if (estimates.has(loop)) fill(estimates.get(loop));
  return section("What if it explored differently?", el("p", {}, button), holder);
}

const apply = (loop, state, one, now) => confirm("Change these settings?", [el("p", {}, `From ${now} to ${described(one.settings)}.`),
  el("p", {}, `The estimated difference is ${bounds(one.difference)} per event; less exploration looks better than it is in the long run. It takes effect at once, and needs an admin key.`)],
"Apply", async () => {
  await send(`${loopPath(loop)}/settings`, "PATCH", one.settings, state?.settings_version);
  estimates.delete(loop);
  forgetLoop();
  again();
  say("The settings are changed.");
});

function search(loop) {
  const form = (name, what) => {
    const input = el("input", { id: "find-" + name, required: true, maxlength: 200, autocomplete: "off" });
    return el("form", { class: "inline", role: "search", "aria-label": `Look up: ${name}`, onsubmit: event => {
      event.preventDefault();
      location.hash = "#/" + ["loops", loop, what, input.value].map(encodeURIComponent).join("/");
    } }, el("label", { for: "find-" + name }, name + " id "), input, el("button", {}, "Show"));
  };
  return section("Look up", el("div", { class: "grid" }, form("event", "events"), form("user", "users")),
    note("Events and users need an admin key, where the service has keys."));
}

// The first page: all loops by one request, the most urgent first.
import { intervalBar, sparkline } from "./charts.js";
import { newLoop, resumeButton } from "./manage.js";
import { ROOT, again, average, count, el, json, link, moment, note, percent, section, several, table, visible } from "./parts.js";

// Words and signs of the states, as service/plugins/reports/verdicts.py orders them.
export const STATES = {
  held: ["■", "held"], alarm: ["▲", "alarm"], worse: ["▼", "worse"], unknown: ["?", "unknown"],
  proven: ["✔", "proven"], learning: ["…", "learning"], running: ["●", "running"], empty: ["○", "empty"],
};
const URGENT = ["held", "alarm", "worse"];
const FIRST = 100; // loops, until somebody wants all
const MOST_URGENT = 5; // with a card of their own above the list

export const stateMark = state => el("span", { class: `state is-${state}` },
  el("span", { "aria-hidden": "true" }, STATES[state][0]), " ", STATES[state][1]);

// The filter is part of the address, so that a view can be shared and outlives a reload.
export function addressOf(query) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return "#/" + (words && `?${words}`);
}

function lift(row) {
  if (row.hold && row.lift?.absolute) return [el("span", {}, "frozen: ", gain(row)), bar(row)];
  if (!row.lift) return row.control_share ? "too early" : "–";
  return row.lift.absolute ? [gain(row), bar(row)] : row.lift.missing ?? "too early";
}
const gain = row => row.lift.in_words;
const bar = row => intervalBar(`Interval of the lift of ${row.loop}`, row.lift.absolute);

const decides = row => !row.actions.length ? "" :
  note(`${several(row.n_actions, "action")}; most often `, row.actions.map(({ action, share }) => `${action} ${percent(share)}`).join(", "));

function problems(row) {
  const { state, sentence, since } = row.verdict;
  return el("section", { class: "alarm" }, stateMark(state), " ", el("strong", {}, link(row.loop, "loops", row.loop)),
    since && [" since ", moment(since)], el("p", {}, sentence), el("p", {}, row.verdict.next_step, " ",
      row.hold && resumeButton(row.loop, row)));
}

const HEADS = ["state", "loop", "lift against control", "reward over time", "decisions, 24 h", "next step"];
const cells = row => [
  stateMark(row.verdict.state),
  el("div", {}, link(row.loop, "loops", row.loop), decides(row)),
  el("div", { "data-part": "lift", "data-sort": row.lift?.absolute?.value ?? "" }, lift(row)),
  el("div", { "data-sort": row.reward ?? "" }, row.policy.length ? sparkline(`Reward of ${row.loop} over time`, row.policy, row.control) : "–",
    row.reward !== null && note(`${average(row.reward)}`, row.control_reward === null ? "" : ` / ${average(row.control_reward)} control`)),
  el("div", { "data-sort": row.decisions_day ?? -1 }, count(row.decisions_day ?? undefined), note(`${count(row.decisions)} in all`)),
  el("div", {}, el("div", {}, row.verdict.sentence), note(row.verdict.next_step)),
];

function stateButtons(counts, query, change) {
  const all = Object.values(counts).reduce((a, b) => a + b, 0);
  const button = (state, label, n) => el("button", {
    "aria-pressed": String((query.state ?? "") == state), onclick: () => change({ ...query, state }),
  }, `${label} ${count(n)}`);
  return el("p", { class: "states", role: "group", "aria-label": "Show loops by state" }, button("", "all", all),
    Object.entries(counts).map(([state, n]) => [" ", button(state, STATES[state].join(" "), n)]));
}

export const wrongIn = overview =>
  URGENT.reduce((sum, state) => sum + (overview.counts[state] ?? 0), 0) + (overview.trouble ? 1 : 0);

let all = false; // loops are shown

export async function overviewPage(query) {
  const words = new URLSearchParams({ limit: all ? 1000 : FIRST, ...query }).toString();
  const overview = await json(`v1/overview?${words}`);
  const change = next => { location.hash = addressOf(next); };
  const input = el("input", { id: "filter", type: "search", value: query.has ?? "", autocomplete: "off", maxlength: 200,
    onchange: () => change({ ...query, has: input.value.trim() }) });
  const rows = overview.loops;
  const urgent = rows.filter(row => URGENT.includes(row.verdict.state));
  const list = table(HEADS, rows.map(cells), [], "Loops", all ? rows.length : FIRST);
  list.classList.add("cards");
  const parts = [el("h1", {}, "Loops"),
    overview.trouble && el("section", { class: "alarm" }, el("strong", {}, "Trouble"), " ", visible(overview.trouble)),
    urgent.slice(0, MOST_URGENT).map(problems),
    section(null,
      !wrongIn(overview) && overview.total > 0 && el("p", { class: "well" }, "All well: no loop is held, broke a guardrail or earns less than its control group."),
      el("p", {}, el("label", { for: "filter" }, "Name has "), input), stateButtons(overview.counts, query, change),
      overview.computing > 0 && note(`The reports of ${several(overview.computing, "loop")} are being computed.`),
      rows.length ? list : note(overview.total ? "No loop fits." : "There is no loop yet."),
      overview.matching > rows.length && el("button", { onclick: () => { all = true; again(); } },
        `Show all ${count(overview.matching)}`), newLoop()),
    overview.has_demo && section("Demo", el("p", {}, el("a", { href: ROOT + "demo" }, "A news site that learns from you"), ", beside its simulated readers.")),
    rows.length > 0 && rows.every(row => !row.decisions) && !query.has && !query.state && firstDecision("v1")];
  return { parts, wrong: wrongIn(overview), unchanged: JSON.stringify({ ...overview, time: 0 }) };
}

// How to begin, in three languages; the page changes by itself once a decision has arrived.
export function firstDecision(path, loop) {
  const url = location.origin + ROOT;
  const post = "-H 'Content-Type: application/json' -d";
  const name = loop ? `, loop="${loop}"` : "";
  const curl = `curl -s '${url}${path}/rank' ${post} '{"event_id": "first", "actions": [{"id": "tea"}, {"id": "juice"}]}'\n` +
    `curl -s '${url}${path}/events/first/reward' ${post} '{"value": 1}'`;
  const python = `from fedres.client import Client\n\nwith Client("${url}"${name}) as client:\n` +
    `    decision = client.rank(user="anna", actions=["tea", "juice"])\n    decision.reward(1)`;
  const script = `const client = new Client("${url}"${loop ? `, { loop: "${loop}" }` : ""});\n` +
    `const decision = await client.rank({ user: "anna", actions: ["tea", "juice"] });\ndecision.reward(1);`;
  return section("Waiting for the first decision…", el("p", {}, "A first decision and its reward:"), el("pre", {}, curl),
    el("details", {}, el("summary", {}, "Python"), el("pre", {}, python)),
    el("details", {}, el("summary", {}, "TypeScript"), el("pre", {}, script)),
    note("Where the service has keys, add -H 'Authorization: Bearer KEY', or the key to the client."));
}

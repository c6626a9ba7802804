// Pages of events and of users.
import { legend } from "./charts.js";
import { act, ask, below, confirm, count, el, figures, json, link, loopPath, moment, note, number, percent, say, section, segment, table, $ } from "./parts.js";

const WINDOW = 1000; // records looked through for the newest events
const NEWEST = 50;

export async function newestEventsPage(loop) {
  const { position } = await json(`${loopPath(loop)}/state`);
  const lines = await (await ask(`${loopPath(loop)}/events?after=${Math.max(0, position - WINDOW)}`)).text();
  const events = lines.split("\n").filter(Boolean).slice(-NEWEST).map(line => JSON.parse(line)).reverse();
  const row = e => [moment(e.time), link(e.event_id, "loops", loop, "events", e.event_id),
    e.user === null ? "–" : link(e.user, "loops", loop, "users", e.user), e.action, e.arm ?? "–", number(e.probability), number(e.reward), e.status];
  return [el("h1", {}, "Newest events of ", loop), below(loop), section(null, events.length
    ? table(["time", "event", "user", "action", "arm", "probability", "reward", "status"], events.map(row), [5, 6], "Newest events")
    : note("No event in the newest records of the log."))];
}

// Why an action was taken: a sentence, and bars from the shared and the personal part to the score

const ARMS = { control: "control group", held: "hold", treatment: "policy" };

function reason(event, ranking) {
  if (event.arm == "control" || event.arm == "held") return `Taken by the baseline (${ARMS[event.arm]}), not by the policy.`;
  if (ranking.length < 2) return "";
  const taken = ranking.find(one => one.id == event.action);
  const others = ranking.filter(one => one.id != event.action);
  const best = Math.max(...others.map(one => one.score));
  const chance = `It had a probability of ${percent(taken.probability)}.`;
  if (taken.score >= best) return `Taken as the best: its score was ${number(taken.score - best, 2)} above the next. ${chance}`;
  return `Taken to explore: its score was ${number(best - taken.score, 2)} below the best. ${chance}`;
}

function scoreBars(ranking, explained) {
  const rows = ranking.map(one => explained.get(one.id)).filter(Boolean);
  if (!rows.length) return null;
  const most = Math.max(...rows.flatMap(one => [Math.abs(one.shared), Math.abs(one.personal), Math.abs(one.shared + one.personal)]), 1e-9);
  const bar = (value, style) => el("svg", { class: "part", viewBox: "0 0 100 8", "aria-hidden": "true" },
    el("line", { class: "zero", x1: 50, x2: 50, y1: 0, y2: 8 }),
    el("rect", { class: "s" + style, x: value < 0 ? 50 + 50 * value / most : 50, y: 1, width: 50 * Math.abs(value) / most, height: 6 }));
  const cell = (value, style) => el("span", { "data-sort": value }, number(value), bar(value, style));
  return [el("h2", {}, "Scores by the current models"), legend(["shared", "personal", "both"]),
    table(["action", "shared", "personal", "sum", "strongest parts", "other parts"], rows.map(one => {
      const parts = one.strongest.slice(0, 5);
      const rest = one.shared + one.personal - parts.reduce((sum, part) => sum + part.shared + part.personal, 0);
      return [one.id, cell(one.shared, 0), cell(one.personal, 1), cell(one.shared + one.personal, 2), strongest(parts), number(rest, 2)];
    }), [1, 2, 3, 5], "Scores by the current models"), note("Strongest and other parts add up to the sum.")];
}
const strongest = parts => parts.map(part =>
  `${[part.context, part.action].filter(Boolean).join(" × ") || "what is common to all"} ${number(part.shared + part.personal, 2)}`).join("; ");

function story(loop, s, open) {
  const e = s.event;
  const explained = new Map(s.explanations.map(one => [one.id, one]));
  return [
    figures([["action", e.action], ["probability", number(e.probability)], ["reward", number(e.reward)], ["status", e.status == "waiting" ? "pending" : e.status],
      ["arm", ARMS[e.arm] ?? "–"], ["user", e.user === null ? "–" : link(e.user, "loops", loop, "users", e.user)]]),
    el("p", {}, reason(e, s.ranking)),
    el("details", { open }, el("summary", {}, "Why, and what else could have been taken"),
      table(["action", "probability", "score then"], s.ranking.map(one => [one.id, number(one.probability), number(one.score)]), [1, 2], "What could have been taken"),
      scoreBars(s.ranking, explained)),
    el("details", { open }, el("summary", {}, "What was logged"), table(["time", "what", "value", "id"], s.records.map(one =>
      [moment(one.time), one.outcome ? `${one.kind}: ${one.outcome}` : one.kind, one.value === undefined ? "" : number(one.value), one.id ?? ""]), [], "What was logged"),
    e.actions.length > 50 && note(`The first 50 of ${count(e.actions.length)} actions:`),
    el("pre", {}, JSON.stringify({ context: e.context, outcomes: e.outcomes, actions: e.actions.slice(0, 50), model_version: e.model_version, position: e.position }, null, 1))),
  ];
}

export async function eventPage(loop, event) {
  const s = await json(`${loopPath(loop)}/events/${segment(event)}`);
  return [el("h1", {}, "Event ", event), below(loop), section(null, el("p", {}, "Decided ", moment(s.event.time)), story(loop, s, true))];
}

export async function userPage(loop, user) {
  const found = await json(`${loopPath(loop)}/users/${segment(user)}/decisions`);
  if (!found.decisions.length && !await hasEvents(loop, user))
    return [el("h1", {}, "User ", user), below(loop), section(null, el("p", {}, "The log has nothing of this user in this loop."))];
  const parts = found.decisions.flatMap(s => s.explanations.filter(one => one.id == s.event.action));
  const personal = parts.reduce((sum, one) => sum + Math.abs(one.personal), 0);
  const all = personal + parts.reduce((sum, one) => sum + Math.abs(one.shared), 0);
  return [el("h1", {}, "User ", user), below(loop),
    section(null, !found.decisions.length && el("p", {}, "This user has older decisions only."),
      figures([["newest decisions", count(found.decisions.length)], ["personal part of their scores", percent(all ? personal / all : null)]]),
      el("p", {}, el("button", { onclick: act(() => exportUser(loop, user)) }, "Export events"), " ",
        el("button", { class: "danger", onclick: () => erase(loop, user) }, "Erase…"))),
    found.decisions.map(s => section(null, el("h2", {}, link(s.event.event_id, "loops", loop, "events", s.event.event_id), " at ", moment(s.event.time)), story(loop, s, false)))];
}

async function hasEvents(loop, user) {
  const reader = (await ask(`${loopPath(loop)}/users/${segment(user)}/events`)).body.getReader();
  const { value } = await reader.read();
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

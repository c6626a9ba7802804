// The news site of `fedres serve --demo`: one real reader among simulated ones.
import { $, el, json, number, say, send, several, when } from "./parts.js";

const LOOP = "v1/loops/demo", TOPICS = ["sport", "music", "food", "travel", "science"], READERS = 10, EVERY = 10000;
const ARTICLES = TOPICS.flatMap(topic => ["short", "long"].map(length => ({ id: `${length}-${topic}`, features: { topic, length } })));
const HEADLINES = { sport: "Late goal decides the final", music: "An orchestra without a conductor", food: "The best soup of the season",
  travel: "Three days by night train", science: "What a bee sees" };
const title = id => { const [length, topic] = id.split("-"); return `${HEADLINES[topic]} (${length} read)`; };
let decision = null, read = 0, asked = 0;

const post = async (path, body) => (await send(path, "POST", body)).text();

function reasons(one) {
  const parts = (one?.strongest ?? []).slice(0, 3).map(p => `${[p.context, p.action].filter(Boolean).join(" × ") || "in general"} ${number(p.shared + p.personal, 2)}`);
  return parts.length ? `Why: ${parts.join("; ")}. Personal part of the score: ${number(one.personal, 2)}.` : "Nothing has been learned yet.";
}

function list(ranking, chosen, explanations, button) {
  const why = new Map(explanations.map(one => [one.id, one]));
  return el("ol", { class: "articles" }, ranking.map(one => el("li", { class: one.id == chosen ? "chosen" : null },
    el("strong", {}, title(one.id)), one.id == chosen && " · on top", button && el("p", {}, button(one.id)),
    el("p", { class: "note" }, `score ${number(one.score, 2)}, probability ${number(one.probability, 2)}. ${reasons(why.get(one.id))}`))));
}

async function front() {
  const turn = ++asked;
  const body = { user: $("name").value || "you", context: { when: $("when").value }, actions: ARTICLES, explain: true };
  const found = JSON.parse(await post(`${LOOP}/rank`, body));
  if (turn != asked) return;
  decision = found;
  const order = [found.ranking.find(one => one.id == found.action), ...found.ranking.filter(one => one.id != found.action)];
  $("front").replaceChildren(
    el("p", { class: "note" }, `${several(read, "article")} read. ${found.arm == "control" ? "You are in the control group: the editor decides, try another name." : ""}`),
    list(order, found.action, found.explanations ?? [], id => el("button", { onclick: () => choose(id) }, "Read")),
    el("p", {}, el("button", { onclick: () => choose(null) }, "Nothing for me")));
}

// Reading the article on top is a reward for it; reading another one, or none, is not.
async function choose(id) {
  const { event_id, action } = decision;
  try {
    await post(`${LOOP}/events/${encodeURIComponent(event_id)}/reward`, { value: id == action ? 1 : 0 });
    read += id !== null;
    say(id === null ? "Skipped." : `You read “${title(id)}”.`);
    await front();
  } catch (error) { say(error.message, true); }
}

async function compare() {
  const { decisions } = await json(`${LOOP}/users/${encodeURIComponent($("other").value)}/decisions`);
  const [newest] = decisions;
  $("compared").replaceChildren(...(newest ? [el("p", { class: "note" }, `Decided on ${when(newest.event.time)}, ${newest.event.context.when}; reward ${newest.event.reward ?? "not yet"}.`),
    list(newest.ranking, newest.event.action, newest.explanations)] : [el("p", {}, "No decision yet.")]));
}

async function lift() {
  const report = await json(`${LOOP}/report`);
  $("lift").textContent = report.lift?.sentence ?? "There is no control group.";
}

async function every() {
  if (!document.hidden)
    try { await Promise.all([compare(), lift()]); } catch (error) { say(error.message, true); }
  setTimeout(every, EVERY);
}

const begin = () => front().then(() => true, error => say(error.status == 404 ? "Start the service with: fedres serve --demo" : error.message, true));
$("other").append(...Array.from({ length: READERS }, (_, k) => el("option", {}, `reader-${k}`)));
for (const form of ["you", "them"]) $(form).addEventListener("submit", event => event.preventDefault());
for (const id of ["name", "when"]) $(id).addEventListener("change", begin);
$("other").addEventListener("change", () => compare().catch(error => say(error.message, true)));
begin().then(good => good && every());

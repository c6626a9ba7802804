// Pages that change a loop: settings, catalogue, control group, new loops. They need an admin key where the service has keys.
import { act, ask, confirm, count, el, json, link, loopPath, number, say, section, send, table, when } from "./parts.js";

const IGNORED = { "residual-kalman": ["learning_rate", "crosses", "global_learner", "hyperparameters", "bits", "timing"] }; // by model, as service/settings.py has it
const FIXED = ["model", "global_learner", "hyperparameters", "bits", "draws_by_loop"]; // once a loop is created
const WINDOW = 1000; // records looked through for the newest events
const NEWEST = 50;

const below = loop => el("p", {}, "in ", link(loop, "loops", loop));
const again = () => dispatchEvent(new Event("hashchange")); // shows the page anew

// Settings: one field for each, made from the schema of the API

const isNull = part => part.type == "null";
const kinds = schema => (schema.anyOf ?? [schema]).filter(part => !isNull(part));
const choicesOf = schema => [...kinds(schema).flatMap(part => part.enum ?? (part.type == "boolean" ? [true, false] : [])), ...((schema.anyOf ?? []).some(isNull) ? [null] : [])];

function field(name, value, schema) {
  const id = "setting-" + name, text = JSON.stringify(value);
  if (kinds(schema).every(part => part.enum || part.type == "boolean"))
    return el("select", { id }, choicesOf(schema).map(choice => el("option", { value: JSON.stringify(choice), selected: choice === value }, String(choice ?? "default"))));
  if (typeof value == "object" && value !== null) {
    const area = el("textarea", { id, spellcheck: "false", rows: Math.ceil((text.length + 1) / 34) });
    area.value = text;
    return area;
  }
  return el("input", { id, value: text, autocomplete: "off" });
}

function changesIn(fields, settings) {
  const changes = {};
  for (const [name, input] of Object.entries(fields)) {
    let value;
    try { value = JSON.parse(input.value); } catch { throw Error(`${name} must be JSON, for example 0.5, null or {"a": 1}: got ${input.value}`); }
    if (JSON.stringify(value) != JSON.stringify(settings[name])) changes[name] = value;
  }
  return changes;
}

export async function settingsPage(loop) {
  const [{ version, settings }, { components }] = await Promise.all([json(`${loopPath(loop)}/settings`), json("openapi.json")]);
  const names = Object.keys(settings).filter(name => !IGNORED[settings.model]?.includes(name));
  const fields = Object.fromEntries(names.map(name => [name, field(name, settings[name], components.schemas.Settings.properties[name])]));
  for (const name of FIXED.filter(name => fields[name])) fields[name].disabled = true;
  const save = act(async () => {
    const changes = changesIn(fields, settings);
    if (!Object.keys(changes).length) return say("Nothing is changed.");
    await send(`${loopPath(loop)}/settings`, "PATCH", changes, version);
    again();
    say(`Changed: ${Object.keys(changes).join(", ")}.`);
  });
  return [el("h1", {}, "Settings of ", loop), below(loop), section(null,
    el("p", { class: "note" }, "Changes take effect at once, for new decisions. null means the default. What is disabled is fixed when a loop is created."),
    el("div", { class: "settings" }, names.map(name => [el("label", { for: "setting-" + name }, name), fields[name]])),
    el("p", {}, el("button", { onclick: save }, "Save")))];
}

export const controlGroupButton = loop => el("p", {}, el("button", { onclick: () => confirm("Start a control group?", [
  el("p", {}, "For one user in ten, the first action of each request is taken from now on, without learning from it. The loop's page then shows how much more the policy earns."),
  el("p", {}, "Send your actions in the order in which you would show them without fedres.")], "Start", async () => {
  await send(`${loopPath(loop)}/settings`, "PATCH", { control: { share: 0.1, baseline: "first" } });
  again();
}) }, "Start a control group…"));

// The catalogue

export async function cataloguePage(loop) {
  const { actions } = await json(`${loopPath(loop)}/actions`), change = body => send(`${loopPath(loop)}/actions`, "PUT", body);
  const id = el("input", { id: "action-id", maxlength: 200, autocomplete: "off" }), features = el("input", { id: "action-features", value: "{}", autocomplete: "off", spellcheck: "false" });
  const add = act(async () => {
    let parsed;
    try { parsed = JSON.parse(features.value); } catch { throw Error(`Features must be a JSON object, for example {"topic": "tea"}: got ${features.value}`); }
    await change({ put: [{ id: id.value, features: parsed }] });
    again();
  });
  const retire = action => confirm("Retire this action?", [el("p", {}, action, " can then no longer be named by its id alone.")], "Retire", async () => {
    await change({ retire: [action] });
    again();
  });
  return [el("h1", {}, "Catalogue of ", loop), below(loop), section(null,
    actions.length ? table([`action (${count(actions.length)})`, "features", ""], actions.map(action => [action.id, JSON.stringify(action.features),
      el("button", { onclick: () => retire(action.id) }, "Retire…")])) : el("p", { class: "note" }, "Empty. Requests can send actions with their features, or store them here once and name them by id.")),
    section("Add or change an action", el("div", { class: "settings" }, el("label", { for: "action-id" }, "id"), id,
      el("label", { for: "action-features" }, "features"), features), el("p", {}, el("button", { onclick: add }, "Store")))];
}

// Events

export async function newestEventsPage(loop) {
  const learned = await json("v1/status").then(status => status.loops[loop]?.model_version, () => undefined); // not for a key of one loop
  const position = learned ?? (await json(`${loopPath(loop)}/report`)).position;
  const lines = await (await ask(`${loopPath(loop)}/events?after=${Math.max(0, position - WINDOW)}`)).text();
  const events = lines.split("\n").filter(Boolean).slice(-NEWEST).map(line => JSON.parse(line)).reverse();
  return [el("h1", {}, "Newest events of ", loop), below(loop), section(null, events.length ? table(["time", "event", "user", "action", "probability", "reward", "status"], events.map(e =>
    [when(e.time), link(e.event_id, "loops", loop, "events", e.event_id), e.user === null ? "–" : link(e.user, "loops", loop, "users", e.user), e.action, number(e.probability), number(e.reward), e.status]), [4, 5])
    : el("p", { class: "note" }, "No event in the newest records of the log."))];
}

// Loops

export function newLoop() {
  const name = el("input", { id: "new-loop", maxlength: 200, autocomplete: "off" });
  const create = act(async () => {
    await send("v1/loops", "POST", { name: name.value });
    location.hash = "#/" + ["loops", name.value, "settings"].map(encodeURIComponent).join("/");
  });
  return el("details", {}, el("summary", {}, "New loop"), el("p", {}, el("label", { for: "new-loop" }, "Name "), name, " ", el("button", { onclick: create }, "Create")));
}

// Pages that change a loop: hold and resume, settings, catalogue, control group, new loops. They need
// an admin key where the service has keys.
import { act, again, ask, below, bounds, clearErrors, confirm, count, el, json, link, loopPath, moment, note, percent, report, say, section, send, several, table } from "./parts.js";

// Hold and resume

export const holdButton = loop => el("button", { class: "danger", onclick: () => {
  const reason = el("input", { id: "hold-reason", maxlength: 1000, autocomplete: "off", oninput: () => button.disabled = !reason.value.trim() });
  const button = confirm("Hold this loop?", [
    el("p", {}, "The baseline decides for everybody at once. The experiment pauses: its figures stay as they are, and it goes on when you resume."),
    el("p", {}, el("label", { for: "hold-reason" }, "Reason "), reason)], "Hold now", async () => {
    await send(`${loopPath(loop)}/hold`, "POST", { reason: reason.value.trim() });
    again();
    say(`Held: ${reason.value.trim()}`);
  });
  button.disabled = true;
} }, "Hold…");

// The request names the version that the page has shown, so that a newer hold stays.
export const resumeButton = (loop, state) => el("button", { onclick: () => confirm("Resume this loop?", [
  el("p", {}, `It is held: ${state.hold}`),
  el("p", {}, "The policy decides again at once, and the experiment goes on. Guardrails then judge what is decided from now on.")],
"Resume now", async () => {
  await ask(`${loopPath(loop)}/resume`, { method: "POST", version: state.settings_version }).catch(error => {
    throw error.status == 412 ? Object.assign(Error("The settings have changed since this page was read. Read the hold again."), { status: 412 }) : error;
  });
  again();
  say("Resumed: the policy decides.");
}) }, "Resume…");

// Settings: a field for each, with what it means, made from the service's schema

const UNITS = { wait_time: "seconds", retention: "seconds", update_interval: "seconds", outcomes: "seconds for each" };
const GROUPS = {
  "Goal": ["reward_range", "default_reward", "wait_time", "wait_from", "aggregation", "outcomes", "formula"],
  "Exploration": ["policy", "gamma", "floor", "epsilon", "apprentice", "draws_by_loop"],
  "Control group": ["control.share", "control.baseline", "control.experiment", "control.learn"],
  "Guardrails": ["guardrails"],
  "Storage": ["retention", "annotations"],
};
const isNull = part => part.type == "null";
const kinds = schema => (schema.anyOf ?? [schema]).filter(part => !isNull(part));
const choicesOf = schema => [...kinds(schema).flatMap(part => part.enum ?? (part.type == "boolean" ? [true, false] : [])),
  ...((schema.anyOf ?? []).some(isNull) ? [null] : [])];
const isChoice = schema => kinds(schema).length > 0 && kinds(schema).every(part => part.enum || part.type == "boolean");

function field(name, value, schema, isFixed) {
  const id = "setting-" + name;
  const text = JSON.stringify(value);
  const rest = { id, disabled: isFixed, "aria-describedby": `${id}-about` };
  if (isChoice(schema)) return el("select", rest, choicesOf(schema).map(choice =>
    el("option", { value: JSON.stringify(choice), selected: choice === value }, String(choice ?? "default"))));
  if (typeof value != "object" || value === null) return el("input", { ...rest, value: text, autocomplete: "off" });
  const area = el("textarea", { ...rest, spellcheck: "false", rows: Math.ceil((text.length + 1) / 34) });
  area.value = text;
  return area;
}

const valueAt = (settings, name) => name.split(".").reduce((part, key) => part?.[key], settings);

function changesIn(fields, settings) {
  const changes = {};
  for (const [name, input] of Object.entries(fields)) {
    let value;
    try { value = JSON.parse(input.value); } catch {
      const message = `${name} must be JSON, for example 0.5, null or {"a": 1}: got ${input.value}`;
      throw Object.assign(Error(message), { field: input });
    }
    if (JSON.stringify(value) == JSON.stringify(valueAt(settings, name))) continue;
    const [setting, part] = name.split(".");
    if (part) (changes[setting] ??= {})[part] = value;
    else changes[setting] = value;
  }
  return changes;
}

function fieldRow(name, fields, settings, schema) {
  const part = schema.properties[name] ?? schema.control[name.split(".")[1]];
  const isUnused = schema.unused[settings.policy]?.includes(name);
  fields[name] = field(name, valueAt(settings, name), part, schema.fixed.includes(name));
  const initial = fields[name].value;
  fields[name].addEventListener("input", () => fields[name].classList.toggle("changed", fields[name].value != initial));
  const about = [part.description, UNITS[name] && `In ${UNITS[name]}.`, part.default !== undefined && `Default: ${JSON.stringify(part.default)}.`,
    schema.fixed.includes(name) && "Fixed when the loop was created.", isUnused && `The policy ${settings.policy} does not use it.`];
  return [el("label", { for: "setting-" + name }, name), el("div", {}, fields[name],
    el("p", { class: "note", id: `setting-${name}-about` }, about.filter(Boolean).join(" ")))];
}

export async function settingsPage(loop) {
  const [{ version, settings }, schema] = await Promise.all([json(`${loopPath(loop)}/settings`), json(`${loopPath(loop)}/settings/schema`)]);
  const fields = {};
  const ignored = schema.ignored[settings.model] ?? [];
  const listed = Object.values(GROUPS).flat();
  const rest = Object.keys(schema.properties).filter(name => !listed.includes(name));
  const groups = Object.entries({ ...GROUPS, "Models": rest }).map(([title, names]) => section(title, el("div", { class: "settings" },
    names.filter(name => !ignored.includes(name)).map(name => fieldRow(name, fields, settings, schema)))));
  const save = act(async () => {
    clearErrors(Object.values(fields));
    const changes = changesIn(fields, settings);
    if (!Object.keys(changes).length) return say("Nothing is changed.");
    const store = () => storeSettings(loop, changes, version);
    if (changes.control && settings.control.share > 0) await askToEndExperiment(loop, settings, store);
    else await store();
  });
  return [el("h1", {}, "Settings of ", loop), below(loop),
    settings.control.hold && el("section", { class: "alarm" }, el("strong", {}, "Held: "), settings.control.hold, " ", link("Resume it on the loop's page.", "loops", loop)),
    note("Changes take effect at once, for new decisions. null means the default."), groups,
    el("p", { class: "save" }, el("button", { onclick: save }, "Save"))];
}

async function storeSettings(loop, changes, version) {
  await send(`${loopPath(loop)}/settings`, "PATCH", changes, version).catch(error => {
    throw error.status == 412 ? Object.assign(Error("Not saved: the settings have changed since you opened this page, for example by a hold. Reload it, and make your change again."), { status: 412 }) : error;
  });
  again();
  say(`Changed: ${Object.keys(changes).join(", ")}.`);
}

async function askToEndExperiment(loop, settings, store) {
  const lift = await json(`${loopPath(loop)}/lift`);
  confirm("End this experiment?", [
    el("p", {}, `Any change of the control group begins a new experiment. “${settings.control.experiment}”, with ${several(lift.treatment.users + lift.control.users, "user")}, ends:`),
    el("p", {}, lift.sentence), el("p", {}, "Its result stays on the page History.")], "End it and save", store);
}

export const controlGroupButton = loop => el("p", {}, el("button", { onclick: () => confirm("Start a control group?", [
  el("p", {}, "For one user in ten, the first action of each request is taken from now on, without learning from it. The loop's page then shows how much more the policy earns."),
  el("p", {}, "Send your actions in the order in which you would show them without fedres.")], "Start", async () => {
  const { version } = await json(`${loopPath(loop)}/settings`);
  await send(`${loopPath(loop)}/settings`, "PATCH", { control: { share: 0.1, baseline: "first" } }, version);
  again();
  say("The control group has begun. The first figures need 20 users in it.");
}) }, "Start a control group…"));

// History: experiments with their results

export async function historyPage(loop) {
  const { experiments } = await json(`${loopPath(loop)}/experiments`);
  const row = one => [one.experiment, moment(one.began), one.ended ? moment(one.ended) : one.held ? "held" : "goes on", percent(one.share), one.baseline,
    count(one.treatment.users + one.control.users), bounds(one.absolute), one.sentence];
  return [el("h1", {}, "History of ", loop), below(loop), section("Experiments", experiments.length
    ? table(["experiment", "began", "ended", "control", "baseline", "users", "difference", "result"], experiments.map(row), [3, 5], "Experiments")
    : note("This loop has had no control group."), note("A change of the control group ends an experiment; a hold pauses it."))];
}

// The catalogue

let catalogueFilter = "";

export async function cataloguePage(loop) {
  const { actions } = await json(`${loopPath(loop)}/actions`);
  const change = body => send(`${loopPath(loop)}/actions`, "PUT", body);
  const id = el("input", { id: "action-id", maxlength: 200, autocomplete: "off" });
  const features = el("input", { id: "action-features", value: "{}", autocomplete: "off", spellcheck: "false" });
  const add = act(async () => {
    clearErrors([id, features]);
    let parsed;
    try { parsed = JSON.parse(features.value); } catch {
      throw Object.assign(Error(`Features must be a JSON object, for example {"topic": "tea"}: got ${features.value}`), { field: features });
    }
    await change({ put: [{ id: id.value, features: parsed }] });
    again();
  });
  const retire = action => confirm("Retire this action?", [el("p", {}, action, " can then no longer be named by its id alone.")], "Retire", async () => {
    await change({ retire: [action] });
    again();
  });
  const holder = el("div");
  const find = el("input", { id: "find-action", type: "search", value: catalogueFilter, autocomplete: "off", oninput: () => fill() });
  const fill = () => {
    catalogueFilter = find.value;
    const found = actions.filter(action => JSON.stringify(action).toLowerCase().includes(catalogueFilter.trim().toLowerCase()));
    holder.replaceChildren(table([`action (${count(found.length)})`, "features", ""], found.map(action => [action.id, JSON.stringify(action.features),
      el("button", { onclick: () => retire(action.id) }, "Retire…")]), [], "Catalogue"));
  };
  fill();
  return [el("h1", {}, "Catalogue of ", loop), below(loop), section(null, actions.length
    ? [el("p", {}, el("label", { for: "find-action" }, "Id or features have "), find), holder]
    : note("Empty. Requests can send actions with their features, or store them here once and name them by id.")),
  section("Add or change an action", el("div", { class: "settings" }, el("label", { for: "action-id" }, "id"), id,
    el("label", { for: "action-features" }, "features"), features), el("p", {}, el("button", { onclick: add }, "Store")))];
}

// Loops

export function newLoop() {
  const name = el("input", { id: "new-loop", maxlength: 200, autocomplete: "off", required: true });
  const create = async () => {
    await send("v1/loops", "POST", { name: name.value });
    location.hash = "#/" + ["loops", name.value, "settings"].map(encodeURIComponent).join("/");
  };
  return el("details", {}, el("summary", {}, "New loop"), el("form", { class: "inline", onsubmit: event => {
    event.preventDefault();
    create().catch(error => report(Object.assign(error, { field: name })));
  } }, el("label", { for: "new-loop" }, "Name "), name, el("button", {}, "Create")));
}

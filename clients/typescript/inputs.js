// What callers may pass, turned into what is sent: ids, rewards, features, actions and options. Errors are thrown at the call.
// inputs.py of the Python client does the same.

const FORMS =
  'a list of objects, [{ id: "tea", features: { hot: true } }, { id: "juice" }], ' +
  'an object or a Map, { tea: { hot: true }, juice: {} }, or a list of ids, ["tea", "juice"]';

/** What is set in Node's environment; browsers have none. */
export const environment = (name) => globalThis.process?.env?.[name] || undefined;

const FORMER = { deadline: "timeout", adminDeadline: "adminTimeout" }; // names of options

/** Refuse options that nobody reads, and name the one that was meant. */
export function checkOptions(what, options, names) {
  if (options === null || typeof options !== "object") throw new TypeError(`${what} must get its options as an object, got ${shown(options)}`);
  for (const name of Object.keys(options)) {
    if (names.includes(name)) continue;
    const nearest = FORMER[name] ?? names.reduce((best, other) => (distance(name, other) < distance(name, best) ? other : best));
    throw new TypeError(`${what} has no option "${name}": did you mean "${nearest}"? It has ${names.join(", ")}`);
  }
}

/** How many characters differ, letters of either case being the same (Levenshtein). */
function distance(a, b) {
  [a, b] = [a.toLowerCase(), b.toLowerCase()];
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] !== b[j - 1]));
    row = next;
  }
  return row[b.length];
}

/** An id as text: text as it is, whole numbers as String writes them. */
export function identifier(name, value) {
  if (typeof value === "string") {
    if (/\p{Surrogate}/u.test(value)) throw new RangeError(`${name} must be valid Unicode, got half of a surrogate pair`);
    return value;
  }
  if (typeof value === "bigint" || Number.isSafeInteger(value)) return String(value);
  throw new TypeError(`${name} must be text or a whole number, got ${shown(value)}`);
}

export function identifiers(name, values) {
  if (typeof values === "string" || typeof values?.[Symbol.iterator] !== "function") {
    throw new TypeError(`${name} must be a list of ids, got ${shown(values)}`);
  }
  return Array.from(values, (value) => identifier(name, value));
}

/** The user's id; null, undefined and "" are nobody. */
export const userId = (value) => (value === null || value === undefined || value === "" ? null : identifier("user", value));

/** A finite number; true is 1, and a decimal of a library is what its toNumber says. */
export function number(name, value) {
  if (typeof value?.toNumber === "function") value = value.toNumber();
  if (!["number", "boolean", "bigint"].includes(typeof value)) throw new TypeError(`${name} must be a number, got ${shown(value)}`);
  const result = Number(value);
  if (!Number.isFinite(result)) throw new RangeError(`${name} must be a finite number, got ${value}`);
  return result;
}

/** What to send of a reward: a number, or named outcomes in an object. */
export function rewardOf(reward) {
  if (reward === null || typeof reward !== "object") return { value: number("reward", reward) };
  if (typeof reward.toNumber === "function") return { value: number("reward", reward) };
  const outcomes = Array.isArray(reward) ? [] : Object.entries(reward);
  if (outcomes.length === 0) throw new TypeError(`reward must be a number, or an object of numbers by name, got ${shown(reward)}`);
  return { outcomes: Object.fromEntries(outcomes.map(([name, value]) => [name, number(`reward.${name}`, value)])) };
}

/** Features as JSON has them: no NaN, no dates, no functions; undefined is not there. */
export function features(name, value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new TypeError(`${name} must be an object of values by name, got ${shown(value)}`);
  }
  // A copy in any case, as callers may change theirs.
  return isPlain(value) ? { ...value } : plain(name, value, 1);
}

/** Whether an object has nothing to convert, as usual. */
function isPlain(value) {
  if (typeof value.toJSON === "function" || ArrayBuffer.isView(value) || value instanceof Date) return false;
  for (const key in value) {
    const part = value[key];
    const kind = typeof part;
    if (kind === "number" ? !Number.isFinite(part) : kind !== "string" && kind !== "boolean") return false;
  }
  return !(value instanceof Map || value instanceof Set);
}

function plain(name, value, depth) {
  if (value === null || ["string", "boolean", "undefined"].includes(typeof value)) return value;
  if (typeof value === "number" || typeof value === "bigint" || typeof value.toNumber === "function") return number(name, value);
  if (depth > 100) throw new RangeError(`${name.slice(0, 40)} must be nested less deep, and must not hold itself`);
  if (Array.isArray(value) || ArrayBuffer.isView(value)) return Array.from(value, (part, k) => plain(`${name}[${k}]`, part, depth + 1));
  if (value instanceof Date) {
    throw new TypeError(`${name} must be JSON, got a Date: send what matters of a time, such as its hour and weekday`);
  }
  if (typeof value.toJSON === "function") return plain(name, value.toJSON(), depth + 1);
  if (typeof value !== "object" || value instanceof Map || value instanceof Set) {
    throw new TypeError(`${name} must be JSON: numbers, text, lists and objects of them; got ${shown(value)}`);
  }
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, plain(`${name}.${key}`, part, depth + 1)]));
}

/**
 * Actions of any of the forms as a list of `{ id, features, callerId }`, at least one, each id once. Objects sort keys that look like
 * whole numbers, and the first action is the fallback and the baseline, so where the order counts such keys are refused.
 */
export function actionList(actions, { ordered = true } = {}) {
  const all = listed(actions, ordered);
  if (ordered && all.length === 0) throw new RangeError("actions must hold at least one action, got none");
  const seen = new Set();
  for (const { id } of all) {
    if (seen.has(id)) throw new RangeError(`actions must have different ids, got ${id} twice`);
    seen.add(id);
  }
  return all;
}

function listed(actions, ordered) {
  if (actions === null || typeof actions !== "object") throw wrong(actions);
  if (actions instanceof Map) return Array.from(actions, ([id, body]) => action(id, body));
  if (typeof actions[Symbol.iterator] === "function") return Array.from(actions, item);
  const sorted = ordered && Object.keys(actions).find((id) => /^(0|[1-9]\d*)$/.test(id) && Number(id) < 2 ** 32 - 1);
  if (sorted) {
    throw new TypeError(
      `actions must be a list or a Map where ids look like whole numbers, as JavaScript sorts such keys of an object; got ${sorted}`);
  }
  return Object.entries(actions).map(([id, body]) => action(id, body));
}

function item(each) {
  if (each === null || typeof each !== "object") return ["string", "number", "bigint"].includes(typeof each) ? action(each) : refuse(each);
  if (Array.isArray(each) || each.id === undefined) refuse(each);
  checkOptions("an action", each, ["id", "features"]);
  return action(each.id, each.features);
}

function action(callerId, body) {
  const id = identifier("actions", callerId);
  return { id, callerId, features: body === undefined || body === null ? null : features(`actions[${id}]`, body) };
}

function refuse(each) {
  throw wrong(each);
}

const wrong = (value) => new TypeError(`actions must be ${FORMS}; got ${shown(value)}`);

function shown(value) {
  if (typeof value === "string") return JSON.stringify(value.slice(0, 60));
  if (value === null || typeof value !== "object") return typeof value === "function" ? "a function" : String(value);
  return Array.isArray(value) ? "an array" : `an object (${Object.keys(value).slice(0, 5).join(", ")})`;
}

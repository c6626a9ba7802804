// @ts-self-types="./fedres.d.ts"
// A client of a fedres service: fetch only, no dependency. Node 20.19 and later, Deno, Bun,
// browsers.

import { NoAnswerError, ServiceError, errorOf, unreadable } from "./errors.js";
import { FALLBACK_PREFIX, newEventId } from "./ids.js";
import {
  actionList, checkOptions, environment, identifier, identifiers, number, rewardOf, userId,
} from "./inputs.js";
import {
  CALL, allowed, bodyOf, checked, feedbackEvent, milliseconds, named, place, recommendation,
  segment, withCallerIds,
} from "./requests.js";
import { RewardQueue } from "./rewards.js";
import { Scope, Transport, isDone } from "./transport.js";

export {
  KeyRefusedError, LimitError, NoAnswerError, RefusedError, ServiceError,
} from "./errors.js";
export { newEventId } from "./ids.js";
export { VERSION } from "./transport.js";

const OPTIONS = [
  "loop", "key", "timeout", "fallback", "queueLimit", "adminTimeout", "observe", "fetch", "random",
];
const ERASE = 150_000; // milliseconds; the service itself gives up after 120 seconds

/** What the clients of all loops share: the connection, the queue of rewards, and the options. */
class Shared {
  #warned = new Set();

  constructor(url, options) {
    checkOptions("Client", options, OPTIONS);
    const { timeout = 1000, adminTimeout = 30_000 } = options;
    const { fallback = "first", queueLimit = 10_000 } = options;
    const { key = environment("FEDRES_KEY"), observe = () => {}, random } = options;
    const address = checkedUrl(url);
    checkKey(key);
    this.timeout = milliseconds("timeout", timeout);
    if (timeout === Infinity) throw new RangeError("timeout must be finite, got Infinity");
    this.adminTimeout = milliseconds("adminTimeout", adminTimeout);
    if (typeof observe !== "function") {
      throw new TypeError(`observe must be a function, got ${observe}`);
    }
    if (!(Number.isInteger(queueLimit) && queueLimit >= 1)) {
      throw new RangeError(`queueLimit must be at least 1, got ${queueLimit}`);
    }
    if (fallback !== "first" && fallback !== null && typeof fallback !== "function") {
      throw new TypeError(`fallback must be "first", a function or null, got ${fallback}`);
    }
    this.fallback = fallback;
    this.observe = observe;
    this.transport = new Transport({ url: address, key, fetch: options.fetch, random });
    this.queue = new RewardQueue({
      limit: queueLimit,
      post: (...request) => this.transport.try("POST", ...request),
      backOff: (failures, answer) => this.transport.backOff(failures, answer),
      observe: (...call) => this.observed(...call),
      warn: (...warning) => this.warn(...warning),
    });
  }

  checkOpen() {
    if (this.queue.isClosed) throw new Error("the client is closed");
  }

  /** Report a call to the observer; an error of the observer is printed. */
  observed(name, began, { status, error = null }) {
    try {
      this.observe({ name, milliseconds: performance.now() - began, status, error });
    } catch (failed) {
      this.warn("observe", `the observer of calls failed: ${failed}`);
    }
  }

  /** Warn once of each kind. */
  warn(kind, message) {
    if (!this.#warned.has(kind)) console.warn(`fedres: ${message}`);
    this.#warned.add(kind);
  }

  /** Warn that there is no decision: of a service that is away once, until it is back. */
  failed(why, began) {
    const isAway = why.status === 0 || why.status === 429 || why.status >= 500;
    if (!isAway) this.warnOfRefusal(why);
    else if (this.transport.availability.failed(began, why.message)) {
      console.warn(`fedres: the service does not decide: ${why.message}`);
    }
  }

  warnOfRefusal({ status, code, message }) {
    this.warn(`${status} ${code}`, `the service refused a request: ${status} ${message}`);
  }
}

export class Client {
  #shared;
  #loop;

  constructor(url = environment("FEDRES_URL"), options = {}) {
    this.#shared = url instanceof Shared ? url : new Shared(url, options);
    this.#loop = `/v1/loops/${segment("loop", checkedLoop(options.loop))}`;
  }

  withLoop(loop) {
    return new Client(this.#shared, { loop });
  }

  async rank(request) {
    const valid = checked("rank", request, CALL);
    return this.#decide("rank", "/rank", bodyOf(valid), request, {
      decided: (result) => this.#decision(valid, result),
      instead: (why) => this.#fallBack(valid, why),
    });
  }

  async rankMany(requests, options = {}) {
    checkOptions("rankMany", options, CALL);
    const many = Array.from(requests, (request) => checked("a request of rankMany", request));
    return this.#decide("rankMany", "/rank/batch", { requests: many.map(bodyOf) }, options, {
      decided: ({ results }) => {
        if (results.length !== many.length) throw unreadable("results are missing");
        return results.map((result, k) => this.#resultOf(many[k], result));
      },
      instead: (why) => many.map((valid) => this.#fallBack(valid, why)),
    });
  }

  #resultOf(valid, result) {
    if (!result.error) return this.#decision(valid, result);
    const { code, message, target } = result.error;
    const why = errorOf(422, code, message, { target });
    this.#shared.warnOfRefusal(why);
    return this.#fallBack(valid, why);
  }

  async slots(slots, request) {
    const valid = checked("slots", request, CALL);
    const places = Array.from(slots, place);
    this.#fillFirst(valid, places, "first"); // refuses a page that cannot be filled
    const { exclude: _, explain: __, ...fields } = bodyOf(valid);
    const sent = { ...fields, slots: places.map(({ callerId: ___, ...slot }) => slot) };
    return this.#decide("slots", "/rank/slots", sent, request, {
      decided: (page) => this.#filled(valid, places, page),
      instead: (why) => {
        const { fallback } = this.#shared;
        if (fallback === null) throw why;
        const chosen = this.#fillFirst(valid, places, fallback);
        return chosen.map(({ callerId }, k) => this.#fallen(callerId, why, places[k].callerId));
      },
    });
  }

  #filled(valid, places, page) {
    const isOther = page.slots.some(({ id }, k) => id !== places[k]?.id);
    if (isOther || page.slots.length !== places.length) throw unreadable("other slots");
    return page.slots.map(({ id: _, ...slot }, k) => {
      const result = { ...slot, model_version: page.model_version };
      return this.#decision(valid, result, { slot: places[k].callerId });
    });
  }

  async recommend(request = {}) {
    const { sent, fallback } = recommendation(request);
    return this.#decide("recommend", "/recommend", sent, request, {
      decided: ({ items }) => items.map(({ event_id: id, ...item }) => this.#item(item, id)),
      instead: (why) => {
        if (this.#shared.fallback === null) throw why;
        const nothing = { score: null, probability: null, fallback: true, error: why };
        return fallback.map((id) => this.#item({ id, ...nothing }, FALLBACK_PREFIX + newEventId()));
      },
    });
  }

  #item(item, eventId) {
    const hasIds = typeof eventId === "string" && typeof item.id === "string";
    if (!hasIds) throw unreadable("it is no item");
    return this.#withFeedback({ fallback: false, error: null, ...item, eventId });
  }

  /**
   * Add methods beside the data of a decision: copies, as by JSON or structuredClone, lack them.
   */
  #withFeedback(decision) {
    const { eventId } = decision;
    return Object.defineProperties(decision, {
      reward: { value: (value, options) => this.reward(eventId, value, options) },
      activate: { value: () => this.activate(eventId) },
    });
  }

  reward(eventId, reward, options = {}) {
    checkOptions("reward", options, ["id"]);
    const hasId = options.id !== undefined && options.id !== null;
    const id = hasId ? named("id", options.id) : newEventId();
    this.#put("reward", eventId, { ...rewardOf(reward), id });
  }

  activate(eventId) {
    this.#put("activate", eventId, undefined);
  }

  async settings(options) {
    return this.#field("settings", "settings", "GET", "/settings", undefined, options);
  }

  async changeSettings(changes, options) {
    return this.#field("settings", "changeSettings", "PATCH", "/settings", changes, options);
  }

  async replaceSettings(settings, options) {
    return this.#field("settings", "replaceSettings", "PUT", "/settings", settings, options);
  }

  async catalogue(options) {
    const call = ["catalogue", "GET", "/actions", undefined, options];
    const actions = await this.#field("actions", ...call);
    return Object.fromEntries(actions.map(({ id, features }) => [id, features]));
  }

  async putActions(actions, { retire = [], ...options } = {}) {
    const put = actionList(actions, { ordered: false }).map(({ id, features }) => {
      return { id, features: features ?? {} };
    });
    const sent = { put, retire: identifiers("retire", retire) };
    await this.#call("putActions", "PUT", "/actions", sent, options, ["retire"]);
  }

  async popular({ n = 10, seconds, ...options } = {}) {
    const window = seconds === undefined ? "" : `&seconds=${number("seconds", seconds)}`;
    const path = `/popular?n=${number("n", n)}${window}`;
    return this.#field("items", "popular", "GET", path, undefined, options, ["n", "seconds"]);
  }

  async similar(item, { n = 10, ...options } = {}) {
    const path = `/similar/${segment("item", item)}?n=${number("n", n)}`;
    return this.#field("items", "similar", "GET", path, undefined, options, ["n"]);
  }

  async feedback(events, options) {
    const sent = { events: Array.from(events, feedbackEvent) };
    return this.#call("feedback", "POST", "/feedback", sent, options);
  }

  async *events({ after = 0, pageSize = 1000, ...options } = {}) {
    const names = ["after", "pageSize"];
    for (let last = after; ; ) {
      const path = `/events?after=${last}&limit=${pageSize}`;
      const call = ["events", "GET", path, undefined, options, names];
      const text = await this.#call(...call, { lines: true });
      const page = text.split("\n").filter(Boolean).map(parsed);
      yield* page;
      if (page.length < pageSize) return;
      last = page.at(-1).position;
    }
  }

  async evaluate(policies, options = {}) {
    const { estimators = ["snips", "dr"], timeUniform = false, ...rest } = options;
    const sent = { policies, estimators, time_uniform: timeUniform };
    const names = ["estimators", "timeUniform"];
    return this.#call("evaluate", "POST", "/evaluations", sent, rest, names);
  }

  async lift(options) {
    return this.#call("lift", "GET", "/lift", undefined, options);
  }

  async unmatched(options) {
    return this.#field("rewards", "unmatched", "GET", "/rewards/unmatched", undefined, options);
  }

  async erase(user, { timeout, ...options } = {}) {
    const name = userId(user);
    if (name === null) throw new TypeError("user must have at least one character, got none");
    const within = timeout ?? Math.max(ERASE, this.#shared.adminTimeout);
    const path = `/v1/users/${segment("user", name)}`;
    await this.#call("erase", "DELETE", path, undefined, { ...options, timeout: within });
  }

  async createLoop(name, settings = {}, options = undefined) {
    return this.#field("settings", "createLoop", "POST", "/v1/loops", { name, settings }, options);
  }

  async status(options) {
    return this.#call("status", "GET", "/v1/status", undefined, options);
  }

  rewardStatus() {
    return this.#shared.queue.status();
  }

  flush(milliseconds = 5000) {
    return this.#shared.queue.flush(milliseconds);
  }

  close(milliseconds = 5000) {
    return this.#shared.queue.close(milliseconds);
  }

  [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    return this.close();
  }

  #put(name, eventId, sent) {
    const event = named("eventId", eventId);
    if (event.startsWith(FALLBACK_PREFIX)) return; // the service does not have it
    this.#shared.checkOpen();
    this.#shared.queue.put(this.#loop, event, name, written(sent));
  }

  /**
   * Return what `decided` makes of the answer to a request, or what `instead` makes of an error.
   */
  async #decide(name, path, sent, { timeout, signal }, { decided, instead }) {
    const shared = this.#shared;
    const { availability } = shared.transport;
    shared.checkOpen();
    signal?.throwIfAborted();
    const within = timeout === undefined ? shared.timeout : milliseconds("timeout", timeout);
    const content = written(sent);
    const began = performance.now();
    const attempt = availability.begin();
    try {
      const answer = await this.#answerTo(path, content, within, attempt, signal);
      if (signal?.aborted && !isDone(answer)) throw signal.reason;
      shared.observed(name, began, answer);
      if (!isDone(answer)) {
        if (!(answer.isLate && within < shared.timeout)) shared.failed(answer.error, began);
        return instead(answer.error);
      }
      const result = read(answer, decided);
      if (!(result instanceof ServiceError)) {
        availability.worked();
        return result;
      }
      shared.failed(result, began);
      return instead(result);
    } finally {
      availability.end(attempt, began);
    }
  }

  async #answerTo(path, content, within, attempt, signal) {
    const { transport } = this.#shared;
    if (attempt !== null) {
      return transport.decide(this.#loop + path, content, within, attempt, signal);
    }
    const reason = `the service is away: ${transport.availability.reason}`;
    return { status: 0, error: new NoAnswerError(0, "no_answer", reason) };
  }

  /** Return the content of the answer to any other call; `names` are the options it has besides. */
  async #call(name, method, path, sent, options = {}, names = [], { lines = false } = {}) {
    checkOptions(name, options, [...CALL, ...names]);
    const shared = this.#shared;
    shared.checkOpen();
    const { timeout = shared.adminTimeout, signal } = options;
    signal?.throwIfAborted();
    const each = milliseconds("timeout", timeout);
    const where = path.startsWith("/v1/") ? path : this.#loop + path;
    const began = performance.now();
    const scope = new Scope(signal);
    const limits = { end: began + each, each, lines, scope };
    const answer = await shared.transport.tries(method, where, written(sent), limits);
    scope.end();
    if (signal?.aborted && !isDone(answer)) throw signal.reason;
    shared.observed(name, began, answer);
    if (isDone(answer)) return answer.content;
    throw answer.error;
  }

  async #field(field, ...call) {
    const document = await this.#call(...call);
    if (document?.[field] === undefined) throw unreadable(`it has no ${field}`);
    return document[field];
  }

  #decision({ actions }, result, more = {}) {
    const { event_id: eventId, model_version: modelVersion, ...rest } = result;
    if (typeof eventId !== "string" || typeof rest.action !== "string") {
      throw unreadable("it is no decision");
    }
    const decision = withCallerIds(actions, rest);
    const fields = { eventId, modelVersion, fallback: false, error: null };
    return this.#withFeedback({ ...decision, ...more, ...fields });
  }

  #fallBack(valid, why) {
    const { fallback } = this.#shared;
    if (fallback === null) throw why;
    return this.#fallen(this.#choose(valid, fallback).callerId, why);
  }

  // Under an id of its own: the service may have stored another action under the first.
  #fallen(action, error, slot) {
    const decision = {
      action,
      error,
      eventId: FALLBACK_PREFIX + newEventId(),
      probability: null,
      ranking: [],
      modelVersion: 0,
      fallback: true,
    };
    if (slot !== undefined) decision.slot = slot;
    return this.#withFeedback(decision);
  }

  #choose(valid, fallback) {
    const left = allowed(valid);
    if (fallback === "first") return left[0];
    try {
      const request = { ...valid.request, exclude: valid.exclude };
      const chosen = identifier("the fallback's action", fallback(request));
      const action = left.find(({ id }) => id === chosen);
      if (action) return action;
      const rule = "the fallback must return the id of an allowed action";
      this.#shared.warn("fallback", `${rule}, got ${chosen}; the first is taken`);
    } catch (error) {
      this.#shared.warn("fallback", `the fallback failed, and the first action is taken: ${error}`);
    }
    return left[0];
  }

  #fillFirst(valid, slots, fallback) {
    if (slots.length === 0) throw new RangeError("slots must hold at least one slot, got none");
    const taken = [];
    for (const slot of slots) {
      const exclude = [...valid.exclude, ...slot.exclude, ...taken.map(({ id }) => id)];
      taken.push(this.#choose({ ...valid, exclude }, fallback));
    }
    return taken;
  }
}

/**
 * Return JSON, written once: what cannot be is no trouble of the network, and repeats are the same.
 */
function written(sent) {
  return sent === undefined ? undefined : JSON.stringify(sent);
}

/** Return what `decided` makes of an answer, or the error that it cannot be read. */
function read({ content, requestId }, decided) {
  try {
    return decided(content);
  } catch (error) {
    if (error instanceof ServiceError) return error;
    return unreadable(String(error), { cause: error, requestId });
  }
}

function checkedUrl(url) {
  const address = url instanceof URL ? url.href : String(url);
  if (/^https?:\/\//.test(address)) return address;
  throw new TypeError(`url, or FEDRES_URL, must begin with http:// or https://, got ${address}`);
}

function checkKey(key) {
  if (key === undefined) return;
  if (typeof key === "string" && /^[!-~]([ -~]*[!-~])?$/.test(key)) return;
  throw new TypeError("key must be printable ASCII without spaces or line breaks around it");
}

function checkedLoop(loop = "default") {
  if (typeof loop === "string" && loop !== "") return loop;
  throw new TypeError(`loop must be a name, got ${JSON.stringify(loop)}`);
}

function parsed(line) {
  try {
    return JSON.parse(line);
  } catch (error) {
    throw unreadable(error.message, { cause: error });
  }
}

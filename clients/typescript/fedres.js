// @ts-self-types="./fedres.d.ts"
// A client of a fedres service: fetch only, no dependency. Node 18 and later, Deno, browsers.

import { actionList, checkOptions, environment, features, identifier, identifiers, number, rewardOf, userId } from "./inputs.js";
import { Availability } from "./availability.js";
import { RewardQueue } from "./rewards.js";

const PASSING = new Set([408, 429, 500, 502, 503, 504]);
const LATE = new Error("no answer in time"); // why a try is aborted at its end
const FIRST_WAIT = 50; // milliseconds: the longest wait after one failure
const LONGEST_WAIT = 30_000;
const LONGEST_REST = 86_400_000; // milliseconds, of those that a service can ask for
const LONGEST_TIMER = 2 ** 31 - 1; // milliseconds: timers that are set to more go off at once
const LONGEST_ID = 200; // characters of an id
const FALLBACK_PREFIX = "fallback-"; // of the event ids of fallbacks, which the service does not know
const OPTIONS = ["loop", "key", "deadline", "timeout", "fallback", "queueLimit", "adminDeadline", "observe", "fetch", "random"];
const REQUEST = ["actions", "context", "user", "exclude", "eventId", "defer", "explain"];
const TIMES = ["deadline", "timeout"];
const RECOMMEND = ["n", "user", "context", "filter", "exclude", "excludeSeen", "eventId", "defer", "fallback"];
const FEEDBACK = ["action", "reward", "user", "context", "eventId", "time"];
const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/** The service refused a call, or did not answer in time; `status` is 0 where no answer came. */
export class ServiceError extends Error {
  constructor(status, code, message, target = null, options = undefined) {
    super(message, options);
    this.name = "ServiceError";
    Object.assign(this, { status, code, target });
  }

  toJSON() {
    const { name, status, code, message, target } = this;
    return { name, status, code, message, target };
  }
}

/** Return an id that nobody had before: the time in milliseconds and 84 random bits. */
export function newEventId() {
  let time = Date.now();
  let head = "";
  for (let k = 0; k < 8; k++) {
    head = ALPHABET[time % 64] + head;
    time = Math.floor(time / 64);
  }
  return head + Array.from(randomBytes(14), (byte) => ALPHABET[byte % 64]).join("");
}

/** Ids must be new, not secret: without a global crypto, as in Node 18, the other generator will do. */
function randomBytes(n) {
  const bytes = new Uint8Array(n);
  return globalThis.crypto ? crypto.getRandomValues(bytes) : bytes.map(() => Math.random() * 256);
}

export class Client {
  #url; #loop; #headers; #deadline; #adminDeadline; #fallback; #fetch; #random; #observe; #queue;
  #availability = new Availability(); #warned = new Set();

  constructor(url = environment("FEDRES_URL"), options = {}) {
    checkOptions("Client", options, OPTIONS);
    const { loop = "default", key = environment("FEDRES_KEY"), fallback = "first", queueLimit = 10_000 } = options;
    const { adminDeadline = 30_000 } = options, deadline = milliseconds("deadline", either(options) ?? 1000);
    milliseconds("adminDeadline", adminDeadline);
    url = url instanceof URL ? url.href : url;
    if (!/^https?:\/\//.test(url)) throw new TypeError(`url, or FEDRES_URL, must begin with http:// or https://, got ${url}`);
    if (deadline === Infinity) throw new RangeError("deadline must be finite, got Infinity");
    if (typeof loop !== "string" || loop === "") throw new TypeError(`loop must be a name, got ${JSON.stringify(loop)}`);
    if (key !== undefined && !(typeof key === "string" && /^[!-~]([ -~]*[!-~])?$/.test(key))) {
      throw new TypeError("key must be printable ASCII without spaces or line breaks around it");
    }
    if (options.observe !== undefined && typeof options.observe !== "function") throw new TypeError(`observe must be a function, got ${options.observe}`);
    if (!(Number.isInteger(queueLimit) && queueLimit >= 1)) throw new RangeError(`queueLimit must be at least 1, got ${queueLimit}`);
    if (fallback !== "first" && fallback !== null && typeof fallback !== "function") {
      throw new TypeError(`fallback must be "first", a function or null, got ${fallback}`);
    }
    this.#url = url.replace(/\/$/, "");
    this.#loop = `/v1/loops/${segment("loop", loop)}`;
    this.#headers = key === undefined ? {} : { Authorization: `Bearer ${key}` };
    this.#deadline = deadline;
    this.#adminDeadline = adminDeadline;
    this.#fallback = fallback;
    this.#observe = options.observe ?? (() => {});
    this.#fetch = options.fetch ?? ((...words) => fetch(...words));
    this.#random = options.random ?? Math.random;
    this.#queue = new RewardQueue({
      limit: queueLimit,
      post: (path, content, milliseconds) => this.#try("POST", this.#loop + path, content, milliseconds),
      backOff: (failures, answer) => this.#backOff(failures, answer),
      observe: (...call) => this.#observed(...call),
      warn: (...warning) => this.#warn(...warning),
    });
  }

  /** Return which action to take; `actions` is a list of `{ id, features }`, an object or a Map from ids to features, or a list of ids. */
  async rank(request) {
    const valid = checked("rank", request, TIMES), deadline = either(request);
    return this.#hot("rank", "/rank", body(valid), deadline, (result) => this.#decision(valid, result), (why) => this.#fallBack(valid, why));
  }

  /** Return a decision for each of at most 100 requests, in one call. */
  async rankMany(requests, options = {}) {
    checkOptions("rankMany", options, TIMES);
    const many = Array.from(requests, (request) => checked("a request of rankMany", request)), deadline = either(options);
    const decided = ({ results }) => {
      if (results.length !== many.length) throw unreadable("results are missing");
      return results.map((result, k) => {
        if (!result.error) return this.#decision(many[k], result);
        const { code, message, target } = result.error, why = new ServiceError(422, code, message, target);
        this.#warnOfRefusal(why);
        return this.#fallBack(many[k], why);
      });
    };
    const instead = (why) => many.map((valid) => this.#fallBack(valid, why));
    return this.#hot("rankMany", "/rank/batch", { requests: many.map(body) }, deadline, decided, instead);
  }

  /** Return a decision for each slot of a page, no action twice. */
  async slots(slots, request) {
    const valid = checked("slots", request, TIMES), places = Array.from(slots, place);
    this.#fillFirst(valid, places, "first"); // refuses a page that cannot be filled
    const { exclude: _, explain: __, ...fields } = body(valid);
    const sent = { ...fields, slots: places.map(({ callerId: _, ...slot }) => slot) };
    const decided = (page) => {
      if (page.slots.some(({ id }, k) => id !== places[k]?.id) || page.slots.length !== places.length) throw unreadable("other slots");
      return page.slots.map(({ id: _, ...slot }, k) =>
        this.#decision(valid, { ...slot, model_version: page.model_version }, { slot: places[k].callerId }));
    };
    const instead = (why) => {
      if (this.#fallback === null) throw why;
      return this.#fillFirst(valid, places, this.#fallback).map(({ callerId }, k) => this.#fallen(callerId, why, places[k].callerId));
    };
    return this.#hot("slots", "/rank/slots", sent, either(request), decided, instead);
  }

  /** Return at most `n` items of the catalogue for a user, the first place first; while the service does not answer, those of `fallback`. */
  async recommend(request = {}) {
    checkOptions("recommend", request, [...RECOMMEND, ...TIMES]);
    const { n = 10, context, filter, excludeSeen = false, defer = false } = request, user = userId(request.user);
    const eventId = newEvent(request.eventId), exclude = identifiers("exclude", request.exclude ?? []);
    const sent = { event_id: eventId, n, context: features("context", context ?? {}), filter: filter ?? {}, exclude, exclude_seen: excludeSeen, defer };
    const first = identifiers("fallback", request.fallback ?? []).slice(0, n);
    const decided = ({ items }) => items.map(({ event_id: id, ...item }) => this.#item(item, id));
    const instead = (why) => {
      if (this.#fallback === null) throw why;
      const nothing = { score: null, probability: null, fallback: true, error: why };
      return first.map((id) => this.#item({ id, ...nothing }, FALLBACK_PREFIX + newEventId()));
    };
    return this.#hot("recommend", "/recommend", user === null ? sent : { ...sent, user }, either(request), decided, instead);
  }

  #item(item, eventId) {
    if (typeof eventId !== "string" || typeof item.id !== "string") throw unreadable("it is no item");
    return this.#withFeedback({ fallback: false, error: null, ...item, eventId });
  }

  /** Add what a decision can do, beside its data: copies of it, as by JSON or structuredClone, have the data. */
  #withFeedback(decision) {
    const { eventId } = decision;
    const reward = (value, options) => this.reward(eventId, value, options); // of a fallback, it refuses what is no reward, and sends nothing
    return Object.defineProperties(decision, { reward: { value: reward }, activate: { value: () => this.activate(eventId) } });
  }

  /** Send a reward in the background: a number, true, or named outcomes in an object; two with one id count once. */
  reward(eventId, reward, options = {}) {
    checkOptions("reward", options, ["id"]);
    const id = options.id === undefined || options.id === null ? newEventId() : named("id", options.id);
    this.#put("reward", eventId, { ...rewardOf(reward), id });
  }

  /** Say that the decision of a deferred event was shown, in the background. */
  activate(eventId) {
    this.#put("activate", eventId, undefined);
  }

  /** The loop's settings. */
  async settings() {
    return this.#field("settings", "settings", "GET", "/settings");
  }

  /** Change some settings, and leave the others; returns all. */
  async changeSettings(changes) {
    return this.#field("settings", "changeSettings", "PATCH", "/settings", changes);
  }

  /** Replace all settings: those that are missing return to their defaults. */
  async replaceSettings(settings) {
    return this.#field("settings", "replaceSettings", "PUT", "/settings", settings);
  }

  /** The catalogue: features by id. */
  async actions() {
    const actions = await this.#field("actions", "actions", "GET", "/actions");
    return Object.fromEntries(actions.map(({ id, features }) => [id, features]));
  }

  /** Add or replace actions of the catalogue, in any form that `rank` takes, and retire others. */
  async putActions(actions, options = {}) {
    checkOptions("putActions", options, ["retire"]);
    const put = actionList(actions, { ordered: false }).map(({ id, features: own }) => ({ id, features: own ?? {} }));
    await this.#call("putActions", "PUT", "/actions", { put, retire: identifiers("retire", options.retire ?? []) });
  }

  /** The items that earned most within so many seconds, 30 days by default. */
  async popular(options = {}) {
    checkOptions("popular", options, ["n", "seconds"]);
    const { n = 10, seconds } = options, window = seconds === undefined ? "" : `&seconds=${number("seconds", seconds)}`;
    return this.#field("items", "popular", "GET", `/popular?n=${number("n", n)}${window}`);
  }

  /** The items of the catalogue that are most like another one. */
  async similar(item, options = {}) {
    checkOptions("similar", options, ["n"]);
    const path = `/similar/${segment("item", identifier("item", item))}?n=${number("n", options.n ?? 10)}`;
    return this.#field("items", "similar", "GET", path);
  }

  /** Send what actions earned that the service did not choose; returns how many events are new, and were known. */
  async feedback(events) {
    const sent = Array.from(events, (event, k) => {
      checkOptions(`events[${k}]`, event, FEEDBACK);
      const { action, reward, context, eventId, time } = event, user = userId(event.user);
      const isObject = typeof action === "object" && action !== null;
      return {
        action: isObject ? { id: identifier("action", action.id), features: features("action", action.features ?? {}) } : identifier("action", action),
        reward: number("reward", reward), event_id: newEvent(eventId), context: features("context", context ?? {}),
        ...(user === null || user === undefined ? {} : { user }),
        ...(time === undefined || time === null ? {} : { time: time instanceof Date ? time / 1000 : time }),
      };
    });
    return this.#call("feedback", "POST", "/feedback", { events: sent });
  }

  /** The stored events behind a position, fetched page by page. */
  async *events(options = {}) {
    checkOptions("events", options, ["after", "pageSize"]);
    const { after = 0, pageSize = 1000 } = options;
    for (let last = after; ;) {
      const text = await this.#call("events", "GET", `/events?after=${last}&limit=${pageSize}`, undefined, { lines: true });
      const page = text.split("\n").filter(Boolean).map(parsed);
      yield* page;
      if (page.length < pageSize) return;
      last = page.at(-1).position;
    }
  }

  /** What other policies would have earned on the stored events; with `timeUniform`, intervals hold at all looks together. */
  async evaluate(policies, options = {}) {
    checkOptions("evaluate", options, ["estimators", "timeUniform"]);
    const { estimators = ["snips", "dr"], timeUniform = false } = options;
    return this.#call("evaluate", "POST", "/evaluations", { policies, estimators, time_uniform: timeUniform });
  }

  /** How much more the policy earns than its control group. */
  lift() {
    return this.#call("lift", "GET", "/lift");
  }

  /** Rewards that do not count. */
  async unmatched() {
    return this.#field("rewards", "unmatched", "GET", "/rewards/unmatched");
  }

  /** Erase a user in all loops; resolves when nothing of the user is left. */
  async erase(user) {
    const name = userId(user);
    if (name === null) throw new TypeError("user must have at least one character, got none");
    await this.#call("erase", "DELETE", `/v1/users/${segment("user", name)}`, undefined, { deadline: 150_000 });
  }

  /** Make a loop; returns its settings. */
  async createLoop(name, settings = {}) {
    return this.#field("settings", "createLoop", "POST", "/v1/loops", { name, settings });
  }

  /** The status of the service. */
  status() {
    return this.#call("status", "GET", "/v1/status");
  }

  /** How many rewards wait, since when the oldest of them does, and what became of the others. */
  rewards() {
    return this.#queue.status();
  }

  /** Wait until the service has all rewards, at most so many milliseconds; return whether it has. */
  flush(milliseconds = 5000) {
    return this.#queue.flush(milliseconds);
  }

  /** Send what is left of the rewards for so long; what then remains is dropped. */
  close(milliseconds = 5000) {
    return this.#queue.close(milliseconds);
  }

  #put(name, eventId, sent) {
    const event = named("eventId", eventId);
    if (event.startsWith(FALLBACK_PREFIX)) return; // the service does not have it
    if (this.#queue.isClosed) throw new Error("the client is closed");
    this.#queue.put(event, name, written(sent));
  }

  /** Return what `decided` makes of the reply to a request for decisions, or what is `instead` of it. */
  async #hot(name, path, sent, callers, decided, instead) {
    this.#checkOpen();
    const deadline = callers === undefined ? this.#deadline : milliseconds("deadline", callers), began = performance.now();
    const attempt = this.#availability.begin();
    try {
      const result = decided(await this.#decide(name, this.#loop + path, sent, deadline, attempt));
      this.#availability.worked();
      return result;
    } catch (error) {
      const why = error instanceof ServiceError ? error : unreadable(String(error));
      if (!(why.isLate && deadline < this.#deadline)) this.#failed(why, began);
      return instead(why);
    } finally {
      this.#availability.end(attempt, began);
    }
  }

  /** Return the content of a reply. The first try has the whole deadline; after half of it, a repeat may go beside it. */
  async #decide(name, path, sent, deadline, attempt) {
    const began = performance.now();
    const away = { status: 0, error: new ServiceError(0, "no_answer", `the service is away: ${this.#availability.reason}`) };
    const answer = attempt === null ? away : await this.#tryWithRepeat(path, written(sent), deadline, attempt);
    this.#observed(name, began, answer);
    if (!isDone(answer)) throw answer.error;
    return answer.content;
  }

  async #tryWithRepeat(path, content, deadline, attempt) {
    const end = performance.now() + deadline, cancel = new AbortController();
    const first = this.#tries("POST", path, content, end, deadline, { once: attempt === "probe", cancel });
    try {
      if (attempt === "probe") return await first;
      let timer;
      const half = new Promise((resolve) => (timer = setTimeout(resolve, Math.min(deadline / 2, LONGEST_TIMER), null)));
      const answer = await Promise.race([first, half]);
      clearTimeout(timer);
      if (answer !== null || !this.#availability.mayRepeat()) return answer ?? (await first);
      return await firstOf([first, this.#tries("POST", path, content, end, deadline, { once: true, cancel })]);
    } finally {
      cancel.abort();
    }
  }

  #call(name, method, path, sent, { deadline = this.#adminDeadline, lines = false } = {}) {
    const where = path.startsWith("/v1/") ? path : this.#loop + path;
    return this.#retry(name, method, where, sent, Math.max(deadline, this.#adminDeadline), deadline, lines);
  }

  async #field(name, ...call) {
    const document = await this.#call(...call);
    if (document?.[name] === undefined) throw unreadable(`it has no ${name}`);
    return document[name];
  }

  async #retry(name, method, path, sent, deadline, each, lines = false) {
    this.#checkOpen();
    const began = performance.now();
    const answer = await this.#tries(method, path, written(sent), began + deadline, each, { lines });
    this.#observed(name, began, answer);
    if (isDone(answer)) return answer.content;
    throw answer.error;
  }

  /** Try until an answer is final, or another try would end too late; return the last answer. */
  async #tries(method, path, content, end, each, { lines = false, once = false, cancel } = {}) {
    for (let failures = 0; ; failures++) {
      const answer = await this.#try(method, path, content, Math.min(each, end - performance.now()), lines, cancel);
      const wait = this.#backOff(failures, answer);
      if (once || isDone(answer) || !passes(answer) || cancel?.signal.aborted || !(performance.now() + wait < end)) return answer;
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  #checkOpen() {
    if (this.#queue.isClosed) throw new Error("the client is closed");
  }

  /** Return the status and the content of an answer, or the error it is; this never throws. */
  async #try(method, path, body, milliseconds, lines = false, cancel = new AbortController()) {
    const control = new AbortController(), requestId = newEventId(), abort = () => control.abort();
    const timer = setTimeout(() => control.abort(LATE), Math.min(Math.max(1, milliseconds), LONGEST_TIMER));
    cancel.signal.addEventListener("abort", abort);
    try {
      const headers = { ...this.#headers, "X-Request-Id": requestId };
      if (body !== undefined) headers["Content-Type"] = "application/json";
      const reply = await this.#fetch(this.#url + path, { method, headers, body, signal: control.signal });
      if ((reply.headers.get("x-request-id") ?? requestId) !== requestId) throw new Error("a reply to another request");
      const text = await reply.text();
      if (reply.ok) return { status: reply.status, content: lines ? text : text === "" ? null : JSON.parse(text) };
      const after = Math.min(Number(reply.headers.get("retry-after")) * 1000 || 0, LONGEST_REST);
      return { status: reply.status, after, error: refusal(reply.status, text) };
    } catch (cause) {
      const isLate = control.signal.reason === LATE;
      const error = new ServiceError(0, "no_answer", isLate ? `no answer within ${Math.round(milliseconds)} ms` : reasonOf(cause), null, { cause });
      Object.defineProperty(error, "isLate", { value: isLate });
      return { status: 0, after: 0, error };
    } finally {
      clearTimeout(timer);
      cancel.signal.removeEventListener("abort", abort);
    }
  }

  #backOff(failures, answer) {
    return Math.max(answer.after ?? 0, this.#random() * Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** failures));
  }

  /** Tell the observer of a call; what it throws is nobody's fault here. */
  #observed(name, began, { status, error = null }) {
    try {
      this.#observe({ name, milliseconds: performance.now() - began, status, error });
    } catch (failed) {
      this.#warn("observe", `the observer of calls failed: ${failed}`);
    }
  }

  /** Warn once of each kind. */
  #warn(kind, message) {
    if (!this.#warned.has(kind)) console.warn(`fedres: ${message}`);
    this.#warned.add(kind);
  }

  /** Say that there is no decision: of a service that is away once until it is back, of a refusal once for its code. */
  #failed(why, began) {
    const isAway = why.status === 0 || why.status === 429 || why.status >= 500;
    if (!isAway) this.#warnOfRefusal(why);
    else if (this.#availability.failed(began, why.message)) console.warn(`fedres: the service does not decide: ${why.message}`);
  }

  #warnOfRefusal({ status, code, message }) {
    this.#warn(`${status} ${code}`, `the service refused a request: ${status} ${message}`);
  }

  #decision({ actions }, result, more = {}) {
    const { event_id: eventId, model_version: modelVersion, ...rest } = result;
    if (typeof eventId !== "string" || typeof rest.action !== "string") throw unreadable("it is no decision");
    return this.#withFeedback({ ...asGiven(actions, rest), ...more, eventId, modelVersion, fallback: false, error: null });
  }

  #fallBack(valid, why) {
    if (this.#fallback === null) throw why;
    return this.#fallen(this.#choose(valid, this.#fallback).callerId, why);
  }

  // Under an id of its own: the service may have stored another action under the first.
  #fallen(action, error, slot) {
    const eventId = FALLBACK_PREFIX + newEventId(), place = slot === undefined ? {} : { slot };
    return this.#withFeedback({ action, error, eventId, probability: null, ranking: [], modelVersion: 0, fallback: true, ...place });
  }

  #choose(valid, fallback) {
    const left = allowed(valid);
    if (fallback === "first") return left[0];
    try {
      const chosen = identifier("the fallback's action", fallback({ ...valid.request, exclude: valid.exclude }));
      const action = left.find(({ id }) => id === chosen);
      if (!action) this.#warn("fallback", `the fallback must return the id of an allowed action, got ${chosen}; the first is taken`);
      return action ?? left[0];
    } catch (error) {
      this.#warn("fallback", `the fallback failed, and the first action is taken: ${error}`);
      return left[0];
    }
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

/** Return JSON, written once: what cannot be is no trouble of the network, and repeats are the same. */
function written(sent) {
  return sent === undefined ? undefined : JSON.stringify(sent);
}

/** The deadline of a call by either of its names. */
function either({ deadline, timeout }) {
  if (deadline !== undefined && timeout !== undefined) throw new TypeError("deadline and timeout are the same: pass one of them");
  return deadline ?? timeout;
}

/** A request, checked and with an event id: what is sent of it, and what the caller gave. */
function checked(what, request, more = []) {
  checkOptions(what, request, [...REQUEST, ...more]);
  const actions = actionList(request.actions), exclude = identifiers("exclude", request.exclude ?? []);
  const eventId = newEvent(request.eventId);
  const again = typeof request.actions.next === "function" ? { actions: actions.map(({ callerId }) => callerId) } : {}; // a generator is read once
  const valid = { request: { ...request, ...again, eventId }, actions, exclude, eventId, user: userId(request.user) };
  valid.context = features("context", request.context ?? {});
  allowed(valid);
  return valid;
}

/** The id of an event to be made. */
function newEvent(callerId) {
  const eventId = callerId === undefined || callerId === null ? newEventId() : identifier("eventId", callerId);
  if (eventId.startsWith(FALLBACK_PREFIX)) throw new RangeError(`eventId must not begin with ${FALLBACK_PREFIX}, as those of fallbacks do`);
  return eventId;
}

function place(slot) {
  const { id, ...rest } = slot !== null && typeof slot === "object" ? slot : { id: slot };
  checkOptions("a slot", rest, ["features", "exclude", "baseline"]);
  const baseline = rest.baseline === undefined || rest.baseline === null ? {} : { baseline: identifier("baseline", rest.baseline) };
  const own = features(`slots[${String(id)}]`, rest.features ?? {}), exclude = identifiers("exclude", rest.exclude ?? []);
  return { id: identifier("slots", id), callerId: id, features: own, exclude, ...baseline };
}

/** What is sent of a request: fields at their defaults are left out. */
function body({ request: { defer = false, explain = false }, actions, context, user, exclude, eventId }) {
  const offered = actions.map(({ id, features: own }) => (own === null ? { id } : { id, features: own }));
  return {
    event_id: eventId,
    ...(user === null || user === undefined ? {} : { user }),
    ...(Object.keys(context).length ? { context } : {}),
    actions: offered,
    ...(exclude.length ? { exclude } : {}),
    ...(defer ? { defer } : {}),
    ...(explain ? { explain } : {}),
  };
}

function allowed({ actions, exclude }) {
  const left = actions.filter(({ id }) => !exclude.includes(id));
  if (left.length === 0) throw new RangeError(`exclude must leave at least one action, got all ${actions.length} of them`);
  return left;
}

/** A decision with the ids of actions that the caller gave. */
function asGiven(actions, decision) {
  if (actions.every(({ callerId }) => typeof callerId === "string")) return decision;
  const callerIds = new Map(actions.map(({ id, callerId }) => [id, callerId]));
  const back = (places) => places?.map((one) => ({ ...one, id: callerIds.get(one.id) ?? one.id }));
  const { action, ranking, explanations } = decision;
  return { ...decision, action: callerIds.get(action) ?? action, ranking: back(ranking), explanations: back(explanations) };
}

/** The first answer that is final, else the last one. */
async function firstOf(ways) {
  const left = new Set(ways.map((way) => way.then((answer) => ({ answer, done: !passes(answer) }))));
  for (;;) {
    const { answer, done, self } = await Promise.race(Array.from(left, (way) => way.then((result) => ({ ...result, self: way }))));
    left.delete(self);
    if (done || left.size === 0) return answer;
  }
}

/** The innermost cause of a failure: fetch itself says no more than "fetch failed". */
function reasonOf(error) {
  let cause = error;
  while (cause?.cause instanceof Error) cause = cause.cause;
  const { code } = cause ?? {}, message = String(cause?.message || (cause?.errors?.[0]?.message ?? error?.message) || cause);
  return typeof code === "string" && !message.includes(code) ? `${message} (${code})` : message;
}

/** Seconds and other limits that a caller sets: a caller's mistake must not look like a service that does not answer. */
function milliseconds(name, value) {
  if (typeof value !== "number") throw new TypeError(`${name} must be a number of milliseconds, got ${JSON.stringify(value) ?? String(value)}`);
  if (!(value > 0)) throw new RangeError(`${name} must be positive, got ${value}`);
  return value;
}

/** An id as text; not empty, and not too long. */
function named(name, value) {
  const text = identifier(name, value);
  if (text === "" || [...text].length > LONGEST_ID) throw new RangeError(`${name} must have 1 to ${LONGEST_ID} characters`);
  return text;
}

/** An id as a part of a path. */
function segment(name, text) {
  if (text === "." || text === "..") throw new RangeError(`${name} must not be "${text}": fetch removes such a part of a path`);
  return encodeURIComponent(identifier(name, text));
}

const isDone = ({ status }) => status >= 200 && status < 300;
const passes = ({ status }) => status === 0 || PASSING.has(status);
const unreadable = (why) => new ServiceError(0, "unreadable_answer", `the service's answer cannot be read: ${why}`);

function parsed(line) {
  try {
    return JSON.parse(line);
  } catch (error) {
    throw unreadable(error.message);
  }
}

function refusal(status, text) {
  try {
    const { code, message, target } = JSON.parse(text).error;
    return new ServiceError(status, code, message, target);
  } catch {
    return new ServiceError(status, "unknown", text.slice(0, 200));
  }
}

// @ts-self-types="./fedres.d.ts"
// A client of a fedres service: fetch only, no dependency. Node 18 and later, Deno, browsers.

const PASSING = new Set([408, 429, 500, 502, 503, 504]);
const FIRST_WAIT = 50; // milliseconds: the longest wait after one failure
const LONGEST_WAIT = 30_000;
const LONGEST_REST = 86_400_000; // milliseconds, of those that a service can ask for
const LONGEST_TIMER = 2 ** 31 - 1; // milliseconds: timers that are set to more go off at once
const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/** The service refused a call, or did not answer in time; `status` is 0 where no answer came. */
export class ServiceError extends Error {
  constructor(status, code, message, target = null) {
    super(message);
    this.name = "ServiceError";
    Object.assign(this, { status, code, target });
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
  #url; #loop; #headers; #deadline; #adminDeadline; #fallback; #limit; #fetch; #random;
  #queue = []; #sending = null; #woken = null; #closed = false;
  #counts = { sent: 0, refused: 0, dropped: 0 };

  constructor(url, options = {}) {
    const { loop = "default", key, deadline = 1000, fallback = "first", queueLimit = 10_000 } = options;
    const { adminDeadline = 30_000 } = options;
    if (!/^https?:\/\//.test(url)) throw new TypeError(`url must begin with http:// or https://, got ${url}`);
    if (!(deadline > 0 && deadline < Infinity)) throw new RangeError(`deadline must be positive, got ${deadline}`);
    if (!(queueLimit >= 1)) throw new RangeError(`queueLimit must be at least 1, got ${queueLimit}`);
    if (fallback !== "first" && fallback !== null && typeof fallback !== "function") {
      throw new TypeError(`fallback must be "first", a function or null, got ${fallback}`);
    }
    this.#url = url.replace(/\/$/, "");
    this.#loop = `/v1/loops/${encodeURIComponent(loop)}`;
    this.#headers = key === undefined ? {} : { Authorization: `Bearer ${key}` };
    this.#deadline = deadline;
    this.#adminDeadline = adminDeadline;
    this.#fallback = fallback;
    this.#limit = queueLimit;
    this.#fetch = options.fetch ?? ((...words) => fetch(...words));
    this.#random = options.random ?? Math.random;
  }

  /** Return which action to take; `actions` maps ids to features, or is a list of ids. */
  async rank(request) {
    const asked = named(request);
    allowed(asked);
    try {
      return this.#decision(await this.#decide("/rank", body(asked), request.deadline));
    } catch (error) {
      return this.#fallBack(asked, error);
    }
  }

  /** Return a decision for each of at most 100 requests, in one call. */
  async rankMany(requests, { deadline } = {}) {
    const asked = requests.map(named);
    asked.forEach(allowed);
    try {
      const { results } = await this.#decide("/rank/batch", { requests: asked.map(body) }, deadline);
      if (results.length !== asked.length) throw unreadable("results are missing");
      return results.map((result, k) => {
        if (!result.error) return this.#decision(result);
        const { code, message, target } = result.error;
        return this.#fallBack(asked[k], new ServiceError(422, code, message, target));
      });
    } catch (error) {
      return asked.map((one) => this.#fallBack(one, error));
    }
  }

  /** Return a decision for each slot of a page, no action twice. */
  async slots(slots, request) {
    const asked = named(request);
    const places = slots.map((slot) => (typeof slot === "string" ? { id: slot } : slot));
    this.#fillFirst(asked, places, "first"); // refuses a page that cannot be filled
    const { exclude: _, explain: __, ...fields } = body(asked);
    try {
      const page = await this.#decide("/rank/slots", { ...fields, slots: places }, request.deadline);
      if (page.slots.some(({ id }, k) => id !== places[k]?.id) || page.slots.length !== places.length) throw unreadable("other slots");
      return page.slots.map(({ id, ...slot }) =>
        this.#decision({ ...slot, model_version: page.model_version }, { slot: id }));
    } catch (error) {
      if (this.#fallback === null) throw failure(error);
      return this.#fillFirst(asked, places, this.#fallback).map((action, k) =>
        this.#fallen(action, failure(error), places[k].id));
    }
  }

  /** Send a reward in the background: a number, or named outcomes in an object; two with one id count once. */
  reward(eventId, reward, { id } = {}) {
    const given = typeof reward === "object" && reward !== null ? { outcomes: reward } : { value: reward };
    this.#put(`/events/${encodeURIComponent(eventId)}/reward`, { ...given, id: id ?? newEventId() });
  }

  /** Say that the decision of a deferred event was shown, in the background. */
  activate(eventId) {
    this.#put(`/events/${encodeURIComponent(eventId)}/activate`, undefined);
  }

  /** The loop's settings. */
  async settings() {
    return this.#field("settings", "GET", "/settings");
  }

  /** Change some settings, and leave the others; returns all. */
  async changeSettings(changes) {
    return this.#field("settings", "PATCH", "/settings", changes);
  }

  /** Replace all settings: those that are missing return to their defaults. */
  async replaceSettings(settings) {
    return this.#field("settings", "PUT", "/settings", settings);
  }

  /** The catalogue: features by id. */
  async actions() {
    const actions = await this.#field("actions", "GET", "/actions");
    return Object.fromEntries(actions.map(({ id, features }) => [id, features]));
  }

  /** Add or replace actions of the catalogue, and retire others. */
  async putActions(actions, { retire = [] } = {}) {
    const put = Object.entries(actions).map(([id, features]) => ({ id, features }));
    await this.#call("PUT", "/actions", { put, retire });
  }

  /** The stored events behind a position, fetched page by page. */
  async *events({ after = 0, pageSize = 1000 } = {}) {
    for (let last = after; ;) {
      const text = await this.#call("GET", `/events?after=${last}&limit=${pageSize}`, undefined, { lines: true });
      const page = text.split("\n").filter(Boolean).map(parsed);
      yield* page;
      if (page.length < pageSize) return;
      last = page.at(-1).position;
    }
  }

  /** What other policies would have earned on the stored events; with `timeUniform`, intervals hold at all looks together. */
  evaluate(policies, { estimators = ["snips", "dr"], timeUniform = false } = {}) {
    return this.#call("POST", "/evaluations", { policies, estimators, time_uniform: timeUniform });
  }

  /** How much more the policy earns than its control group. */
  lift() {
    return this.#call("GET", "/lift");
  }

  /** Rewards that do not count. */
  async unmatched() {
    return this.#field("rewards", "GET", "/rewards/unmatched");
  }

  /** Erase a user in all loops; resolves when nothing of the user is left. */
  async erase(user) {
    await this.#call("DELETE", `/v1/users/${encodeURIComponent(user)}`, undefined, { deadline: 150_000 });
  }

  /** Make a loop; returns its settings. */
  async createLoop(name, settings = {}) {
    return this.#field("settings", "POST", "/v1/loops", { name, settings });
  }

  /** The status of the service. */
  status() {
    return this.#call("GET", "/v1/status");
  }

  /** How many rewards wait, and what became of the others. */
  rewards() {
    return { queued: this.#queue.length, ...this.#counts };
  }

  /** Wait until the service has all rewards, at most so many milliseconds; return whether it has. */
  async flush(milliseconds = 5000) {
    let timer;
    const late = new Promise((resolve) => (timer = setTimeout(resolve, Math.min(milliseconds, LONGEST_TIMER))));
    await Promise.race([this.#sending ?? Promise.resolve(), late]);
    clearTimeout(timer);
    return this.#queue.length === 0;
  }

  /** Send what is left of the rewards for so long; what then remains is dropped. */
  async close(milliseconds = 5000) {
    this.#woken?.();
    await this.flush(milliseconds);
    this.#closed = true;
    this.#counts.dropped += this.#queue.length;
    this.#queue = [];
    this.#woken?.();
  }

  #put(path, sent) {
    if (this.#closed) throw new Error("the client is closed");
    this.#queue.push({ path, content: written(sent) });
    if (this.#queue.length > this.#limit) {
      this.#queue.splice(this.#sending ? 1 : 0, 1); // the first one may be under way
      this.#counts.dropped += 1;
    }
    this.#sending ??= this.#send();
  }

  async #send() {
    for (let failures = 0; this.#queue.length > 0 && !this.#closed;) {
      const [{ path, content }] = this.#queue;
      const answer = await this.#try("POST", this.#loop + path, content, 10_000);
      if (this.#closed) break;
      if (passes(answer)) {
        await this.#wait(this.#backOff(failures++, answer));
        continue;
      }
      failures = 0;
      this.#queue.shift();
      this.#counts[answer.status < 300 ? "sent" : "refused"] += 1;
    }
    this.#sending = null; // here: what is put a moment later begins anew
  }

  #decide(path, sent, deadline = this.#deadline) {
    return this.#retry("POST", this.#loop + path, sent, deadline, deadline / 2);
  }

  #call(method, path, sent, { deadline = this.#adminDeadline, lines = false } = {}) {
    const where = path.startsWith("/v1/") ? path : this.#loop + path;
    return this.#retry(method, where, sent, Math.max(deadline, this.#adminDeadline), deadline, lines);
  }

  async #field(name, ...call) {
    const found = await this.#call(...call);
    if (found?.[name] === undefined) throw unreadable(`it has no ${name}`);
    return found[name];
  }

  async #retry(method, path, sent, deadline, each, lines = false) {
    const end = performance.now() + deadline, content = written(sent);
    for (let failures = 0; ; failures++) {
      const answer = await this.#try(method, path, content, Math.min(each, end - performance.now()), lines);
      if (answer.status >= 200 && answer.status < 300) return answer.content;
      const wait = this.#backOff(failures, answer);
      if (!passes(answer) || performance.now() + wait >= end) throw answer.error;
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  /** Return the status and the content of an answer, or the error it is; this never throws. */
  async #try(method, path, body, milliseconds, lines = false) {
    const control = new AbortController(), requestId = newEventId();
    const timer = setTimeout(() => control.abort(), Math.min(Math.max(1, milliseconds), LONGEST_TIMER));
    try {
      const headers = { ...this.#headers, "X-Request-Id": requestId };
      if (body !== undefined) headers["Content-Type"] = "application/json";
      const reply = await this.#fetch(this.#url + path, { method, headers, body, signal: control.signal });
      if ((reply.headers.get("x-request-id") ?? requestId) !== requestId) throw new Error("a reply to another request");
      const text = await reply.text();
      if (reply.ok) return { status: reply.status, content: lines ? text : text === "" ? null : JSON.parse(text) };
      const after = Math.min(Number(reply.headers.get("retry-after")) * 1000 || 0, LONGEST_REST);
      return { status: reply.status, after, error: refusal(reply.status, text) };
    } catch (error) {
      return { status: 0, after: 0, error: new ServiceError(0, "no_answer", String(error.message ?? error)) };
    } finally {
      clearTimeout(timer);
    }
  }

  #backOff(failures, answer) {
    return Math.max(answer.after ?? 0, this.#random() * Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** failures));
  }

  #wait(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#woken = () => (clearTimeout(timer), resolve());
    });
  }

  #decision(result, more = {}) {
    const { event_id: eventId, model_version: modelVersion, ...rest } = result;
    if (typeof eventId !== "string" || typeof rest.action !== "string") throw unreadable("it is no decision");
    return {
      ...rest, ...more, eventId, modelVersion, fallback: false, error: null,
      reward: (reward, options) => this.reward(eventId, reward, options),
      activate: () => this.activate(eventId),
    };
  }

  #fallBack(request, error) {
    if (this.#fallback === null) throw failure(error);
    return this.#fallen(choose(request, this.#fallback), failure(error));
  }

  // Under an id of its own: the service may have stored another action under the first.
  #fallen(action, error, slot) {
    return {
      action, error, eventId: newEventId(), probability: NaN, ranking: [], modelVersion: 0, fallback: true,
      ...(slot === undefined ? {} : { slot }), reward() {}, activate() {},
    };
  }

  #fillFirst(request, slots, fallback) {
    if (slots.length === 0) throw new RangeError("slots must hold at least one slot, got none");
    const taken = [];
    for (const slot of slots) {
      taken.push(choose({ ...request, exclude: [...(request.exclude ?? []), ...(slot.exclude ?? []), ...taken] }, fallback));
    }
    return taken;
  }
}

/** Return JSON, written once: what cannot be is no trouble of the network, and repeats are the same. */
function written(sent) {
  return sent === undefined ? undefined : JSON.stringify(sent);
}

function named(request) {
  return { ...request, eventId: request.eventId ?? newEventId() };
}

function body({ actions, context = {}, user = null, exclude = [], eventId, defer = false, explain = false }) {
  const offered = Array.isArray(actions)
    ? actions.map((id) => ({ id }))
    : Object.entries(actions).map(([id, features]) => ({ id, features }));
  return { event_id: eventId, user, context, actions: offered, exclude, defer, explain };
}

function allowed({ actions, exclude = [] }) {
  const ids = (Array.isArray(actions) ? actions : Object.keys(actions)).filter((id) => !exclude.includes(id));
  if (ids.length === 0) throw new RangeError("exclude must leave at least one action, got none left");
  return ids;
}

function choose(request, fallback) {
  const ids = allowed(request);
  if (fallback === "first") return ids[0];
  try {
    const chosen = fallback(request);
    return ids.includes(chosen) ? chosen : ids[0];
  } catch {
    return ids[0];
  }
}

const passes = ({ status }) => status === 0 || PASSING.has(status);
const failure = (error) =>
  error instanceof ServiceError ? error : new ServiceError(0, "unreadable_answer", String(error));
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

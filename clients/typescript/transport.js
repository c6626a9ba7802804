// Requests to a service: time limits, retries, and a repeat beside a slow first try.

import { Availability } from "./availability.js";
import { errorOf, reasonOf, refusal } from "./errors.js";
import { newEventId } from "./ids.js";

export const VERSION = "0.1.0"; // that of package.json

const PASSING = new Set([408, 429, 500, 502, 503, 504]); // statuses that may pass
const LATE = new Error("no answer in time"); // why a try is aborted at its end
const ENDED = new Error("the call has ended"); // why a try is aborted with its call
const FIRST_WAIT = 50; // milliseconds: the longest wait after one failure
const LONGEST_WAIT = 30_000;
const LONGEST_REST = 86_400_000; // milliseconds, of those that a service can ask for
const LONGEST_TIMER = 2 ** 31 - 1; // milliseconds: longer timers go off at once

export const isDone = ({ status }) => status >= 200 && status < 300;
const passes = ({ status }) => status === 0 || PASSING.has(status);

/** Return a timer for at most so long as timers can be. */
export function timerFor(milliseconds, work) {
  return setTimeout(work, Math.min(milliseconds, LONGEST_TIMER));
}

/** Return headers with which an operator sees which client runs where; browsers set their own. */
export function clientHeaders(key) {
  const headers = key === undefined ? {} : { Authorization: `Bearer ${key}` };
  const versions = globalThis.process?.versions ?? {};
  const platform = ["deno", "bun", "node"].find((name) => versions[name] !== undefined);
  if (platform === undefined) return headers;
  return { ...headers, "User-Agent": `fedres-client/${VERSION} ${platform}/${versions[platform]}` };
}

/** The connection to a service, which all loops of a client share. */
export class Transport {
  #url;
  #headers;
  #fetch;
  #random;

  /** Whether the service decides. */
  availability = new Availability();

  constructor({ url, key, fetch: fetchWith, random = Math.random }) {
    this.#url = url.replace(/\/$/, "");
    this.#headers = clientHeaders(key);
    this.#fetch = fetchWith ?? ((...words) => fetch(...words));
    this.#random = random;
  }

  /** Return the answer to a decision: after half of its time, a repeat may go beside the first. */
  async decide(path, content, timeout, attempt, signal) {
    const end = performance.now() + timeout;
    const scope = new Scope(signal);
    const send = (once) => this.tries("POST", path, content, { end, each: timeout, once, scope });
    try {
      if (attempt === "probe") return await send(true);
      const first = send(false);
      let timer;
      const half = new Promise((resolve) => {
        timer = timerFor(timeout / 2, () => resolve(null));
      });
      const answer = await Promise.race([first, half]);
      clearTimeout(timer);
      if (answer !== null) return answer;
      if (!this.availability.mayRepeat()) return await first;
      return await firstOf([first, send(true)]);
    } finally {
      scope.end();
    }
  }

  /** Try until an answer is final, or another try would end too late; return the last answer. */
  async tries(method, path, content, { end, each, lines = false, once = false, scope }) {
    for (let failures = 0; ; failures++) {
      const left = Math.min(each, end - performance.now());
      const answer = await this.try(method, path, content, left, { lines, scope });
      if (once || isDone(answer) || !passes(answer) || scope.isEnded) return answer;
      const wait = this.backOff(failures, answer);
      if (!(performance.now() + wait < end)) return answer;
      await sleep(wait, scope);
    }
  }

  /** Return the status and the content of an answer, or the error it is; this never throws. */
  async try(method, path, body, milliseconds, { lines = false, scope, keepalive = false } = {}) {
    const control = new AbortController();
    const requestId = newEventId();
    const timer = timerFor(Math.max(1, milliseconds), () => control.abort(LATE));
    const abort = () => control.abort(ENDED);
    scope?.add(abort);
    try {
      const headers = { ...this.#headers, "X-Request-Id": requestId };
      if (body !== undefined) headers["Content-Type"] = "application/json";
      const request = { method, headers, body, signal: control.signal };
      if (keepalive) request.keepalive = true;
      const reply = await this.#fetch(this.#url + path, request);
      if ((reply.headers.get("x-request-id") ?? requestId) !== requestId) {
        throw new Error("a reply to another request");
      }
      const text = await reply.text();
      if (reply.ok) {
        return { status: reply.status, content: lines ? text : contentOf(text), requestId };
      }
      const after = Number(reply.headers.get("retry-after")) * 1000 || 0;
      const error = refusal(reply.status, text, requestId);
      return { status: reply.status, after: Math.min(after, LONGEST_REST), error };
    } catch (cause) {
      const isLate = control.signal.reason === LATE;
      const reason = isLate ? `no answer within ${Math.round(milliseconds)} ms` : reasonOf(cause);
      const error = errorOf(0, "no_answer", reason, { cause, requestId });
      return { status: 0, after: 0, error, isLate };
    } finally {
      clearTimeout(timer);
      scope?.remove(abort);
    }
  }

  /** Return how many milliseconds to wait after so many failures. */
  backOff(failures, answer) {
    const longest = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** failures);
    return Math.max(answer.after ?? 0, this.#random() * longest);
  }
}

function contentOf(text) {
  return text === "" ? null : JSON.parse(text);
}

/** Wait, until the end of a scope at most. */
function sleep(milliseconds, scope) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      scope.remove(done);
      resolve();
    };
    const timer = timerFor(milliseconds, done);
    scope.add(done);
  });
}

/**
 * What is under way for a call: its end, or the caller's signal, stops all of that. (An AbortController
 * for it would cost a tenth of a call.)
 */
export class Scope {
  #stops = new Set();
  #signal;
  #end = () => this.end();

  isEnded = false;

  constructor(signal) {
    this.#signal = signal;
    signal?.addEventListener("abort", this.#end);
    if (signal?.aborted) this.end();
  }

  add(stop) {
    if (this.isEnded) stop();
    else this.#stops.add(stop);
  }

  remove(stop) {
    this.#stops.delete(stop);
  }

  end() {
    this.isEnded = true;
    this.#signal?.removeEventListener("abort", this.#end);
    for (const stop of [...this.#stops]) stop();
  }
}

/** Return the first answer that is final, else the last one. */
async function firstOf(tries) {
  const left = new Set(tries.map((each) => {
    const ended = each.then((answer) => ({ answer, ended }));
    return ended;
  }));
  for (;;) {
    const { answer, ended } = await Promise.race(left);
    left.delete(ended);
    if (!passes(answer) || left.size === 0) return answer;
  }
}

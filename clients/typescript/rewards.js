// Rewards: a bounded queue, and batches of them, one in flight at a time, until the service has
// each.
// The Python client's rewards.py and reward_batches.py do the same.

import { timerFor } from "./transport.js";

const MOST = 500; // rewards in a batch: the service's default limit
const MOST_BYTES = 500_000; // of a batch, roughly; the service takes 1 MB
const KEPT_ALIVE_BYTES = 60_000; // of all requests as a page is left; browsers take 64 KB
const TRY = 10_000; // milliseconds that a batch may take
const GATHER = 50; // milliseconds between two batches, unless one is full or flush waits for it
const LATE = 10_000; // milliseconds of a reward in the queue, after which that is logged
const HELD = 30_000; // milliseconds between two tries for a loop that takes no rewards
const SINGLE = 300_000; // milliseconds of single rewards for a service without the route for many
const CLOSE = 5000; // milliseconds for the rest at the end of a process

const AWAY = new Set([408, 429, 502, 503, 504]); // the same request may succeed later
const BROKEN_RULE = new Set([409, 413, 422]); // of any server
const NO_KEY = new Set([401, 403]);
const NO_LOOP = new Set(["unknown_loop", "not_followed"]);
const NO_ROUTE = new Set(["unknown_path", "method_not_allowed"]);

/**
 * Return what becomes of the rewards of a request. They wait only for what waiting can mend. A
 * reply
 * without an error of the service comes from another server, so the address is wrong; for one
 * reward
 * alone, whose path has its event's id, the id may be the reason.
 */
export function verdictOn({ status, error }, isSingle) {
  if (status === 0) return "later";
  if (status < 300) return "stored";
  const code = error.code === "unknown" ? "" : error.code;
  if (AWAY.has(status) || (status === 500 && !code)) return "later";
  if (NO_KEY.has(status) || NO_LOOP.has(code)) return "held";
  if (BROKEN_RULE.has(status) || isSingle) return "refused";
  if (NO_ROUTE.has(code)) return "no batches";
  return code ? "refused" : "held";
}

/** The queue of one loop. */
class Lane {
  waiting = [];
  due = -Infinity; // when the next batch may be sent
  isHeld = false; // the service takes no rewards of this loop from this client
  singleUntil = -Infinity;

  constructor(path, size) {
    this.path = path;
    this.size = size; // of the next batch: smaller, if one reward made the service refuse the last
  }

  isSingle(now) {
    return now < this.singleUntil;
  }

  /** Take the next batch. */
  take(most) {
    let n = 0;
    for (let bytes = 0; n < Math.min(most, this.waiting.length); n++) {
      bytes += bytesOf(this.waiting[n]);
      if (n > 0 && bytes > MOST_BYTES) break;
    }
    return this.waiting.splice(0, n);
  }
}

/** Sends the rewards of all loops of a client. */
export class RewardQueue {
  #post;
  #backOff;
  #observe;
  #warn;
  #limit;
  #most;
  #lanes = new Map(); // by the path of a loop
  #inFlight = [];
  #inFlightLane = null;
  #counts = { sent: 0, refused: 0, dropped: 0 };
  #sending = null; // the work of #run
  #wake = () => {};
  #flushing = 0;
  #closing = null;
  #isClosed = false;
  #isLate = false;
  #failures = 0;
  #restUntil = -Infinity; // after a failure
  #triedAt = -Infinity;

  /**
   * `post(path, content, milliseconds, options)` returns an answer and never throws;
   * `backOff(failures, answer)` returns how long to wait.
   */
  constructor({ limit, post, backOff, observe, warn }) {
    this.#limit = limit;
    this.#post = post;
    this.#backOff = backOff;
    this.#observe = observe;
    this.#warn = warn;
    this.#most = Math.max(1, Math.min(MOST, Math.floor(limit / 2))); // leaves room beside a batch
  }

  get isClosed() {
    return this.#closing !== null;
  }

  /** Add a reward or an activation of a loop. */
  put(loop, event, name, content) {
    let lane = this.#lanes.get(loop);
    if (lane === undefined) {
      lane = new Lane(loop, this.#most);
      this.#lanes.set(loop, lane);
    }
    lane.waiting.push({ event, name, content, since: performance.now() });
    if (this.#waiting() > Math.max(1, this.#limit - this.#inFlight.length)) this.#dropOldest();
    this.#checkAge();
    sendAtTheEnd(this);
    this.#sending ??= this.#run();
    if (lane.waiting.length === 1 || lane.waiting.length === lane.size) this.#wake();
  }

  status() {
    const queued = this.#waiting() + this.#inFlight.length;
    return { queued, ...this.#counts, oldestMilliseconds: this.#age() };
  }

  /** Wait until all is sent or refused, at most so long; return whether it is. */
  async flush(milliseconds) {
    let timer;
    const late = new Promise((resolve) => {
      timer = timerFor(milliseconds, resolve);
    });
    this.#flushing += 1;
    this.#wake();
    await Promise.race([this.#sending ?? Promise.resolve(), late]);
    this.#flushing -= 1;
    clearTimeout(timer);
    return this.status().queued === 0;
  }

  /** Send the rest for so long, and drop what then remains. */
  close(milliseconds = CLOSE) {
    this.#closing ??= this.#close(milliseconds);
    return this.#closing;
  }

  async #close(milliseconds) {
    await null; // so that #closing is set
    this.#restUntil = -Infinity;
    for (const lane of this.#lanes.values()) lane.due = -Infinity; // a last try
    await this.flush(milliseconds);
    this.#isClosed = true;
    const { queued, oldestMilliseconds } = this.status();
    if (queued > 0) {
      const seconds = Math.round(oldestMilliseconds / 100) / 10;
      console.warn(`fedres: ${queued} rewards were not sent, the oldest after ${seconds} s`);
    }
    this.#counts.dropped += queued;
    this.#lanes.clear();
    this.#inFlight = [];
    unsent.delete(this);
    this.#wake();
  }

  /**
   * Send what waits as a page is left: requests with `keepalive` outlive it. The rewards stay in
   * the
   * queue, as the page may return; the service counts those that it gets again once.
   */
  sendAsThePageIsLeft() {
    let left = KEPT_ALIVE_BYTES;
    for (const lane of this.#lanes.values()) {
      const all = lane === this.#inFlightLane ? [...this.#inFlight, ...lane.waiting] : lane.waiting;
      const batch = [];
      for (const one of all.slice(0, this.#most)) {
        left -= bytesOf(one);
        if (left < 0) break;
        batch.push(one);
      }
      if (batch.length > 0) void this.#postBatch(lane, batch, { keepalive: true });
    }
  }

  #waiting() {
    let n = 0;
    for (const { waiting } of this.#lanes.values()) n += waiting.length;
    return n;
  }

  #dropOldest() {
    let longest = { waiting: [] };
    for (const lane of this.#lanes.values()) {
      if (lane.waiting.length > longest.waiting.length) longest = lane;
    }
    longest.waiting.shift();
    this.#counts.dropped += 1;
    const message = `more than ${this.#limit} rewards wait to be sent: the oldest are dropped`;
    this.#warn("dropped", message);
  }

  #age() {
    let oldest = this.#inFlight[0]?.since ?? Infinity;
    for (const { waiting } of this.#lanes.values()) {
      oldest = Math.min(oldest, waiting[0]?.since ?? Infinity);
    }
    return oldest === Infinity ? 0 : performance.now() - oldest;
  }

  /** Log once that rewards wait for long, until none does. */
  #checkAge() {
    const isLate = this.#age() > LATE;
    if (isLate && !this.#isLate) {
      const { queued } = this.status();
      const message = `rewards have waited for ${LATE / 1000} s to be sent: ${queued} are queued`;
      console.warn(`fedres: ${message}`);
    }
    this.#isLate = isLate;
  }

  async #run() {
    await null; // what is put in one go is sent in one batch
    while (!this.#isClosed) {
      const now = performance.now();
      const { lane, due } = this.#next(now);
      if (lane === null || (this.isClosed && due === Infinity)) break;
      if (due > now) {
        await this.#wait(due - now);
        continue;
      }
      await this.#sendNextOf(lane, now);
    }
    this.#sending = null; // here: what is put a moment later begins anew
    if (this.#waiting() === 0) unsent.delete(this);
  }

  /** Return the loop whose batch may be sent first, and when. */
  #next(now) {
    let next = { lane: null, due: Infinity, since: Infinity };
    for (const lane of this.#lanes.values()) {
      if (lane.waiting.length === 0) continue;
      const due = this.#dueOf(lane, now);
      const { since } = lane.waiting[0];
      const isFirst = due < next.due || (due === next.due && since < next.since);
      if (next.lane === null || isFirst) next = { lane, due, since };
    }
    return next;
  }

  #dueOf(lane, now) {
    const due = Math.max(lane.due, this.#restUntil);
    const isFull = lane.isSingle(now) || lane.waiting.length >= lane.size;
    if (isFull || this.#flushing > 0 || this.isClosed) return due;
    return Math.max(due, this.#triedAt + GATHER);
  }

  async #sendNextOf(lane, now) {
    const isSingle = lane.isSingle(now);
    this.#triedAt = now;
    this.#inFlight = lane.take(isSingle ? 1 : lane.size);
    this.#inFlightLane = lane;
    const answer = await this.#send(lane, isSingle);
    this.#observe("rewards", now, answer);
    if (this.#isClosed) return;
    this.#settle(lane, answer, isSingle);
    this.#checkAge();
  }

  #send(lane, isSingle) {
    if (!isSingle) return this.#postBatch(lane, this.#inFlight);
    const [{ event, name, content }] = this.#inFlight;
    if (event === "." || event === "..") {
      const message = "an event id in a path cannot be . or ..";
      return { status: 400, error: { code: "no_path", message } };
    }
    return this.#post(`${lane.path}/events/${encodeURIComponent(event)}/${name}`, content, TRY);
  }

  #postBatch(lane, batch, options) {
    const items = batch.map(({ event, content }) => {
      const fields = content?.slice(1) ?? '"activate":true}';
      return `{"event_id":${JSON.stringify(event)},${fields}`;
    });
    const content = `{"rewards":[${items.join(",")}]}`;
    return this.#post(`${lane.path}/events/rewards`, content, TRY, options);
  }

  /** Count the batch that was in flight, or put it back. */
  #settle(lane, answer, isSingle) {
    const batch = this.#inFlight;
    this.#inFlight = [];
    this.#inFlightLane = null;
    let verdict = verdictOn(answer, isSingle);
    let errors = batch.map(() => null);
    if (verdict === "stored" && !isSingle) {
      const results = answer.content?.results;
      const isComplete = Array.isArray(results) && results.length === batch.length;
      if (isComplete) errors = results.map((result) => result?.error?.message ?? null);
      else verdict = "later";
    }
    if (verdict === "refused" && batch.length === 1) {
      errors = [`${answer.status} ${answer.error.message}`];
      verdict = "stored";
    }
    if (verdict === "stored") return this.#count(lane, batch, errors);
    lane.waiting.unshift(...batch);
    return this.#postpone(lane, answer, verdict, batch.length);
  }

  #count(lane, batch, errors) {
    const refused = errors.filter((error) => error !== null);
    this.#counts.sent += batch.length - refused.length;
    this.#counts.refused += refused.length;
    this.#failures = 0;
    lane.isHeld = false;
    lane.due = -Infinity;
    lane.size = Math.min(this.#most, 2 * lane.size);
    if (refused.length === 0) return;
    const message = `the service refused ${refused.length} of the rewards and activations`;
    this.#warn(`refused ${refused[0]}`, `${message}; the first: ${refused[0]}`);
  }

  #postpone(lane, answer, verdict, n) {
    const now = performance.now();
    if (verdict === "later") this.#restUntil = now + this.#backOff(this.#failures++, answer);
    if (verdict === "no batches") lane.singleUntil = now + SINGLE;
    if (verdict === "refused") lane.size = Math.max(1, Math.floor(n / 2)); // find the one at fault
    if (verdict !== "held") return;
    const { status, error } = answer;
    if (!lane.isHeld) {
      const kind = `held ${lane.path} ${status} ${error.code}`;
      const reason = `${status} ${error.message}`;
      this.#warn(kind, `the service takes no rewards of ${lane.path}, which wait: ${reason}`);
    }
    lane.isHeld = true;
    lane.due = this.isClosed ? Infinity : now + HELD;
  }

  /** Wait, or until there is a reason to look again; this keeps no process of Node alive. */
  #wait(milliseconds) {
    return new Promise((resolve) => {
      const timer = timerFor(milliseconds, resolve);
      timer.unref?.();
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

function bytesOf({ event, content = "" }) {
  return 3 * (event.length + content.length) + 40;
}

const unsent = new Set(); // queues with rewards to send as the process ends or the page is left
let isWatching = false;

/** Send the rewards of a queue as the process ends, or the page is left. */
function sendAtTheEnd(queue) {
  unsent.add(queue);
  if (isWatching) return;
  isWatching = true;
  globalThis.process?.on?.("beforeExit", () => {
    for (const each of unsent) void each.close();
    unsent.clear();
  });
  if (typeof document === "undefined") return;
  addEventListener("pagehide", () => {
    for (const each of unsent) each.sendAsThePageIsLeft();
  });
}

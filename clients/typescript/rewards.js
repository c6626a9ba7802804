// Rewards: a bounded queue, and batches of them, one under way at a time, until the service has each.
// clients/python/fedres_client/rewards.py and reward_batches.py do the same in Python.

const MOST = 500; // rewards in a batch: the service's default limit
const MOST_BYTES = 500_000; // of a batch, roughly; the service takes 1 MB
const TRY = 10_000; // milliseconds that a batch may take
const GATHER = 50; // milliseconds between two batches, unless one is full or somebody waits for the last
const LATE = 10_000; // milliseconds of a reward in the queue, after which that is logged
const HELD = 30_000; // milliseconds between two tries while the service takes no rewards from this client
const SINGLE = 300_000; // milliseconds for which rewards are sent one by one to a service without the route for many
const LONGEST_TIMER = 2 ** 31 - 1; // milliseconds: timers that are set to more go off at once

const AWAY = new Set([408, 429, 502, 503, 504]); // statuses that the same request may not have later
const BROKEN_RULE = new Set([409, 413, 422]); // of any server
const NO_KEY = new Set([401, 403]);
const NO_LOOP = new Set(["unknown_loop", "not_followed"]);
const NO_ROUTE = new Set(["unknown_path", "method_not_allowed"]);

/**
 * What becomes of the rewards of a request. They wait only for what waiting can mend. A reply without an error of the service comes from
 * another server, so the address is wrong; for one reward alone, whose path has its event's id, the id may be the reason.
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

export class RewardQueue {
  #post; #backOff; #observe; #warn; #limit; #most; #size;
  #queue = []; #underWay = []; #counts = { sent: 0, refused: 0, dropped: 0 };
  #sending = null; #woken = null; #gathering = false; #flushing = 0; #closing = false; #closed = false;
  #isHeld = false; #isLate = false; #failures = 0; #singleUntil = -Infinity; #triedAt = -Infinity;

  /** `post(path, content, milliseconds)` returns a reply and never throws; `backOff(failures, reply)` returns how long to wait. */
  constructor({ limit, post, backOff, observe, warn }) {
    [this.#limit, this.#post, this.#backOff, this.#observe, this.#warn] = [limit, post, backOff, observe, warn];
    this.#most = Math.max(1, Math.min(MOST, Math.floor(limit / 2))); // so that there is room beside a batch
    this.#size = this.#most; // of the next batch: smaller, if one reward made the service refuse all of the last
  }

  get isClosed() {
    return this.#closing;
  }

  put(event, name, content) {
    this.#queue.push({ event, name, content, since: performance.now() });
    if (this.#queue.length > Math.max(1, this.#limit - this.#underWay.length)) {
      this.#queue.shift();
      this.#counts.dropped += 1;
      this.#warn("dropped", `more than ${this.#limit} rewards wait to be sent: the oldest are dropped`);
    }
    this.#checkAge();
    this.#sending ??= this.#run();
    if (this.#gathering && this.#queue.length >= this.#size) this.#woken();
  }

  status() {
    return { queued: this.#queue.length + this.#underWay.length, ...this.#counts, oldestMilliseconds: this.#age() };
  }

  async flush(milliseconds) {
    let timer;
    const late = new Promise((resolve) => (timer = setTimeout(resolve, Math.min(milliseconds, LONGEST_TIMER))));
    this.#flushing += 1;
    if (this.#gathering) this.#woken();
    await Promise.race([this.#sending ?? Promise.resolve(), late]);
    this.#flushing -= 1;
    clearTimeout(timer);
    return this.#queue.length + this.#underWay.length === 0;
  }

  async close(milliseconds) {
    if (this.#closing) return;
    this.#closing = true;
    this.#woken?.(); // a last try
    await this.flush(milliseconds);
    this.#closed = true;
    const { queued, oldestMilliseconds } = this.status();
    this.#counts.dropped += queued;
    if (queued > 0) console.warn(`fedres: ${queued} rewards were not sent, the oldest after ${Math.round(oldestMilliseconds / 100) / 10} s`);
    [this.#queue, this.#underWay] = [[], []];
    this.#woken?.();
  }

  #age() {
    const oldest = this.#underWay[0] ?? this.#queue[0];
    return oldest ? performance.now() - oldest.since : 0;
  }

  /** Log once that rewards wait for long, until none does. */
  #checkAge() {
    const isLate = this.#age() > LATE;
    if (isLate && !this.#isLate) console.warn(`fedres: rewards have waited for ${LATE / 1000} s to be sent: ${this.status().queued} are queued`);
    this.#isLate = isLate;
  }

  async #run() {
    await null; // what is put in one go is sent in one batch
    while (this.#queue.length > 0 && !this.#closed) {
      const isSingle = performance.now() < this.#singleUntil;
      await this.#gather(isSingle);
      if (this.#closed || this.#queue.length === 0) break;
      const began = (this.#triedAt = performance.now());
      this.#underWay = this.#queue.splice(0, isSingle ? 1 : this.#next());
      const answer = await this.#send(isSingle);
      this.#observe("rewards", began, answer);
      if (this.#closed) break;
      const wait = this.#settle(answer, isSingle);
      this.#checkAge();
      if (wait === Infinity) break;
      if (wait > 0) await this.#wait(wait);
    }
    this.#sending = null; // here: what is put a moment later begins anew
  }

  async #gather(isSingle) {
    const wait = this.#triedAt + GATHER - performance.now();
    if (wait <= 0 || isSingle || this.#flushing > 0 || this.#closing || this.#queue.length >= this.#size) return;
    this.#gathering = true;
    await this.#wait(wait);
    this.#gathering = false;
  }

  /** How many rewards the next batch has. */
  #next() {
    let n = 0;
    for (let bytes = 0; n < Math.min(this.#size, this.#queue.length); n++) {
      const { event, content = "" } = this.#queue[n];
      bytes += 3 * (event.length + content.length);
      if (n > 0 && bytes > MOST_BYTES) break;
    }
    return n;
  }

  #send(isSingle) {
    const batch = this.#underWay;
    if (!isSingle) {
      const items = batch.map(({ event, content }) => `{"event_id":${JSON.stringify(event)},${content?.slice(1) ?? '"activate":true}'}`);
      return this.#post("/events/rewards", `{"rewards":[${items.join(",")}]}`, TRY);
    }
    const [{ event, name, content }] = batch;
    if (event === "." || event === "..") return { status: 400, error: { code: "no_path", message: "an event id in a path cannot be . or .." } };
    return this.#post(`/events/${encodeURIComponent(event)}/${name}`, content, TRY);
  }

  /** Count the batch that was under way, or put it back; return how long to wait before the next, Infinity at the end. */
  #settle(answer, isSingle) {
    const batch = this.#underWay;
    let verdict = verdictOn(answer, isSingle), errors = batch.map(() => null);
    this.#underWay = [];
    if (verdict === "stored" && !isSingle) {
      const results = answer.content?.results;
      if (Array.isArray(results) && results.length === batch.length) errors = results.map((result) => result?.error?.message ?? null);
      else verdict = "later";
    }
    if (verdict === "refused" && batch.length === 1) [verdict, errors] = ["stored", [`${answer.status} ${answer.error.message}`]];
    if (verdict === "stored") return this.#count(batch, errors);
    this.#queue.unshift(...batch);
    if (verdict === "later") return this.#backOff(this.#failures++, answer);
    if (verdict === "no batches") this.#singleUntil = performance.now() + SINGLE;
    if (verdict === "refused") this.#size = Math.max(1, Math.floor(batch.length / 2)); // one of them is the reason: look for it
    if (verdict !== "held") return 0;
    if (!this.#isHeld) this.#warn(`held ${answer.status} ${answer.error.code}`, `the service takes no rewards, which wait: ${answer.status} ${answer.error.message}`);
    this.#isHeld = true;
    return this.#closing ? Infinity : HELD;
  }

  #count(batch, errors) {
    const refused = errors.filter((error) => error !== null);
    this.#counts.sent += batch.length - refused.length;
    this.#counts.refused += refused.length;
    [this.#failures, this.#isHeld, this.#size] = [0, false, Math.min(this.#most, 2 * this.#size)];
    if (refused.length > 0) this.#warn(`refused ${refused[0]}`, `the service refused ${refused.length} of the rewards and activations; the first: ${refused[0]}`);
    return 0;
  }

  #wait(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, Math.min(milliseconds, LONGEST_TIMER));
      this.#woken = () => (clearTimeout(timer), resolve());
    });
  }
}

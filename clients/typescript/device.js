// @ts-self-types="./device.d.ts"
// A device in a browser: private features and a personal model stay here, residuals go to the service (docs/guides/devices.md).

import { checkPrivacy, eventDraw, pick, probabilities } from "./choosing.js";
import { IndexedDBStore, MemoryStore } from "./device_store.js";
import { reasonOf } from "./errors.js";
import { KalmanHalf, LinearHalf } from "./halves.js";
import { newEventId } from "./ids.js";
import { actionList, checkOptions, environment, features, identifier, identifiers, number } from "./inputs.js";
import { clientHeaders } from "./transport.js";

export { IndexedDBStore, MemoryStore };

const BATCH = 500; // uploads in one request
const ROUND_MILLISECONDS = 60_000; // how long the loop's settings are taken for granted
const LONGEST_REST = 300_000; // milliseconds between two tries of a service that does not answer
const BURST = 10; // so many uploads that wait are one
const LARGEST = 1e9; // of what the service takes as a label
const RESIDUALS = ["fedres-adagrad", "fedres-sgd"];
const LEARNERS = { "residual-kalman": KalmanHalf, linear: LinearHalf };

const OPTIONS = [
  "client", "loop", "key", "learner", "privacy", "store", "syncSeconds", "openSeconds", "queueLimit", "fetch", "clock", "random",
];

class Trouble extends Error {
  constructor(message, after = 0) {
    super(message);
    this.after = after; // milliseconds that the service asks to wait
  }
}

/** Decides with private features, offline too; made by `FedresDevice.open`. */
export class FedresDevice {
  #url; #client; #loop; #headers; #fetch; #clock; #limit; #store; #unlock;
  #learner; #privacy; #meta; #waiting; #queue; #round; #half; #seq;
  #roundUntil = -Infinity; #turn = Promise.resolve(); #syncing = null; #timer; #closed = false; #trouble = null;
  #syncSeconds; #openSeconds; #random; #failures = 0; #restUntil = -Infinity;

  /**
   * Open a device; in a browser, one tab at a time may. Waits for the newest model, `openSeconds` at most, so that the first decision
   * knows what others taught; where it does not come, the device goes on with the model that it has.
   */
  static async open(url, options) {
    const device = new FedresDevice(url, options);
    await device.#open();
    return device;
  }

  constructor(url = environment("FEDRES_URL"), options) {
    url = url instanceof URL ? url.href : url;
    if (!/^https?:\/\//.test(url)) throw new TypeError(`url, or FEDRES_URL, must begin with http:// or https://, got ${url}`);
    checkOptions("FedresDevice.open", options, OPTIONS);
    const { learner = "residual-kalman", privacy = null, store, syncSeconds = 5, openSeconds = 2, queueLimit = 10_000, ...inner } = options;
    const { key = environment("FEDRES_KEY") } = inner;
    const client = checkName("client", inner.client), loop = checkName("loop", inner.loop ?? "default");
    if (!(openSeconds >= 0)) throw new RangeError(`openSeconds must be 0 or more, got ${openSeconds}`);
    if (!Object.hasOwn(LEARNERS, learner)) throw new RangeError(`learner must be one of ${Object.keys(LEARNERS).join(", ")}, got ${learner}`);
    if (privacy) checkPrivacy(privacy);
    [this.#learner, this.#privacy] = [learner, privacy];
    this.#url = `${url.replace(/\/$/, "")}/v1/loops/${encodeURIComponent(loop)}/federated`;
    [this.#client, this.#loop, this.#limit] = [client, loop, queueLimit];
    this.#headers = clientHeaders(key);
    this.#fetch = inner.fetch ?? ((...words) => fetch(...words));
    this.#clock = inner.clock ?? Date.now;
    this.#random = inner.random ?? Math.random;
    this.#store = store ?? (globalThis.indexedDB ? new IndexedDBStore(`fedres ${loop} ${client}`) : new MemoryStore());
    [this.#syncSeconds, this.#openSeconds] = [syncSeconds, openSeconds];
  }

  async #open() {
    this.#unlock = await lock(`fedres ${this.#loop} ${this.#client}`);
    try {
      await this.#restore();
    } catch (error) {
      this.#store.close();
      this.#unlock();
      throw error;
    }
    if (this.#openSeconds > 0) await this.#firstModel();
    if (this.#syncSeconds === null) return;
    this.#timer = setInterval(() => this.#clock() >= this.#restUntil && this.#syncQuietly(), this.#syncSeconds * 1000);
    this.#timer.unref?.(); // Node: does not keep the process alive
  }

  /** Fetch the newest model, without uploading; one that comes too late is taken when it comes. */
  async #firstModel() {
    let timer;
    const late = new Promise((resolve) => (timer = setTimeout(resolve, this.#openSeconds * 1000)));
    const failed = (error) => this.#rest(`the first model could not be taken: ${error.message}`);
    await Promise.race([this.#syncOnce({ upload: false }).catch(failed), late]);
    clearTimeout(timer);
  }

  async #restore() {
    const kept = await this.#store.open();
    [this.#meta, this.#waiting, this.#queue] = [kept.meta, kept.waiting, kept.queue];
    const madeWith = this.#meta.get("learner");
    if (madeWith === undefined) await this.#write([["meta", "learner", this.#learner]]);
    else if (madeWith !== this.#learner) throw new RangeError(`learner must be ${madeWith}, which this device was made with, got ${this.#learner}`);
    const Half = LEARNERS[this.#learner];
    this.#round = this.#meta.get("round") ?? Half.round;
    this.#half = new Half(this.#round, kept, this.#privacy);
    // Numbers go on from the time of day: a database that was restored does not use any a second time.
    this.#seq = Math.max(this.#meta.get("seq") ?? 0, ...this.#queue.keys(), this.#clock());
  }

  /** Return which action to take; waits for the disk and never for the network. */
  async decide(request) {
    checkOptions("decide", request, ["context", "actions", "private", "exclude", "eventId"]);
    const eventId = checkName("eventId", request.eventId ?? newEventId()), excluded = identifiers("exclude", request.exclude ?? []);
    const context = features("context", request.context ?? {}), own = request.private && features("private", request.private);
    if ("private" in context) throw new TypeError("context must not hold 'private': what is private goes into the field of that name");
    const listed = actionList(request.actions);
    const named = listed.map(({ id, features: its }) => [checkName("actions", id), its ?? {}]);
    const allowed = named.map(([id]) => !excluded.includes(id));
    if (!allowed.some(Boolean)) throw new RangeError(`exclude must leave at least one action, got all ${named.length} of them`);
    const uniform = await eventDraw(eventId, this.#round.draw_prefix);
    return this.#inTurn(async () => {
      if (this.#waiting.has(eventId)) throw new RangeError(`eventId must be new, got ${eventId}, which waits for its reward`);
      const { means: scores, widths, nLearned, taken } = this.#half.score(context, own, named);
      const chances = probabilities(scores, widths, allowed, this.#round, nLearned);
      const k = pick(chances, uniform);
      const [action, its] = named[k];
      await this.#wait(eventId, { context, action, features: its, ...taken(k) });
      const byName = Object.fromEntries(named.map(([id], j) => [id, scores[j]]));
      return { eventId, action: listed[k].callerId, probability: chances[k], scores: byName, modelVersion: this.#half.version };
    });
  }

  /** Learn a reward, and queue what is to be uploaded; resolves when both are on disk. */
  async reward(event, reward) {
    const eventId = checkName("eventId", event), value = number("value", reward);
    return this.#inTurn(async () => {
      const decision = this.#waiting.get(eventId);
      if (!decision) throw new RangeError(`eventId must be of a decision that waits for its reward, got ${eventId}`);
      const [low, high] = this.#meta.has("round") ? this.#round.reward_range : [-LARGEST, LARGEST];
      if (!(value >= low && value <= high)) throw new RangeError(`value must be in the loop's reward_range [${low}, ${high}], got ${value}`);
      const { context, action, features } = decision, seq = this.#seq + 1;
      const { upload, changes: learned, apply } = this.#half.rewarded(decision, value, seq);
      const said = { seq, version: this.#half.version, context, action: { id: action, features }, ...upload, label: value };
      const changes = [["waiting", eventId], ["queue", seq, said], ["meta", "seq", seq], ...learned];
      for (const old of [...this.#queue.keys()].slice(0, Math.max(0, this.#queue.size + 1 - this.#limit))) {
        changes.push(["queue", old], ["meta", "dropped", this.dropped + 1]);
      }
      await this.#write(changes, apply);
      this.#seq = seq;
      if (this.#half.grown) await this.#save();
    });
  }

  /** Upload what waits, then fetch the newest model; return what was done, with `trouble` where it could not be. */
  sync() {
    return this.#syncOnce();
  }

  /** Begin a sync, behind one that is under way if that fetches a model alone. */
  #syncOnce({ upload = true } = {}) {
    const before = this.#syncing;
    if (before?.upload) return before.done;
    const work = before ? before.done.catch(() => {}).then(() => this.#sync(upload)) : this.#sync(upload);
    const syncing = { upload, done: work.finally(() => (this.#syncing = this.#syncing === syncing ? null : this.#syncing)) };
    this.#syncing = syncing;
    return syncing.done;
  }

  /** How the device is. */
  status() {
    const { size: waiting } = this.#waiting, { size: queued } = this.#queue;
    return { modelVersion: this.#half.version, waiting, queued, dropped: this.dropped, trouble: this.#trouble };
  }

  get dropped() {
    return this.#meta.get("dropped") ?? 0;
  }

  /** Save the personal model, and let another tab open the device. */
  async close() {
    clearInterval(this.#timer);
    await this.#syncing?.done.catch(() => {});
    await this.#inTurn(() => this.#save());
    this.#closed = true;
    this.#store.close();
    this.#unlock();
  }

  // One at a time: nobody sees a model that is ahead of the disk.
  #inTurn(work) {
    if (this.#closed) return Promise.reject(new Error("this device is closed"));
    const result = this.#turn.then(work);
    this.#turn = result.catch(() => {});
    return result;
  }

  async #wait(eventId, decision) {
    const changes = [["waiting", eventId, decision]];
    if (this.#waiting.size >= this.#limit) changes.push(["waiting", this.#waiting.keys().next().value]);
    await this.#write(changes);
  }

  /** Put changes on disk, then make them here. */
  async #write(changes, apply = () => {}) {
    await this.#store.write(changes);
    for (const [store, key, value] of changes) {
      const kept = { meta: this.#meta, waiting: this.#waiting, queue: this.#queue }[store];
      if (value === undefined) kept?.delete(key);
      else kept?.set(key, value);
    }
    apply();
  }

  #save() {
    const { changes, apply } = this.#half.saved();
    return this.#write(changes, apply);
  }

  async #sync(upload) {
    let sent = 0;
    const dropped = this.dropped;
    try {
      if (!this.#meta.has("round") || this.#clock() >= this.#roundUntil) await this.#fetchRound();
      const fresh = this.#half.version === 0;
      if (fresh || (upload && LEARNERS[this.#learner].fetchesFirst && this.#queue.size >= BURST)) await this.#fetchModel();
      const newest = this.#seq;
      for (let most = BATCH; upload;) {
        const batch = [...this.#queue.values()].filter(({ seq }) => seq <= newest).slice(0, most);
        if (batch.length === 0) break;
        const taken = await this.#upload(batch);
        sent += taken ?? 0;
        most = taken === null ? Math.max(1, Math.floor(batch.length / 2)) : Math.min(2 * most, BATCH);
      }
      if (sent > 0 || !fresh) await this.#fetchModel();
      [this.#trouble, this.#failures, this.#restUntil] = [null, 0, -Infinity];
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      this.#rest(error.message, error.after);
    }
    return { sent, dropped: this.dropped - dropped, version: this.#half.version, trouble: this.#trouble };
  }

  /** Sync on a timer that nobody watches: what fails there is said and tried again. */
  #syncQuietly() {
    return this.sync().catch((error) => this.#rest(`the sync failed: ${error.message}`));
  }

  #rest(trouble, after = 0) {
    if (this.#trouble !== trouble) console.warn(`${this.#client} works on its own: ${trouble}`);
    this.#trouble = trouble;
    const longest = Math.min(LONGEST_REST, 1000 * 2 ** this.#failures++);
    this.#restUntil = this.#clock() + Math.max(after, longest * (0.5 + this.#random() / 2));
  }

  async #fetchRound() {
    const path = `/round?client=${encodeURIComponent(this.#client)}${LEARNERS[this.#learner].query}`;
    const settings = await this.#json(await this.#ask("GET", path));
    const odd = Object.entries(LEARNERS[this.#learner].round).filter(([name, value]) => typeof settings?.[name] !== typeof value);
    if (odd.length > 0) throw new Trouble(`the service must answer as one of fedres does, which has ${odd[0][0]}`);
    if (this.#learner === "linear" && !RESIDUALS.includes(settings.global_learner)) {
      throw new Trouble(`the loop must have one of ${RESIDUALS.join(", ")}, has ${settings.global_learner}`);
    }
    await this.#inTurn(async () => {
      const { changes, apply } = this.#half.adopt(settings);
      await this.#write([["meta", "round", settings], ...changes], apply);
      this.#round = settings;
    });
    this.#roundUntil = this.#clock() + ROUND_MILLISECONDS;
  }

  async #fetchModel() {
    const { version: since, tag } = this.#half;
    const reply = await this.#ask("GET", `/model?since=${since}`, undefined, since ? { "If-None-Match": `"${tag}"` } : {});
    if (reply.status === 304) return;
    if (reply.status !== 200) throw new Trouble(await said(reply));
    const model = this.#read(new Uint8Array(await reply.arrayBuffer()));
    const fits = await this.#inTurn(async () => {
      const learned = this.#half.received(model, this.#queue), { changes, apply } = learned ?? this.#half.forget();
      await this.#write(changes, apply);
      return learned !== null;
    });
    if (!fits && since) await this.#fetchModel(); // another service's, or one that began anew
    else if (!fits) throw new Trouble("the service sent a model that cannot be used");
  }

  #read(bytes) {
    try {
      return this.#half.read(bytes);
    } catch (error) {
      throw new Trouble(`the service sent a model that cannot be used: ${error.message}`);
    }
  }

  /** Send uploads; return how many the service has, null if it refuses some. */
  async #upload(batch) {
    const version = this.#half.version || this.#round.version;
    const residuals = batch.map((one) => ({ ...one, version: one.version || version }));
    const reply = await this.#ask("POST", "/residuals", { client: this.#client, residuals });
    if (reply.ok) {
      const positions = (await this.#json(reply))?.positions;
      if (positions?.length !== batch.length) throw new Trouble(`the service must answer with ${batch.length} positions`);
      await this.#inTurn(() => this.#write(batch.map(({ seq }) => ["queue", seq])));
      return batch.length;
    }
    const { code, target, message } = await refusal(reply);
    if (code === "unknown_version" && residuals.some((one) => one.version !== version)) {
      await this.#inTurn(() => this.#write(batch.map((one) => ["queue", one.seq, { ...one, version: 0 }])));
      return null;
    }
    if (code === "unknown_version") {
      await this.#inTurn(() => {
        const { changes, apply } = this.#half.forget();
        return this.#write(changes, apply);
      });
      await this.#fetchModel();
      if (this.#half.version === version) throw new Trouble(`the service does not know its own version ${version}`);
      return null;
    }
    const named = batch[/residuals\[(\d+)\]/.exec(target ?? "")?.[1]];
    const wrong = named ? [named] : batch.length === 1 ? batch : [];
    const spoiled = reply.status === 413 || ([400, 422].includes(reply.status) && code !== "unknown" && target !== "client");
    if (!spoiled) throw new Trouble(`the service answers ${reply.status} ${code}: ${message}`);
    const gone = wrong.map(({ seq }) => ["queue", seq]);
    await this.#inTurn(() => this.#write([...gone, ["meta", "dropped", this.dropped + gone.length]]));
    return null;
  }

  async #ask(method, path, sent, headers = {}) {
    const requestId = newEventId();
    const sentHeaders = { ...this.#headers, ...headers, "X-Request-Id": requestId, ...(sent ? { "Content-Type": "application/json" } : {}) };
    try {
      const reply = await this.#fetch(this.#url + path, {
        method, headers: sentHeaders, body: sent && JSON.stringify(sent), cache: "no-store", signal: AbortSignal.timeout(30_000),
      });
      if ((reply.headers.get("x-request-id") ?? requestId) !== requestId) throw new Trouble("a reply to another request came");
      if (reply.status >= 500 || [408, 425, 429].includes(reply.status)) {
        throw new Trouble(await said(reply), Number(reply.headers.get("retry-after")) * 1000 || 0);
      }
      return reply;
    } catch (error) {
      if (error instanceof Trouble) throw error;
      throw new Trouble(`the service does not answer: ${reasonOf(error)}`);
    }
  }

  async #json(reply) {
    if (!reply.ok) throw new Trouble(await said(reply));
    try {
      return await reply.json();
    } catch (error) {
      throw new Trouble(`the service must answer as one of fedres does: ${error.message}`);
    }
  }
}

/** An id as text, not too long. */
function checkName(name, value) {
  const text = identifier(name, value);
  if (text === "" || [...text].length > 200) throw new TypeError(`${name} must be text of 1 to 200 characters, got ${text}`);
  return text;
}

/** Hold a lock of this origin until the returned function is called; refuse where another tab has it. */
function lock(name) {
  const locks = globalThis.window && globalThis.navigator?.locks;
  if (!locks) return () => {};
  return new Promise((resolve, reject) => {
    locks.request(name, { ifAvailable: true }, (held) => {
      if (held) return new Promise((release) => resolve(release));
      reject(new Error(`another tab uses this device: ${name}`));
      return undefined;
    });
  });
}

async function refusal(reply) {
  const said = await reply.json().catch(() => null); // some networks answer for others
  return said?.error ?? { code: "unknown", message: reply.statusText, target: null };
}

async function said(reply) {
  const { code, message } = await refusal(reply);
  return `the service answers ${reply.status} ${code}: ${message}`;
}

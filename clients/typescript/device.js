// A device in a browser: private features and a personal model stay here, residuals go to the service (docs/devices.md).

import { LocalModel, eventDraw, localExample, pick, probabilities, sharedScore, short } from "./adagrad.js";
import { IndexedDBStore, MemoryStore } from "./device_store.js";
import { checkCrosses, crc32, expand, hashed } from "./features.js";
import { newEventId } from "./fedres.js";

export { IndexedDBStore, MemoryStore };

const BATCH = 500; // uploads in one request
const ROUND_MILLISECONDS = 60_000; // how long the loop's settings are taken for granted
const LONGEST_REST = 300_000; // milliseconds between two tries of a service that does not answer
const STEPS = 1000; // journal entries between two savings of the model
const LARGEST = 1e9; // of what the service takes as a part of a score
const RESIDUALS = ["fedres-adagrad", "fedres-sgd"];
const ROUND = {
  global_learner: "fedres-adagrad", bits: 18, timing: "on-arrival", crosses: true, personal: true, policy: "epsilon-greedy",
  epsilon: 0.1, gamma: 10, learning_rate: 0.1, reward_range: [0, 1], version: 0, n_learned: 0,
}; // what holds before the service was asked

class Trouble extends Error {
  constructor(message, after = 0) {
    super(message);
    this.after = after; // milliseconds that the service asks to wait
  }
}

/** Decides with private features, offline too; made by `FedresDevice.open`. */
export class FedresDevice {
  #url; #client; #loop; #headers; #fetch; #clock; #limit; #store; #unlock;
  #meta; #waiting; #queue; #round; #local; #model; #steps = 0; #journalKey; #seq;
  #roundUntil = -Infinity; #turn = Promise.resolve(); #syncing = null; #timer; #closed = false; #trouble = null;
  #random; #failures = 0; #restUntil = -Infinity;

  /** Open a device; in a browser, one tab at a time may. */
  static async open(url, options) {
    const device = new FedresDevice(url, options);
    await device.#open();
    return device;
  }

  constructor(url, { client, loop = "default", key, store, syncSeconds = 5, queueLimit = 10_000, ...inner }) {
    for (const [name, value] of Object.entries({ client, loop })) checkName(name, value);
    this.#url = `${url.replace(/\/$/, "")}/v1/loops/${encodeURIComponent(loop)}/federated`;
    [this.#client, this.#loop, this.#limit] = [client, loop, queueLimit];
    this.#headers = key === undefined ? {} : { Authorization: `Bearer ${key}` };
    this.#fetch = inner.fetch ?? ((...words) => fetch(...words));
    this.#clock = inner.clock ?? Date.now;
    this.#random = inner.random ?? Math.random;
    this.#store = store ?? (globalThis.indexedDB ? new IndexedDBStore(`fedres ${loop} ${client}`) : new MemoryStore());
    if (syncSeconds !== null) {
      this.#timer = setInterval(() => this.#clock() >= this.#restUntil && this.sync(), syncSeconds * 1000);
      this.#timer.unref?.(); // Node: does not keep the process alive
    }
  }

  async #open() {
    this.#unlock = await lock(`fedres ${this.#loop} ${this.#client}`);
    const kept = await this.#store.open();
    [this.#meta, this.#waiting, this.#queue] = [kept.meta, kept.waiting, kept.queue];
    this.#round = this.#meta.get("round") ?? ROUND;
    this.#model = this.#meta.get("model") ?? noModel(this.#round.bits);
    this.#local = new LocalModel(this.#round.learning_rate, this.#meta.get("local"));
    for (const step of kept.journal.values()) this.#apply(step);
    this.#journalKey = Math.max(0, ...kept.journal.keys());
    this.#steps = kept.journal.size;
    // Numbers go on from the time of day: a database that was restored does not use any a second time.
    this.#seq = Math.max(this.#meta.get("seq") ?? 0, ...this.#queue.keys(), this.#clock());
  }

  /** Return which action to take; waits for the disk and never for the network. */
  async decide({ context = {}, actions, private: own, exclude = [], eventId = newEventId() }) {
    checkName("eventId", eventId);
    if ("private" in context) throw new TypeError("context must not hold 'private': what is private goes into the field of that name");
    const named = Array.isArray(actions) ? actions.map((id) => [id, {}]) : Object.entries(actions);
    named.forEach(([id]) => checkName("actions", id));
    const allowed = named.map(([id]) => !exclude.includes(id));
    if (!allowed.some(Boolean)) throw new RangeError("exclude must leave at least one action, got none left");
    const uniform = await eventDraw(eventId);
    return this.#inTurn(async () => {
      if (this.#waiting.has(eventId)) throw new RangeError(`eventId must be new, got ${eventId}, which waits for its reward`);
      const examples = this.#examples(own === undefined ? context : { ...context, private: own }, named).map(localExample);
      const shared = this.#shared(context, named);
      const scores = examples.map((example, k) => Math.fround(shared[k] + this.#localScore(example)));
      const chances = probabilities(scores, allowed, this.#round);
      const k = pick(chances, uniform);
      const [action, features] = named[k];
      await this.#wait(eventId, { context, action, features, ...examples[k] });
      const byName = Object.fromEntries(named.map(([id], j) => [id, scores[j]]));
      return { eventId, action, probability: chances[k], scores: byName, modelVersion: this.#model.version };
    });
  }

  /** Learn a reward, and queue what is to be uploaded; resolves when both are on disk. */
  reward(eventId, value) {
    return this.#inTurn(async () => {
      const decision = this.#waiting.get(eventId);
      if (!decision) throw new RangeError(`eventId must be of a decision that waits for its reward, got ${eventId}`);
      const [low, high] = this.#meta.has("round") ? this.#round.reward_range : [-LARGEST, LARGEST];
      if (!(value >= low && value <= high)) throw new RangeError(`value must be in the loop's reward_range [${low}, ${high}], got ${value}`);
      const { context, action, features, indices, values } = decision;
      const shared = bounded(this.#shared(context, [[action, features]])[0]);
      const local = bounded(this.#localScore({ indices, values }));
      const upload = { context, action: { id: action, features }, local: short(local), label: value };
      if (this.#round.timing === "aligned") upload.global = short(shared);
      const seq = this.#seq + 1;
      const changes = [["waiting", eventId], ["queue", seq, { seq, version: this.#model.version, ...upload }], ["meta", "seq", seq]];
      for (const old of [...this.#queue.keys()].slice(0, Math.max(0, this.#queue.size + 1 - this.#limit))) {
        changes.push(["queue", old], ["meta", "dropped", this.dropped + 1]);
      }
      const steps = this.#round.personal ? [{ label: value, offset: shared, indices, values }] : [];
      await this.#write(changes, steps);
      this.#seq = seq;
    });
  }

  /** Upload what waits, then fetch the newest model; return what was done, with `trouble` where it could not be. */
  sync() {
    this.#syncing ??= this.#sync().finally(() => (this.#syncing = null));
    return this.#syncing;
  }

  /** How the device is. */
  status() {
    const { size: waiting } = this.#waiting, { size: queued } = this.#queue;
    return { modelVersion: this.#model.version, waiting, queued, dropped: this.dropped, trouble: this.#trouble };
  }

  get dropped() {
    return this.#meta.get("dropped") ?? 0;
  }

  /** Save the personal model, and let another tab open the device. */
  async close() {
    clearInterval(this.#timer);
    await this.#syncing;
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

  #examples(context, actions) {
    const hashedContext = hashed("context", context);
    const hashedActions = actions.map(([id, features]) => hashed(`actions[${id}]`, features, id));
    if (this.#round.crosses) checkCrosses(hashedContext, hashedActions);
    return hashedActions.map((action) => expand(hashedContext, action, this.#round.crosses));
  }

  #shared(context, actions) {
    return this.#examples(context, actions).map((example) => sharedScore(this.#model.weights, example));
  }

  #localScore(example) {
    return this.#round.personal ? this.#local.score(example) : 0;
  }

  async #wait(eventId, decision) {
    const changes = [["waiting", eventId, decision]];
    if (this.#waiting.size >= this.#limit) changes.push(["waiting", this.#waiting.keys().next().value]);
    await this.#write(changes, []);
  }

  /** Put changes and steps on disk, then make them here. */
  async #write(changes, steps) {
    const journal = steps.map((step, k) => ["journal", this.#journalKey + 1 + k, step]);
    await this.#store.write([...changes, ...journal]);
    for (const [store, key, value] of changes) {
      const kept = { meta: this.#meta, waiting: this.#waiting, queue: this.#queue }[store];
      if (value === undefined) kept.delete(key);
      else kept.set(key, value);
    }
    steps.forEach((step) => this.#apply(step));
    this.#journalKey += steps.length;
    this.#steps += steps.length;
    if (this.#steps >= STEPS) await this.#save();
  }

  #apply({ label, offset, indices, values }) {
    if (indices === undefined) this.#local.see(label);
    else this.#local.learn({ indices, values }, label, offset);
  }

  /** Replace the journal by the model. */
  async #save() {
    const gone = Array.from({ length: this.#steps }, (_, k) => ["journal", this.#journalKey - k]);
    await this.#store.write([["meta", "local", this.#local.state()], ...gone]);
    this.#steps = 0;
  }

  async #sync() {
    let sent = 0;
    const dropped = this.dropped;
    try {
      if (!this.#meta.has("round") || this.#clock() >= this.#roundUntil) await this.#fetchRound();
      const fresh = this.#model.version === 0;
      if (fresh) await this.#fetchModel();
      const newest = this.#seq;
      for (let most = BATCH; ;) {
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
      this.#trouble = error.message;
      const longest = Math.min(LONGEST_REST, 1000 * 2 ** this.#failures++);
      this.#restUntil = this.#clock() + Math.max(error.after, longest * (0.5 + this.#random() / 2));
    }
    return { sent, dropped: this.dropped - dropped, version: this.#model.version, trouble: this.#trouble };
  }

  async #fetchRound() {
    const found = await this.#json(await this.#ask("GET", `/round?client=${encodeURIComponent(this.#client)}`));
    if (!RESIDUALS.includes(found.global_learner)) {
      throw new Trouble(`the loop must have one of ${RESIDUALS.join(", ")}, has ${found.global_learner}`);
    }
    await this.#inTurn(async () => {
      if (found.learning_rate !== this.#round.learning_rate) await this.#save(); // steps were taken at the old rate
      const changed = (...names) => names.some((name) => found[name] !== this.#round[name]);
      const model = changed("crosses", "bits", "global_learner") ? noModel(found.bits) : this.#model;
      await this.#write([["meta", "round", found], ["meta", "model", model]], []);
      [this.#round, this.#model] = [found, model];
      this.#local.rate = Math.fround(found.learning_rate);
    });
    this.#roundUntil = this.#clock() + ROUND_MILLISECONDS;
  }

  async #fetchModel() {
    const { version: since, tag } = this.#model;
    const reply = await this.#ask("GET", `/model?since=${since}`, undefined, since ? { "If-None-Match": `"${tag}"` } : {});
    if (reply.status === 304) return;
    if (reply.status !== 200) throw new Trouble(await said(reply));
    const model = received(new Uint8Array(await reply.arrayBuffer()), this.#model);
    await this.#inTurn(async () => {
      const kept = model ?? noModel(this.#round.bits);
      const bounds = [kept.low, kept.high].filter((bound) => bound < this.#local.range[0] || bound > this.#local.range[1]);
      await this.#write([["meta", "model", kept]], bounds.map((label) => ({ label })));
      this.#model = kept;
    });
    if (!model && since) await this.#fetchModel(); // another service's, or one that began anew
    else if (!model) throw new Trouble("the service sent a model that cannot be used");
  }

  /** Send uploads; return how many the service has, null if it refuses some. */
  async #upload(batch) {
    const version = this.#model.version;
    const residuals = batch.map((one) => ({ ...one, version: one.version || version }));
    const reply = await this.#ask("POST", "/residuals", { client: this.#client, residuals });
    if (reply.ok) {
      const { positions } = await this.#json(reply);
      if (positions?.length !== batch.length) throw new Trouble(`the service must answer with ${batch.length} positions`);
      await this.#inTurn(() => this.#write(batch.map(({ seq }) => ["queue", seq]), []));
      return batch.length;
    }
    const { code, target, message } = await refusal(reply);
    if (code === "unknown_version" && residuals.some((one) => one.version !== version)) {
      await this.#inTurn(() => this.#write(batch.map((one) => ["queue", one.seq, { ...one, version: 0 }]), []));
      return null;
    }
    if (code === "unknown_version") {
      await this.#inTurn(async () => (this.#model = noModel(this.#round.bits)));
      await this.#fetchModel();
      if (this.#model.version === version) throw new Trouble(`the service does not know its own version ${version}`);
      return null;
    }
    const item = /residuals\[(\d+)\]/.exec(target ?? "");
    const wrong = item ? [batch[Number(item[1])]] : batch.length === 1 ? batch : [];
    if (![400, 413, 422].includes(reply.status) || target === "client") throw new Trouble(`the service answers ${reply.status} ${code}: ${message}`);
    const gone = wrong.map(({ seq }) => ["queue", seq]);
    await this.#inTurn(() => this.#write([...gone, ["meta", "dropped", this.dropped + gone.length]], []));
    return null;
  }

  async #ask(method, path, sent, headers = {}) {
    const requestId = newEventId();
    const given = { ...this.#headers, ...headers, "X-Request-Id": requestId, ...(sent ? { "Content-Type": "application/json" } : {}) };
    try {
      const reply = await this.#fetch(this.#url + path, {
        method, headers: given, body: sent && JSON.stringify(sent), cache: "no-store", signal: AbortSignal.timeout(30_000),
      });
      if ((reply.headers.get("x-request-id") ?? requestId) !== requestId) throw new Trouble("a reply to another request came");
      if (reply.status >= 500 || [408, 425, 429].includes(reply.status)) {
        throw new Trouble(await said(reply), Number(reply.headers.get("retry-after")) * 1000 || 0);
      }
      return reply;
    } catch (error) {
      if (error instanceof Trouble) throw error;
      throw new Trouble(`the service does not answer: ${error.message ?? error}`);
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

const noModel = (bits) => ({ version: 0, tag: "", low: 0, high: 0, weights: new Float32Array(2 ** bits + 1) });
const bounded = (part) => (Number.isNaN(part) ? 0 : Math.min(Math.max(part, -LARGEST), LARGEST));

function checkName(name, value) {
  if (typeof value !== "string" || value.length < 1 || [...value].length > 200) {
    throw new TypeError(`${name} must be text of 1 to 200 characters, got ${value}`);
  }
}

/** The model of a safetensors file, whole or what changed of `known`; null if it does not fit that. */
export function received(bytes, known) {
  const size = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const { __metadata__: told, ...parts } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
  const part = (name, kind) => {
    const [first, last] = parts[name].data_offsets;
    return new kind(bytes.slice(8 + size + first, 8 + size + last).buffer);
  };
  let weights = parts.weights ? part("weights", Float32Array) : Number(told.since ?? 0) ? known.weights.slice() : noModel(told.bits).weights;
  if (!parts.weights) {
    const values = part("values", Float32Array);
    part("indices", Uint32Array).forEach((index, k) => (weights[index] = values[k]));
  }
  const crc = crc32(new Uint8Array(weights.buffer, weights.byteOffset, weights.byteLength)); // little-endian, as all machines
  if (crc !== Number(told.crc32) || weights.length !== known.weights.length) return null;
  const tag = `${told.version}-${crc.toString(16).padStart(8, "0")}`;
  return { version: Number(told.version), tag, low: Number(told.low), high: Number(told.high), weights };
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
  const { error } = await reply.json().catch(() => ({})); // some networks answer for others
  return error ?? { code: "unknown", message: reply.statusText, target: null };
}

async function said(reply) {
  const { code, message } = await refusal(reply);
  return `the service answers ${reply.status} ${code}: ${message}`;
}

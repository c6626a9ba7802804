// What a device learns with. Each half says what to write and what to do then: nobody sees a model that is ahead of the disk.

import { LocalModel, localExample, sharedScore } from "./adagrad.js";
import { bounded, release, short } from "./choosing.js";
import { checkCrosses, crc32, expand, hashed } from "./features.js";
import { DeviceKalman, START_EVENTS, readDocument } from "./kalman.js";

const STEPS = 1000; // journal entries between two savings of a local model
const MOST_EXAMPLES = 2000; // kept when a model is downloaded; twice as many in between
const KINDS = { F32: Float32Array, F64: Float64Array, U32: Uint32Array, I32: Int32Array };
const nothing = { changes: [], apply() {} };

/** The metadata of a safetensors file, and a function from a name to its array, undefined where there is none. */
export function readSafetensors(bytes) {
  const size = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const { __metadata__: metadata, ...parts } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
  const part = (name) => {
    if (!parts[name]) return undefined;
    const { dtype, data_offsets: [first, last] } = parts[name];
    return new KINDS[dtype](bytes.slice(8 + size + first, 8 + size + last).buffer);
  };
  return { metadata, part };
}

/** For loops with `residual-kalman`: the examples are kept, and the own model is made of them. */
export class KalmanHalf {
  static round = { model: "residual-kalman", personal: true, policy: "optimistic-squarecb", gamma: 300, floor: 0.002, reward_range: [0, 1], version: 0 };
  static query = "&model=residual-kalman";
  static fetchesFirst = true; // a burst of uploads is made for the newest model
  #round; #privacy; #examples; #relearned; #document; #model;

  constructor(round, { meta, journal }, privacy) {
    [this.#round, this.#privacy, this.#relearned] = [round, privacy, meta.get("relearned") ?? 0];
    this.#examples = new Map([...journal].sort(([a], [b]) => a - b));
    this.#document = meta.has("model") ? this.read(meta.get("model")).document : null;
    this.#model = this.#rebuilt();
  }

  get version() {
    return this.#document?.version ?? 0;
  }

  get tag() {
    return this.#document?.tag ?? "";
  }

  /** The model as the disk has it: examples there were when it was made anew, then each that came since. */
  #rebuilt() {
    const all = [...this.#examples], old = all.filter(([seq]) => seq <= this.#relearned);
    const model = new DeviceKalman(this.#round, this.#document?.shared ?? null, old.map(([, example]) => example));
    for (const [, example] of all.slice(old.length)) model.learn(example);
    return model;
  }

  score(context, own, actions) {
    const nSeen = hashed("context", context).hashes.length, about = own === undefined ? context : { ...context, private: own };
    const rows = [hashed("private", about), ...actions.map(([id, features]) => hashed(`actions[${id}]`, features, id))];
    const joined = (name) => concatenated(rows.map((row) => row[name]));
    const request = { hashes: joined("hashes"), values: joined("values"), fields: joined("fields") };
    const starts = rows.reduce((ends, row) => [...ends, (ends.at(-1) ?? 0) + row.hashes.length], []), [nContext] = starts;
    const predictions = this.#model.predict(request, nSeen, starts);
    const taken = (k) => {
      const column = (name) => concatenated([request[name].subarray(0, nContext), request[name].subarray(starts[k], starts[k + 1])]);
      return { hashes: column("hashes"), values: column("values"), fields: column("fields"), nContext, nSeen };
    };
    return { means: predictions.map(({ mean }) => mean), widths: predictions.map(({ width }) => width), nLearned: this.#nLearned, taken };
  }

  get #nLearned() {
    return this.#document?.shared ? this.#document.learned : this.#model.own ? this.#examples.size : 0;
  }

  rewarded({ hashes, values, fields, nContext, nSeen }, value, seq) {
    const example = { hashes, values, fields, nContext, nSeen, label: value }, said = this.#said(this.#model.part(example));
    const n = this.#examples.size + 1, begins = this.#round.personal && !this.#document?.shared && !this.#model.own && n >= START_EVENTS;
    if (begins || n >= 2 * MOST_EXAMPLES) {
      const { changes, apply } = this.#relearn(new Map([...this.#examples, [seq, example]]), this.#document);
      return { upload: said, changes: [["journal", seq, example], ...changes], apply };
    }
    const apply = () => {
      this.#examples.set(seq, example);
      this.#model.learn(example);
    };
    return { upload: said, changes: [["journal", seq, example]], apply };
  }

  /** What an upload says of the own part. What is to be private is told alone, and as noisy as it is. */
  #said({ mean, variance, slopes }) {
    const { span } = this.#model, square = span * span;
    if (this.#privacy) {
      const { clip = span, scale = 0, noise } = this.#privacy;
      const spread = clip ** 2 + (noise === "gaussian" ? 1 : 2) * scale ** 2;
      return { local: short(release(this.#privacy, bounded(mean * span))), variance: short(spread), slopes: [] };
    }
    const rounded = Array.from(slopes, (slope) => short(bounded(slope * span)));
    return { local: short(bounded(mean * span)), variance: short(bounded(Math.max(variance, 0) * square)), slopes: rounded };
  }

  /** Learn the newest examples anew beside a model, and say again what still waits to be uploaded. */
  #relearn(examples, document, queue = new Map()) {
    const all = [...examples], kept = new Map(all.slice(-MOST_EXAMPLES)), last = all.at(-1)?.[0] ?? 0;
    const model = new DeviceKalman(this.#round, document?.shared ?? null, [...kept.values()]);
    const changes = [...all.slice(0, -MOST_EXAMPLES).map(([seq]) => ["journal", seq]), ["meta", "relearned", last]];
    const apply = () => ([this.#examples, this.#document, this.#model, this.#relearned] = [kept, document, model, last]);
    if (!this.#privacy) { // what was released once is not released again
      [...kept.keys()].forEach((seq, k) => {
        if (queue.has(seq)) changes.push(["queue", seq, { ...queue.get(seq), ...this.#said(model.parts[k]), version: document.version }]);
      });
    }
    return { changes, apply };
  }

  read(bytes) {
    const { metadata, part } = readSafetensors(bytes);
    return { bytes, document: readDocument(metadata, part) };
  }

  /** Take in what was read. */
  received({ bytes, document }, queue) {
    if (document.tag === this.tag) return nothing;
    const { changes, apply } = this.#relearn(this.#examples, document, queue);
    return { changes: [["meta", "model", bytes], ...changes], apply };
  }

  forget() {
    const { changes, apply } = this.#relearn(this.#examples, null);
    return { changes: [["meta", "model"], ...changes], apply };
  }

  adopt(settings) {
    const same = settings.personal === this.#round.personal && String(settings.reward_range) === String(this.#round.reward_range);
    const apply = () => {
      this.#round = settings;
      if (!same) this.#model = this.#rebuilt();
    };
    return { changes: [], apply };
  }

  saved() {
    return nothing; // all of it is on the disk
  }
}

function concatenated(arrays) {
  const all = new arrays[0].constructor(arrays.reduce((sum, one) => sum + one.length, 0));
  let at = 0;
  for (const one of arrays) [, at] = [all.set(one, at), at + one.length];
  return all;
}

/** For loops with `adagrad` whose global learner takes residuals. */
export class LinearHalf {
  static round = {
    model: "adagrad", global_learner: "fedres-adagrad", bits: 18, timing: "on-arrival", crosses: true, personal: true, policy: "epsilon-greedy",
    epsilon: 0.1, gamma: 10, learning_rate: 0.1, largest_number: 1e15, reward_range: [0, 1],
    version: 0, n_learned: 0,
  };
  static query = "";
  static fetchesFirst = false;
  #round; #privacy; #model; #local; #key; #steps;

  constructor(round, { meta, journal }, privacy) {
    [this.#round, this.#privacy] = [round, privacy];
    this.#model = meta.get("model") ?? noModel(round.bits);
    this.#local = new LocalModel(round.learning_rate, meta.get("local"));
    for (const step of journal.values()) this.#apply(step);
    [this.#key, this.#steps] = [Math.max(0, ...journal.keys()), journal.size];
  }

  get version() {
    return this.#model.version;
  }

  get tag() {
    return this.#model.tag;
  }

  get grown() {
    return this.#steps >= STEPS;
  }

  score(context, own, actions) {
    const examples = this.#examples(own === undefined ? context : { ...context, private: own }, actions, this.#round.largest_number).map(localExample);
    const shared = this.#examples(context, actions).map((example) => sharedScore(this.#model.weights, example));
    const means = examples.map((example, k) => Math.fround(shared[k] + this.#localScore(example)));
    return { means, widths: means.map(() => 0), nLearned: this.#round.n_learned, taken: (k) => examples[k] };
  }

  /** Pairs of features of each action. A new decision has numbers up to `largest`; one that waits was checked. */
  #examples(context, actions, largest) {
    const { crosses } = this.#round;
    const hashedContext = hashed("context", context, undefined, largest);
    const hashedActions = actions.map(([id, features]) => hashed(`actions[${id}]`, features, id, largest));
    if (crosses) checkCrosses(hashedContext, hashedActions);
    return hashedActions.map((action) => expand(hashedContext, action, crosses));
  }

  #localScore(example) {
    return this.#round.personal ? this.#local.score(example) : 0;
  }

  rewarded({ context, action, features, indices, values }, value) {
    const shared = bounded(sharedScore(this.#model.weights, this.#examples(context, [[action, features]])[0]));
    const local = bounded(this.#localScore({ indices, values }));
    const upload = { local: short(this.#privacy ? release(this.#privacy, local) : local) };
    if (this.#round.timing === "aligned") upload.global = short(shared);
    return { upload, ...this.#journaled(this.#round.personal ? [{ label: value, offset: shared, indices, values }] : []) };
  }

  #journaled(steps) {
    const apply = () => {
      steps.forEach((step) => this.#apply(step));
      [this.#key, this.#steps] = [this.#key + steps.length, this.#steps + steps.length];
    };
    return { changes: steps.map((step, k) => ["journal", this.#key + 1 + k, step]), apply };
  }

  #apply({ label, offset, indices, values }) {
    if (indices === undefined) this.#local.see(label);
    else this.#local.learn({ indices, values }, label, offset);
  }

  read(bytes) {
    return readSafetensors(bytes);
  }

  /** Take in what was read, whole or what changed; null if it does not fit what is here. */
  received(read) {
    const model = changedModel(read, this.#model);
    if (!model) return null;
    const bounds = [model.low, model.high].filter((bound) => bound < this.#local.range[0] || bound > this.#local.range[1]);
    const { changes, apply } = this.#journaled(bounds.map((label) => ({ label })));
    return { changes: [["meta", "model", model], ...changes], apply: () => [apply(), (this.#model = model)] };
  }

  forget() {
    const model = noModel(this.#round.bits);
    return { changes: [["meta", "model", model]], apply: () => (this.#model = model) };
  }

  adopt(settings) {
    const changed = (...names) => names.some((name) => settings[name] !== this.#round[name]);
    const model = changed("crosses", "bits", "global_learner") ? noModel(settings.bits) : this.#model;
    const saved = changed("learning_rate") ? this.saved() : nothing; // steps were taken at the old rate
    const apply = () => {
      saved.apply();
      [this.#round, this.#model, this.#local.rate] = [settings, model, Math.fround(settings.learning_rate)];
    };
    return { changes: [...saved.changes, ["meta", "model", model]], apply };
  }

  /** Replace the journal by the model. */
  saved() {
    const gone = Array.from({ length: this.#steps }, (_, k) => ["journal", this.#key - k]);
    return { changes: [["meta", "local", this.#local.state()], ...gone], apply: () => (this.#steps = 0) };
  }
}

const noModel = (bits) => ({ version: 0, tag: "", low: 0, high: 0, weights: new Float32Array(2 ** bits + 1) });

/** The model of a safetensors file, whole or what changed of the one `before`; null if it does not fit that. */
function changedModel({ metadata, part }, before) {
  const values = part("values");
  const weights = part("weights") ?? (Number(metadata.since ?? 0) ? before.weights.slice() : noModel(metadata.bits).weights);
  if (values) part("indices").forEach((index, k) => (weights[index] = values[k]));
  const crc = crc32(new Uint8Array(weights.buffer, weights.byteOffset, weights.byteLength)); // little-endian, as all machines
  if (crc !== Number(metadata.crc32) || weights.length !== before.weights.length) return null;
  const tag = `${metadata.version}-${crc.toString(16).padStart(8, "0")}`;
  return { version: Number(metadata.version), tag, low: Number(metadata.low), high: Number(metadata.high), weights };
}

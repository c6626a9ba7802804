// `residual-kalman` in two halves: the shared regression, downloaded, and the device's own on what that leaves over.

import { FIRST_LOG_TAU, MAX_SCALES, OWN, Regression, Scale, actionScaleKey, keyOf, newField } from "./regression.js";

const CORE_SIZE = 64, MAX_BLOCKS = 512, TAIL_BITS = 16, DEVICE_BLOCKS = 128, DEVICE_TAIL_BITS = 12, FIRST_NOISE = 0.1;
const MOST_OWN_VARIANCE = 0.25; // in widths, of what a user may differ by
const DEVICE_LOG_TAU = -0.5; // log τ of a device's weights at first and at most
export const START_EVENTS = 16; // with which the own half begins, where there is no shared one

/** The fields of an example's action: 0 of block 0, then each of its own once. */
const namesOf = ({ fields, nContext }) => [...new Set([0, ...Array.from(fields.subarray(nContext), keyOf)])];

/** Both halves; `shared` is null until there is one. Without it the own half begins with 16 examples. */
export class DeviceKalman {
  own = null;

  /** Learn all examples beside a shared model; `parts` has what was said of each before it was learned. */
  constructor({ reward_range: [low, high], personal }, shared, examples) {
    Object.assign(this, { low, span: high - low, shared });
    if (personal && (shared || examples.length >= START_EVENTS)) this.own = fresh(shared, examples);
    this.parts = examples.map((example) => {
      const part = this.part(example);
      this.learn(example, false);
      return part;
    });
  }

  learn(example, isNew = true) {
    if (!this.own) return;
    this.#adoptScales(example);
    const beside = this.shared?.part(example, example.nSeen, namesOf(example)) ?? { mean: 0, variance: 0 };
    this.own.learn(example, (Math.fround(example.label) - this.low) / this.span, beside, isNew);
  }

  /** What the own half says of an example. */
  part(example) {
    const names = namesOf(example);
    if (!this.own) return { mean: 0, variance: 0, slopes: new Float64Array(names.length) };
    this.#adoptScales(example);
    return this.own.part(example, example.nContext, names);
  }

  /** Mean and width of each action; the shared half sees the first `nSeen` features of the context. */
  predict(request, nSeen, starts) {
    const [nContext] = starts, nothing = starts.slice(1).map(() => ({ mean: 0, variance: 0 }));
    const shared = this.shared?.predict(seenOf(request, nSeen, nContext), nSeen, starts.map((at) => at - nContext + nSeen)) ?? nothing;
    const own = this.own?.predict(request, nContext, starts) ?? nothing;
    const unsure = this.shared || this.own ? 0 : 1, most = this.shared ? MOST_OWN_VARIANCE : Infinity;
    return shared.map(({ mean, variance }, a) => ({
      mean: this.low + this.span * mean + this.span * own[a].mean,
      width: this.span * Math.sqrt(Math.max(variance + Math.min(own[a].variance, most) + unsure, 0)),
    }));
  }

  #adoptScales(example) {
    adoptScales(this.own, this.shared, example);
  }
}

function seenOf({ hashes, values, fields }, nSeen, nContext) {
  const seen = (column) => column.filter((_, j) => j < nSeen || j >= nContext);
  return { hashes: seen(hashes), values: seen(values), fields: seen(fields) };
}

/** Take the scales of an example's numbers from another model, where that has them and this one does not. */
function adoptScales(own, shared, { hashes, nContext }) {
  if (!shared) return;
  hashes.forEach((hash, j) => {
    const key = j < nContext ? keyOf(hash) : actionScaleKey(hash), scale = shared.scales.get(key);
    if (scale && !own.scales.has(key) && own.scales.size < MAX_SCALES) own.scales.set(key, new Scale(scale.settled));
  });
}

/** An own model that has learned nothing, with a core and scales for the contexts of examples. */
function fresh(shared, examples) {
  const counts = new Map();
  for (const { hashes, values, nContext } of examples) {
    const held = new Set(Array.from(hashes.subarray(0, nContext)).filter((_, j) => values[j] !== 0).map(keyOf));
    for (const key of held) counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const core = [...counts].sort(([a, n], [b, m]) => m - n || a - b).slice(0, CORE_SIZE - 1).map(([key]) => key);
  const total = [...counts.values()].reduce((sum, n) => sum + n, 0);
  const length = shared ? shared.length : Math.sqrt(1 + total / Math.max(examples.length, 1));
  const own = new Regression(1 + core.length, length, FIRST_NOISE, DEVICE_BLOCKS, DEVICE_TAIL_BITS);
  if (shared) { // τ is the server's to learn
    const withPrior = (logTau) => [FIRST_LOG_TAU, logTau, logTau, logTau];
    own.fields = shared.fields.map(({ key, logTau }) => {
      return newField(key, withPrior(DEVICE_LOG_TAU + Math.min(logTau[OWN] - FIRST_LOG_TAU, 0)), Infinity);
    });
    own.newField = [withPrior(DEVICE_LOG_TAU), Infinity];
  }
  for (const example of examples) {
    const { hashes, values, fields, nContext } = example;
    adoptScales(own, shared, example);
    hashes.forEach((hash, j) => {
      if (j >= nContext) own.actionValue(hash, values[j], fields[j], true);
      else if (values[j] !== 0) own.scaleOf(keyOf(hash), values[j], true);
    });
  }
  core.forEach((key, place) => {
    if (own.scales.has(key)) own.scales.get(key).core = 1 + place;
  });
  return own;
}

/** A model as it is downloaded: version, tag, rewards learned, and the shared half, null before its start is over. */
export function readDocument(metadata, part) {
  const document = { version: Number(metadata.version), tag: metadata.tag, learned: Number(metadata.learned), shared: null };
  if (metadata.model !== "residual-kalman") throw new TypeError(`the model must be residual-kalman, got ${metadata.model}`);
  if (!Number(metadata.settled)) return document;
  const blockKeys = part("block_keys"), means = part("means"), packed = part("covariances"), d = means.length / blockKeys.length;
  if (!(d >= 1 && d <= CORE_SIZE && blockKeys.length <= MAX_BLOCKS)) throw new RangeError("the model must keep within its bounds");
  const shared = new Regression(d, Number(metadata.length), Number(metadata.noise), MAX_BLOCKS, TAIL_BITS), half = (d * (d + 1)) / 2;
  const stats = part("scale_stats"), core = part("scale_core"), logTau = part("log_tau"), tail = part("tail");
  part("scale_keys").forEach((key, k) => {
    shared.scales.set(key, Object.assign(new Scale(stats.subarray(4 * k, 4 * k + 4)), { core: core[k] }));
  });
  shared.fields = Array.from(part("field_keys"), (key, k) => {
    const [own, tails, core, , constant] = logTau.subarray(5 * k, 5 * k + 5);
    return newField(key, [own, tails, core, constant]);
  });
  shared.pairLogTau = part("pair_log_tau");
  part("tail_places").forEach((place, k) => shared.setTail(place, tail[2 * k], tail[2 * k + 1]));
  const priors = part("block_log_tau");
  blockKeys.forEach((key, b) => {
    const covariance = new Float64Array(d * d);
    for (let i = 0, at = b * half; i < d; i++) {
      for (let j = 0; j <= i; j++, at++) covariance[i * d + j] = covariance[j * d + i] = packed[at];
    }
    shared.addBlock(key, [priors[2 * b], priors[2 * b + 1]], Float64Array.from(means.subarray(b * d, b * d + d)), covariance);
  });
  return { ...document, shared };
}

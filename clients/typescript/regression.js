// The regression of `residual-kalman`. The equations, and the order of all sums, are those of fedres/decisions; numbers are
// 64-bit floats, first values and tail weights 32-bit ones.

const f = Math.fround;
const CONTEXT_UNIT = 3, ACTION_UNIT = 1; // medians in the unit of a number
const FIRST_VALUES = 16, CORE_TAU_START = 256, CONTEXT_TAU_EVENTS = 16, REBASE = 0.5, NUMBER_LIMIT = 5, MAX_FIELDS = 32;
const LOG_TAU_RATE = 0.5, LEAST_LOG_TAU = -14, MOST_LOG_TAU = 2, LEAST_NOISE = 0.001, MOST_NOISE = 1, LEAST_NOISE_RATE = 0.002, LEAST_CONSTANT = 0.5;
export const MAX_SCALES = 1600, FIRST_LOG_TAU = -4.605170185988091; // log 0.01
const FIRST = [FIRST_LOG_TAU, FIRST_LOG_TAU, 0, 0];
export const OWN = 0;
// Of a field's log τ: of devices' own, tail and core weights, and the constant's weight in the core.
const TAIL = 1, CORE = 2, CONSTANT = 3;
const ACTION = 0x9e3779b9; // sets features of actions apart from those of contexts
const ID_FIELD = 0x6641c530, MOST_PAIRED = 32; // ids are in no pair; the first features of an action that are
export const keyOf = (word) => word || 1; // 0 is block 0
export const actionScaleKey = (hash) => keyOf((keyOf(hash) ^ ACTION) >>> 0);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** The first values of a number, and the scale that they make. */
export class Scale {
  core = -1;
  first = [];

  constructor(settled) {
    if (settled) [this.unit, this.mean, this.deviation, this.rms, this.first] = [...settled, null];
  }

  get settled() {
    return [this.unit, this.mean, this.deviation, this.rms];
  }

  see(value, medians) {
    if (!this.first || this.first.length === FIRST_VALUES) return;
    this.first.push(f(value));
    const others = this.first.filter((one) => one !== 0), sizes = others.map(Math.abs).sort((a, b) => a - b);
    const n = this.first.length, m = others.length;
    this.unit = medians * ((sizes[(m - 1) >> 1] + sizes[m >> 1]) / 2);
    const logs = this.first.map((one) => signedLog(one, this.unit));
    let total = 0, squares = 0, spread = 0;
    for (const s of logs) [total, squares] = [total + s, squares + s * s];
    [this.mean, this.rms] = [total / n, Math.sqrt(squares / m)];
    for (const s of logs) spread += (s - this.mean) * (s - this.mean);
    this.deviation = new Set(others).size > 1 ? Math.sqrt(spread / n) : 0; // 0 of flags
  }

  scaled(value, centred) {
    const s = signedLog(value, this.unit);
    const x = centred && this.deviation > 1e-9 ? (s - this.mean) / this.deviation : s / this.rms;
    return clamp(x, -NUMBER_LIMIT, NUMBER_LIMIT);
  }
}

const signedLog = (value, unit) => Math.sign(value) * Math.log1p(Math.abs(value) / unit);

/** A field: log τ of its kinds of weights; `squares` of slopes are infinite where τ is given. */
export const newField = (key, logTau, squares = 0) => ({ key, logTau, squares: FIRST.map(() => squares) });

/** A regression: one block of weights for each action feature, over the core of the context's coordinates and a tail. */
export class Regression {
  learned = 0;
  scales = new Map();
  fields = [newField(0, [...FIRST])];
  newField = [FIRST, 0]; // log τ and squares of slopes of a new field
  blocks = [];
  #places = new Map(); // of blocks, by key
  #tail = new Map();
  pairLogTau = null; // of every two fields; pairs of features have no weights in a device's own model

  constructor(size, length, noise, maxBlocks, tailBits) {
    Object.assign(this, { size, length, noise, maxBlocks, tailMask: 2 ** tailBits - 1 });
  }

  /** Add a block; `logTau` are those of the constant's prior and of all others'. */
  addBlock(key, logTau, mean = new Float64Array(this.size), covariance = this.#prior(logTau)) {
    this.#places.set(key, this.blocks.length);
    this.blocks.push({ key, used: 0, logTau, mean, covariance });
  }

  setTail(place, b, h) {
    this.#tail.set(place, Float32Array.of(b, h));
  }

  scaleOf(key, value, isNew, medians = CONTEXT_UNIT) {
    let scale = this.scales.get(key);
    if (isNew && !scale && this.scales.size < MAX_SCALES) this.scales.set(key, (scale = new Scale()));
    if (isNew) scale?.see(value, medians);
    return scale;
  }

  actionValue(hash, value, field, isNew) {
    if (keyOf(hash) !== keyOf(field) && value === 1) return 1;
    const key = actionScaleKey(hash);
    if (value === 0 && !this.scales.has(key)) return 0; // a value of a number that had others before
    const scale = this.scaleOf(key, value, isNew, ACTION_UNIT);
    return scale ? scale.scaled(value, true) : Math.sign(value);
  }

  /** z over the core, the places where it is not 0, and the tail. */
  inputs({ hashes, values }, n, isNew) {
    const z = new Float64Array(this.size), tail = [];
    z[0] = Math.max(1 / this.length, LEAST_CONSTANT);
    for (let j = 0; j < n; j++) {
      if (values[j] === 0) continue;
      const key = keyOf(hashes[j]), scale = this.scaleOf(key, values[j], isNew);
      const x = (scale ? scale.scaled(values[j], false) : Math.sign(values[j])) / this.length;
      if (scale && scale.core >= 0) z[scale.core] += x;
      else tail.push([key, x]);
    }
    return { z, places: [...z.keys()].filter((i) => z[i] !== 0), tail };
  }

  /** Block 0 and the blocks of an action, each once: key, value and field. */
  actionBlocks({ hashes, values, fields }, from, to, isNew) {
    const blocks = new Map([[0, { key: 0, x: 1, name: 0 }]]);
    for (let j = from; j < to; j++) {
      const key = keyOf(hashes[j]), x = this.actionValue(hashes[j], values[j], fields[j], isNew);
      if (!blocks.has(key)) blocks.set(key, { key, x: 0, name: keyOf(fields[j]) });
      blocks.get(key).x += x;
    }
    return [...blocks.values()].filter(({ x }) => x !== 0);
  }

  fieldOf(name, isNew) {
    const field = this.fields.find(({ key }) => key === name);
    if (field || this.fields.length === MAX_FIELDS) return field ?? this.fields.at(-1);
    if (!isNew) return undefined;
    this.fields.push(newField(name, [...this.newField[0]], this.newField[1]));
    return this.fields.at(-1);
  }

  /** Mean, variance and slopes by log τ of a block at the inputs, with P z; `logTau` are those of a new block's field. */
  #corePart(block, { z, places }, logTau) {
    let mean = 0, variance = 0, slope = 0;
    if (!block) {
      for (const i of places) variance += Math.exp(logTau[i ? CORE : CONSTANT]) * z[i] * z[i];
      return { mean, variance, slope };
    }
    const d = this.size, gain = new Float64Array(d);
    for (const i of places) {
      mean += block.mean[i] * z[i];
      for (let k = 0; k < d; k++) gain[k] += block.covariance[i * d + k] * z[i];
    }
    for (const i of places) variance += gain[i] * z[i];
    for (let k = 1; k < d; k++) slope += gain[k] * block.mean[k];
    const ofConstant = (gain[0] * block.mean[0]) / Math.exp(block.logTau[0]), ofContext = slope / Math.exp(block.logTau[1]);
    return { mean, variance, slope: ofConstant + ofContext, ofConstant, ofContext, gain };
  }

  #tailPart(key, { tail }, tau) {
    let mean = 0, variance = 0, slope = 0;
    for (const [coordinate, t] of tail) {
      const part = diagonalPart(this.#tail.get(this.#tailPlace(key, coordinate)) ?? [0, 0], t, tau);
      mean += part.mean;
      variance += part.variance;
      slope += part.slope;
    }
    return { mean, variance, slope };
  }

  #tailPlace(block, coordinate) {
    let mixed = (Math.imul(block, 0x9e3779b1) ^ Math.imul(coordinate, 0x85ebca77)) >>> 0;
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x2c1b3c6d) >>> 0;
    return ((mixed ^ (mixed >>> 13)) >>> 0) & this.tailMask;
  }

  /** Mean, variance and slope of a block; nothing is learned. */
  blockPart({ key, name }, inputs) {
    const logTau = this.fieldOf(name, false)?.logTau ?? FIRST;
    const core = this.#corePart(this.blocks[this.#places.get(key)], inputs, logTau);
    const tail = this.#tailPart(key, inputs, Math.exp(logTau[TAIL]));
    return { mean: core.mean + tail.mean, variance: core.variance + tail.variance, slope: core.slope + tail.slope };
  }

  /** Mean and variance of the pairs of an action's features; `blocks` are its blocks but block 0. */
  #pairsPart(blocks) {
    let mean = 0, variance = 0;
    if (!this.pairLogTau) return { mean, variance };
    const paired = blocks.slice(0, MOST_PAIRED).map(({ key, x, name }) => {
      return { key, x: clamp(x, -1, 1), place: name === ID_FIELD ? -1 : this.fields.indexOf(this.fieldOf(name, false)) };
    });
    paired.forEach((one, k) => {
      for (const other of paired.slice(0, k)) {
        const low = Math.min(one.place, other.place), high = Math.max(one.place, other.place);
        if (low < 0 || low === high) continue;
        const place = this.#tailPlace(Math.min(one.key, other.key), actionScaleKey(Math.max(one.key, other.key)));
        const tau = Math.exp(this.pairLogTau[low * this.fields.length + high]);
        const part = diagonalPart(this.#tail.get(place) ?? [0, 0], one.x * other.x, tau);
        mean += part.mean;
        variance += part.variance;
      }
    });
    return { mean, variance };
  }

  /** What is said of an example: mean, variance with block 0, and slopes by log τ for each of `names`. */
  part(example, nSeen, names) {
    const inputs = this.inputs(example, nSeen, false), slopes = new Float64Array(names.length);
    const blocks = this.actionBlocks(example, example.nContext, example.hashes.length, false);
    let { mean, variance } = this.#pairsPart(blocks.slice(1));
    for (const block of blocks) {
      const part = this.blockPart(block, inputs);
      mean += block.x * part.mean;
      variance += block.x * block.x * part.variance;
      slopes[names.indexOf(block.name)] += block.x * part.slope;
    }
    return { mean, variance, slopes };
  }

  /** Means and variances of actions; `starts` has one place more than there are actions. */
  predict(request, nContext, starts) {
    const inputs = this.inputs(request, nContext, false), parts = new Map();
    const base = this.blockPart({ key: 0, name: 0 }, inputs);
    return starts.slice(0, -1).map((from, a) => {
      const blocks = this.actionBlocks(request, from, starts[a + 1], false).slice(1);
      let mean = base.mean + this.#pairsPart(blocks).mean, ofId = 0, ofOthers = 0, squares = 0;
      for (const block of blocks) {
        if (!parts.has(block.key)) parts.set(block.key, this.blockPart(block, inputs));
        mean += block.x * parts.get(block.key).mean;
        const variance = block.x * block.x * parts.get(block.key).variance;
        if (block.name === ID_FIELD) ofId += variance;
        else [ofOthers, squares] = [ofOthers + variance, squares + variance * variance];
      }
      return { mean, variance: ofId + (ofOthers > 0 ? squares / ofOthers : 0) };
    });
  }

  /** Learn a label, in shares of the range of rewards, beside what another model predicts of it. */
  learn(example, label, beside, isNew) {
    const inputs = this.inputs(example, example.nContext, isNew), parts = [];
    let mean = 0, variance = 0;
    for (const { key, x, name } of this.actionBlocks(example, example.nContext, example.hashes.length, isNew)) {
      const field = this.fieldOf(name, true);
      const block = this.#touch(key, [field.logTau[CONSTANT], field.logTau[CORE]]);
      if (!block) continue;
      const core = this.#corePart(block, inputs), tail = this.#tailPart(key, inputs, Math.exp(field.logTau[TAIL]));
      mean += x * (core.mean + tail.mean);
      variance += x * x * (core.variance + tail.variance);
      parts.push({ key, x, field, block, gain: core.gain, core, tailSlope: tail.slope });
    }
    const error = label - mean - beside.mean;
    variance += beside.variance;
    const q = this.noise + variance;
    for (const part of parts) this.#step(part, inputs, error, q);
    for (const { x, field, core, tailSlope } of parts) {
      stepPrior(field, TAIL, error * x * tailSlope);
      this.#stepCore(field, error * x * core.ofConstant, error * x * core.ofContext);
    }
    this.learned++;
    const square = ((this.noise / q) * error) ** 2 + (this.noise * variance) / q;
    const rate = Math.max(1 / (this.learned + 20), LEAST_NOISE_RATE);
    this.noise = clamp(this.noise + rate * (square - this.noise), LEAST_NOISE, MOST_NOISE);
  }

  /** Let log τ of core weights follow its slopes: that of the constant by itself where actions have one field. */
  #stepCore(field, ofConstant, ofContext) {
    if (this.fields.length > 2) {
      if (this.learned >= CORE_TAU_START) stepPrior(field, CORE, ofConstant + ofContext);
      field.logTau[CONSTANT] = field.logTau[CORE];
      return;
    }
    if (this.learned >= CORE_TAU_START) stepPrior(field, CONSTANT, ofConstant);
    if (this.learned >= Math.min(CORE_TAU_START, CONTEXT_TAU_EVENTS * this.blocks.length)) stepPrior(field, CORE, ofContext);
  }

  #step({ key, x, field, block, gain }, { tail }, error, q) {
    const d = this.size;
    for (let i = 0; i < d; i++) block.mean[i] += gain[i] * ((x * error) / q);
    for (let i = 0; i < d; i++) {
      const factor = gain[i] * ((x * x) / q);
      if (factor !== 0) for (let j = 0; j < d; j++) block.covariance[i * d + j] -= factor * gain[j];
    }
    const tau = Math.exp(field.logTau[TAIL]);
    for (const [coordinate, t] of tail) {
      const place = this.#tailPlace(key, coordinate), value = x * t;
      if (!this.#tail.has(place)) this.setTail(place, 0, 0);
      const weight = this.#tail.get(place), c = 1 / (1 / tau + weight[1]);
      weight[1] += (value * value) / (q - c * value * value);
      weight[0] = (weight[0] * c + (c * value * error) / q) * (1 / tau + weight[1]);
    }
  }

  /** The block of a key, a new one if need be; the least recently learned makes room. */
  #touch(key, logTau) {
    let block = this.blocks[this.#places.get(key)];
    if (!block && this.blocks.length < this.maxBlocks) {
      this.addBlock(key, logTau);
      block = this.blocks.at(-1);
    } else if (!block) {
      block = this.blocks.slice(1).reduce((oldest, one) => (one.used < oldest.used ? one : oldest));
      if (block.used === this.learned) return undefined;
      this.#places.set(key, this.#places.get(block.key));
      this.#places.delete(block.key);
      Object.assign(block, { key, logTau, mean: new Float64Array(this.size), covariance: this.#prior(logTau) });
    } else if (logTau.some((one, k) => Math.abs(block.logTau[k] - one) > REBASE)) rebase(block, logTau, this.size);
    block.used = this.learned;
    return block;
  }

  #prior(logTau) {
    const covariance = new Float64Array(this.size * this.size);
    for (let i = 0; i < this.size; i++) covariance[i * this.size + i] = Math.exp(logTau[i ? 1 : 0]);
    return covariance;
  }
}

/** Mean, variance and slope by log τ of a weight that is independent of all others, at the input `value`. */
function diagonalPart([b, h], value, tau) {
  const c = 1 / (1 / tau + h), mean = b * c * value;
  return { mean, variance: c * value * value, slope: (mean * c) / tau };
}

function stepPrior(field, side, slope) {
  field.squares[side] += slope * slope;
  if (slope === 0) return;
  const moved = field.logTau[side] + (LOG_TAU_RATE * slope) / Math.sqrt(field.squares[side]);
  field.logTau[side] = clamp(moved, LEAST_LOG_TAU, MOST_LOG_TAU);
}

/** Give a block other priors: with A = I + P(1/τ' − 1/τ), P becomes A⁻¹P and W becomes A⁻¹W. */
function rebase(block, logTau, d) {
  const { mean, covariance: P } = block, change = logTau.map((one, k) => Math.exp(-one) - 1 / Math.exp(block.logTau[k]));
  const A = P.map((value, at) => value * change[at % d ? 1 : 0] + (at % (d + 1) === 0 ? 1 : 0)), right = P.slice();
  const subtract = (i, factor, k) => {
    for (let j = 0; j < d; j++) right[i * d + j] -= factor * right[k * d + j];
    mean[i] -= factor * mean[k];
  };
  for (let k = 0; k < d; k++) {
    for (let i = k + 1; i < d; i++) {
      const factor = A[i * d + k] / A[k * d + k];
      if (factor === 0) continue;
      for (let j = k; j < d; j++) A[i * d + j] -= factor * A[k * d + j];
      subtract(i, factor, k);
    }
  }
  for (let i = d - 1; i >= 0; i--) {
    for (let k = i + 1; k < d; k++) if (A[i * d + k] !== 0) subtract(i, A[i * d + k], k);
    for (let j = 0; j < d; j++) right[i * d + j] /= A[i * d + i];
    mean[i] /= A[i * d + i];
  }
  for (let i = 0; i < d; i++) for (let j = 0; j < d; j++) P[i * d + j] = (right[i * d + j] + right[j * d + i]) / 2;
  block.logTau = logTau;
}


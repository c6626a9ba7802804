// The models of a device: 32-bit floats, each product and each sum rounded by itself, in the order of the Python device.

const f = Math.fround;
const BITS = 18; // of the local weights
const LAST = 2 ** BITS - 1; // the constant's place
const TAKEN = 11650396 & LAST; // Vowpal Wabbit's constant has this one; its pairs give way, as in Python
const SMALLEST_SQUARE = f(f(1.084202e-19) * f(1.084202e-19));
const LARGEST = f(3.4028234663852886e38);

/** The sum of weight × value over pairs, beginning with `start`; pairs of value 0 are left out. */
function sum(weights, indices, values, start) {
  let total = start;
  for (let k = 0; k < values.length; k++) {
    if (values[k] !== 0) total = f(f(weights[indices[k]] * values[k]) + total);
  }
  return total;
}

/** The shared part of a score; `weights` has the constant's last. */
export function sharedScore(weights, { keys, values }) {
  const shift = 32 - Math.log2(weights.length - 1);
  const total = f(sum(weights, keys.map((key) => key >>> shift), values, 0) + weights[weights.length - 1]);
  return Number.isNaN(total) ? 0 : Math.min(Math.max(total, -LARGEST), LARGEST);
}

/** Local places (and values) of pairs. */
export function localExample({ keys, values }) {
  const indices = Int32Array.from(keys, (key) => {
    const index = key >>> (32 - BITS);
    return index === LAST || index === TAKEN ? index - 1 : index;
  });
  return { indices, values };
}

/** A device's own model: AdaGrad on the squared loss, the steps of `vw --adaptive`. */
export class LocalModel {
  constructor(rate, state) {
    this.rate = f(rate);
    this.weights = new Float32Array(LAST + 1);
    this.squares = new Float32Array(LAST + 1);
    this.range = new Float32Array(2); // of the labels seen, and 0
    if (state) this.#restore(state);
  }

  score({ indices, values }) {
    return this.#joint(indices, values, 0);
  }

  /** Take one step on what the shared part, `offset`, leaves over of the label. */
  learn({ indices, values }, label, offset) {
    this.see(label);
    const joint = this.#joint(indices, values, f(offset));
    const error = f(f(label) - Math.min(Math.max(joint, this.range[0]), this.range[1]));
    if (!(f(error * error) > 0)) return;
    const squaredSlope = f(f(4 * error) * error), pull = f(f(2 * error) * this.rate);
    const each = (act) => {
      for (let k = 0; k < values.length; k++) if (values[k] !== 0) act(indices[k], values[k]);
      act(LAST, 1);
    };
    each((j, x) => { // all sums before all weights
      this.squares[j] = f(f(squaredSlope * Math.max(f(x * x), SMALLEST_SQUARE)) + this.squares[j]);
    });
    each((j, x) => {
      if (this.squares[j] > 0) {
        this.weights[j] = f(f(pull * f(x * f(1 / f(Math.sqrt(this.squares[j]))))) + this.weights[j]);
      }
    });
  }

  /** Widen the range of predictions to hold a label. */
  see(label) {
    this.range[0] = Math.min(this.range[0], f(label));
    this.range[1] = Math.max(this.range[1], f(label));
  }

  /** All that was learned: the places that are not 0. */
  state() {
    const indices = Int32Array.from(this.squares.keys()).filter((j) => this.squares[j] !== 0 || this.weights[j] !== 0);
    const pick = (array) => Float32Array.from(indices, (j) => array[j]);
    return { range: this.range.slice(), indices, weights: pick(this.weights), squares: pick(this.squares) };
  }

  #restore({ range, indices, weights, squares }) {
    this.range.set(range);
    indices.forEach((j, k) => {
      this.weights[j] = weights[k];
      this.squares[j] = squares[k];
    });
  }

  #joint(indices, values, offset) {
    const total = f(this.weights[LAST] + sum(this.weights, indices, values, offset));
    return Number.isNaN(total) ? 0 : total;
  }
}

// From scores to an action, and what an upload says of a score: as the service and the Python device do.

const f = Math.fround;

/** The probability of each action after `n` rewards, as the service computes it. */
export function probabilities(scores, widths, allowed, { policy, epsilon, gamma, floor, reward_range: [low, high] }, n) {
  const optimistic = policy === "optimistic-squarecb", squared = policy === "squarecb";
  const cut = (score, a) => (optimistic ? Math.max(score, low) + widths[a] : Math.min(Math.max(score, low), squared ? high : Infinity));
  const within = scores.map(cut);
  const best = Math.max(...within.filter((_, a) => allowed[a]));
  const count = allowed.filter(Boolean).length;
  const ties = within.filter((score, a) => allowed[a] && score === best).length;
  if (!optimistic && !squared) {
    const explored = policy === "epsilon-greedy" ? epsilon : 0;
    return within.map((score, a) => (allowed[a] ? explored / count + (score === best ? (1 - explored) / ties : 0) : 0));
  }
  const greed = optimistic ? (gamma * n ** 0.5) / (high - low) : gamma * Math.max(n, 1) ** 0.5;
  const out = within.map((score, a) => (allowed[a] && score < best ? 1 / (count + greed * (best - score)) : 0));
  const left = out.reduce((rest, chance) => rest - chance, 1), spread = optimistic ? floor : 0;
  return out.map((chance, a) => {
    const mine = allowed[a] && within[a] === best ? left / ties : chance;
    return allowed[a] && spread > 0 ? (1 - spread) * mine + spread / count : mine;
  });
}

/** The action that a uniform number falls on; never one of probability 0. */
export function pick(chances, uniform) {
  let last = -1, left = uniform;
  for (let a = 0; a < chances.length; a++) {
    if (chances[a] > 0) {
      last = a;
      left -= chances[a];
      if (left < 0) break;
    }
  }
  return last;
}

/** An event's uniform number in [0, 1): the first 53 bits of the SHA-256 of the loop's prefix and its id. */
export async function eventDraw(eventId, prefix = "") {
  const digest = new DataView(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(prefix + eventId)));
  return Number(digest.getBigUint64(0) >> 11n) * 2 ** -53;
}

/** The number with the fewest digits that is the same in 32 bits. */
export function short(part) {
  const exact = f(part);
  for (let digits = 1; digits < 9; digits++) {
    const shorter = Number(exact.toPrecision(digits));
    if (f(shorter) === exact) return shorter;
  }
  return Number(exact.toPrecision(9));
}

const LARGEST = 1e9; // of what the service takes as a part of a score
export const bounded = (part) => (Number.isNaN(part) ? 0 : Math.min(Math.max(part, -LARGEST), LARGEST));

/** Refuse what `Privacy` of Python refuses: `clip`, `step`, and `noise` ("gaussian" or "laplace") of a `scale`. */
export function checkPrivacy({ clip, step, noise, scale, ...others }) {
  for (const [name, value] of Object.entries({ clip, step, scale })) {
    if (value !== undefined && !(value > 0 && value <= 1e6)) throw new RangeError(`privacy.${name} must be in (0, 1e6], got ${value}`);
  }
  if (Object.keys(others).length) throw new TypeError(`privacy must have clip, step, noise and scale only, got ${Object.keys(others)}`);
  if (noise === undefined && scale !== undefined) throw new TypeError(`privacy.scale must come with noise, got ${scale} without`);
  if (noise === undefined) return;
  if (!["gaussian", "laplace"].includes(noise)) throw new RangeError(`privacy.noise must be gaussian or laplace, got ${noise}`);
  if (clip === undefined || scale === undefined) throw new TypeError("privacy.clip and privacy.scale must be given where there is noise");
}

/** What may be sent of a local prediction: clipped, with noise, rounded. */
export function release({ clip = Infinity, step, noise, scale }, prediction) {
  let value = Math.min(Math.max(prediction, -clip), clip);
  if (noise === "gaussian") value += scale * Math.sqrt(-2 * Math.log(1 - secretDraw())) * Math.cos(2 * Math.PI * secretDraw());
  if (noise === "laplace") value += scale * (Math.log(1 - secretDraw()) - Math.log(1 - secretDraw()));
  const multiple = value / step;
  return step === undefined || Math.abs(multiple) >= 2 ** 53 ? value : even(multiple) * step;
}

/** The nearest whole number, of two that are as near the even one. */
function even(value) {
  const below = Math.floor(value), rest = value - below;
  return rest < 0.5 || (rest === 0.5 && below % 2 === 0) ? below : below + 1;
}

/** A uniform number in [0, 1) that nobody can foretell. */
function secretDraw() {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return ((high >>> 5) * 2 ** 26 + (low >>> 6)) * 2 ** -53;
}

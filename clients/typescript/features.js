// From JSON features to hashed ones, as docs/reference/hashing.md says; the same bits as the service and the Python device.

const LIMITS = { features: 1000, depth: 8, name: 1000, crosses: 250_000 };
const LARGEST = 1e15;
const encoder = new TextEncoder();
const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? 0xedb88320 ^ (byte >>> 1) : byte >>> 1;
  return byte;
});

/** The CRC-32 of bytes. */
export function crc32(bytes) {
  let crc = 0xffffffff;
  for (let k = 0; k < bytes.length; k++) crc = TABLE[(crc ^ bytes[k]) & 255] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

/** The hash of a feature's name. */
export const featureHash = (name) => crc32(encoder.encode(name));

/** The key of a pair of feature hashes; 0 stands for none. */
export function pairKey(contextHash, actionHash) {
  let x = (Math.imul(contextHash, 0x9e3779b1) + actionHash) >>> 0;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return (x ^ (x >>> 16)) >>> 0;
}

/**
 * The hashed features of a context (`id` undefined) or of an action, with the hashes of their fields.
 * Numbers beyond `largest` are refused.
 */
export function hashed(place, features, id, largest = LARGEST) {
  const named = [];
  try {
    if (id !== undefined) add(named, `_id=${id}`, 1, "_id");
    if (features === null || typeof features !== "object" || Array.isArray(features)) {
      throw new TypeError(`features must be an object, got ${shown(features)}`);
    }
    flatten("", features, 1, named, largest);
  } catch (error) {
    throw new TypeError(`${place}: ${error.message}`);
  }
  return {
    hashes: Uint32Array.from(named, ([name]) => featureHash(name)),
    values: Float32Array.from(named, ([, value]) => value),
    fields: Uint32Array.from(named, ([, , field]) => featureHash(field)),
  };
}

/** Refuse more pairs than a request may have. */
export function checkCrosses(context, actions) {
  const n = actions.reduce((sum, action) => sum + action.hashes.length, 0);
  if ((context.hashes.length + 1) * n > LIMITS.crosses) {
    const got = `(${context.hashes.length} + 1) × ${n}`;
    throw new RangeError(`(context features + 1) × action features must be at most ${LIMITS.crosses}, got ${got}`);
  }
}

/** The keys and values of all pairs of an action: the context's features, its own, and their crosses. */
export function expand(context, action, crosses) {
  const n = context.hashes.length, m = action.hashes.length;
  const keys = new Uint32Array(n + m + (crosses ? n * m : 0)), values = new Float32Array(keys.length);
  for (let i = 0; i < n; i++) {
    keys[i] = pairKey(context.hashes[i], 0);
    values[i] = context.values[i];
  }
  for (let i = -1, at = n; i < (crosses ? n : 0); i++) {
    const hash = i < 0 ? 0 : context.hashes[i], factor = i < 0 ? 1 : context.values[i];
    for (let j = 0; j < m; j++, at++) {
      keys[at] = pairKey(hash, action.hashes[j]);
      values[at] = factor * action.values[j];
    }
  }
  return { keys, values };
}

function flatten(prefix, tree, depth, named, largest) {
  if (depth > LIMITS.depth) throw new RangeError(`${prefix.slice(0, -1)} must be nested at most ${LIMITS.depth} deep, got ${depth}`);
  for (const [key, value] of Object.entries(tree)) {
    if (key === "") throw new TypeError(`${prefix || "features"} must have names of at least one character, got an empty one`);
    if (key[0] === "_" || value === null || value === undefined || value === false) continue;
    const name = prefix + key;
    if (value === true) add(named, name, 1);
    else if (typeof value === "number") addNumber(named, name, value, largest);
    else if (typeof value === "string") add(named, `${name}=${value}`, 1, name);
    else if (Array.isArray(value)) flattenArray(name, value, named, largest);
    else if (typeof value === "object") flatten(`${name}.`, value, depth + 1, named, largest);
    else throw new TypeError(`${name} must be JSON, got ${typeof value}`);
  }
}

function flattenArray(name, items, named, largest) {
  const kind = typeof items[0] === "string" ? "string" : "number";
  items.forEach((item, i) => {
    if (typeof item !== kind) throw new TypeError(`${name} must hold numbers alone or strings alone, got ${shown(item)} in it`);
    if (kind === "string") add(named, `${name}=${item}`, 1, name);
    else if (item !== 0) addNumber(named, `${name}[${i}]`, item, largest);
  });
}

function addNumber(named, name, value, largest) {
  if (!(Math.abs(value) <= largest)) {
    const advice = largest < LARGEST ? ": scale numbers to about 1, or change the loop's setting largest_number" : "";
    throw new RangeError(`${name} must be within ±${largest}, got ${value}${advice}`);
  }
  add(named, name, value);
}

/** Add a feature; a string's field is its JSON key, a number's its name. */
function add(named, name, value, field = name) {
  const size = name.length <= LIMITS.name ? name.length : [...name].length; // of code points, as in Python
  if (size > LIMITS.name) throw new RangeError(`names must have at most ${LIMITS.name} characters, got ${size}`);
  if (/[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/.test(name)) throw new TypeError("names must be valid Unicode");
  if (named.length >= LIMITS.features) throw new RangeError(`features must be at most ${LIMITS.features}, got more`);
  named.push([name, value, field]);
}

const shown = (value) => (value === null ? "null" : Array.isArray(value) ? "an array" : `a ${typeof value}`);

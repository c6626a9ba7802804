// Ids of events, rewards and requests.

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const RANDOM_CHARACTERS = 14;
const pool = new Uint8Array(64 * RANDOM_CHARACTERS); // random bytes for the next ids
let taken = pool.length;

export const LONGEST_ID = 200; // characters
export const FALLBACK_PREFIX = "fallback-"; // of the event ids of fallbacks

/** Return an id that nobody had before: the time in milliseconds and 84 random bits. */
export function newEventId() {
  let time = Date.now();
  let id = "";
  for (let k = 0; k < 8; k++) {
    id = ALPHABET[time % 64] + id;
    time = Math.floor(time / 64);
  }
  if (taken === pool.length) {
    crypto.getRandomValues(pool);
    taken = 0;
  }
  const end = taken + RANDOM_CHARACTERS;
  for (; taken < end; taken++) id += ALPHABET[pool[taken] & 63];
  return id;
}

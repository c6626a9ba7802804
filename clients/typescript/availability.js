// Whether the service decides, and what each call may do about it. clients/python/fedres_client/availability.py does the same in Python.

const CHEAP = 100; // milliseconds of a failed try while the service is away: the next call may try at once
const REST = 9; // times as long as a more expensive one, no call tries
const LONGEST_REST = 5_000; // milliseconds
const REPEATS = 0.1; // of calls, that may be repeated beside their first try
const MOST_REPEATS = 10; // saved up for a moment of many

/**
 * The service is away after a failure, unless another call had an answer since the failed one began. While it is away, one call at a time is
 * tried, and all others fall back at once.
 */
export class Availability {
  #workedAt = -Infinity; #isProbing = false; #probeAt = -Infinity; #repeats = 1;

  /** Why the service is away, null while it is not. */
  reason = null;

  /** How a call may be tried: "try", or "probe" for once; null if it must not be. */
  begin() {
    if (this.reason === null) {
      this.#repeats = Math.min(MOST_REPEATS, this.#repeats + REPEATS);
      return "try";
    }
    if (this.#isProbing || performance.now() < this.#probeAt) return null;
    this.#isProbing = true;
    return "probe";
  }

  /** Let the next call try again, after a rest if this one took long. */
  end(attempt, began) {
    if (attempt !== "probe") return;
    const now = performance.now(), took = now - began;
    this.#isProbing = false;
    this.#probeAt = now + (took < CHEAP ? 0 : Math.min(REST * took, LONGEST_REST));
  }

  /** Whether a call may be sent a second time beside its first try; this counts it. */
  mayRepeat() {
    if (this.#repeats < 1) return false;
    this.#repeats -= 1;
    return true;
  }

  worked() {
    this.#workedAt = performance.now();
    this.reason = null;
  }

  /** Note that a call that began then was not answered; return whether the service is away since. */
  failed(began, reason) {
    if (this.#workedAt >= began || this.reason !== null) return false;
    this.reason = reason;
    return true;
  }
}

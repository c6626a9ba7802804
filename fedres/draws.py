"""Random draws that client and server both know without a message: functions of (seed, t, client) alone.

A client that joins changes nobody else's draws, and one array of K clients draws what K single clients would.
"""

from __future__ import annotations

import numpy as np

from fedres.checks import Array


def uniform(seed: int, t: int, who: Array) -> Array:
    """Return one number in [0, 1) per client: SplitMix64's finaliser over seed, t and client in turn."""
    state = _mix(np.full(len(who), seed % 2**64, dtype=np.uint64))
    state = _mix(state ^ np.uint64(t))
    state = _mix(state ^ who.astype(np.uint64))
    result: Array = (state >> np.uint64(11)) * 2.0**-53
    return result


def subset(seed: int, t: int, n_clients: int, size: int) -> Array:
    """Return the ``size`` clients, a uniform subset of all, whose draws are the smallest; in order."""
    if size == n_clients:
        return np.arange(n_clients)
    numbers = uniform(seed, t, np.arange(n_clients))
    largest = np.partition(numbers, size - 1)[size - 1]
    smaller = np.flatnonzero(numbers < largest)
    equal = np.flatnonzero(numbers == largest)[: size - len(smaller)]  # of equal draws the first clients'
    return np.sort(np.concatenate([smaller, equal]))


def _mix(state: Array) -> Array:
    with np.errstate(over="ignore"):
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        result: Array = state ^ (state >> np.uint64(31))
    return result

"""Random draws that all sides can compute without messages: functions of (seed, t, client), or of an event id.

A new client does not change the draws of others, and an array of K clients has the same draws as K single clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from fedres.checks import Array

_SHA = hashlib.sha256()  # to copy: a new one takes longer


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


def event_draw(event_id: str, prefix: str = "") -> float:
    """Return the event's uniform number in [0, 1): the first 53 bits of the SHA-256 of prefix and id in UTF-8.

    >>> event_draw("a")
    0.7914827144317304
    """
    return (int.from_bytes(hashlib.sha256((prefix + event_id).encode()).digest()[:8], "big") >> 11) * 2.0**-53


def event_draws(event_ids: Sequence[str], prefix: str = "") -> list[float]:
    """Return the result of ``event_draw`` for each id."""
    digests = []
    prefix_sha = _SHA.copy()
    prefix_sha.update(prefix.encode())
    for event_id in event_ids:
        sha = prefix_sha.copy()
        sha.update(event_id.encode())
        digests.append(sha.digest())
    drawn: list[float] = ((np.frombuffer(b"".join(digests), ">u8")[::4] >> 11) * 2.0**-53).tolist()
    return drawn


def _mix(state: Array) -> Array:
    with np.errstate(over="ignore"):
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        result: Array = state ^ (state >> np.uint64(31))
    return result

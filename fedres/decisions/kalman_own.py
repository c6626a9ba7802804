"""Personal blocks of ``residual-kalman``, compiled: the residuals of the shared model, for one user and one block.

Every feature that a user has learned has a bias; slots, with weights of the context's directions, are few. Weights are
kept as b and the precision H, without their prior: C = (H + I/τ)⁻¹, w = C b. H is dense over the first ``OWN_DENSE``
coordinates and diagonal over the others; a bias has a number h. As τ moves, the weights of all users move with it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel, kernel
from fedres.decisions.constants import (
    BIAS_WORDS,
    FIRST_LOG_TAU,
    FIRST_SHARED_LOG_TAU,
    HEAD,
    LEAST_PIVOT,
    OWN_DENSE,
    SLOT_HEAD,
)
from fedres.decisions.elementary import exp
from fedres.decisions.kalman_state import BASES, CONSTANT, CORE, OWN, numbers_of, slot_words
from fedres.key_tables import Key

COUNT, BASIS, CLOCK, BIASES = range(4)  # of a personal model's words
SLOT_KEY, SLOT_FIELD, SLOT_USED = range(3)  # of a slot's
BIAS_KEY, BIAS_USED, BIAS_NUMBERS = range(3)  # of a bias's


@bare_kernel
def tau_of(shared: Any, field: Any, side: int) -> Any:
    return exp(log_tau_of(shared, field, side))


@inner_kernel
def log_tau_of(shared: Any, field: Any, side: int) -> Any:
    if field >= 0:
        return shared.log_tau[field, side]
    return FIRST_SHARED_LOG_TAU if side in (CORE, CONSTANT) else FIRST_LOG_TAU


@inner_kernel
def numbers_at(slot: int, k: int) -> int:
    """Return where the numbers of a slot begin: b, the diagonal of H, and H below the diagonal."""
    return HEAD + slot * slot_words(k) + SLOT_HEAD


@inner_kernel
def below(k: int, i: int, j: int) -> int:
    """Return where H[i, j] is among the numbers, j < i."""
    return 2 * k + i * (i - 1) // 2 + j


@inner_kernel
def solve(numbers: Array, k: int, tau: float, right: Array, out: Array, root: Array) -> None:
    """Fill in C times ``right``; ``root`` is from ``factor``."""
    n = min(k, OWN_DENSE)
    for i in range(n):
        total = right[i]
        for j in range(i):
            total -= root[i, j] * out[j]
        out[i] = total * root[i, i]
    for i in range(n - 1, -1, -1):
        total = out[i]
        for j in range(i + 1, n):
            total -= root[j, i] * out[j]
        out[i] = total * root[i, i]
    for i in range(n, k):
        out[i] = right[i] / (1 / tau + np.float64(numbers[k + i]))


@inner_kernel
def factor(numbers: Array, k: int, tau: float, root: Array) -> None:
    """Fill in the Cholesky factor of C⁻¹ where that is dense, its diagonal inverted. No pivot is 0, whatever H is."""
    for i in range(min(k, OWN_DENSE)):
        for j in range(i + 1):
            total = np.float64(numbers[k + i]) + 1 / tau if i == j else np.float64(numbers[below(k, i, j)])
            least = LEAST_PIVOT * total
            for m in range(j):
                total -= root[i, m] * root[j, m]
            root[i, j] = 1 / math.sqrt(max(total, least)) if i == j else total * root[j, j]


@inner_kernel
def own_weights(numbers: Array, k: int, tau: float, weights: Array, root: Array) -> None:
    """Fill in w = C b."""
    for i in range(k):
        weights[i] = np.float64(numbers[i])
    solve(numbers, k, tau, weights, weights, root)


@kernel
def weights_of(words: Array, slot: int, k: int, tau: float) -> Array:
    """Return the weights of a block, in the leading coordinates."""
    weights, numbers = np.empty(k), words[numbers_at(slot, k) : numbers_at(slot, k) + numbers_of(k)].view(np.float32)
    root = np.empty((k, k))
    factor(numbers, k, tau, root)
    own_weights(numbers, k, tau, weights, root)
    return weights


@inner_kernel
def own_part(words: Array, slot: int, r: Array, tau: float, gain: Array, root: Array) -> Any:
    """Return mean b·Cr and variance r·Cr of a block or of none: slot −1. Fill in C r and the factor of C⁻¹."""
    mean, variance, k = 0.0, 0.0, r.size
    if slot < 0:
        for i in range(k):
            variance += tau * r[i] * r[i]
        return mean, variance
    numbers = words[numbers_at(slot, k) : numbers_at(slot, k) + numbers_of(k)].view(np.float32)
    factor(numbers, k, tau, root)
    solve(numbers, k, tau, r, gain, root)
    for i in range(k):
        mean += np.float64(numbers[i]) * gain[i]
        variance += gain[i] * r[i]
    return mean, variance


@inner_kernel
def own_slope(words: Array, slot: int, k: int, tau: float, gain: Array, root: Array, weights: Array) -> float:
    """Return the slope of the mean by log τ, w·Cr/τ, after ``own_part``. Fill in w."""
    numbers, slope = words[numbers_at(slot, k) : numbers_at(slot, k) + numbers_of(k)].view(np.float32), 0.0
    own_weights(numbers, k, tau, weights, root)
    for i in range(k):
        slope += gain[i] * weights[i]
    return slope / tau


@inner_kernel
def learn_own(
    words: Array, slot: int, r: Array, x: float, tau: float, weights: Array, gain: Array, error: float, q: float
) -> None:
    """w += C i e/q and C −= C i (C i)'/q with i = x r, the latter as H += i i'/(q − i'C i); of each part by itself."""
    k, v = r.size, 0.0
    n, numbers = min(k, OWN_DENSE), words[numbers_at(slot, k) : numbers_at(slot, k) + numbers_of(k)].view(np.float32)
    for i in range(n):
        v += x * x * gain[i] * r[i]
    for i in range(k):
        weights[i] += x * gain[i] * error / q
        rest = q - v if i < n else q - x * x * gain[i] * r[i]
        numbers[k + i] = np.float64(numbers[k + i]) + x * x * r[i] * r[i] / rest
        if i < n:
            for j in range(i):
                numbers[below(k, i, j)] = np.float64(numbers[below(k, i, j)]) + x * x * r[i] * r[j] / rest
    keep_weights(numbers, k, tau, weights)


@inner_kernel
def keep_weights(numbers: Array, k: int, tau: float, weights: Array) -> None:
    """b = (H + I/τ) w"""
    n = min(k, OWN_DENSE)
    for i in range(k):
        total = (np.float64(numbers[k + i]) + 1 / tau) * weights[i]
        if i < n:
            for j in range(n):
                if j != i:
                    total += np.float64(numbers[below(k, max(i, j), min(i, j))]) * weights[j]
        numbers[i] = total


@bare_kernel
def find_slot(words: Array, key: Key, k: int) -> Any:
    stride = slot_words(k)
    if words.size:
        for slot in range(np.int64(words[COUNT])):
            if words[HEAD + slot * stride + SLOT_KEY] == key:
                return slot
    return -1


@bare_kernel
def find_bias(words: Array, key: Key) -> Any:
    """Return the first word of a block's bias, −1 if it has none."""
    if words.size:
        for j in range(np.int64(words[BIASES])):
            place = words.size - BIAS_WORDS * (j + 1)
            if words[place + BIAS_KEY] == key:
                return place
    return -1


@inner_kernel
def touch_bias(words: Array, key: Key, limit: int) -> Any:
    """Return the first word of a block's bias, existing or new; −1 if all are in use by this event."""
    place, n = find_bias(words, key), np.int64(words[BIASES])
    if place < 0:
        first = words.size - BIAS_WORDS
        if n < limit:
            place = first - BIAS_WORDS * n
            words[BIASES] = n + 1
        else:
            place = first
            for j in range(1, n):
                other = first - BIAS_WORDS * j
                if place == first or words[other + BIAS_USED] < words[place + BIAS_USED]:
                    place = other
            if words[place + BIAS_USED] == words[CLOCK]:
                return -1
        words[place : place + BIAS_WORDS] = 0
        words[place + BIAS_KEY] = key
    words[place + BIAS_USED] = words[CLOCK]
    return place


@inner_kernel
def touch_slot(words: Array, key: Key, field: int, k: int, limit: int, met_before: bool) -> Any:
    """Return the slot of a block, existing or new; −1 if all are in use by this event.

    Once there is no room left, only a block that the user has met before replaces another one.
    """
    stride, n = slot_words(k), np.int64(words[COUNT])
    slot = find_slot(words, key, k)
    if slot < 0:
        if n < limit:
            slot = n
            words[COUNT] = n + 1
        elif not met_before:
            return -1
        else:
            slot = 0
            for i in range(1, n):
                at_slot, at_i = HEAD + slot * stride, HEAD + i * stride
                if slot == 0 or words[at_i + SLOT_USED] < words[at_slot + SLOT_USED]:
                    slot = i
            if words[HEAD + slot * stride + SLOT_USED] == words[CLOCK]:
                return -1
        first = HEAD + slot * stride
        words[first : first + stride] = 0
        words[first + SLOT_KEY], words[first + SLOT_FIELD] = key, field
    words[HEAD + slot * stride + SLOT_USED] = words[CLOCK]
    return slot


@bare_kernel
def turn_own(shared: Any, words: Array, scratch: Any) -> None:
    """Turn a personal model to the present basis: means are turned, precisions keep the entries that H has room for."""
    last = shared.counts[BASES] - 1
    if words[BASIS] == last:
        return
    old, new = shared.bases[words[BASIS]], shared.bases[last]
    (d, k), (turn, half, root) = old.shape, (scratch.squares[0], scratch.squares[1], scratch.squares[2])
    turn[:] = 0.0
    for a in range(k):
        for i in range(d):
            for b in range(k):
                turn[a, b] += new[i, a] * old[i, b]
    for slot in range(np.int64(words[COUNT])):
        tau = tau_of(shared, np.int64(words[HEAD + slot * slot_words(k) + SLOT_FIELD]), OWN)
        numbers = words[numbers_at(slot, k) : numbers_at(slot, k) + numbers_of(k)].view(np.float32)
        _turn_block(numbers, k, tau, turn, half, root, scratch.own_weights[0], scratch.own_gains[0])
    words[BASIS] = last


@inner_kernel
def _turn_block(
    numbers: Array, k: int, tau: float, turn: Array, half: Array, root: Array, weights: Array, turned: Array
) -> None:
    """w becomes T w, H becomes the kept entries of T H T'."""
    n = min(k, OWN_DENSE)
    factor(numbers, k, tau, root)
    own_weights(numbers, k, tau, weights, root)
    for a in range(k):
        turned[a] = 0.0
        for j in range(k):
            turned[a] += turn[a, j] * weights[j]
            half[a, j] = turn[a, j] * np.float64(numbers[k + j])
            if j < n:
                for i in range(n):
                    if i != j:
                        half[a, j] += turn[a, i] * np.float64(numbers[below(k, max(i, j), min(i, j))])
    for a in range(k):
        for b in range(a + 1) if a < n else range(a, a + 1):
            total = 0.0
            for j in range(k):
                total += half[a, j] * turn[b, j]
            numbers[k + a if a == b else below(k, a, b)] = total
    keep_weights(numbers, k, tau, turned)

"""Personal blocks of ``residual-kalman``, compiled: the residuals of the shared model, for one user and one block.

Every feature that a user has learned has a bias; slots, with weights of the context's directions, are few. All are
independent and kept as b and h, without their prior, so that the weights of all users move as τ moves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel, kernel
from fedres.decisions.constants import (
    BIAS_WORDS,
    FIRST_LOG_TAU,
    FIRST_SHARED_LOG_TAU,
    HEAD,
    SLOT_HEAD,
)
from fedres.decisions.elementary import exp
from fedres.decisions.kalman_diagonal import diagonal_part, learn_diagonal
from fedres.decisions.kalman_state import BASES, CONSTANT, CORE, OWN, slot_words
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
    """Return where the numbers of a slot begin: b and h of each direction."""
    return HEAD + slot * slot_words(k) + SLOT_HEAD


@kernel
def weights_of(words: Array, slot: int, k: int, tau: float) -> Array:
    """Return the weights of a block, in the leading coordinates."""
    first, weights = numbers_at(slot, k), np.empty(k)
    numbers = words[first : first + 2 * k].view(np.float32)
    for i in range(k):
        weights[i] = diagonal_part(numbers[2 * i : 2 * i + 2], 1.0, tau)[0]
    return weights


@inner_kernel
def own_part(words: Array, slot: int, r: Array, tau: float) -> Any:
    """Return mean, variance and slope by log τ of a block's weights of directions or of none: slot −1."""
    mean, variance, slope = 0.0, 0.0, 0.0
    if slot < 0:
        for i in range(r.size):
            variance += tau * r[i] * r[i]
        return mean, variance, slope
    first = numbers_at(slot, r.size)
    numbers = words[first : first + 2 * r.size].view(np.float32)
    for i in range(r.size):
        part = diagonal_part(numbers[2 * i : 2 * i + 2], r[i], tau)
        mean += part[0]
        variance += part[1]
        slope += part[2]
    return mean, variance, slope


@inner_kernel
def learn_own(words: Array, slot: int, r: Array, x: float, tau: float, error: float, q: float) -> None:
    first = numbers_at(slot, r.size)
    numbers = words[first : first + 2 * r.size].view(np.float32)
    for i in range(r.size):
        learn_diagonal(numbers[2 * i : 2 * i + 2], x * r[i], tau, error, q)


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
    """Turn a personal model to the present basis: means are turned, precisions keep their diagonals."""
    last = shared.counts[BASES] - 1
    if words[BASIS] == last:
        return
    old, new = shared.bases[words[BASIS]], shared.bases[last]
    d, k = old.shape
    turn, means, precisions = scratch.squares[0], scratch.squares[1, 0], scratch.squares[2, 0]
    turn[:] = 0.0
    for a in range(k):
        for i in range(d):
            for b in range(k):
                turn[a, b] += new[i, a] * old[i, b]
    for slot in range(np.int64(words[COUNT])):
        tau = tau_of(shared, np.int64(words[HEAD + slot * slot_words(k) + SLOT_FIELD]), OWN)
        first = numbers_at(slot, k)
        _turn_block(words[first : first + 2 * k].view(np.float32), tau, turn, means[:k], precisions[:k])
    words[BASIS] = last


@inner_kernel
def _turn_block(numbers: Array, tau: float, turn: Array, means: Array, precisions: Array) -> None:
    """With T as ``turn``, w becomes T w, h becomes the diagonal of T diag(h) T'."""
    for a in range(means.size):
        means[a], precisions[a] = 0.0, 0.0
        for j in range(means.size):
            means[a] += turn[a, j] * diagonal_part(numbers[2 * j : 2 * j + 2], 1.0, tau)[0]
            precisions[a] += turn[a, j] * turn[a, j] * np.float64(numbers[2 * j + 1])
    for a in range(means.size):
        numbers[2 * a + 1] = precisions[a]
        numbers[2 * a] = means[a] * (1 / tau + np.float64(numbers[2 * a + 1]))

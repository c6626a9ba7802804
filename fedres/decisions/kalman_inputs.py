"""From hashed features to the inputs of ``residual-kalman``: scales, the core, the tail and blocks, compiled.

Each function is a compiled part of ``residual_kalman_reference``; sums are in the order written.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel
from fedres.decisions.constants import (
    ACTION_KEYS,
    ACTION_UNIT,
    CONTEXT_UNIT,
    FIRST_VALUES,
    JACOBI_SWEEPS,
    LEAST_CONSTANT,
    MAX_FIELDS,
    MAX_SCALES,
    NUMBER_LIMIT,
    REBASE,
)
from fedres.decisions.elementary import exp, log
from fedres.decisions.kalman_state import (
    BLOCKS,
    CONSTANT,
    CORE,
    DEVIATION,
    FIELDS,
    LEARNED,
    LENGTH,
    MEAN,
    RMS,
    SCALES,
    UNIT,
)
from fedres.key_tables import Key, clear, drop_key, find_key, put_key, table_words


@bare_kernel
def key_of(word: Key) -> Key:
    """Return a hash as a key: 0 is empty, or block 0."""
    return np.uint32(1) if word == 0 else np.uint32(word)


@bare_kernel
def action_key(key: Key) -> Key:
    """Return a key of its own for an action's feature, in a table that contexts have keys in too."""
    return key_of(key ^ np.uint32(ACTION_KEYS))


@bare_kernel
def find_scale(shared: Any, key: Key) -> Any:
    """Return the row of a scale, −1 if there is none."""
    return find_key(shared.scale_table, shared.scale_keys, key)


@bare_kernel
def add_scale(shared: Any, key: Key) -> Any:
    """Return the row of a new scale, −1 if there is no room."""
    row = shared.counts[SCALES]
    if row >= MAX_SCALES:
        return -1
    shared.scale_keys[row] = key
    put_key(shared.scale_table, key, row)
    shared.counts[SCALES] += 1
    return row


@inner_kernel
def signed_log(value: float, unit: float) -> float:
    return math.copysign(log(1.0 + abs(value) / unit), value)


@inner_kernel
def _size_of_rank(first: Array, n: int, rank: int) -> float:
    """Return the size of that rank, from 0, among the sizes of the first n values that are not 0."""
    for k in range(n):
        size, less, equal = abs(np.float64(first[k])), 0, 0
        for j in range(n):
            other = abs(np.float64(first[j]))
            less += 1 if 0 < other < size else 0
            equal += 1 if other == size else 0
        if size > 0 and less <= rank < less + equal:
            return size
    return 0.0


@inner_kernel
def _settle(first: Array, n: int, medians: float, stats: Array) -> None:
    """Fill in the statistics of the first n values, of which the first is not 0; the unit is so many medians."""
    others, is_flag = 0, True
    for k in range(n):
        others += 1 if first[k] != 0 else 0
        is_flag &= first[k] == 0 or first[k] == first[0]
    stats[UNIT] = medians * (_size_of_rank(first, n, (others - 1) // 2) + _size_of_rank(first, n, others // 2)) / 2
    total, squares = 0.0, 0.0
    for k in range(n):
        s = signed_log(np.float64(first[k]), stats[UNIT])
        total += s
        squares += s * s
    stats[MEAN], stats[RMS] = total / n, math.sqrt(squares / others)
    total = 0.0
    for k in range(n):
        s = signed_log(np.float64(first[k]), stats[UNIT])
        total += (s - stats[MEAN]) * (s - stats[MEAN])
    stats[DEVIATION] = 0.0 if is_flag else math.sqrt(total / n)


@bare_kernel
def scale_of(shared: Any, key: Key, value: float, new: bool, medians: float) -> Any:
    """Return the row of a number's scale, −1 if it has none; ``new`` values settle it."""
    slot = find_scale(shared, key)
    if slot < 0 and new:
        slot = add_scale(shared, key)
    if slot < 0 or not new:
        return slot
    n = shared.scale_seen[slot]
    if n < FIRST_VALUES:
        shared.scale_first[slot, n] = value
        shared.scale_seen[slot] = n + 1
        _settle(shared.scale_first[slot], n + 1, medians, shared.scale_stats[slot])
        if n + 1 == FIRST_VALUES:
            shared.scale_first[slot] = 0.0
    return slot


@bare_kernel
def scaled(shared: Any, slot: int, value: float, centred: bool) -> Any:
    """Return a number in root mean squares or, centred, in deviations from the mean; its sign if it has no scale.

    Flags, which have one value beside 0, are never centred.
    """
    if slot < 0:
        return math.copysign(1.0, value)
    stats = shared.scale_stats[slot]
    s = signed_log(value, stats[UNIT])
    x = (s - stats[MEAN]) / stats[DEVIATION] if centred and stats[DEVIATION] > 1e-9 else s / stats[RMS]
    return min(max(x, -NUMBER_LIMIT), NUMBER_LIMIT)


@bare_kernel
def constant_input(length: float) -> float:
    """Return z of the constant, with at least ``LEAST_CONSTANT``: it carries an action's usual reward."""
    return max(1.0 / length, LEAST_CONSTANT)


@inner_kernel
def context_inputs(
    shared: Any, hashes: Array, values: Array, new: bool, z: Array, places: Array, t_keys: Array, t: Array
) -> Any:
    """Fill in z, the places where it is not 0, and keys and values of the tail; return how many of both."""
    length, n_tail, n_places = shared.numbers[LENGTH], 0, 0
    z[:] = 0.0
    z[0] = constant_input(length)
    for j in range(hashes.size):
        value = np.float64(values[j])
        if value == 0:
            continue
        key = key_of(hashes[j])
        slot = scale_of(shared, key, value, new, CONTEXT_UNIT)
        x = scaled(shared, slot, value, False) / length
        place = shared.scale_core[slot] if slot >= 0 else -1
        if place >= 0:
            z[place] += x
        else:
            t_keys[n_tail], t[n_tail] = key, x
            n_tail += 1
    for i in range(z.size):
        if z[i] != 0:
            places[n_places] = i
            n_places += 1
    return n_places, n_tail


@inner_kernel
def turn_inputs(basis: Array, z: Array, places: Array, r: Array) -> None:
    """r = U'z"""
    r[:] = 0.0
    for j in range(places.size):
        i = places[j]
        for k in range(r.size):
            r[k] += basis[i, k] * z[i]


@bare_kernel
def action_value(shared: Any, word: Key, value: float, field: Key, new: bool) -> Any:
    """Return x of an action feature; 0 counts as a value of a number that had other values before."""
    key = key_of(word)
    if key != key_of(field) and value == 1.0:
        return 1.0
    scale_key = action_key(key)
    if value == 0 and find_scale(shared, scale_key) < 0:
        return 0.0
    return scaled(shared, scale_of(shared, scale_key, value, new, ACTION_UNIT), value, True)


@inner_kernel
def settle_event(shared: Any, events: Any, e: int) -> None:
    """Settle the scales of an event's numbers."""
    middle = events.starts[e] + events.n_context[e]
    for j in range(events.starts[e], events.starts[e + 1]):
        value = np.float64(events.values[j])
        if j >= middle:
            action_value(shared, events.hashes[j], value, events.fields[j], True)
        elif value != 0:
            scale_of(shared, key_of(events.hashes[j]), value, True, CONTEXT_UNIT)


@bare_kernel
def settle_events(shared: Any, events: Any) -> None:
    """Settle the scales of all numbers of events by their values."""
    for e in range(events.users.size):
        settle_event(shared, events, e)


@inner_kernel
def action_blocks(shared: Any, hashes: Array, values: Array, fields: Array, new: bool, scratch: Any) -> int:
    """Fill in keys, values and fields of block 0 and of an action's blocks, each once; return how many."""
    keys, xs, names, n = scratch.keys, scratch.xs, scratch.names, 1
    seen = scratch.seen[: table_words(hashes.size)]
    clear(seen, shared.block_table)
    keys[0], xs[0], names[0] = 0, 1.0, 0
    for j in range(hashes.size):
        key, x = key_of(hashes[j]), action_value(shared, hashes[j], np.float64(values[j]), fields[j], new)
        k = find_key(seen, keys, key)
        if k < 0:
            k = n
            keys[n], xs[n], names[n] = key, 0.0, key_of(fields[j])
            put_key(seen, key, n)
            n += 1
        xs[k] += x
    m = 1
    for k in range(1, n):
        if xs[k] != 0:
            keys[m], xs[m], names[m] = keys[k], xs[k], names[k]
            m += 1
    return m


@bare_kernel
def field_place(shared: Any, field: Key, new: bool) -> Any:
    """Return the place of a field's prior, −1 if it has none yet."""
    n = shared.counts[FIELDS]
    for k in range(n):
        if shared.field_keys[k] == field:
            return k
    if n == MAX_FIELDS:
        return n - 1
    if not new:
        return -1
    shared.field_keys[n] = field
    shared.counts[FIELDS] += 1
    return n


@bare_kernel
def find_block(shared: Any, key: Key) -> Any:
    """Return the place of a block, −1 if there is none."""
    return find_key(shared.block_table, shared.block_keys, key)


@inner_kernel
def touch_block(shared: Any, key: Key, field: int, squares: Array) -> Any:
    """Return the place of a block, existing or new, with a prior near its field's; −1 if all are in use by this event.

    Without room it takes the place of the least recently learned one.
    """
    now, n, place = shared.counts[LEARNED], shared.counts[BLOCKS], find_block(shared, key)
    if place < 0:
        if n < shared.block_keys.size:
            place = n
            shared.counts[BLOCKS] += 1
        else:
            place = 0
            for k in range(1, n):
                if place == 0 or shared.block_used[k] < shared.block_used[place]:
                    place = k
            if shared.block_used[place] == now:
                return -1
            drop_key(shared.block_table, shared.block_keys, shared.block_keys[place])
        _renew(shared, place, key, field)
        put_key(shared.block_table, key, place)
    else:
        constant, context = shared.log_tau[field, CONSTANT], shared.log_tau[field, CORE]
        moved = abs(shared.block_log_tau[place, 0] - constant), abs(shared.block_log_tau[place, 1] - context)
        if max(moved[0], moved[1]) > REBASE:
            rebase(shared, place, constant, context, squares)
    shared.block_used[place] = now
    return place


@inner_kernel
def prior_of(shared: Any, place: int, coordinate: int) -> Any:
    """Return the prior variance of a coordinate that is in a block's covariance."""
    return exp(shared.block_log_tau[place, min(coordinate, 1)])


@inner_kernel
def _renew(shared: Any, place: int, key: Key, field: int) -> None:
    shared.block_keys[place] = key
    shared.block_log_tau[place, 0] = shared.log_tau[field, CONSTANT]
    shared.block_log_tau[place, 1] = shared.log_tau[field, CORE]
    shared.means[place], shared.covariances[place], shared.mean_slopes[place] = 0.0, 0.0, 0.0
    for i in range(shared.means.shape[1]):
        shared.covariances[place, i, i] = prior_of(shared, place, i)


@bare_kernel
def rebase(shared: Any, place: int, constant: float, context: float, squares: Array) -> None:
    """Give a block other priors, by their log τ: with A = I + P(1/τ' − 1/τ), P becomes A⁻¹P and W becomes A⁻¹W.

    By elimination in a fixed order: A is like a symmetric, positive definite one, so that no row needs to be exchanged.
    """
    mean, P, A, right = shared.means[place], shared.covariances[place], squares[0], squares[1]
    d = mean.size
    of_constant = exp(-constant) - 1 / prior_of(shared, place, 0)
    of_context = exp(-context) - 1 / prior_of(shared, place, 1)
    for i in range(d):
        for j in range(d):
            A[i, j], right[i, j] = P[i, j] * (of_context if j else of_constant), P[i, j]
        A[i, i] += 1.0
    for k in range(d):
        for i in range(k + 1, d):
            factor = A[i, k] / A[k, k]
            if factor != 0:
                for j in range(k, d):
                    A[i, j] -= factor * A[k, j]
                for j in range(d):
                    right[i, j] -= factor * right[k, j]
                mean[i] -= factor * mean[k]
    for i in range(d - 1, -1, -1):
        for k in range(i + 1, d):
            if A[i, k] != 0:
                for j in range(d):
                    right[i, j] -= A[i, k] * right[k, j]
                mean[i] -= A[i, k] * mean[k]
        for j in range(d):
            right[i, j] /= A[i, i]
        mean[i] /= A[i, i]
    for i in range(d):
        for j in range(d):
            P[i, j] = (right[i, j] + right[j, i]) / 2
    shared.block_log_tau[place, 0], shared.block_log_tau[place, 1] = constant, context


@bare_kernel
def tail_place(block: Key, coordinate: Key, size: int) -> Any:
    """Return the place of a tail weight: collisions share one."""
    word = np.uint64(0xFFFFFFFF)
    mixed = (np.uint64(block) * np.uint64(0x9E3779B1) ^ np.uint64(coordinate) * np.uint64(0x85EBCA77)) & word
    mixed = ((mixed ^ mixed >> np.uint64(15)) * np.uint64(0x2C1B3C6D)) & word
    return np.int64((mixed ^ mixed >> np.uint64(13)) & np.uint64(size - 1))


@bare_kernel
def eigenvectors(A: Array, V: Array, basis: Array) -> None:
    """Fill in the leading eigenvectors of A as columns, by cyclic Jacobi: fixed sweeps in a fixed order.

    A is overwritten, its diagonal by −∞ where an eigenvalue was taken; V, as large, is room to work in.
    """
    d = len(A)
    V[:] = 0.0
    for i in range(d):
        V[i, i] = 1.0
    for _ in range(JACOBI_SWEEPS):
        for i in range(d):
            for j in range(i + 1, d):
                if abs(A[i, j]) > 1e-14:
                    _rotate(A, V, i, j)
    for k in range(basis.shape[1]):
        best = 0
        for i in range(1, d):
            if A[i, i] > A[best, best]:
                best = i
        A[best, best] = -np.inf
        for i in range(d):
            basis[i, k] = V[best, i]


@inner_kernel
def _rotate(A: Array, V: Array, i: int, j: int) -> None:
    """Make A[i, j] zero; rows of V are the eigenvectors to be."""
    cotangent = (A[j, j] - A[i, i]) / (2 * A[i, j])  # of twice the angle
    tangent = (1.0 if cotangent >= 0 else -1.0) / (abs(cotangent) + math.sqrt(cotangent * cotangent + 1))
    cosine = 1 / math.sqrt(tangent * tangent + 1)
    sine = tangent * cosine
    for k in range(len(A)):
        a, b = A[k, i], A[k, j]
        A[k, i], A[k, j] = cosine * a - sine * b, sine * a + cosine * b
    for k in range(len(A)):
        a, b = A[i, k], A[j, k]
        A[i, k], A[j, k] = cosine * a - sine * b, sine * a + cosine * b
    for k in range(len(A)):
        a, b = V[i, k], V[j, k]
        V[i, k], V[j, k] = cosine * a - sine * b, sine * a + cosine * b

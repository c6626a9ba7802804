"""Compiled steps of the models: VW's ``--adaptive`` over hashed pairs of features."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.compiling import kernel
from fedres.key_tables import TAIL, Key, first_slot
from fedres.local_learners.adagrad import Real, adaptive_step, at, multiply_add

_ONE = np.float32(1)
_LARGEST = np.finfo(np.float32).max


@kernel
def pair_key(context_hash: Key, action_hash: Key) -> Key:
    """Return the 32-bit key of a pair of feature hashes; 0 stands for none."""
    x = np.uint32(np.uint32(context_hash) * np.uint32(0x9E3779B1) + np.uint32(action_hash))
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32((x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(x ^ (x >> np.uint32(16)))


@kernel
def _fill_crosses(keys: Array, values: Array, hashes: Array, xs: Array, context_hash: Key, context_value: Real) -> None:
    for j in range(hashes.size):
        keys[j] = pair_key(context_hash, hashes[j])
        values[j] = context_value * xs[j]


@kernel
def expanded(prepared: Any, action: int) -> Any:
    n, first, last = prepared.starts[0], prepared.starts[action], prepared.starts[action + 1]
    context, context_values = prepared.hashes[:n], prepared.values[:n]
    hashes, xs = prepared.hashes[first:last], prepared.values[first:last]
    m = last - first
    size = n + m + (n * m if prepared.crosses else 0)
    keys, values = np.empty(size, np.uint32), np.empty(size, np.float32)
    for i in range(n):
        keys[i], values[i] = pair_key(context[i], 0), context_values[i]
    _fill_crosses(keys[n:], values[n:], hashes, xs, np.uint32(0), np.float32(1))
    for i in range(n if prepared.crosses else 0):
        at = n + m + i * m
        _fill_crosses(keys[at:], values[at:], hashes, xs, context[i], context_values[i])
    return keys, values


# A personal table has keys in its slots, else it is as in ``fedres.key_tables``; 0 is an empty slot, so the key 0 is
# kept as 1. Weights and sums of squared gradients have the constant's last.


@kernel
def find(table: Array, key: Key) -> Any:
    """Return the slot that holds ``key``, or else −1 less the free slot where it would go: the size if none is free."""
    n = table.size - TAIL
    if n < 0:
        return -1
    stored = key if key != 0 else np.uint32(1)
    slot = first_slot(table, stored)
    for _ in range(n):
        if table[at(slot)] == stored:
            return slot
        if table[at(slot)] == 0:
            return -1 - slot
        slot = (slot + 1) & (n - 1)
    return -1 - n


@kernel
def as_number(total: Real) -> Real:
    """Return a number that JSON can represent: 0 for NaN, the largest finite one for infinity."""
    return min(max(total, -_LARGEST), _LARGEST) if total == total else np.float32(0)


@kernel
def indices_of(keys: Array, shift: int) -> Array:
    indices = np.empty(keys.size, np.int64)
    for k in range(keys.size):
        indices[k] = keys[k] >> shift
    return indices


@kernel
def slots_of(keys: Array, table: Array) -> Array:
    slots = np.empty(keys.size, np.int64)
    for k in range(keys.size):
        slots[k] = find(table, keys[k])
    return slots


@kernel
def part_of(weights: Array, indices: Array, values: Array, offset: Real) -> Real:
    """Return offset + Σ w_j x_j; a negative index has no weight yet."""
    total = np.float32(offset)
    for k in range(values.size):
        if values[k] != 0 and indices[k] >= 0:
            total = multiply_add(weights[indices[k]], values[k], total)
    return as_number(total + weights[-1])


@kernel
def _error(prediction: Real, label: Real, lo: Real, hi: Real) -> Real:
    return np.float32(label) - min(max(prediction, np.float32(lo)), np.float32(hi))


@kernel
def learn_shared(
    weights: Array, squares: Array, span: Array, example: Any, shift: int, label: Real, offset: Real, how: Any
) -> None:
    keys, values = example
    importance, rate = how
    span[0], span[1] = min(span[0], np.float32(label)), max(span[1], np.float32(label))
    indices = indices_of(keys, shift)
    error = _error(part_of(weights, indices, values, offset), label, span[0], span[1])
    if error * error > 0:
        adaptive_step(weights, squares, indices, 0, values, _ONE, error, rate, importance)


@kernel
def correct_shared(
    weights: Array, squares: Array, span: Array, example: Any, shift: int, label: Real, prediction: Real, how: Any
) -> None:
    keys, values = example
    importance, rate = how
    span[0], span[1] = min(span[0], np.float32(label)), max(span[1], np.float32(label))
    error = _error(np.float32(prediction), label, span[0], span[1])
    if error * error > 0:
        adaptive_step(weights, squares, indices_of(keys, shift), 0, values, _ONE, error, rate, importance)


@kernel
def n_missing(table: Array, example: Any) -> int:
    keys, values = example
    n = 0
    for k in range(keys.size):
        n += values[k] != 0 and find(table, keys[k]) < 0
    return n


@kernel
def put(table: Array, keys: Array, count: int) -> Any:
    """Give every key a slot while four in five are not full; return the slots, −1 for none, and the new count."""
    slots, n = slots_of(keys, table), table.size - TAIL
    for k in range(keys.size):
        if slots[k] < 0:
            slot = find(table, keys[k])  # once more: the key may come twice
            if -1 - n < slot < 0 and 5 * (count + 1) <= 4 * n:
                slot = -1 - slot
                table[slot] = keys[k] if keys[k] != 0 else np.uint32(1)
                count += 1
            slots[k] = max(slot, -1)
    return slots, count


@kernel
def learn_personal(
    table: Array,
    weights: Array,
    squares: Array,
    count: int,
    example: Any,
    span: Any,
    label: Real,
    offset: Real,
    how: Any,
) -> int:
    keys, values = example
    importance, rate = how
    error = _error(part_of(weights, slots_of(keys, table), values, offset), label, span[0], span[1])
    if error * error > 0:
        slots, count = put(table, keys[values != 0], count)
        adaptive_step(weights, squares, slots, 0, values[values != 0], _ONE, error, rate, importance)
    return count

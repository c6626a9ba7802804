"""Compiled scores of all actions of a request, by both models.

They are summed a row of pairs at a time: one context feature, or none, with all features of all actions. The keys of a
row are computed first, side by side; then each action's sum continues, one addition after the other, in the order of
``expanded``, so that it is rounded as by ``part_of``, to the bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.compiling import inner_kernel, kernel
from fedres.key_tables import TAIL, Key
from fedres.local_learners.adagrad import Real, at, multiply_add
from fedres.scoring.kernels import as_number, find, pair_key

_SMALL = np.float32(1e-18)  # the product of two such values is not 0 in 32 bits
_KIND = np.uint32(19)  # the first 13 bits of a key are its kind


class AdaGradScratch(NamedTuple):
    """Where requests are scored, one after the other: room for as many pairs as a row has, and the context's."""

    keys: Array  # uint32
    hits: Array  # uint32, the pairs that a personal table may hold
    owners: Array  # uint32, the action that each pair is of
    marks: Array  # uint8, for each of 2^13 kinds of keys whether the table has some; 0 between requests


class PairRow(NamedTuple):
    keys: Array
    factor: Real  # the context feature's value, or 1
    # Values of the context and of the actions; each must be multiplied by the factor.
    values: Array


@kernel
def scratch_for(n_features: int, n_slots: int) -> AdaGradScratch:
    room = np.empty((3, n_features), np.uint32)
    return AdaGradScratch(room[0], room[1], room[2], np.zeros(1 << 13 if n_slots else 0, np.uint8))


@kernel
def score_kernel(prepared: Any, weights: Array, shift: int, table: Array, own: Array) -> Any:
    """Return ``part_of`` of ``expanded`` for every action, without making the arrays."""
    parts = np.empty((prepared.starts.size - 1, 2), np.float32)
    score_in(scratch_for(prepared.hashes.size, table.size), prepared, (weights, shift, table, own), parts)
    return parts


@inner_kernel
def score_in(scratch: Any, prepared: Any, models: Any, parts: Array) -> None:
    """Fill in the same; the marks are 0 again after."""
    weights, shift, table, own = models
    hashes, values, starts = prepared.hashes, prepared.values, prepared.starts
    n, plain, row = starts[0], _without_zeros(values), PairRow(scratch.keys, np.float32(1), values)
    if table.size:
        _mark(scratch.marks, table, np.uint8(1))
        _fill_owners(scratch.owners, starts)
    _fill_context_keys(scratch.keys, hashes, n)
    parts[:, 0] = _sum(np.float32(0), weights, shift, row, 0, n, plain)
    parts[:, 1] = _own_sum(row, table, own, n) if table.size else np.float32(0)
    for i in range(-1, n if prepared.crosses else 0):  # −1 is none
        row = PairRow(scratch.keys, values[i] if i >= 0 else np.float32(1), values)
        _fill_keys(scratch.keys, hashes, n, hashes[i] if i >= 0 else np.uint32(0))
        for a in range(parts.shape[0]):
            parts[a, 0] = _sum(parts[a, 0], weights, shift, row, starts[a], starts[a + 1], plain)
        if table.size:
            _add_own(scratch, row, table, own, n, parts)
    for a in range(parts.shape[0]):
        parts[a, 0] = as_number(parts[a, 0] + weights[-1])
        parts[a, 1] = as_number(parts[a, 1] + own[-1]) if table.size else np.float32(0)
    _mark(scratch.marks, table, np.uint8(0))


@inner_kernel
def _mark(marks: Array, table: Array, mark: Any) -> None:
    """Mark the kinds of the keys that a table has; and that of the key 0, for its free slots."""
    for slot in range(table.size - TAIL):
        marks[at(table[slot] >> _KIND)] = mark


@inner_kernel
def _fill_owners(owners: Array, starts: Array) -> None:
    for a in range(starts.size - 1):
        owners[starts[a] : starts[a + 1]] = a


@inner_kernel
def _without_zeros(values: Array) -> bool:
    """Return whether neither a value nor a product of two is 0, as far as sizes tell."""
    ok = True
    for k in range(values.size):
        ok &= abs(values[k]) >= _SMALL
    return ok


@inner_kernel
def _fill_context_keys(keys: Array, hashes: Array, n: int) -> None:
    for i in range(n):
        keys[i] = pair_key(hashes[i], 0)


@inner_kernel
def _fill_keys(keys: Array, hashes: Array, first: int, context_hash: Key) -> None:
    for k in range(at(first), at(hashes.size)):
        keys[k] = pair_key(context_hash, hashes[k])


@inner_kernel
def _sum(total: Real, weights: Array, shift: int, row: Any, first: int, last: int, plain: bool) -> Real:
    """Return total + Σ w_j x_j over the values that are not 0, as none is where ``plain``: that loop is faster."""
    for k in range(at(first), at(last)):
        value = row.factor * row.values[k]
        if plain or value != 0:
            total = multiply_add(weights[at(row.keys[k] >> shift)], value, total)
    return total


@inner_kernel
def _own_sum(row: Any, table: Array, own: Array, last: int) -> Real:
    """Return Σ w_j x_j of the personal model over the first pairs."""
    total = np.float32(0)
    for k in range(last):
        slot = find(table, row.keys[k])
        if slot >= 0 and row.values[k] != 0:
            total = multiply_add(own[at(slot)], row.values[k], total)
    return total


@inner_kernel
def _add_own(scratch: Any, row: Any, table: Array, own: Array, first: int, parts: Array) -> None:
    """Add w_j x_j of the personal model to the part of each pair's action."""
    for hit in range(_fill_hits(scratch.hits, scratch.marks, row.keys, first, row.values.size)):
        k = at(scratch.hits[hit])
        slot, value, a = find(table, row.keys[k]), row.factor * row.values[k], at(scratch.owners[k])
        if slot >= 0 and value != 0:
            parts[a, 1] = multiply_add(own[at(slot)], value, parts[a, 1])


@inner_kernel
def _fill_hits(hits: Array, marks: Array, keys: Array, first: int, last: int) -> Any:
    """Fill in which keys are of a kind that is marked; return how many. No branch: it would be guessed wrong."""
    n = at(0)
    for k in range(at(first), at(last)):
        hits[n] = k
        n += at(marks[at(keys[k] >> _KIND)])
    return n

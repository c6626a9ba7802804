"""Predicting by ``residual-kalman`` for many actions whose features are looked up once: a catalogue, compiled.

``predict`` repeats work for each action that is done here once for each distinct feature; the bits are the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.compiling import free_kernel, inner_kernel, kernel
from fedres.decisions.constants import BIAS_WORDS, HEAD, ID_FIELD, MOST_OWN_VARIANCE
from fedres.decisions.kalman_inputs import action_value, field_place, key_of
from fedres.decisions.kalman_kernels import block_part, core_part, inputs_in, tail_part
from fedres.decisions.kalman_own import BASIS, BIAS_KEY, BIASES, COUNT, SLOT_KEY, own_part, tau_of, turn_own
from fedres.decisions.kalman_pairs import fill_pair_taus, pair_field, pairs_mean
from fedres.decisions.kalman_state import (
    BASES,
    FIELDS,
    OWN,
    OWN_BIAS,
    TAIL,
    scratch_for,
    slot_words,
)
from fedres.key_tables import Key, find_key, mixed, put_key
from fedres.local_learners.adagrad import at

# Of a field: the variance of a new feature, τ of tail weights, the personal variance.
NEW, OF_TAIL, PERSONAL = range(3)
MARKS = 1 << 16  # by some bits of its mixed key, a feature may be in a model, or is not


class Rows(NamedTuple):
    """Actions: row k has the places from ``starts[k]`` up to ``starts[k + 1]``, equal features next to each other."""

    starts: Array  # int64, one more than there are rows
    features: Array  # int32, which of the distinct features is at a place
    inputs: Array  # float64, x: its value there, by the scales of the shared model
    keys: Array  # uint32, of each distinct feature
    fields: Array  # uint32, hashes of their JSON keys
    pair_means: Array  # float64, what the pairs of a row's features add to its mean, by ``fill_pair_means``


@free_kernel
def number_features(
    table: Array, keys: Array, fields: Array, n: int, row_hashes: Array, row_fields: Array, numbers: Array
) -> int:
    """Fill in the number of each feature, with new numbers for new features; return how many there are then.

    ``table`` has at least twice as many slots as there will be features.
    """
    for j in range(row_hashes.size):
        key = key_of(row_hashes[j])
        number = find_key(table, keys, key)
        if number < 0:
            number = n
            keys[n], fields[n] = key, key_of(row_fields[j])
            put_key(table, key, n)
            n += 1
        numbers[j] = number
    return n


@free_kernel
def fill_inputs(shared: Any, hashes: Array, values: Array, fields: Array, inputs: Array) -> None:
    """Fill in the value of each feature at its place."""
    for j in range(hashes.size):
        inputs[j] = action_value(shared, hashes[j], np.float64(values[j]), fields[j], False)


@free_kernel
def fill_pair_means(shared: Any, rows: Any, first: int) -> None:
    """Fill in what pairs add to the means of the rows from ``first`` on: the same in all contexts."""
    longest = _longest(rows.starts)
    scratch, numbers = scratch_for(1, 1, 0, longest, 1), np.empty(longest, np.int64)
    pair_fields = np.empty(rows.keys.size, np.int64)
    for f in range(rows.keys.size):
        pair_fields[f] = pair_field(shared, rows.fields[f])
    fill_pair_taus(scratch, shared)
    for k in range(first, rows.starts.size - 1):
        n = _take_row(rows, k, numbers, scratch.xs[1:])
        for j in range(n):
            f = at(numbers[j])
            scratch.keys[1 + j], scratch.pair_fields[1 + j] = rows.keys[f], pair_fields[f]
        rows.pair_means[k] = pairs_mean(scratch, shared, 1 + n)


@inner_kernel
def _longest(starts: Array) -> int:
    """Return how many places the longest row has."""
    longest = 0
    for k in range(starts.size - 1):
        longest = max(longest, starts[k + 1] - starts[k])
    return longest


@inner_kernel
def _take_row(rows: Any, k: int, numbers: Array, xs: Array) -> int:
    """Fill in which features a row has, each once, and their inputs; return how many there are."""
    j, end, n = rows.starts[k], rows.starts[k + 1], 0
    while j < end:
        numbers[n], xs[n] = rows.features[at(j)], 0.0
        while j < end and rows.features[at(j)] == numbers[n]:
            xs[n] += rows.inputs[at(j)]
            j += 1
        n += xs[n] != 0
    return n


@kernel
def predict_rows(
    shared: Any, own: Array, personal: bool, hashes: Array, values: Array, rows: Any, parts: Array
) -> None:  # fmt: skip
    """Fill in the shared mean, the personal mean and the variance of each row; ``own`` may be empty.

    ``hashes`` and ``values`` are the context's.
    """
    scratch = scratch_for(shared.bases.shape[1], shared.bases.shape[2], hashes.size, 1, 1)
    if own.size and own[BASIS] != shared.counts[BASES] - 1:
        own = own.copy()
        turn_own(shared, own, scratch)
    n_places, n_tail = inputs_in(scratch, shared, hashes, values, False)
    inputs = scratch.z, scratch.places[:n_places], scratch.t_keys[:n_tail], scratch.t[:n_tail], scratch.r
    gain, is_marked = scratch.gains[0], np.zeros(MARKS, np.bool_)
    _mark(shared, own, scratch.r.size, is_marked)
    priors = np.empty((shared.counts[FIELDS] + 1, 3))  # the last one is for unknown fields
    for field in range(-1, shared.counts[FIELDS]):
        _fill_prior(shared, own[:0], personal, field, inputs, gain, priors[field])
    feature_parts = np.empty((rows.keys.size, 3))
    for f in range(rows.keys.size):
        key = rows.keys[f]
        if is_marked[_mark_of(shared, key)]:
            part = block_part(shared, own, personal, key, rows.fields[f], inputs, gain)
        else:
            prior = priors[field_place(shared, rows.fields[f], False)]
            part = _rare_part(shared, key, prior, inputs)
        feature_parts[f, 0], feature_parts[f, 1], feature_parts[f, 2] = part
    base = block_part(shared, own, personal, np.uint32(0), np.uint32(0), inputs, gain)
    longest = _longest(rows.starts)
    _sum_rows(rows, feature_parts, base, (np.empty(longest, np.int64), np.empty(longest)), parts)


@inner_kernel
def _fill_prior(
    shared: Any, nobody: Array, personal: bool, field: int, inputs: Any, gain: Array, prior: Array
) -> None:  # fmt: skip
    """Fill in the common values of a field's features that are neither in a block nor in the user's model."""
    z, places, _, _, r = inputs
    own_variance = own_part(nobody, -1, r, tau_of(shared, field, OWN))[1]
    prior[NEW] = core_part(shared, -1, field, z, places, gain)[1]
    prior[OF_TAIL] = tau_of(shared, field, TAIL)
    prior[PERSONAL] = 0.0
    if personal:
        own_variance += tau_of(shared, field, OWN_BIAS)
        prior[PERSONAL] = min(own_variance, MOST_OWN_VARIANCE)


@inner_kernel
def _rare_part(shared: Any, key: Key, prior: Array, inputs: Any) -> Any:
    """Return the result of ``block_part`` for a feature without a block, and not in the user's model."""
    _, _, t_keys, t, _ = inputs
    mean, variance = 0.0, prior[NEW]
    if t.size:
        tail_mean, tail_variance, _ = tail_part(shared, key, t_keys, t, prior[OF_TAIL])
        mean += tail_mean
        variance += tail_variance
    return mean, 0.0, variance + prior[PERSONAL]


@inner_kernel
def _mark_of(shared: Any, key: Key) -> Any:
    return mixed(shared.block_table, key) & np.uint64(MARKS - 1)


@inner_kernel
def _mark(shared: Any, own: Array, k: int, is_marked: Array) -> None:
    """Mark all features in the models: most of a large catalogue's features are in none."""
    for key in shared.block_keys:
        is_marked[_mark_of(shared, key)] = True
    if own.size:
        for slot in range(np.int64(own[COUNT])):
            is_marked[_mark_of(shared, own[HEAD + slot * slot_words(k) + SLOT_KEY])] = True
        for j in range(np.int64(own[BIASES])):
            is_marked[_mark_of(shared, own[own.size - BIAS_WORDS * (j + 1) + BIAS_KEY])] = True


@inner_kernel
def _sum_rows(rows: Any, feature_parts: Array, base: Any, row: Any, parts: Array) -> None:
    numbers, xs = row
    for k in range(rows.starts.size - 1):
        shared_mean, own_mean, of_id, of_others, squares = base[0], base[1], 0.0, 0.0, 0.0
        for j in range(_take_row(rows, k, numbers, xs)):
            f, x = at(numbers[j]), xs[j]
            shared_mean += x * feature_parts[f, 0]
            own_mean += x * feature_parts[f, 1]
            variance = x * x * feature_parts[f, 2]
            if rows.fields[f] == np.uint32(ID_FIELD):
                of_id += variance
            else:
                of_others += variance
                squares += variance * variance
        parts[k, 0], parts[k, 1] = shared_mean + rows.pair_means[k], own_mean
        parts[k, 2] = of_id + (squares / of_others if of_others > 0 else 0.0)

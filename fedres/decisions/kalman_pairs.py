"""Pairs of an action's features: a weight for what two of them mean together, beyond the sum of both, compiled.

It is the same in all contexts, and is stored like tail weights. Every two fields have a prior variance τ of their own:
most pairs mean nothing, and τ begins small and shows which do. An id is in no pair, for it says all of its action.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedres.compiling import inner_kernel
from fedres.decisions.constants import ID_FIELD, MOST_PAIRED
from fedres.decisions.elementary import exp
from fedres.decisions.kalman_diagonal import diagonal_part, learn_diagonal, step_log_tau
from fedres.decisions.kalman_inputs import action_key, field_place, tail_place
from fedres.decisions.kalman_state import AT_HIGH, AT_LOW, AT_PAIR, FIELDS
from fedres.key_tables import Key
from fedres.local_learners.adagrad import at


@inner_kernel
def pair_field(shared: Any, name: Key) -> Any:
    """Return the place of a field's prior, −1 if its features are in no pair."""
    if len(shared.pair_log_tau) == 0 or name == np.uint32(ID_FIELD):
        return -1
    return field_place(shared, name, False)


@inner_kernel
def fill_pair_fields(scratch: Any, shared: Any, n_blocks: int) -> None:
    """Fill in the fields of an action's features."""
    for f in range(1, min(n_blocks, 1 + MOST_PAIRED)):
        scratch.pair_fields[f] = pair_field(shared, scratch.names[f])


@inner_kernel
def fill_pair_taus(scratch: Any, shared: Any) -> None:
    """Fill in τ of every two fields."""
    taus = scratch.pair_taus
    for j in range(2, min(shared.counts[FIELDS], len(shared.pair_log_tau))):
        for i in range(1, j):
            taus[i, j] = taus[j, i] = exp(shared.pair_log_tau[i, j])


@inner_kernel
def pairs_mean(scratch: Any, shared: Any, n_blocks: int) -> float:
    """Return the mean of the pairs of an action's features, of which τ and fields are filled in."""
    fields, mean = scratch.pair_fields, 0.0
    for f in range(2, min(n_blocks, 1 + MOST_PAIRED)):
        for g in range(1, f):
            if _have_pair(fields[at(f)], fields[at(g)]):
                place, value = _pair(scratch, shared, f, g)
                tau = scratch.pair_taus[at(fields[at(f)]), at(fields[at(g)])]
                mean += diagonal_part(shared.tail[at(place)], value, tau)[0]
    return mean


@inner_kernel
def find_pairs(scratch: Any, shared: Any, n_blocks: int) -> Any:
    """Return mean and variance of the pairs of an action's features, and how many there are.

    Fill in where their weights are, and their inputs and slopes by log τ.
    """
    fill_pair_taus(scratch, shared)
    fill_pair_fields(scratch, shared, n_blocks)
    fields, places, mean, variance, n = scratch.pair_fields, scratch.pair_places, 0.0, 0.0, 0
    for f in range(2, min(n_blocks, 1 + MOST_PAIRED)):
        for g in range(1, f):
            if _have_pair(fields[f], fields[g]):
                place, value = _pair(scratch, shared, f, g)
                part = diagonal_part(shared.tail[place], value, scratch.pair_taus[fields[f], fields[g]])
                places[n, AT_PAIR], scratch.pair_inputs[n], scratch.pair_slopes[n] = place, value, part[2]
                places[n, AT_LOW], places[n, AT_HIGH] = min(fields[f], fields[g]), max(fields[f], fields[g])
                mean += part[0]
                variance += part[1]
                n += 1
    return mean, variance, n


@inner_kernel
def _have_pair(field: int, other: int) -> bool:
    return field >= 0 and other >= 0 and field != other


@inner_kernel
def _pair(scratch: Any, shared: Any, f: int, g: int) -> Any:
    """Return where the weight of two features is, and its input: the product of two extremes would outweigh all."""
    keys, xs = scratch.keys, scratch.xs
    first, second = min(keys[at(f)], keys[at(g)]), max(keys[at(f)], keys[at(g)])
    value = min(max(xs[at(f)], -1.0), 1.0) * min(max(xs[at(g)], -1.0), 1.0)
    return tail_place(first, action_key(second), len(shared.tail)), value


@inner_kernel
def learn_pairs(scratch: Any, shared: Any, n: int, error: float, q: float) -> None:
    """Let the weights of n pairs learn, and log τ follow their slopes."""
    for k in range(n):
        place, i, j = scratch.pair_places[k]
        learn_diagonal(shared.tail[place], scratch.pair_inputs[k], scratch.pair_taus[i, j], error, q)
        step_log_tau(shared.pair_log_tau, shared.pair_slope_squares, i, j, error * scratch.pair_slopes[k])

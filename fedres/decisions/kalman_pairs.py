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


@inner_kernel
def fill_pair_taus(scratch: Any, shared: Any) -> None:
    """Fill in τ of every two fields."""
    for j in range(2, min(shared.counts[FIELDS], len(shared.pair_log_tau))):
        for i in range(1, j):
            scratch.pair_taus[i, j] = exp(shared.pair_log_tau[i, j])


@inner_kernel
def pairs_part(scratch: Any, shared: Any, n_blocks: int) -> Any:
    """Return mean and variance of the pairs of an action's features, and how many pairs there are.

    Fill in their slopes by log τ, which ``fill_pair_taus`` filled in.
    """
    n, mean, variance = _find_pairs(scratch, shared, n_blocks), 0.0, 0.0
    for k in range(n):
        place, i, j = _places_of(scratch, k)
        part = diagonal_part(shared.tail[place], scratch.pair_inputs[k], scratch.pair_taus[i, j])
        mean += part[0]
        variance += part[1]
        scratch.pair_slopes[k] = part[2]
    return mean, variance, n


@inner_kernel
def _find_pairs(scratch: Any, shared: Any, n_blocks: int) -> int:
    """Fill in where the weights of pairs are, their fields and their inputs; return how many there are."""
    keys, fields, n = scratch.keys, scratch.pair_fields, 0
    for f in range(1, min(n_blocks, 1 + MOST_PAIRED) if len(shared.pair_log_tau) else 0):
        is_id = scratch.names[f] == np.uint32(ID_FIELD)
        fields[f] = -1 if is_id else field_place(shared, scratch.names[f], False)
        for g in range(1, f):
            if fields[f] >= 0 and fields[g] >= 0 and fields[f] != fields[g]:
                first, second = min(keys[f], keys[g]), max(keys[f], keys[g])
                scratch.pair_places[n, AT_PAIR] = tail_place(first, action_key(second), len(shared.tail))
                scratch.pair_places[n, AT_LOW] = min(fields[f], fields[g])
                scratch.pair_places[n, AT_HIGH] = max(fields[f], fields[g])
                scratch.pair_inputs[n] = _bounded(scratch.xs[f]) * _bounded(scratch.xs[g])
                n += 1
    return n


@inner_kernel
def _bounded(x: float) -> float:
    """Return an input as it counts in pairs: the product of two extremes would outweigh all else."""
    return min(max(x, -1.0), 1.0)


@inner_kernel
def _places_of(scratch: Any, k: int) -> Any:
    places = scratch.pair_places
    return places[k, AT_PAIR], places[k, AT_LOW], places[k, AT_HIGH]


@inner_kernel
def learn_pairs(scratch: Any, shared: Any, n: int, error: float, q: float) -> None:
    """Let the weights of n pairs learn, and log τ follow their slopes."""
    for k in range(n):
        place, i, j = _places_of(scratch, k)
        learn_diagonal(shared.tail[place], scratch.pair_inputs[k], scratch.pair_taus[i, j], error, q)
        step_log_tau(shared.pair_log_tau, shared.pair_slope_squares, i, j, error * scratch.pair_slopes[k])

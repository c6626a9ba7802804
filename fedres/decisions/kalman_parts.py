"""One example in the two halves of ``residual-kalman``: a device's part and the server's, compiled.

Each half learns the residuals of the other, so each needs the other's mean and variance; the server learns the prior
variance τ of the devices' weights, so it needs the slopes of a device's mean by log τ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.compiling import inner_kernel, kernel
from fedres.decisions.constants import FIRST_LOG_TAU, FIRST_VALUES
from fedres.decisions.kalman_inputs import (
    action_blocks,
    action_key,
    add_scale,
    field_place,
    find_block,
    find_scale,
    key_of,
    settle_event,
)
from fedres.decisions.kalman_kernels import (
    core_part,
    core_slope,
    inputs_in,
    learn_in,
    length_of,
    step_prior,
    tail_part,
)
from fedres.decisions.kalman_own import tau_of
from fedres.decisions.kalman_pairs import find_pairs
from fedres.decisions.kalman_state import OWN, TAIL, Events, Workspace, scratch_for


@kernel
def field_keys(fields: Array) -> Array:
    """Return the fields of an action: 0 of block 0, then each of its own once, in their order."""
    keys, n = np.zeros(1 + fields.size, np.uint32), 1
    for j in range(fields.size):
        key, k = key_of(fields[j]), 1
        while k < n and keys[k] != key:
            k += 1
        if k == n:
            keys[n] = key
            n += 1
    return keys[:n]


@kernel
def example_part(
    shared: Any, hashes: Array, values: Array, fields: Array, n_seen: int, n_context: int, slopes: Array
) -> Any:  # fmt: skip
    """Return mean, variance with block 0, and length of the inputs of an example, without personal weights.

    Of the context's features the model sees the first ``n_seen``. Fill in the slopes of the mean by log τ, for each
    of ``field_keys``.
    """
    d, k = shared.bases.shape[1], shared.bases.shape[2]
    scratch = scratch_for(d, k, n_seen, hashes.size - n_context, 1)
    n_places, n_tail = inputs_in(scratch, shared, hashes[:n_seen], values[:n_seen], False)
    z, places, t_keys, t = scratch.z, scratch.places[:n_places], scratch.t_keys[:n_tail], scratch.t[:n_tail]
    keys, xs, names = scratch.keys, scratch.xs, scratch.names
    own = fields[n_context:]
    n_blocks = action_blocks(shared, hashes[n_context:], values[n_context:], own, False, scratch)
    order = field_keys(own)
    slopes[: order.size] = 0.0
    mean, variance = 0.0, 0.0
    for f in range(n_blocks):
        field = field_place(shared, names[f], False)
        block = find_block(shared, keys[f])
        part_mean, part_variance = core_part(shared, block, field, z, places, scratch.gains[0])
        slope = core_slope(shared, block, scratch.gains[0])
        if n_tail:
            tail_mean, tail_variance, tail_slope = tail_part(shared, keys[f], t_keys, t, tau_of(shared, field, TAIL))
            part_mean += tail_mean
            part_variance += tail_variance
            slope += tail_slope
        mean += xs[f] * part_mean
        variance += xs[f] * xs[f] * part_variance
        for j in range(order.size):
            if order[j] == names[f]:
                slopes[j] += xs[f] * slope
    pair_mean, pair_variance, _ = find_pairs(scratch, shared, n_blocks)
    return mean + pair_mean, variance + pair_variance, length_of(scratch, n_places, n_tail, n_blocks)


@kernel
def step_device_priors(shared: Any, names: Array, slopes: Array) -> None:
    """Let log τ of the devices' weights follow these slopes of −e²/2, of ``field_keys``.

    Up to where it began: a device whose contexts come again and again remembers them best with weights of any size.
    """
    for j in range(names.size):
        field = field_place(shared, names[j], True)
        most = max(shared.log_tau[field, OWN], FIRST_LOG_TAU)
        step_prior(shared, field, OWN, slopes[j])
        shared.log_tau[field, OWN] = min(shared.log_tau[field, OWN], most)


@inner_kernel
def _adopt(shared: Any, other: Any, key: Any) -> None:
    other_row = find_scale(other, key)
    if other_row < 0 or find_scale(shared, key) >= 0:
        return
    row = add_scale(shared, key)
    if row >= 0:
        shared.scale_seen[row] = FIRST_VALUES
        for k in range(shared.scale_stats.shape[1]):
            shared.scale_stats[row, k] = other.scale_stats[other_row, k]


@kernel
def adopt_scales(shared: Any, other: Any, hashes: Array, n_context: int) -> None:
    """Copy missing scales of an example's numbers from another model, if that has them."""
    for j in range(hashes.size):
        _adopt(shared, other, key_of(hashes[j]) if j < n_context else action_key(key_of(hashes[j])))


@kernel
def settle_scales(own: Any, shared: Any, events: Any) -> None:
    """Settle the scales of all numbers of events: by the shared model if it has them, else by their values."""
    for e in range(events.users.size):
        adopt_scales(own, shared, events.hashes[events.starts[e] : events.starts[e + 1]], events.n_context[e])
        settle_event(own, events, e)


@kernel
def learn_beside(
    own: Any, shared: Any, events: Any, n_seen: Array, low: float, span: float, new: bool, parts: Array, slopes: Array
) -> None:  # fmt: skip
    """Let a device's model learn the residuals of the shared one, which sees ``n_seen`` features of the context.

    Fill in the device's mean and variance of each event before it was learned, and the slopes of the mean by log τ.
    """
    most, nobody = 1, Workspace(np.zeros(1, np.int64), np.zeros(0, np.uint32), 1, 1)
    for e in range(events.users.size):
        most = max(most, events.starts[e + 1] - events.starts[e])
    scratch = scratch_for(own.bases.shape[1], own.bases.shape[2], most, most, 1 + most)
    beside, unused = np.empty((1, 2)), np.empty(slopes.shape[1])
    for e in range(events.users.size):
        inside, n = slice(events.starts[e], events.starts[e + 1]), events.n_context[e]
        hashes, values, fields = events.hashes[inside], events.values[inside], events.fields[inside]
        adopt_scales(own, shared, hashes, n)
        parts[e, 0], parts[e, 1], _ = example_part(own, hashes, values, fields, n, n, slopes[e])
        beside[0, 0], beside[0, 1], _ = example_part(shared, hashes, values, fields, n_seen[e], n, unused)
        one = Events(
            hashes, values, fields, np.array([0, hashes.size]), events.n_context[e : e + 1],
            events.rewards[e : e + 1], events.users[e : e + 1],
        )  # fmt: skip
        learn_in(scratch, own, one, nobody, low, span, new, beside)

"""FedRes on AdaGrad, compiled: the shared model steps as ``fedres-adagrad``, personal ones as ``LinearLearner``.

The same bits as the readable model (``models.federation``) with local learner "linear", at a delay that all share.
``models.compiled`` steps through it from Python, ``replay`` plays whole streams.
"""

from __future__ import annotations

import numpy as np

from fedres.checks import Array
from fedres.local_learners.adagrad import Real, at, clamp, dim_of, joint, kernel, multiply_add, see, step
from fedres.local_learners.trusted import DOUBT, FORGET

_ONE = np.float32(1)

Five = tuple[float, float, float, float, float]


@kernel
def shared_part(weights: Array, indices: Array, shift: int, values: Array) -> float:
    """Return w·x in 64 bits; ``weights`` is the state of a shared model."""
    total = 0.0
    for k in range(values.size):
        total += weights[at(2 + shift + indices[k])] * values[k]
    return total


@kernel
def five_shared_parts(weights: Array, shift: int, stride: int, values: Array) -> Five:
    """Return it for five arms on one context: the same sums side by side, so that none waits for the last addition."""
    a = b = c = d = e = 0.0
    for k in range(values.size):
        place, x = 2 + shift + k, values[k]
        a += weights[at(place)] * x
        b += weights[at(place + stride)] * x
        c += weights[at(place + 2 * stride)] * x
        d += weights[at(place + 3 * stride)] * x
        e += weights[at(place + 4 * stride)] * x
    return a, b, c, d, e


@kernel
def five_personal_parts(state: Array, shift: int, stride: int, values: Array) -> Five:
    """Return the local part for five arms on one context, in 32 bits as ``joint`` has it."""
    a = b = c = d = e = np.float32(0)
    for k in range(values.size):
        place, x = 2 + shift + k, np.float32(values[k])
        if x != 0:
            a = multiply_add(state[at(place)], x, a)
            b = multiply_add(state[at(place + stride)], x, b)
            c = multiply_add(state[at(place + 2 * stride)], x, c)
            d = multiply_add(state[at(place + 3 * stride)], x, d)
            e = multiply_add(state[at(place + 4 * stride)], x, e)
    constant = state[2 + dim_of(state)]
    return a + constant, b + constant, c + constant, d + constant, e + constant


@kernel
def trust(evidence: Array) -> float:
    worth: float = min(max(evidence[0] / (evidence[1] + DOUBT), 0.0), 1.0)
    return worth


@kernel
def _shared_parts(shared: Array, indices: Array, values: Array, stride: int, out: Array) -> None:
    start = 0
    if stride > 0 and out.size >= 5:
        while start < out.size:
            a = min(start, out.size - 5)
            out[a], out[a + 1], out[a + 2], out[a + 3], out[a + 4] = five_shared_parts(
                shared, a * stride, stride, values[0]
            )
            start = a + 5
    for a in range(start, out.size):
        i, v = min(a, len(indices) - 1), min(a, len(values) - 1)
        out[a] = shared_part(shared, indices[i], a * stride, values[v])


@kernel
def _personal_parts(personal: Array, indices: Array, values: Array, stride: int, out: Array) -> None:
    start = 0
    if stride > 0 and out.size >= 5:
        while start < out.size:
            a = min(start, out.size - 5)
            out[a], out[a + 1], out[a + 2], out[a + 3], out[a + 4] = five_personal_parts(
                personal, a * stride, stride, values[0]
            )
            start = a + 5
    for a in range(start, out.size):
        i, v = min(a, len(indices) - 1), min(a, len(values) - 1)
        out[a] = joint(personal, indices[i], a * stride, values[v], _ONE, np.float32(0))


@kernel
def predict(
    shared: Array,
    personal: Array,
    evidence: Array,
    g_indices: Array,
    g_values: Array,
    g_stride: int,
    l_indices: Array,
    l_values: Array,
    l_stride: int,
    out: Array,
) -> None:
    """Write the joint predictions of all actions, clamped to [0, 1]; a model of no features adds nothing."""
    if personal.size > 4:
        _personal_parts(personal, l_indices, l_values, l_stride, out)
    if personal.size > 4 and shared.size > 4:
        worth, parts = trust(evidence), np.empty(out.size)
        _shared_parts(shared, g_indices, g_values, g_stride, parts)
        for a in range(out.size):
            out[a] = parts[a] + worth * out[a]
    elif shared.size > 4:
        _shared_parts(shared, g_indices, g_values, g_stride, out)
    for a in range(out.size):
        out[a] = min(max(out[a], 0.0), 1.0)


@kernel
def learn_personal(
    personal: Array,
    evidence: Array,
    indices: Array,
    shift: int,
    values: Array,
    label: float,
    offset: float,
    rate: Real,
    trusted: bool,
) -> float:
    """Take a personal step; return the local prediction as it was, which the client uploads."""
    part = np.float64(joint(personal, indices, shift, values, _ONE, np.float32(0)))
    sent = part * trust(evidence) if trusted else part
    see(personal, label)
    prediction = clamp(personal, np.float32(part))
    if offset != 0:
        prediction = clamp(personal, joint(personal, indices, shift, values, _ONE, np.float32(offset)))
    step(personal, indices, shift, values, _ONE, np.float32(label) - prediction, rate)
    low, high = np.float64(personal[0]), np.float64(personal[1])
    without = min(max(offset, low), high)
    moved = min(max(offset + part, low), high) - without
    evidence[0] = FORGET * evidence[0] + (label - without) * moved
    evidence[1] = FORGET * evidence[1] + moved * moved
    return sent


def new_state(dim: int) -> Array:
    """Return the state of an empty model whose predictions lie in [0, 1]."""
    state = np.zeros(4 + 2 * dim, dtype=np.float32)
    state[1] = 1
    return state

"""FedRes on AdaGrad, compiled: the shared model steps as ``fedres-adagrad``, personal ones as ``LinearLearner``.

The same bits as the readable model (``models.federation``) with local learner "linear", at a delay that all share.
``models.compiled`` steps through it from Python, ``replay`` plays whole streams.
"""

from __future__ import annotations

import numpy as np

from fedres.checks import Array
from fedres.local_learners.adagrad import Real, at, bare_kernel, clamp, dim_of, joint, kernel, multiply_add, see, step
from fedres.local_learners.evidence import FORGET, RECENT
from fedres.local_learners.paced import PRIOR
from fedres.local_learners.trusted import DOUBT

_ONE = np.float32(1)

SLOWER = 30.0  # how many times slower the slow half of a personal model learns

Five = tuple[float, float, float, float, float]


@bare_kernel
def shared_part(weights: Array, indices: Array, shift: int, values: Array) -> float:
    """Return w·x in 64 bits; ``weights`` is the state of a shared model."""
    total = 0.0
    for k in range(values.size):
        total += weights[at(2 + shift + indices[k])] * values[k]
    return total


@bare_kernel
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


@bare_kernel
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
    """Return how much a personal model counts; ``evidence`` is what ``Trusted`` and ``Paced`` keep, and their n."""
    worth: float = min(max(evidence[0] / (evidence[1] + DOUBT), 0.0), 1.0)
    return worth


@kernel
def share(evidence: Array) -> float:
    """Return how much of a personal model is its quick half."""
    quick: float = min(max((evidence[2] + PRIOR) / (evidence[3] + PRIOR), 0.0), 1.0)
    return quick


@bare_kernel
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


@bare_kernel
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


@bare_kernel
def predict(
    shared: Array,
    personal: Array,
    slow: Array,
    evidence: Array,
    g_indices: Array,
    g_values: Array,
    g_stride: int,
    l_indices: Array,
    l_values: Array,
    l_stride: int,
    out: Array,
    parts: Array,
) -> None:
    """Write the joint predictions of all actions, clamped to [0, 1]; a model of no features adds nothing.

    Personal models beside a shared one are quick (``personal``) and ``slow``; alone, there is nothing slow. ``parts``
    is room for as many numbers as ``out``.
    """
    if personal.size > 4:
        _personal_parts(personal, l_indices, l_values, l_stride, out)
    if personal.size > 4 and shared.size > 4:
        worth, quick = trust(evidence), share(evidence)
        _personal_parts(slow, l_indices, l_values, l_stride, parts)
        for a in range(out.size):
            out[a] = worth * (quick * out[a] + (1 - quick) * parts[a])
        _shared_parts(shared, g_indices, g_values, g_stride, parts)
        for a in range(out.size):
            out[a] = parts[a] + out[a]
    elif shared.size > 4:
        _shared_parts(shared, g_indices, g_values, g_stride, out)
    for a in range(out.size):
        out[a] = min(max(out[a], 0.0), 1.0)


@bare_kernel
def personal_step(
    state: Array, indices: Array, shift: int, values: Array, part: float, label: float, offset: float, rate: Real
) -> None:
    """Take the step of a model whose local part is ``part``."""
    see(state, label)
    prediction = clamp(state, np.float32(part))
    if offset != 0:
        prediction = clamp(state, joint(state, indices, shift, values, _ONE, np.float32(offset)))
    step(state, indices, shift, values, _ONE, np.float32(label) - prediction, rate)


@bare_kernel
def personal_part(state: Array, indices: Array, shift: int, values: Array) -> float:
    part: float = np.float64(joint(state, indices, shift, values, _ONE, np.float32(0)))
    return part


@bare_kernel
def learn_alone(personal: Array, indices: Array, shift: int, values: Array, label: float, rate: Real) -> None:
    """Take the step of a model beside which there is no other."""
    part = personal_part(personal, indices, shift, values)
    personal_step(personal, indices, shift, values, part, label, 0.0, rate)


@bare_kernel
def learn_residual(
    personal: Array,
    slow: Array,
    evidence: Array,
    indices: Array,
    shift: int,
    values: Array,
    label: float,
    offset: float,
    rate: Real,
) -> float:
    """Take the steps of ``Trusted(Paced(...))``; return the local prediction as it was, which the client uploads."""
    p, q = personal_part(personal, indices, shift, values), personal_part(slow, indices, shift, values)
    quick = share(evidence)
    part = quick * p + (1 - quick) * q
    sent = trust(evidence) * part
    personal_step(personal, indices, shift, values, p, label, offset, rate)
    personal_step(slow, indices, shift, values, q, label, offset, rate / SLOWER)
    low, high = np.float64(personal[0]), np.float64(personal[1])
    evidence[4] += 1
    keep = max(FORGET, 1 - RECENT / evidence[4])
    _weigh(evidence[:2], keep, label, min(max(offset, low), high), min(max(offset + part, low), high))
    _weigh(evidence[2:4], keep, label, min(max(offset + q, low), high), min(max(offset + p, low), high))
    return sent


@kernel
def _weigh(sums: Array, keep: float, label: float, without: float, prediction: float) -> None:
    """Add what a prediction explains of what another left over."""
    moved = prediction - without
    sums[0] = keep * sums[0] + (label - without) * moved
    sums[1] = keep * sums[1] + moved * moved


def new_state(dim: int) -> Array:
    """Return the state of an empty model whose predictions lie in [0, 1]."""
    state = np.zeros(4 + 2 * dim, dtype=np.float32)
    state[1] = 1
    return state

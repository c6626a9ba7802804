"""FedRes on AdaGrad, compiled: the shared model steps as ``fedres-adagrad``, personal ones as ``LinearLearner``.

The same bits as the readable model (``models.federation``) with local learner "linear", at a delay that all share.
``models.compiled`` steps through it from Python, ``replay`` plays whole streams.
"""

from __future__ import annotations

import numpy as np

from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel, kernel
from fedres.global_learners.fedres_adagrad import learn as learn_uploaded
from fedres.local_learners.adagrad import Real, at, clamp, dim_of, joint, multiply_add, see, step
from fedres.local_learners.evidence import FORGET, RECENT
from fedres.local_learners.paced import PRIOR
from fedres.local_learners.trusted import DOUBT

_NONE, _ONE = np.float32(0), np.float32(1)

SLOWER = 15.0  # how many times slower the slow half of a model learns

SEEN = 5  # entries of a client: the sums and the n of ``Trusted`` and ``Paced``, then the mean of its contexts

WEIGHED = 6  # places of 32 bits at the end of a shared model of two paces: the sums and the n of their evidence

Five = tuple[float, float, float, float, float]
Table = tuple[Array, Array, int]  # indices, values and stride of ``Actions``


@inner_kernel
def shared_part(weights: Array, indices: Array, shift: int, values: Array) -> float:
    """Return w·x in 64 bits; ``weights`` is the state of a shared model."""
    total = 0.0
    for k in range(values.size):
        total += weights[at(2 + shift + indices[k])] * values[k]
    return total


@inner_kernel
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
def _or_0(total: Real) -> Real:
    """Return 0 instead of what is no number, as ``joint`` does."""
    return total if total == total else np.float32(0)


@inner_kernel
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
    constant = state[at(2 + dim_of(state))]
    return _or_0(a + constant), _or_0(b + constant), _or_0(c + constant), _or_0(d + constant), _or_0(e + constant)


@kernel
def trust(explained: float, squares: float) -> float:
    """Return how much the slow half of a personal model counts, by the sums that ``Trusted`` keeps."""
    worth: float = min(max(explained / (squares + DOUBT), 0.0), 1.0)
    return worth


@kernel
def share(explained: float, squares: float) -> float:
    """Return how much of a model is its quick half, by the sums that ``Paced`` keeps."""
    quick: float = min(max((explained + PRIOR) / (squares + PRIOR), 0.0), 1.0)
    return quick


@inner_kernel
def paces(shared: Array) -> tuple[Array, Array, Array]:
    """Return the quick and the slow half of a shared model, and their evidence."""
    half = (shared.size - WEIGHED) // 2
    return shared[:half], shared[half : 2 * half], shared[2 * half :].view(np.float64)


@inner_kernel
def offset_of(shared: Array, indices: Array, shift: int, values: Array) -> float:
    """Return the global part of a prediction, from a shared model of two paces."""
    quick, slow, weighed = paces(shared)
    one = two = 0.0
    for k in range(values.size):
        place = at(2 + shift + indices[k])
        one += quick[place] * values[k]
        two += slow[place] * values[k]
    much = share(weighed[0], weighed[1])
    return much * one + (1 - much) * two


@inner_kernel
def centre(kept: Array, values: Array, out: Array) -> None:
    """Write features as a personal model sees them: a context less the mean of those before, rows as they are."""
    for k in range(values.size):
        out[k] = values[k] - kept[at(SEEN + k)] if kept.size > SEEN else values[k]


@inner_kernel
def average(kept: Array, values: Array) -> None:
    """Count a context, and let the mean take it in: all but its constant, which comes last."""
    kept[4] += 1
    mean, weight = kept[SEEN:], 1 / kept[4]
    for k in range(mean.size - 1):
        mean[k] += (values[k] - mean[k]) * weight


@inner_kernel
def _shared_parts(shared: Array, x: Table, out: Array) -> None:
    (indices, values, stride), start = x, 0
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


@inner_kernel
def _personal_parts(personal: Array, z: Table, out: Array) -> None:
    (indices, values, stride), start = z, 0
    if stride > 0 and out.size >= 5:
        while start < out.size:
            a = min(start, out.size - 5)
            out[a], out[a + 1], out[a + 2], out[a + 3], out[a + 4] = five_personal_parts(
                personal, a * stride, stride, values[0]
            )
            start = a + 5
    for a in range(start, out.size):
        i, v = min(a, len(indices) - 1), min(a, len(values) - 1)
        out[a] = joint(personal, indices[i], a * stride, values[v], _ONE, _NONE)


@inner_kernel
def predict(
    shared: Array,
    personal: Array,
    slow: Array,
    kept: Array,
    x: Table,
    z: Table,
    out: Array,
    room: Array,
) -> None:
    """Write the joint predictions of all actions, clamped to [0, 1]; a model of no features adds nothing.

    Where there are both, a shared model and a personal one, either has a quick and a slow half. A client keeps a
    personal model and ``kept``: see ``SEEN``. ``room`` is for twice as many numbers as ``out``; the global parts are
    left in it.
    """
    if personal.size > 4:
        _personal_parts(personal, z, out)
    if personal.size > 4 and shared.size > 4:
        parts, more = room[: out.size], room[out.size : 2 * out.size]
        _personal_parts(slow, z, parts)
        worth, much = trust(kept[0], kept[1]), share(kept[2], kept[3])
        for a in range(out.size):
            out[a] = much * out[a] + (1 - much) * (worth * parts[a])
        common, patient, weighed = paces(shared)
        _shared_parts(common, x, parts)
        _shared_parts(patient, x, more)
        much = share(weighed[0], weighed[1])
        for a in range(out.size):
            parts[a] = much * parts[a] + (1 - much) * more[a]
            out[a] = parts[a] + out[a]
    elif shared.size > 4:
        _shared_parts(shared, x, out)
    elif personal.size <= 4:
        out[:] = 0.0
    for a in range(out.size):
        out[a] = min(max(out[a], 0.0), 1.0)


@inner_kernel
def step_from(
    state: Array, indices: Array, shift: int, values: Array, constant: Real, prediction: float, label: float, rate: Real
) -> Real:
    """Take the step of a model whose joint prediction, clamped or not, is ``prediction``; return that clamped."""
    see(state, label)
    clamped = clamp(state, np.float32(prediction))
    step(state, indices, shift, values, constant, np.float32(label) - clamped, rate)
    return clamped


@inner_kernel
def learn_alone(personal: Array, indices: Array, shift: int, values: Array, label: float, rate: Real) -> None:
    """Take the step of a model beside which there is no other."""
    part = joint(personal, indices, shift, values, _ONE, _NONE)
    step_from(personal, indices, shift, values, _ONE, part, label, rate)


@inner_kernel
def four_joints(
    quick: Array, slow: Array, indices: Array, shift: int, values: Array, constant: Real, offset: float
) -> tuple[Real, Real, Real, Real]:
    """Return ``joint`` of both models without the offset and with it, side by side."""
    a = b = _NONE
    c = d = np.float32(offset)
    for k in range(values.size):
        x = np.float32(values[k])
        if x != 0:
            v, w = quick[at(2 + shift + indices[k])], slow[at(2 + shift + indices[k])]
            a, b = multiply_add(v, x, a), multiply_add(w, x, b)
            c, d = multiply_add(v, x, c), multiply_add(w, x, d)
    if constant != 0:
        v, w = quick[at(2 + dim_of(quick))], slow[at(2 + dim_of(slow))]
        a, b = multiply_add(v, constant, a), multiply_add(w, constant, b)
        c, d = multiply_add(v, constant, c), multiply_add(w, constant, d)
    return _or_0(a), _or_0(b), _or_0(c), _or_0(d)


@inner_kernel
def learn_residual(
    personal: Array,
    slow: Array,
    kept: Array,
    indices: Array,
    shift: int,
    values: Array,
    label: float,
    offset: float,
    rate: Real,
) -> float:
    """Take the steps of ``Paced(quick, Trusted(slow))``; return the local part as it was, which the client uploads.

    ``average`` comes next: n is that of the samples before.
    """
    a, b, c, d = four_joints(personal, slow, indices, shift, values, _ONE, offset)
    p, q = np.float64(a), np.float64(b)
    trusted, much = trust(kept[0], kept[1]) * q, share(kept[2], kept[3])
    sent = much * p + (1 - much) * trusted
    step_from(personal, indices, shift, values, _ONE, c, label, rate)
    step_from(slow, indices, shift, values, _ONE, d, label, rate / SLOWER)
    low, high, keep = np.float64(personal[0]), np.float64(personal[1]), _keep(kept[4] + 1)
    _weigh(kept[:2], keep, label, min(max(offset, low), high), min(max(offset + q, low), high))
    _weigh(kept[2:4], keep, label, min(max(offset + trusted, low), high), min(max(offset + p, low), high))
    return sent


@bare_kernel
def learn_shared(
    shared: Array, indices: Array, shift: int, values: Array, label: float, part: float, rate: Real, both: bool
) -> None:
    """Take the step of an upload, or where there are ``both`` kinds of models the steps of two paces."""
    if not both:
        learn_uploaded(shared, indices, shift, values, label, part, 1.0, rate)
        return
    quick, slow, weighed = paces(shared)
    _, _, c, d = four_joints(quick, slow, indices, shift, values, _NONE, part)
    p = step_from(quick, indices, shift, values, _NONE, c, label, rate)
    q = step_from(slow, indices, shift, values, _NONE, d, label, rate / SLOWER)
    weighed[2] += 1
    _weigh(weighed[:2], _keep(weighed[2]), label, np.float64(q), np.float64(p))


@kernel
def _keep(n: float) -> float:
    """Return what older evidence keeps when the n-th comes in."""
    return max(FORGET, 1 - RECENT / n)


@inner_kernel
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

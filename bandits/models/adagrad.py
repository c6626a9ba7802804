"""FedRes on AdaGrad, compiled: the shared model steps as ``fedres-adagrad``, personal ones as ``LinearLearner``.

The same bits as the readable model (``models.federation``) with local learner "linear", at a delay that all share.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from bandits.actions import Actions
from bandits.exploration import choose
from bandits.models.protocol import Choice, Rule, Sample
from fedres import checks
from fedres.checks import Array
from fedres.global_learners.fedres_adagrad import learn as learn_shared
from fedres.local_learners.adagrad import Real, at, clamp, dim_of, joint, kernel, multiply_add, see, step
from fedres.local_learners.trusted import DOUBT, FORGET

_ONE = np.float32(1)

Four = tuple[float, float, float, float]


@kernel
def shared_part(weights: Array, indices: Array, shift: int, values: Array) -> float:
    """Return w·x in 64 bits; ``weights`` is the state of a shared model."""
    total = 0.0
    for k in range(values.size):
        total += weights[at(2 + shift + indices[k])] * values[k]
    return total


@kernel
def four_shared_parts(weights: Array, shift: int, stride: int, values: Array) -> Four:
    """Return it for four arms on one context: the same sums side by side, so that none waits for the last addition."""
    a = b = c = d = 0.0
    for k in range(values.size):
        place, x = 2 + shift + k, values[k]
        a += weights[at(place)] * x
        b += weights[at(place + stride)] * x
        c += weights[at(place + 2 * stride)] * x
        d += weights[at(place + 3 * stride)] * x
    return a, b, c, d


@kernel
def four_personal_parts(state: Array, shift: int, stride: int, values: Array) -> Four:
    """Return the local part for four arms on one context, in 32 bits as ``joint`` has it."""
    a = b = c = d = np.float32(0)
    for k in range(values.size):
        place, x = 2 + shift + k, np.float32(values[k])
        if x != 0:
            a = multiply_add(state[at(place)], x, a)
            b = multiply_add(state[at(place + stride)], x, b)
            c = multiply_add(state[at(place + 2 * stride)], x, c)
            d = multiply_add(state[at(place + 3 * stride)], x, d)
    constant = state[2 + dim_of(state)]
    return a + constant, b + constant, c + constant, d + constant


@kernel
def trust(evidence: Array) -> float:
    worth: float = min(max(evidence[0] / (evidence[1] + DOUBT), 0.0), 1.0)
    return worth


@kernel
def _shared_parts(shared: Array, indices: Array, values: Array, stride: int, out: Array) -> None:
    start = 0
    if stride > 0 and out.size >= 4:
        while start < out.size:
            a = min(start, out.size - 4)
            out[a], out[a + 1], out[a + 2], out[a + 3] = four_shared_parts(shared, a * stride, stride, values[0])
            start = a + 4
    for a in range(start, out.size):
        i, v = min(a, len(indices) - 1), min(a, len(values) - 1)
        out[a] = shared_part(shared, indices[i], a * stride, values[v])


@kernel
def _personal_parts(personal: Array, indices: Array, values: Array, stride: int, out: Array) -> None:
    start = 0
    if stride > 0 and out.size >= 4:
        while start < out.size:
            a = min(start, out.size - 4)
            out[a], out[a + 1], out[a + 2], out[a + 3] = four_personal_parts(personal, a * stride, stride, values[0])
            start = a + 4
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
def decide(
    slot: int,
    shared: Array,
    personal: Array,
    evidence: Array,
    g_indices: Array,
    g_values: Array,
    g_stride: int,
    l_indices: Array,
    l_values: Array,
    l_stride: int,
    allowed: Array,
    code: int,
    setting: float,
    n: int,
    seed: int,
    client: int,
    out: Array,
) -> int:
    """Write the predictions for one of many clients and the probabilities, (2, K), and return the action drawn."""
    mine, its = personal[slot], evidence[slot]
    predict(shared, mine, its, g_indices, g_values, g_stride, l_indices, l_values, l_stride, out[0])
    return choose(code, setting, out[0], allowed, n, seed, client, out[1])


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


class AdaGradModel:
    """``Model`` of the three schemes; personal models of 8 bytes a feature, in one table that grows."""

    reusable = True

    def __init__(
        self, scheme: str, shared_dim: int, private_dim: int, rates: tuple[float, float], delay: int = 0
    ) -> None:
        checks.one_of("scheme", scheme, ("independent", "central", "fedres"))
        self.shared = new_state(0 if scheme == "independent" else shared_dim)
        self.shared[1] = 0  # as in fedres-adagrad: its range grows with the rewards that come in
        self.empty = new_state(0 if scheme == "central" else private_dim)
        self.personal = np.tile(self.empty, (1, 1))
        self.evidence = np.zeros((1, 2))
        self.shared_rate, self.personal_rate = rates
        self.version = 0
        self.waiting: deque[list[tuple[Sample, float]]] = deque([] for _ in range(delay))

    def join(self, slot: int) -> None:
        while slot >= len(self.personal):
            self.personal = np.concatenate([self.personal, np.tile(self.empty, (len(self.personal), 1))])
            self.evidence = np.concatenate([self.evidence, np.zeros_like(self.evidence)])
        self.leave(slot)

    def leave(self, slot: int) -> None:
        self.personal[slot] = self.empty
        self.evidence[slot] = 0

    def scores(self, slot: int, shared: Actions, private: Actions) -> Array:
        n, _, g_indices, g_values, g_stride = shared
        _, _, l_indices, l_values, l_stride = private
        out, mine, its = np.empty(n), self.personal[slot], self.evidence[slot]
        predict(self.shared, mine, its, g_indices, g_values, g_stride, l_indices, l_values, l_stride, out)
        return out

    def decide(self, slot: int, shared: Actions, private: Actions, allowed: Array, rule: Rule) -> Choice:
        """Do what ``Scored`` does, in one call of compiled code."""
        n, _, g_indices, g_values, g_stride = shared
        _, _, l_indices, l_values, l_stride = private
        out, models = np.empty((2, n)), (self.shared, self.personal, self.evidence)
        features = (g_indices, g_values, g_stride, l_indices, l_values, l_stride)
        code, setting, number, seed, client = rule
        action = decide(slot, *models, *features, allowed, code, setting, number, seed, client, out)
        return action, out.item(1, action), out[0]

    def play(self, samples: list[Sample]) -> None:
        arrived = [(sample, self._learn_personal(sample)) for sample in samples]
        if self.waiting:
            self.waiting.append(arrived)
            arrived = self.waiting.popleft()
        if arrived and self.shared.size > 4:
            for sample, part in arrived:
                x = sample.shared
                learn_shared(self.shared, x.indices, x.shift, x.values, sample.reward, part, 1.0, self.shared_rate)
            self.version += 1

    def close(self) -> None:
        """Nothing to free."""

    def _learn_personal(self, sample: Sample) -> float:
        """Let the client learn, with the shared model it knows; return what it uploads as its local prediction."""
        offset, both = 0.0, self.shared.size > 4
        if both:
            x = sample.shared
            offset = shared_part(self.shared, x.indices, x.shift, x.values)
        if self.empty.size <= 4:
            return 0.0
        row, evidence, x = self.personal[sample.slot], self.evidence[sample.slot], sample.private
        rate = self.personal_rate
        return learn_personal(row, evidence, x.indices, x.shift, x.values, sample.reward, offset, rate, both)


def new_state(dim: int) -> Array:
    """Return the state of an empty model whose predictions lie in [0, 1]."""
    state = np.zeros(4 + 2 * dim, dtype=np.float32)
    state[1] = 1
    return state

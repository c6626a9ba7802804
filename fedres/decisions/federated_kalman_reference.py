"""Both halves of a federated ``residual-kalman``: the readable twin of ``federated_kalman``, in plain NumPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.decisions import constants as the
from fedres.decisions.federated_kalman import DEVICE_BLOCKS, DEVICE_LOG_TAU, DEVICE_TAIL_BITS
from fedres.decisions.kalman_inputs_reference import Action, Hashed, KalmanEvent, Scale
from fedres.decisions.residual_kalman_reference import DriftPrior, Field, Prior, ResidualKalman


class Part(NamedTuple):
    """A model's prediction for an example."""

    mean: float
    variance: float  # with block 0
    slopes: dict[int, float]  # of the mean by log τ, for each field


@dataclass
class KalmanExample:
    """A rewarded decision: the context for the shared model, and the device's own."""

    seen: Hashed
    context: Hashed
    action: Action
    reward: float


class GivenPrior(Prior):
    """A τ that another model learns."""

    def step(self, slope: float, *, moves: bool = True) -> None:
        """Leave it as it is."""


class NoDrift(DriftPrior):
    """A φ of 0."""

    def step(self, slope: float, *, moves: bool = True) -> None:
        """Leave it as it is."""


def part_of(model: ResidualKalman, context: Hashed, action: Action) -> Part:
    """Return a model's prediction without personal weights."""
    (z, t), blocks = model._context(context), model.blocks.weights()
    total: Array = np.zeros(2)
    slopes = {0: 0.0} | {int(name) or 1: 0.0 for name in action[2]}
    features = model._features(action)
    for key, (x, name) in [(0, (1.0, 0)), *features.items()]:
        mean, variance, slope = model._predicted(key, x, model._field(name), z, t, blocks.get(key)).parts.sum(axis=1)
        total += [x * mean, x * x * variance]
        slopes[name] += x * slope
    for pair in model._pairs(features):
        total += pair.weights.predict(pair.inputs, pair.prior.tau)[:2]
    return Part(float(total[0]), float(total[1]), slopes)


def learn_residual(server: ResidualKalman, example: KalmanExample, part: Part) -> None:
    """Learn label − mean with the noise σ² + variance; the devices' τ follows the slopes, up to where it began."""
    event = KalmanEvent(None, example.seen, example.action, example.reward)
    if not server.bases:
        server.learn(event)
        return
    shared, label = part_of(server, example.seen, example.action), (example.reward - server.low) / server.span
    mean, gain = shared.mean, shared.variance / (server.noise + shared.variance + part.variance)
    step = gain * min(max(label - mean - part.mean, -1.0), 1.0)  # of the mean, which stays in [0, 1]
    error = min(max(step, -max(mean, 0.0)), max(1.0 - mean, 0.0)) / gain
    server._learn(event, new=True, beside=(label - mean - error, part.variance))
    for name, slope in part.slopes.items():
        prior = server._field(name, new=True).own
        most = max(prior.log_tau, the.FIRST_LOG_TAU)
        prior.step(error * slope)
        prior.log_tau = min(prior.log_tau, most)


class DeviceKalman:
    """A device's model of its examples, beside a shared model that has learned its start."""

    def __init__(self, server: ResidualKalman, examples: Sequence[KalmanExample]) -> None:
        self.server = server
        self.own = own = ResidualKalman(
            max_blocks=DEVICE_BLOCKS, tail_bits=DEVICE_TAIL_BITS, most_paired=0
        )  # fmt: skip
        own.low, own.span, own.length = server.low, server.span, server.length
        own.drift = NoDrift(-np.inf)  # its examples are few
        for name, of in server.fields.items():
            log_tau = DEVICE_LOG_TAU + min(of.own.log_tau - the.FIRST_LOG_TAU, 0.0)
            own.fields[name] = Field(log_tau, log_tau, GivenPrior)
        counts: Counter[int] = Counter()
        for example in examples:
            self._adopt_scales(example)
            own._inputs_scaled(example.context, new=True)
            own._features(example.action, new=True)
            counts.update({int(key) or 1 for key, value in zip(*example.context, strict=True) if value})
        core = sorted((-n, key) for key, n in counts.items())[: the.CORE_SIZE - 1]
        own.core |= {key: 1 + place for place, (_, key) in enumerate(core)}
        d = len(own.core)
        own.bases, own.moment = [np.eye(d)[:, : own.own_size]] * the.MAX_BASES, np.zeros((d, d))
        self.parts = [self._learn(example, new=False) for example in examples]

    def learn(self, example: KalmanExample) -> Part:
        """Learn one more example; return its part before that."""
        return self._learn(example, new=True)

    def _learn(self, example: KalmanExample, *, new: bool) -> Part:
        self._adopt_scales(example)
        for name in map(int, example.action[2]):
            if (name or 1) not in self.own.fields and len(self.own.fields) < the.MAX_FIELDS:
                self.own.fields[name or 1] = Field(DEVICE_LOG_TAU, DEVICE_LOG_TAU, GivenPrior)
        own = part_of(self.own, example.context, example.action)
        shared = part_of(self.server, example.seen, example.action)
        event = KalmanEvent(None, example.context, example.action, example.reward)
        self.own._learn(event, new=new, beside=(shared.mean, shared.variance))
        return own

    def _adopt_scales(self, example: KalmanExample) -> None:
        """Adopt the server's scales as settled, so that no value changes them."""
        for kind, features in (("context", example.context), ("action", example.action)):
            for key in features[0]:
                place = kind, int(key) or 1
                if place not in self.own.scales and place in self.server.scales:
                    self.own.scales[place] = _settled(self.server.scales[place])


def _settled(scale: Scale) -> Scale:
    settled = Scale(scale.medians)
    settled.__dict__ = {**scale.__dict__, "values": [0.0] * the.FIRST_VALUES}
    return settled

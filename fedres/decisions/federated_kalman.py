"""``residual-kalman`` in two halves: the shared regression on the server, a device's own on its residuals.

Both are the same regression. A device's has all features of its context, private ones too, and one prior variance τ
for each field, which the server learns for all devices: how far their weights are from the shared ones. A device
reports a ``Part`` of each example: mean and variance of its own prediction before it learned the example, and the
slopes of the mean by log τ. The server learns label − mean with the noise σ² + variance.

τ begins at its bound, where the shared model is hardly a constraint and a device learns as it would alone. It can only
fall, as the devices' errors require. Each device learns its own noise.

A new shared model explains a part of the effects that the device had explained itself. So the device then relearns its
examples, from the first to the last, on the new residuals: they are few, and each takes microseconds.
Otherwise both halves would count the same effect, and sharing would cost more than it brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.decisions.constants import (
    CORE_SIZE,
    FIRST_LOG_TAU,
    MAX_BASES,
    MAX_FIELDS,
    MOST_OWN_VARIANCE,
    START_EVENTS,
)
from fedres.decisions.kalman_inputs import find_scale
from fedres.decisions.kalman_kernels import predict
from fedres.decisions.kalman_parts import (
    adopt_scales,
    example_part,
    field_keys,
    learn_beside,
    settle_scales,
    step_device_priors,
)
from fedres.decisions.kalman_state import (
    BASES,
    BLOCKS,
    CONSTANT,
    CORE,
    FIELDS,
    LENGTH,
    LOG_DRIFT,
    NOISE,
    OWN,
    TAIL,
    Events,
    KalmanRequest,
    Shared,
    new_shared,
    with_room,
    with_sound_tables,
)
from fedres.decisions.residual_kalman import NO_MODEL, NO_OWNS, Prediction, ResidualKalman, fixed

DEVICE_BLOCKS, DEVICE_TAIL_BITS = 128, 12  # of a device's own model
DEVICE_LOG_TAU = -0.5  # of its weights at first and at most: a prior about as wide as the range of rewards
_NEVER = -600.0  # log τ of weights that are certainly 0


class Part(NamedTuple):
    """A device's own prediction for an example, in shares of the range of rewards."""

    mean: float
    variance: float
    slopes: Array  # of the mean by log τ: of block 0, then of each field of the action; empty if not uploaded


class KalmanExample(NamedTuple):
    """A rewarded decision, hashed. The context's public features come first."""

    hashes: Array  # uint32: the context's, then those of the action taken
    values: Array  # float32
    fields: Array  # uint32
    n_context: int
    n_seen: int  # features of the context that are not private
    reward: float


# The server's half


class KalmanResidual(NamedTuple):
    """The residual of both halves for an event."""

    error: float
    mean: float  # of the server's half
    variance: float  # of the same
    length: float  # of the inputs


def residual_of(model: ResidualKalman, event: Events, part: Part) -> KalmanResidual:
    """Return the residual of one event. As rewards lie within a span of 1, larger errors are clipped."""
    assert model.shared is not None
    slopes, n = np.empty(1 + event.hashes.size), int(event.n_context[0])
    mean, variance, length = example_part(model.shared, event.hashes, event.values, event.fields, n, n, slopes)
    error = float((float(event.rewards[0]) - model.low) / model.span - mean - part.mean)
    return KalmanResidual(min(max(error, -1.0), 1.0), float(mean), float(variance), float(length))


def learn_residual(model: ResidualKalman, event: Events, part: Part, left: KalmanResidual, weight: float = 1.0) -> None:
    """Learn one event; a ``weight`` below 1 adds to the noise that the device reports."""
    shared = model.shared
    assert shared is not None
    noise = float(shared.numbers[NOISE])
    variance = (noise + part.variance) / weight - noise
    error = _within_range(left, left.variance / (noise + variance + left.variance))
    label = (float(event.rewards[0]) - model.low) / model.span
    model.learn_packed(event, NO_OWNS, np.array([[label - left.mean - error, variance]]))
    if part.slopes.size:
        names = field_keys(event.fields[int(event.n_context[0]) :])
        step_device_priors(shared, names, weight * error * part.slopes)


def _within_range(left: KalmanResidual, gain: float) -> float:
    """Return the error, clipped so that mean + gain · error is in [0, 1], or no further out than the mean.

    Only the device reports its own part: one that always reports too much would move the mean without limit.
    """
    step = min(max(gain * left.error, -max(left.mean, 0.0)), max(1.0 - left.mean, 0.0))
    return step / gain if gain > 0 else left.error


# The device's half


class DeviceKalman:
    """A device's own model beside the shared one; ``shared`` is None until the first download.

    Without a shared model, the own one begins with 16 examples and predicts alone.
    """

    def __init__(self, reward_range: tuple[float, float] = (0.0, 1.0), *, personal: bool = True) -> None:
        self.low, self.span = float(reward_range[0]), float(reward_range[1]) - float(reward_range[0])
        self.personal = personal
        self.shared: Shared | None = None
        self.own: Shared | None = None

    def relearn(self, shared: Shared | None, examples: Sequence[KalmanExample]) -> list[Part]:
        """Adopt another shared model and relearn all examples; return each one's part before it was learned.

        The own core consists of the most frequent coordinates of their contexts.
        """
        self.shared, self.own = shared, None
        if not self.personal or (shared is None and len(examples) < START_EVENTS):
            return [_no_part(example) for example in examples]
        events = _events(examples)
        self.own = _fresh(shared, events)
        return self._learn(examples, events, new=False)

    def learn(self, example: KalmanExample) -> None:
        """Learn one more example."""
        if self.own is not None:
            self._learn([example], _events([example]), new=True)

    def part(self, example: KalmanExample) -> Part:
        """Return the own model's part of an example."""
        if self.own is None:
            return _no_part(example)
        hashes, values, fields, n = example[:4]
        adopt_scales(self.own, self.shared or _nothing(), hashes, n)
        slopes = np.empty(field_keys(fields[n:]).size)
        mean, variance, _ = example_part(self.own, hashes, values, fields, n, n, slopes)
        return Part(mean, variance, slopes)

    def predict(self, request: KalmanRequest, n_seen: int) -> Prediction:
        """Return means and widths of actions; the shared model sees the first ``n_seen`` features of the context."""
        n, first = request.starts.size - 1, int(request.starts[0])
        shared, own = np.zeros((n, 3)), np.zeros((n, 3))
        if self.shared is not None:
            seen = np.r_[0:n_seen, first : request.hashes.size]
            hashes, values, fields = (column[seen] for column in request[:3])
            public = KalmanRequest(hashes, values, fields, request.starts - first + n_seen)
            predict(self.shared, NO_MODEL, False, fixed(public), shared)
        if self.own is not None:
            predict(self.own, NO_MODEL, False, fixed(request), own)
        if self.shared is None and self.own is None:
            shared[:, 2] = 1.0
        if self.shared is not None:  # as for users of the service
            own[:, 2] = np.minimum(own[:, 2], MOST_OWN_VARIANCE)
        means, widths = self.low + self.span * shared[:, 0], np.sqrt(np.maximum(shared[:, 2] + own[:, 2], 0.0))
        return Prediction(means + self.span * own[:, 0], self.span * widths, means, self.span * own[:, 0])

    def _learn(self, examples: Sequence[KalmanExample], events: Events, *, new: bool) -> list[Part]:
        if self.own is None or not examples:
            return []
        n_blocks = 1 + int(self.own.counts[BLOCKS]) + int((np.diff(events.starts) - events.n_context).sum())
        room = min(DEVICE_BLOCKS, 1 << (n_blocks - 1).bit_length())
        if room > self.own.block_keys.size:
            self.own = with_room(self.own, room)
        self.own = with_sound_tables(self.own)
        sizes = [field_keys(example.fields[example.n_context :]).size for example in examples]
        parts, slopes = np.empty((len(examples), 2)), np.empty((len(examples), max(sizes)))
        n_seen = np.array([example.n_seen for example in examples], np.int64)
        learn_beside(
            self.own, self.shared or _nothing(), events, n_seen, self.low, self.span, new, parts, slopes
        )  # fmt: skip
        rows = zip(parts.tolist(), slopes, sizes, strict=True)
        return [Part(mean, variance, of[:n]) for (mean, variance), of, n in rows]


def _no_part(example: KalmanExample) -> Part:
    return Part(0.0, 0.0, np.zeros(field_keys(example.fields[example.n_context :]).size))


def _events(examples: Sequence[KalmanExample]) -> Events:
    sizes = [example.hashes.size for example in examples]
    return Events(
        np.concatenate([np.zeros(0, np.uint32), *[example.hashes for example in examples]]),
        np.concatenate([np.zeros(0, np.float32), *[example.values for example in examples]]),
        np.concatenate([np.zeros(0, np.uint32), *[example.fields for example in examples]]),
        np.cumsum([0, *sizes], dtype=np.int64),
        np.array([example.n_context for example in examples], np.int64),
        np.array([example.reward for example in examples], np.float32),
        np.full(len(examples), -1, np.int64),
    )


@lru_cache(maxsize=1)
def _nothing() -> Shared:
    """Return a shared model that predicts 0 with variance 0."""
    shared = new_shared(1, 1.0, 2, 1)
    shared.counts[FIELDS] = MAX_FIELDS  # so that no field is new to it
    shared.log_tau[:] = _NEVER
    return _without_pairs(shared)


def _without_pairs(shared: Shared) -> Shared:
    return shared._replace(pair_log_tau=np.zeros((0, 0)), pair_slope_squares=np.zeros((0, 0)))


def _fresh(shared: Shared | None, events: Events) -> Shared:
    """Return an own model that has learned nothing, with a core and scales for the contexts of events."""
    held = []
    for first, n in zip(events.starts[:-1], events.n_context, strict=True):
        keys, values = events.hashes[first : first + n], events.values[first : first + n]
        held.append(np.unique(np.maximum(keys[values != 0], 1)))  # key 0 stands for nothing
    features, counts = np.unique(np.concatenate([np.zeros(0, np.uint32), *held]), return_counts=True)
    core = features[np.lexsort((features, -counts))][: CORE_SIZE - 1]
    length = np.sqrt(1 + counts.sum() / max(len(held), 1)) if shared is None else shared.numbers[LENGTH]
    own = _without_pairs(new_shared(1 + core.size, float(length), DEVICE_BLOCKS, DEVICE_TAIL_BITS))
    own.drift[LOG_DRIFT] = -np.inf  # its examples are few
    own.counts[BASES] = MAX_BASES  # it has no personal weights, so it needs no bases
    if shared is not None:
        n = own.counts[FIELDS] = shared.counts[FIELDS]
        own.field_keys[:], own.log_tau[:] = shared.field_keys, DEVICE_LOG_TAU
        learned = DEVICE_LOG_TAU + np.minimum(shared.log_tau[:n, OWN] - FIRST_LOG_TAU, 0.0)
        own.log_tau[:n, CORE] = own.log_tau[:n, CONSTANT] = own.log_tau[:n, TAIL] = learned
        own.slope_squares[:] = np.inf  # the server learns τ
    settle_scales(own, shared or _nothing(), events)
    for place, key in enumerate(core):
        slot = find_scale(own, key)
        if slot >= 0:
            own.scale_core[slot] = 1 + place
    return own

"""What the learner does with the uploads of devices: pure steps of a loop's shared model."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from fedres.checks import Array
from fedres.decisions.federated_kalman import Part, learn_residual, residual_of
from fedres.decisions.kalman_state import Events
from fedres.decisions.residual_kalman import NO_OWNS, ResidualKalman
from fedres.scoring.federated import FederatedModel, Pool
from fedres.scoring.model import Example, SharedModel
from service.log.records import RESIDUAL, Entry, ResidualExample, decode_update, read_residual
from service.models.guard import combine
from service.models.kalman_shared import KalmanShared
from service.models.loop_metadata import LoopMetadata
from service.models.shared_models import AnyShared, expanded_example

MOST_POOLED = 20  # uploads of as many clients are combined, if so many have joined


def learn_upload(entry: Entry, metadata: LoopMetadata, shared: AnyShared) -> bool:
    """Learn from a device's upload; return False where the defences say no."""
    if isinstance(shared, KalmanShared):
        return _learn_part(entry, metadata, shared.model)
    return (_learn_residual if entry.kind == RESIDUAL else _learn_update)(entry, metadata, shared)


def _learn_residual(entry: Entry, metadata: LoopMetadata, shared: SharedModel) -> bool:
    """Learn what the device's own part leaves over of the label; return False where the defences say no."""
    assert entry.example is not None
    residual, settings = read_residual(entry.example), metadata.settings
    keys, values = expanded_example(residual.features, settings.crosses)
    clipped, weight = metadata.guard.weigh(
        str(entry.user), values, settings.defences, lambda clipped: _error(residual, (keys, clipped), shared)
    )
    if not weight > 0:
        return False
    shared.learning_rate = settings.learning_rate
    if residual.global_ is None:
        shared.learn((keys, clipped), residual.label, residual.local, weight)
    else:
        shared.correct((keys, clipped), residual.label, residual.global_ + residual.local, weight)
    return True


def _learn_part(entry: Entry, metadata: LoopMetadata, model: ResidualKalman) -> bool:
    """Learn what a device's own part leaves over, by ``residual-kalman``; return False where the defences say no.

    An example with long inputs, or beyond the budget of its client, counts as noisier than it is said to be.
    """
    assert entry.example is not None
    residual, client, defences = read_residual(entry.example), str(entry.user), metadata.settings.defences
    assert residual.spread is not None
    event = _event(residual)
    if model.shared is None:  # the start learns labels, also those of events
        _, weight = metadata.guard.weigh(client, np.ones(1), defences)
        if weight > 0:
            model.learn_packed(event, NO_OWNS)
        return weight > 0
    variance, slopes = residual.spread
    part = Part(residual.local / model.span, variance / model.span / model.span, np.array(slopes) / model.span)
    left = residual_of(model, event, part)
    kept, weight = metadata.guard.weigh(client, np.array([left.length]), defences, lambda _: left.error)
    weight *= float(kept[0] / left.length) ** 2
    if weight > 0:
        learn_residual(model, event, part, left, weight)
    return weight > 0


def _event(residual: ResidualExample) -> Events:
    """Return it as an event of nobody."""
    features = residual.features
    hashes = np.frombuffer(bytearray(features.hashes), np.uint32)
    return Events(
        hashes,
        np.frombuffer(bytearray(features.values), np.float32),
        np.frombuffer(bytearray(4 * features.n_context) + features.fields, np.uint32),
        np.array([0, hashes.size], np.int64),
        np.array([features.n_context], np.int64),
        np.array([residual.label], np.float32),
        np.array([-1], np.int64),
    )


def _error(body: ResidualExample, example: Example, shared: SharedModel) -> float:
    """Return label − prediction as the step will have it: AdaGrad clamps predictions to the labels seen."""
    prediction = body.local + (shared.score(example) if body.global_ is None else body.global_)
    if isinstance(shared, FederatedModel):
        return body.label - prediction
    low, high = shared.reward_range
    return body.label - min(max(prediction, min(low, body.label)), max(high, body.label))


def _learn_update(entry: Entry, metadata: LoopMetadata, shared: SharedModel) -> bool:
    """Take in a gradient or a delta; return False where the defences say no."""
    assert isinstance(shared, FederatedModel)
    body, learned = decode_update(entry.body), False

    def clip(vector: Array) -> Array | None:
        nonlocal learned
        clipped = metadata.guard.clip(
            str(entry.user), vector, metadata.settings.defences, len(metadata.clients.numbers)
        )
        learned = clipped is not None
        return clipped

    shared.receive(body.number, body.t, body.version, body.kind, body.body, clip=clip, pool=_pool(metadata))
    return learned


def _pool(metadata: LoopMetadata) -> Pool | None:
    """Return how many clients' uploads are combined: half of those that joined, for the others may have gone."""
    how = metadata.settings.defences.combine
    if how == "mean":
        return None
    return Pool(min(MOST_POOLED, math.ceil(len(metadata.clients.numbers) / 2)), partial(combine, how=how))

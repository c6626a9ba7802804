"""What the learner does with the uploads of devices: pure steps of a loop's shared model."""

from __future__ import annotations

import math
from functools import partial

from fedres.checks import Array
from fedres.scoring.federated import FederatedModel, Pool
from fedres.scoring.model import Example, SharedModel
from service.learn.guard import combine
from service.learn.heads import LoopHead
from service.learn.shared_models import expanded_example
from service.log.records import Entry, ResidualExample, decode_update, read_residual

MOST_POOLED = 20  # uploads of as many clients are combined, if so many have joined


def learn_residual(entry: Entry, head: LoopHead, shared: SharedModel) -> bool:
    """Learn what the device's own part leaves over of the label; return False where the defences say no."""
    assert entry.example is not None
    residual, settings = read_residual(entry.example), head.settings
    keys, values = expanded_example(residual.features, settings.crosses)
    clipped, weight = head.guard.weigh(
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


def _error(body: ResidualExample, example: Example, shared: SharedModel) -> float:
    """Return label − prediction as the step will have it: AdaGrad clamps predictions to the labels seen."""
    prediction = body.local + (shared.score(example) if body.global_ is None else body.global_)
    if isinstance(shared, FederatedModel):
        return body.label - prediction
    low, high = shared.reward_range
    return body.label - min(max(prediction, min(low, body.label)), max(high, body.label))


def learn_update(entry: Entry, head: LoopHead, shared: SharedModel) -> bool:
    """Take in a gradient or a delta; return False where the defences say no."""
    assert isinstance(shared, FederatedModel)
    body, learned = decode_update(entry.body), False

    def clip(vector: Array) -> Array | None:
        nonlocal learned
        clipped = head.guard.clip(str(entry.user), vector, head.settings.defences, len(head.clients.numbers))
        learned = clipped is not None
        return clipped

    shared.receive(body.number, body.t, body.version, body.kind, body.body, clip=clip, pool=_pool(head))
    return learned


def _pool(head: LoopHead) -> Pool | None:
    """Return how many clients' uploads are combined: half of those that joined, for the others may have gone."""
    how = head.settings.defences.combine
    if how == "mean":
        return None
    return Pool(min(MOST_POOLED, math.ceil(len(head.clients.numbers) / 2)), partial(combine, how=how))

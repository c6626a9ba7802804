"""The shared model that a loop's settings ask for, and what devices may upload to it."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

import msgspec
import numpy as np

from fedres.scoring.features import Prepared
from fedres.scoring.federated import FederatedModel, Hyperparameter, Wire
from fedres.scoring.model import Example, SharedModel, expand
from service.log import records
from service.models.kalman_shared import KalmanShared
from service.settings import Settings

AnyShared = SharedModel | KalmanShared  # a ``FederatedModel`` is a ``SharedModel``


def new_model(settings: Settings) -> AnyShared:
    """Return a model that has learned nothing."""
    if settings.model == "residual-kalman":
        return KalmanShared(settings.reward_range)
    if settings.is_dense:
        return FederatedModel(settings.global_learner, settings.bits, settings.hyperparameters)
    return SharedModel(settings.bits)


def read_model(settings: Settings, state: bytes) -> AnyShared:
    """Return the model that ``to_bytes`` wrote."""
    if settings.model == "residual-kalman":
        return KalmanShared.from_bytes(state)
    return FederatedModel.from_bytes(state) if settings.is_dense else SharedModel.from_bytes(state)


def bytes_of_model(shared: AnyShared, *, start: bool = False) -> bytes:
    """Return a model's bytes without what it keeps of single devices and events: that is for nobody else to see.

    With ``start``, a start that is not over keeps its events, which are all that there is of such a model.
    """
    if isinstance(shared, KalmanShared):
        return shared.to_bytes(events=start and shared.model.shared is None)
    if not isinstance(shared, FederatedModel):
        return shared.to_bytes()
    learned = FederatedModel.from_bytes(shared.to_bytes())
    learned.forget_all()
    return learned.to_bytes()


def check_model(settings: Settings, state: bytes, ranges: Collection[tuple[float, float]]) -> None:
    """Refuse a model that is not of the kind and size that the settings have, or of none of the loop's ranges."""
    try:
        model = read_model(settings, state)
    except msgspec.MsgspecError as error:
        raise ValueError(f"state must be readable: {error}") from None
    if isinstance(model, KalmanShared):
        if model.reward_range not in (settings.reward_range, *ranges):
            low, high = settings.reward_range
            raise ValueError(f"state must hold a model of rewards in [{low}, {high}], got {list(model.reward_range)}")
        return
    if model.bits != settings.bits:
        raise ValueError(f"state must hold a model of {settings.bits} bits, got {model.bits}")
    if isinstance(model, FederatedModel):
        asked = (settings.global_learner, settings.hyperparameters)
        if (model.wire.name, model.wire.hyperparameters) != asked:
            raise ValueError(f"state must be of {asked[0]} {asked[1]}, got {model.wire.name}")


def wire_of(settings: Settings) -> Wire:
    """Return what devices may upload in a loop with a dense learner."""
    return _wire(settings.global_learner, settings.bits, tuple(settings.hyperparameters.items()))


@lru_cache(maxsize=100)
def _wire(name: str, bits: int, hyperparameters: tuple[tuple[str, Hyperparameter], ...]) -> Wire:
    return Wire(name, bits, dict(hyperparameters))


def expanded_example(features: records.Example, crosses: bool) -> Example:
    """Return the keys and values of all features of an example: of the context, the action's own, and their crosses."""
    hashes, values = np.frombuffer(features.hashes, np.uint32), np.frombuffer(features.values, np.float32)
    return expand(Prepared(hashes, values, np.array([features.n_context, hashes.size], np.int64), crosses), 0)

"""residual-kalman without one of its parts, to see what each is worth."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.decisions.constants import FIRST_LOG_TAU, LEAST_LOG_TAU
from fedres.decisions.kalman_inputs_reference import KalmanEvent
from fedres.decisions.kalman_state import BLOCKS, LEARNED, OWN_BIAS, Events, KalmanRequest
from fedres.decisions.residual_kalman import Prediction, ResidualKalman
from fedres.decisions.residual_kalman_reference import ResidualKalman as Readable


class FixedPrior(ResidualKalman):
    """The variance of personal and of tail weights stays as it is at first, whatever users have in common."""

    def learn(self, events: Events, owns: Any = ()) -> list[Array]:
        models = super().learn(events, owns)
        if self.shared is not None:
            self.shared.log_tau[:] = FIRST_LOG_TAU
        return models


class NoBiases(ResidualKalman):
    """Users have weights of directions only, for the 15 features that 4 KB have room for."""

    def learn(self, events: Events, owns: Any = ()) -> list[Array]:
        models = super().learn(events, owns)
        if self.shared is not None:
            self.shared.log_tau[:, OWN_BIAS] = LEAST_LOG_TAU
        return models


class NoPairs(ResidualKalman):
    """Pairs of an action's features have no weights."""

    def learn(self, events: Events, owns: Any = ()) -> list[Array]:
        models = super().learn(events, owns)
        if self.shared is not None:
            self.shared.pair_log_tau[:] = LEAST_LOG_TAU
        return models


class Diagonal(ResidualKalman):
    """Shared weights are taken as independent; nothing is learned again."""

    def __init__(self) -> None:
        super().__init__(choice_events=0)

    def learn(self, events: Events, owns: Any = ()) -> list[Array]:
        models = super().learn(events, owns)
        if self.shared is not None:
            n = self.shared.counts[BLOCKS]
            for place in np.flatnonzero(self.shared.block_used[:n] == self.shared.counts[LEARNED] - 1):
                covariance = self.shared.covariances[place]
                covariance[:] = np.diag(np.diag(covariance))
        return models


class _Unscaled(Readable):
    def _scaled(self, kind: str, key: int, value: float, *, new: bool) -> float:
        return value


class NoScaling:
    """Numbers count as they come. The readable twin plays: the compiled model knows no other numbers."""

    def __init__(self) -> None:
        self.twin = _Unscaled()

    @property
    def learned(self) -> int:
        return self.twin.learned or len(self.twin.first or ())

    def predict(self, request: KalmanRequest, user: Any) -> Prediction:
        context, *actions = _rows(request)
        means, widths = self.twin.predict(user, context[:2], actions)
        return Prediction(means, widths, means, 0 * means)

    def learn_one(self, request: KalmanRequest, action: int, reward: float, user: Any) -> None:
        rows = _rows(request)
        self.twin.learn(KalmanEvent(user, rows[0][:2], rows[1 + action], reward))


def _rows(request: KalmanRequest) -> list[Any]:
    parts = [np.split(array, request.starts[:-1]) for array in request[:3]]
    return [*zip(*parts, strict=True)]

"""Fictitious play: the paper's negative baseline. Each side best-responds to the other's past, and both get stuck.

[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020.

The clients' half of the rule, eq. (5), is ``fedres.LocalLeastSquares``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedres import checks
from fedres.checks import Array
from fedres.global_learners.base import Server, Setting
from fedres.global_learners.fedres_sgd import TripletClient
from fedres.least_squares import fit, needs_squared_loss
from fedres.messages import Triplet, Up
from fedres.mirror_maps import Ball


@dataclass(frozen=True, kw_only=True, eq=False)
class FictitiousPlay(Setting):
    """w^g ← argmin Σ_i Σ_s ℓ(y, w·x^g + local prediction as it was made) [FedRes, eq. 6], by running sums."""

    ridge: float = 0.1  # pulls towards the start: without it a wild first fit persists forever
    radius: float = math.inf  # D

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("ridge", self.ridge)
        Ball(self.radius)
        needs_squared_loss("fictitious-play", self.model, self.loss)

    def client(self, who: npt.ArrayLike | None = None) -> TripletClient:
        return TripletClient(self, who)

    def server(self) -> FictitiousPlayServer:
        return FictitiousPlayServer(self)


class FictitiousPlayServer(Server[FictitiousPlay]):
    kinds = ("triplet",)

    def __init__(self, learner: FictitiousPlay) -> None:
        super().__init__(learner)
        self.first = self.weights
        self.gram = np.zeros((self.weights.size, self.weights.size))  # Σ x^g x^gᵀ
        self.target = np.zeros_like(self.weights)  # Σ x^g (y − local prediction)

    def add(self, up: Up) -> None:
        body = up.body
        assert isinstance(body, Triplet)
        weighted = body.features * self.learner.importance(up.who)[:, None]
        self.gram += weighted.T @ body.features
        self.target += weighted.T @ (body.label - body.local_prediction)

    def next_weights(self, t: int) -> Array:
        return fit(self.gram, self.target, self.first, self.learner.ridge, self.learner.radius)

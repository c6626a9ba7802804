"""FedOGD: every client sends its gradient every round.

[OFedIQ] D. Kwon, J. Park, S. Hong. Tighter Regret Analysis and Optimization of Online Federated Learning. 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedres.checks import Array
from fedres.global_learners.base import Client, ObservedRound, Server, Setting
from fedres.messages import BITS_PER_REAL, Up
from fedres.mirror_maps import Ball, project_to_ball
from fedres.step_sizes import StepSize, as_schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class FedOGD(Setting):
    """w ← Π(w − (η_t/K) Σ_k g_k) [OFedIQ, Alg. 1]; the projection is ours and off by default."""

    step_size: StepSize = 0.1  # η, or η_t as a function of t
    radius: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        as_schedule(self.step_size)
        Ball(self.radius)

    def client(self, who: npt.ArrayLike | None = None) -> FedOGDClient:
        return FedOGDClient(self, who)

    def server(self) -> MeanGradientServer:
        return MeanGradientServer(self, self.step_size, self.radius)


class FedOGDClient(Client[FedOGD]):
    def update(self, t: int, seen: ObservedRound) -> Up | None:
        rows = np.flatnonzero(seen.present)
        if not rows.size:
            return None
        gradient = self.learner.factors(self.shared, self.who[rows], seen.take(rows))
        return Up(t, self.who[rows], "gradient", self.version, gradient, BITS_PER_REAL * self.shared.size)


class MeanGradientServer(Server[Setting]):
    """w ← Π(w − (η_t/K) Σ m_k): divides by all K clients, never by the number that was heard."""

    def __init__(self, learner: Setting, step_size: StepSize, radius: float = math.inf) -> None:
        super().__init__(learner)
        self.n_clients, self.radius = learner.n_clients, radius
        self.step_size = as_schedule(step_size)
        self.total = np.zeros_like(self.weights)

    def add(self, up: Up) -> None:
        self.total += up.row_sum()

    def next_weights(self, t: int) -> Array:
        weights = self.weights - self.step_size(t) / self.n_clients * self.total  # [OFedIQ, eq. 5]
        self.total[:] = 0
        return project_to_ball(weights, self.radius)

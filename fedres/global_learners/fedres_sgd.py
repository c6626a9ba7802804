"""FedRes.SGD: the host algorithm. Global and local model each step on the loss of their joint prediction.

[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedres import checks
from fedres.checks import Array
from fedres.global_learners.base import Client, ObservedRound, Server, Setting
from fedres.messages import BITS_PER_REAL, Down, Triplet, Up
from fedres.mirror_maps import Ball, project_to_ball
from fedres.models import Linear
from fedres.step_sizes import StepSize, as_schedule

TIMINGS = ("aligned", "on-arrival")


@dataclass(frozen=True, kw_only=True, eq=False)
class FedResSGD(Setting):
    """w^g ← Π_D(w^g − η Σ_i ∇^g): a SUM over clients [FedRes, Alg. 4].

    ``timing`` says at which models a late gradient is taken: ``aligned``, at the pair that made the prediction (the
    paper's rule: the client sends the slope, so the server keeps no history), or ``on-arrival``, at the server's newest
    model and the local prediction that was sent. With ``batch`` b, gradients are averaged over b rounds and the
    shared model is fetched once per batch [FedRes, section 4].
    """

    sums_clients = True

    step_size: StepSize = 0.1  # η
    timing: str = "aligned"
    batch: int = 1  # b
    radius: float = math.inf  # D

    def __post_init__(self) -> None:
        super().__post_init__()
        as_schedule(self.step_size)
        checks.one_of("timing", self.timing, TIMINGS)
        checks.whole("batch", self.batch)
        Ball(self.radius)

    @property
    def minibatch(self) -> int:
        return self.batch

    def takes_part(self, t: int, who: Array) -> Array:
        return np.full(len(who), t % self.batch == 0)

    def client(self, who: npt.ArrayLike | None = None) -> AlignedClient | TripletClient:
        if self.timing == "aligned":
            return AlignedClient(self, who)
        return TripletClient(self, who)

    def server(self) -> FedResSGDServer:
        return FedResSGDServer(self)


class BatchClient(Client[Setting]):
    """Fetches the shared model at the first round of a batch and uploads at the last."""

    def __init__(self, learner: Setting, who: npt.ArrayLike | None) -> None:
        super().__init__(learner, who)
        self.batch = learner.minibatch
        self.newest: Down | None = None

    def receive(self, down: Down) -> None:
        if self.newest is None or down.version > self.newest.version:
            self.newest = down

    def weights(self, t: int) -> Array:
        self._fetch(t)
        return super().weights(t)

    def _fetch(self, t: int) -> None:
        if self.newest is not None and (t - 1) % self.batch == 0:
            super().receive(self.newest)


class AlignedClient(BatchClient):
    """Sends the gradient at the models that made the prediction; of a linear model its factors, x^g and ∂ℓ/∂ŷ."""

    def __init__(self, learner: FedResSGD, who: npt.ArrayLike | None) -> None:
        super().__init__(learner, who)
        self.factored = learner.batch == 1 and isinstance(learner.model, Linear)
        self.total = np.zeros((len(self.who), 0 if self.factored else learner.model.dim))
        self.active = np.zeros(len(self.who), dtype=bool)

    def update(self, t: int, seen: ObservedRound) -> Up | None:
        self._fetch(t)
        if self.factored:
            return self._residual(t, seen)
        self.total += self.learner.gradient(self.shared, self.who, seen) / self.batch
        self.active |= seen.present
        return self._batch_gradient(t) if t % self.batch == 0 and self.active.any() else None

    def _residual(self, t: int, seen: ObservedRound) -> Up | None:
        rows = np.flatnonzero(seen.present)
        if not rows.size:
            return None
        body = self.learner.factors(self.shared, self.who[rows], seen.take(rows))
        bits = BITS_PER_REAL * (self.learner.model.features + max(self.learner.model.outputs, 1))
        return Up(t, self.who[rows], "gradient", self.version, body, bits)

    def _batch_gradient(self, t: int) -> Up:
        body = self.total[self.active]
        up = Up(t, self.who[self.active], "gradient", self.version, body, BITS_PER_REAL * body.shape[1])
        self.total[:], self.active[:] = 0, False
        return up


class TripletClient(BatchClient):
    """Sends Z = (x^g, local prediction, y) of every round, a batch at a time."""

    def __init__(self, learner: Setting, who: npt.ArrayLike | None) -> None:
        super().__init__(learner, who)
        self.rounds: list[ObservedRound] = []

    def update(self, t: int, seen: ObservedRound) -> Up | None:
        self._fetch(t)
        self.rounds.append(seen)
        if t % self.batch:
            return None
        who = np.concatenate([self.who[seen.present] for seen in self.rounds])
        parts = [seen.take(np.flatnonzero(seen.present))[:3] for seen in self.rounds]
        self.rounds = []
        if not who.size:
            return None
        body = Triplet(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        bits = BITS_PER_REAL * (self.learner.model.features + max(self.learner.model.outputs, 1) + 1)
        return Up(t, who, "triplet", self.version, body, bits)


class FedResSGDServer(Server[FedResSGD]):
    def __init__(self, learner: FedResSGD) -> None:
        super().__init__(learner)
        self.kinds = ("triplet",) if learner.timing == "on-arrival" else ("gradient",)
        self.step_size = as_schedule(learner.step_size)
        self.arrived: list[Up] = []

    def add(self, up: Up) -> None:
        self.arrived.append(up)

    def step(self, t: int) -> Down | None:
        """Step at the end of a batch only, even if uploads arrive in between."""
        return None if t % self.learner.batch else super().step(t)

    def next_weights(self, t: int) -> Array:
        total = np.sum([self._gradient(up) for up in self.arrived], axis=0)
        self.arrived = []
        weights = self.weights - self.step_size(t) * total  # [FedRes, eq. 8]
        return project_to_ball(weights, self.learner.radius)

    def _gradient(self, up: Up) -> Array:
        """Return Σ ∇^g over the rows of an upload."""
        body = up.body
        if not isinstance(body, Triplet):
            return up.row_sum()
        seen = ObservedRound(body.features, body.local_prediction, body.label, np.ones(len(up.who), dtype=bool))
        return self.learner.factors(self.weights, up.who, seen).sum() / self.learner.batch

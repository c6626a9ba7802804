"""FedRes.ERM: client and server refit all their data to the other's newest model.

[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020.

The paper uploads every raw sample (x^g, x^l, y) and the local weights w_i. For squared loss the server needs less to
make the same models: x^g, y, and the d numbers Σ_s x^g_s (x^l_s·w_i). That is what we send; a client without data in
a round has refitted w_i to a new w^g all the same (algorithm 1), and sends those d numbers alone. Unlike FedRes.SGD it
still shows the server each label and global feature, and sums that follow the local model closely. Every upload must
arrive: a lost one leaves the sums of the two sides apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedres import checks
from fedres.checks import Array
from fedres.global_learners.base import Client, ObservedRound, Server, Setting
from fedres.least_squares import fit, needs_squared_loss
from fedres.local_learners.protocol import Correction
from fedres.messages import BITS_PER_REAL, Down, Statistics, Up
from fedres.mirror_maps import Ball


@dataclass(frozen=True, kw_only=True, eq=False)
class FedResERM(Setting):
    """Alternating least squares on running Gram sums [FedRes, Alg. 1 and 2]: a round costs the same at any t.

    The client half is the local learner too: the host calls its ``score`` and ``learn``.
    """

    keeps_state = True
    brings_local_model = True

    local_dim: int = 1  # d_i, local features per client
    local_start: npt.ArrayLike | None = None  # w_{i,1}, 0 by default
    ridge: float = 1e-6  # pulls towards the start where the data leave a direction open
    radius: float = math.inf  # D

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("local_dim", self.local_dim)
        checks.positive("ridge", self.ridge)
        Ball(self.radius)
        needs_squared_loss("fedres-erm", self.model, self.loss)
        if self.local_start is not None:
            self.keep("local_start", checks.array("local_start", self.local_start, (self.local_dim,)))

    def first_local_weights(self) -> Array:
        return np.zeros(self.local_dim) if self.local_start is None else np.array(self.local_start)

    def client(self, who: npt.ArrayLike | None = None) -> FedResERMClient:
        return FedResERMClient(self, who)

    def server(self) -> FedResERMServer:
        return FedResERMServer(self)


class FedResERMClient(Client[FedResERM]):
    """Both models of n clients. ``learn`` a round's local features first, then ``observe`` the round."""

    def __init__(self, learner: FedResERM, who: npt.ArrayLike | None) -> None:
        super().__init__(learner, who)
        n, d, local = len(self.who), learner.model.dim, learner.local_dim
        self.first = np.broadcast_to(learner.first_local_weights(), (n, local))
        self.local_weights = self.first  # w_{i,t}
        self.gram = np.zeros((n, local, local))  # LL: Σ x^l x^lᵀ
        self.cross = np.zeros((n, local, d))  # LG: Σ x^l x^gᵀ
        self.target = np.zeros((n, local))  # Σ x^l y
        self.local_features: Array | None = None
        self.active = np.zeros(n, dtype=bool)  # clients that have had data: only they have a w_i
        self.stale = False

    def receive(self, down: Down) -> None:
        super().receive(down)
        self.stale = True

    def score(self, features: Array) -> Array:
        self._refit()
        result: Array = np.einsum("nd,nd->n", self.local_weights, features)
        return result

    def predict(self, features: Array, offset: Array) -> Array:
        return self.score(features) + offset

    def learn(self, features: Array, label: Array, offset: Array, present: Array) -> None:
        shape = (len(self.who), self.learner.local_dim)
        self.local_features = checks.array("local_features", features, shape)

    def correct(self, batch: Sequence[Correction]) -> None:
        raise ValueError("local_timing must be 'immediate' for fedres-erm, which refits samples: got 'aligned'")

    def see(self, label: Array, present: Array) -> None:
        """Do nothing: these predictions have no range."""

    def weigh(self, importance: Array) -> None:
        """Do nothing: the minimiser of λ_i times a loss is that of the loss."""

    def update(self, t: int, seen: ObservedRound) -> Up | None:
        if self.local_features is None:
            raise ValueError(f"local_features must be given to learn before observe, got none in round {t}")
        local, self.local_features = self.local_features * seen.present[:, None], None
        self._refit()
        self.gram += local[:, :, None] * local[:, None, :]
        self.cross += local[:, :, None] * seen.features[:, None, :]
        self.target += local * seen.label[:, None]
        self.stale = True
        self.active |= seen.present
        rows = self.active
        if not rows.any():
            return None
        coupling = np.einsum("nl,nld->nd", self.local_weights[rows], self.cross[rows])
        body = Statistics(seen.features[rows], seen.label[rows], coupling)
        reals = self.learner.model.dim * (1 + seen.present[rows]) + seen.present[rows]  # coupling; x^g and y if any
        return Up(t, self.who[rows], "statistics", self.version, body, BITS_PER_REAL * reals)

    def _refit(self) -> None:
        """Solve [FedRes, eq. 2] for every client, once per new sample or shared model."""
        if self.stale:
            residual = self.target - self.cross @ self.shared
            self.local_weights = fit(self.gram, residual, self.first, self.learner.ridge, self.learner.radius)
            self.stale = False


class FedResERMServer(Server[FedResERM]):
    kinds = ("statistics",)

    def __init__(self, learner: FedResERM) -> None:
        super().__init__(learner)
        dim = self.weights.size
        self.first = self.weights
        self.gram = np.zeros((dim, dim))  # GG: Σ x^g x^gᵀ
        self.target = np.zeros(dim)  # Σ x^g y
        self.coupling = np.zeros((learner.n_clients, dim))  # Σ_s x^g_s (x^l_s·w_i), newest of each client
        self.coupled = np.zeros(learner.n_clients, dtype=np.int64)  # the rounds they are from

    def add(self, up: Up) -> None:
        body = up.body
        assert isinstance(body, Statistics)
        weighted = body.features * self.learner.importance(up.who)[:, None]
        self.gram += weighted.T @ body.features
        self.target += weighted.T @ body.label
        newest = up.t >= self.coupled[up.who]
        self.coupling[up.who[newest]] = body.coupling[newest]
        self.coupled[up.who[newest]] = up.t

    def next_weights(self, t: int) -> Array:
        """Solve [FedRes, eq. 3]: the newest local models on all past samples (Algorithm 6 misprints them as w_s^l)."""
        weights = self.learner.importance(np.arange(self.learner.n_clients))
        residual = self.target - weights @ self.coupling
        return fit(self.gram, residual, self.first, self.learner.ridge, self.learner.radius)

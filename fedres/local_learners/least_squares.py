"""The local half of fictitious play: least squares on residuals frozen at the time of their prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedres import checks
from fedres.checks import Array
from fedres.least_squares import fit
from fedres.local_learners.protocol import Correction
from fedres.losses import Squared
from fedres.mirror_maps import Ball


class LocalLeastSquares:
    """w_i ← argmin Σ_s (y_s − offset_s − w·x^l_s)² [FedRes, eq. 5] for n clients, by running sums."""

    loss = Squared()

    def __init__(
        self,
        dim: int,
        n_clients: int = 1,
        *,
        ridge: float = 0.1,
        radius: float = math.inf,
        start: npt.ArrayLike | None = None,
    ) -> None:
        checks.whole("dim", dim)
        checks.whole("n_clients", n_clients)
        checks.positive("ridge", ridge)
        self.ridge, self.radius = ridge, Ball(radius).radius
        first = np.zeros(dim) if start is None else checks.array("start", start, (dim,))
        self.first = self.weights = np.tile(first, (n_clients, 1))
        self.gram = np.zeros((n_clients, dim, dim))
        self.target = np.zeros((n_clients, dim))

    def score(self, features: Array) -> Array:
        result: Array = np.einsum("nd,nd->n", self.weights, features)
        return result

    def predict(self, features: Array, offset: Array) -> Array:
        return self.score(features) + offset

    def learn(self, features: Array, label: Array, offset: Array, present: Array) -> None:
        used = features * present[:, None]
        self.gram += used[:, :, None] * used[:, None, :]
        self.target += used * (label - offset)[:, None]
        self.weights = fit(self.gram, self.target, self.first, self.ridge, self.radius)

    def correct(self, batch: Sequence[Correction]) -> None:
        raise ValueError("local_timing must be 'immediate' for least squares, which fits labels: got 'aligned'")

    def see(self, label: Array, present: Array) -> None:
        """Do nothing: these predictions have no range."""

    def weigh(self, importance: Array) -> None:
        """Do nothing: the minimiser of λ_i times a loss is that of the loss."""

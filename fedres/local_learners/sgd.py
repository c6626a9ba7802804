"""The local half of FedRes.SGD: projected gradient descent for n clients at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedres import checks
from fedres.checks import Array
from fedres.local_learners.protocol import Correction
from fedres.losses import Loss, Squared
from fedres.mirror_maps import Ball, project_to_ball
from fedres.models import Linear, Model


class LocalSGD:
    """w_i ← Π_D(w_i − η_i ∇^l) [FedRes, eq. 7] for n clients; an integer ``model`` is that many linear features."""

    def __init__(
        self,
        model: Model | int,
        n_clients: int = 1,
        *,
        step_size: npt.ArrayLike = 0.1,
        radius: float = math.inf,
        loss: Loss | None = None,
        start: npt.ArrayLike | None = None,
    ) -> None:
        self.model: Model = Linear(int(model)) if isinstance(model, int | np.integer) else model
        checks.has("model", self.model, "predict", "gradient")
        checks.whole("n_clients", n_clients)
        shape = () if np.ndim(step_size) == 0 else (n_clients,)
        each = checks.array("step_size", step_size, shape)
        for value in each.ravel():
            checks.positive("step_size", float(value))
        self.step_size = np.broadcast_to(each, (n_clients,)).copy()  # η_i
        self.radius = Ball(radius).radius  # D
        self.loss: Loss = Squared() if loss is None else loss
        checks.has("loss", self.loss, "value", "slope")
        first = np.zeros(self.model.dim) if start is None else checks.array("start", start, (self.model.dim,))
        self.weights = np.tile(first, (n_clients, 1))  # w_i
        self.importance = np.ones(n_clients)  # λ_i

    def score(self, features: Array) -> Array:
        return self.model.predict(self.weights, features)

    def predict(self, features: Array, offset: Array) -> Array:
        return self.score(features) + offset

    def learn(self, features: Array, label: Array, offset: Array, present: Array) -> None:
        slope = self.loss.slope(self.predict(features, offset), label)
        self.correct([Correction(features, slope, present)])

    def correct(self, batch: Sequence[Correction]) -> None:
        """Take one step along λ_i Σ slope · ∂f/∂w, then project; ∂f/∂w is that of the weights as they are now."""
        gradient = np.zeros_like(self.weights)
        for features, slope, present in batch:
            scale = (self.importance * present).reshape(-1, *[1] * (slope.ndim - 1))
            gradient += self.model.gradient(self.weights, features, slope * scale)
        moved = project_to_ball(self.weights - self.step_size[:, None] * gradient, self.radius)
        present = np.any([part.present for part in batch], axis=0)
        self.weights = np.where(present[:, None], moved, self.weights)

    def see(self, label: Array, present: Array) -> None:
        """Do nothing: these predictions have no range."""

    def weigh(self, importance: Array) -> None:
        self.importance = checks.array("importance", importance, self.importance.shape).copy()

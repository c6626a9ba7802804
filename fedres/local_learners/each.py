"""Clients with a learner object each, behind the interface for many clients at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.local_learners.protocol import Correction, LocalLearner
from fedres.losses import Loss, Squared


class Each:
    """A ``LocalGroup`` of single learners: row i of every array belongs to ``learners[i]``."""

    def __init__(self, learners: Sequence[LocalLearner]) -> None:
        if not learners:
            raise ValueError("learners must hold at least one learner, got none")
        self.learners = tuple(learners)

    @property
    def loss(self) -> Loss:
        """The loss that the learners minimize; squared, as in VW, for one without a ``loss``."""
        losses = {getattr(learner, "loss", Squared()) for learner in self.learners}
        if len(losses) > 1:
            raise ValueError(f"learners must descend one loss, got {losses}")
        return losses.pop()

    def score(self, features: Array) -> Array:
        """Return the local parts, (n,)."""
        features = checks.array("features", features, (len(self.learners), None))
        return np.array([learner.score(x) for learner, x in zip(self.learners, features, strict=True)])

    def predict(self, features: Array, offset: Array) -> Array:
        """Return the joint predictions, (n,)."""
        features = checks.array("features", features, (len(self.learners), None))
        offset = checks.array("offset", offset, (len(self.learners),))
        rows = zip(self.learners, features, offset, strict=True)
        return np.array([learner.predict(x, part) for learner, x, part in rows])

    def learn(self, features: Array, label: Array, offset: Array, present: Array) -> None:
        """Take one step for each client that is present; rows of the others may hold anything."""
        clients = self._clients(present)
        rows = self._present("features", features, clients, 2)
        labels = self._present("label", label, clients, 1)
        offsets = self._present("offset", offset, clients, 1)
        for client, x, y, part in zip(clients, rows, labels, offsets, strict=True):
            self.learners[client].learn(x, y, part)

    def correct(self, batch: Sequence[Correction]) -> None:
        """Take the steps of earlier predictions, round by round, for each client that is present."""
        for features, slope, present in batch:
            clients = self._clients(present)
            rows = self._present("features", features, clients, 2)
            slopes = self._present("slope", slope, clients, 1)
            for client, x, its_slope in zip(clients, rows, slopes, strict=True):
                self.learners[client].correct(x, its_slope)

    def weigh(self, importance: Array) -> None:
        """Set each client's weight in the loss."""
        weights = checks.array("importance", importance, (len(self.learners),))
        for learner, weight in zip(self.learners, weights.tolist(), strict=True):
            learner.weigh(weight)

    def see(self, label: Array, present: Array) -> None:
        """Widen the ranges of predictions by the labels of the clients that are present."""
        clients = self._clients(present)
        for client, y in zip(clients, self._present("label", label, clients, 1), strict=True):
            self.learners[client].see(y)

    def _clients(self, present: Array) -> Array:
        mask = np.asarray(present)
        if mask.dtype != np.bool_ or mask.shape != (len(self.learners),):
            raise ValueError(f"present must be {len(self.learners)} booleans, got {mask.dtype} of shape {mask.shape}")
        return np.flatnonzero(mask)

    def _present(self, name: str, values: Array, clients: Array, axes: int) -> Array:
        """Return the rows of ``clients``, all finite."""
        rows = np.asarray(values)
        if rows.ndim != axes or len(rows) != len(self.learners):
            raise ValueError(f"{name} must have {axes} axes and {len(self.learners)} rows, got shape {rows.shape}")
        return checks.array(name, rows[clients], (None,) * axes)

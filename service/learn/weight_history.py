"""Which weights of a shared model changed since a version: devices fetch only these."""

from __future__ import annotations

import numpy as np

from fedres.checks import Array


class WeightHistory:
    """The weights of a version, and when each of them changed, for versions from ``start`` on."""

    def __init__(self, version: int, weights: Array) -> None:
        self.start = self.version = version
        self.weights: Array = weights.copy()
        self._changed_at: Array = np.zeros(weights.size, dtype=np.int64)

    def add(self, version: int, weights: Array) -> None:
        """Note in which weights a version differs, in whatever bit, from the one before."""
        self._changed_at[self.weights.view(np.uint32) != weights.view(np.uint32)] = version
        self.version, self.weights = version, weights.copy()

    def since(self, version: int) -> Array:
        """Return the indices of the weights that changed after a version."""
        return np.flatnonzero(self._changed_at > version)

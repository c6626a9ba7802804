"""When each shared weight changed last, so that devices need not fetch those that did not."""

from __future__ import annotations

import numpy as np

from fedres.checks import Array


class History:
    """What changed since a version, for versions from ``start`` on."""

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self._changed_at: Array = np.zeros(size, dtype=np.int64)

    def add(self, old: Array, version: int, new: Array) -> None:
        """Note in which weights a version differs, in whatever bit, from the one before."""
        self._changed_at[old.view(np.uint32) != new.view(np.uint32)] = version

    def since(self, version: int) -> Array:
        """Return the indices of the weights that changed after a version."""
        return np.flatnonzero(self._changed_at > version)

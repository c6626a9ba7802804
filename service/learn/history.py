"""When each shared weight changed last, so that devices need not fetch those that did not."""

from __future__ import annotations

import numpy as np

from fedres.checks import Array

Published = tuple[int, Array]  # a version and its weights


class History:
    """What changed since a version, for versions from ``start`` on.

    The learner's thread adds while others read, without a lock: a reader may be told of weights that changed after the
    version it holds too, which is more than it needs and nothing wrong.
    """

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self._changed_at: Array = np.zeros(size, dtype=np.int64)

    def add(self, old: Array, version: int, new: Array) -> None:
        """Note in which weights a version differs, in whatever bit, from the one before."""
        self._changed_at[old.view(np.uint32) != new.view(np.uint32)] = version

    def since(self, version: int) -> Array:
        """Return the indices of the weights that changed after a version."""
        return np.flatnonzero(self._changed_at > version)


def followed(history: History | None, old: Published, new: Published) -> History | None:
    """Return the history with one more version in it; None where that is not like the one before."""
    (before, weights), (version, changed) = old, new
    if weights.size != changed.size:
        return None
    history = history or History(before, weights.size)
    if changed is not weights:
        history.add(weights, version, changed)
    return history

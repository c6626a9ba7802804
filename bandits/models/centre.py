"""What a client's contexts have in common, taken away before a personal model sees them."""

from __future__ import annotations

import numpy as np

from bandits.actions import Actions
from fedres.checks import Array


class Centre:
    """The mean of the contexts a client has learned from; rows of features for each action are left as they are.

    Contexts that all point the same way make gradients of all arms point that way too, and steps go there first.
    """

    def __init__(self) -> None:
        self.mean: Array | None = None
        self.n = 0

    def of(self, actions: Actions) -> Actions:
        """Return arms that look at the context less the mean."""
        if not actions.stride or self.mean is None:
            return actions
        return actions._replace(values=actions.values - self.mean)

    def add(self, actions: Actions) -> None:
        """Take in a context, all but the constant, which comes last."""
        if not actions.stride:
            return
        if self.mean is None:
            self.mean = np.zeros(actions.values.shape[1])
        self.n += 1
        self.mean[:-1] += (actions.values[0, :-1] - self.mean[:-1]) * (1 / self.n)

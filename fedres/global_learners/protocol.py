"""The one client/server protocol behind every rule for the shared weights w^g. Implementations need not import this.

Both halves are array-first: a client half stands for n >= 1 clients that share a link, so that one client behind HTTP
and K clients in a simulation run the same code. Delay and loss of messages belong to the host, not to a learner.
Inside round t the order is: deliver Downs, predict, see the labels, make the Up, the server receives, the server steps.
"""

from __future__ import annotations

from typing import Protocol

from fedres.checks import Array
from fedres.global_learners.base import ObservedRound
from fedres.messages import Down, Up


class GlobalClient(Protocol):
    def weights(self, t: int) -> Array:
        """Return what to predict with in round t, shape (n, D); not to be written to."""

    def observe(
        self, t: int, features: Array, local_prediction: Array, label: Array, present: Array | None = None
    ) -> Up | None:
        """Check and learn round t's examples (rows without data: ``present`` is False); return the upload."""

    def update(self, t: int, seen: ObservedRound) -> Up | None:
        """Do the same with examples that the host has checked; it may have computed the ``offset`` too."""

    def receive(self, down: Down) -> None:
        """Receive a shared model; ignore it if it is older than the newest one received."""


class GlobalServer(Protocol):
    @property
    def weights(self) -> Array:
        """The newest shared weights w^g, (D,); not to be written to."""

    def receive(self, up: Up) -> None:
        """Receive an upload, however late."""

    def step(self, t: int) -> Down | None:
        """Close round t: return the new shared model, or None if there is none."""

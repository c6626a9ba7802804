"""What is decided, and what waits for its reward."""

from __future__ import annotations

from typing import NamedTuple

from bandits.actions import Features
from fedres.checks import Array


class Decision(NamedTuple):
    """One choice: ``probability`` is what the action was really drawn with."""

    id: int
    action: int
    probability: float
    scores: Array  # of all actions, what they were ranked by
    model_version: int


class Waiting(NamedTuple):
    """A decision whose reward has not come yet."""

    slot: int
    member: int  # which of the clients that ever joined: a slot is used again
    shared: Features
    private: Features
    learns: bool


class UnknownDecisionError(ValueError):
    """A reward for a decision that does not wait for one."""

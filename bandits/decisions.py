"""What is decided, and what waits for its reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from bandits.actions import Actions, NamedActions
from fedres.checks import Array


class Decision(NamedTuple):
    """One choice: ``probability`` is what the action was really drawn with."""

    id: int
    action: Any  # the id of the action, or its number where actions have no ids
    probability: float
    scores: Array  # of all actions, the rewards expected of them
    model_version: int
    widths: Array | None = None  # the standard deviations of these, where the model knows any
    place: int = 0  # the place of the action among those offered


@dataclass(slots=True, eq=False)
class BanditClient:
    """Somebody who decides."""

    slot: int  # of the model; used again by somebody else after the client left
    # The number of the user among all that ever joined.
    member: int
    decisions: int = 0
    round: int = -1  # of the last decision
    left: bool = False


# A decision whose reward has not come yet: the client, the action, the shared and the private features, and True if the
# reward is learned.
Waiting = tuple[BanditClient, int, Actions | NamedActions, Actions | NamedActions, bool]


class UnknownDecisionError(ValueError):
    """A reward for a decision that does not wait for one."""

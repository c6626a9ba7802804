"""From scores to an action, by the loop's settings from the service."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.draws import event_draw
from fedres.policies import HOSTED, loop_rule
from fedres.policies.kernels import explore, pick
from fedres.scoring.flattening import LARGEST
from fedres.scoring.model import LEARNING_RATE


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """A loop's settings in the reply of GET round, with defaults until the first reply."""

    model: str = "adagrad"
    global_learner: str = "fedres-adagrad"
    hyperparameters: dict[str, Any] = {}
    bits: int = 18
    timing: str = "on-arrival"
    crosses: bool = True
    personal: bool = True  # True: devices have personal models
    policy: str = "epsilon-greedy"
    epsilon: float = HOSTED["epsilon-greedy"]["epsilon"]
    floor: float = HOSTED["optimistic-squarecb"]["floor"]
    gamma: float = HOSTED["squarecb"]["gamma"]
    learning_rate: float = LEARNING_RATE
    largest_number: float = LARGEST  # of features
    reward_range: tuple[float, float] = (0.0, 1.0)
    version: int = 0  # of the newest model
    n_learned: int = 0
    number: int | None = None  # of this client, in loops whose learner counts them
    # The prefix of an event's id in the draw of its number.
    draw_prefix: str = ""


def probabilities(scores: Array, widths: Array, allowed: Array, settings: Round, n_learned: int) -> Array:
    """Return each action's probability after ``n_learned`` rewards, exactly as the service would."""
    chances = np.empty(scores.size)
    explore(loop_rule(settings), 0, n_learned, scores, widths, allowed, chances)
    return chances


def choose(event_id: str, chances: Array, prefix: str) -> int:
    """Return the action that the event's uniform number falls on; ``prefix`` is the loop's ``draw_prefix``."""
    return int(pick(chances, event_draw(event_id, prefix)))

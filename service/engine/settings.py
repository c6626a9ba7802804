"""The settings of a loop."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from fedres import checks
from service.errors import ApiError
from service.scoring.model import LEARNING_RATE

LARGEST_REWARD = 1e9
LONGEST_WAIT = 366 * 86_400.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a loop's owner may choose; a log record of them is in force from its position on."""

    policy: Literal["epsilon-greedy", "squarecb", "greedy"] = "epsilon-greedy"
    epsilon: float = 0.1  # ε of epsilon-greedy
    gamma: float = 10.0  # of squarecb, times the root of the number of rewards learned
    learning_rate: float = LEARNING_RATE  # η, of shared and personal models
    reward_range: tuple[float, float] = (0.0, 1.0)  # a single reward outside is refused
    wait_time: float = 600.0  # seconds that an event waits for its reward
    default_reward: float | None = 0.0  # learned where none came; None learns nothing then
    aggregation: Literal["earliest", "sum"] = "earliest"  # which rewards of an event count
    apprentice: bool = False  # always answer with the first action, and learn
    crosses: bool = True  # context × action features
    personal: bool = True  # one model per user beside the shared one
    update_interval: float = 0.025  # seconds, at most one publication in each

    def __post_init__(self) -> None:
        _within("epsilon", self.epsilon, 0, 1)
        checks.not_negative("gamma", self.gamma)
        checks.positive("learning_rate", self.learning_rate)
        _within("learning_rate", self.learning_rate, 0, 1e6)
        _range(self.reward_range)
        _within("wait_time", self.wait_time, 0.001, LONGEST_WAIT)
        if self.default_reward is not None:
            _within("default_reward", self.default_reward, *self.reward_range)
        _within("update_interval", self.update_interval, 0.001, 60)


def read_settings(fields: dict[str, Any]) -> Settings:
    """Return settings from plain values, those that are missing at their defaults."""
    try:
        return msgspec.convert(fields, Settings)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        target = place.strip("`.") or next((name for name in Settings.__struct_fields__ if name in message), None)
        raise ApiError(
            422, "invalid_settings", f"{target}: {message}" if place.strip("`.") else message, target
        ) from None


def _within(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} must be in [{least:g}, {most:g}], got {value}")


def _range(span: tuple[float, float]) -> None:
    low, high = span
    if not -LARGEST_REWARD <= low < high <= LARGEST_REWARD:
        raise ValueError(f"reward_range must be two rising numbers within ±{LARGEST_REWARD:g}, got {low}, {high}")

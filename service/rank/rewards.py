"""Rewards and named outcomes as they are logged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from service.errors import invalid
from service.log.records import REWARD, Record, RewardBody, encode, encode_reward
from service.models.views import LoopView
from service.rank.requests import check_id
from service.settings import LARGEST_REWARD, Settings


def reward_records(
    view: LoopView, event_id: str, value: float | None, reward_id: str | None, outcomes: Mapping[str, float] | None
) -> list[Record]:
    """Return what is logged of a reward, or of each outcome; refuse what does not suit the loop."""
    if reward_id is not None:
        check_id("id", reward_id)
    return [
        Record(
            view.name,
            REWARD,
            event_id,
            None,
            encode_reward(number, reward_id, name),
            encode(RewardBody(number, reward_id, name)),
        )
        for number, name in _checked(view.settings, value, outcomes)
    ]


def _checked(
    settings: Settings, value: float | None, outcomes: Mapping[str, float] | None
) -> Iterator[tuple[float, str | None]]:
    """Yield values and the names of outcomes, None for a plain reward."""
    if settings.formula is None:
        low, high = settings.reward_range
        if value is None or outcomes is not None:
            raise invalid("a reward must be a value: the loop's settings have no outcomes", "value")
        if not low <= value <= high:
            raise invalid(f"value must be in [{low:g}, {high:g}], got {value}", "value")
        yield float(value), None
        return
    if value is not None or not outcomes:
        raise invalid("a reward must be outcomes and no value: the loop's reward is a formula", "outcomes")
    for name, number in outcomes.items():
        if name not in settings.outcomes:
            raise invalid(f"outcomes must be of {', '.join(settings.outcomes)}, got {name[:100]!r}", "outcomes")
        if not abs(number) <= LARGEST_REWARD:
            raise invalid(f"outcomes must be within ±{LARGEST_REWARD:g}, got {number} for {name!r}", "outcomes")
        yield float(number), name

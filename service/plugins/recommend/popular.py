"""The items that earned most, for everybody: what to show where nobody is known, or beside a page."""

from __future__ import annotations

from time import time

import msgspec

from service.plugins.recommend.earnings import best_rows
from service.plugins.recommend.recommender import Recommender

LONGEST_WINDOW = 365 * 86_400.0  # seconds


class PopularItem(msgspec.Struct):
    """An item and what it earned."""

    id: str
    score: float  # the mean reward of its events, and of the prior's
    events: int  # finished ones with a reward, in the window


class Popular(msgspec.Struct):
    """Items of the catalogue that may be shown, the best one first."""

    items: list[PopularItem]
    events: int  # of all actions, in the window


async def popular(recommender: Recommender, name: str, n: int, seconds: float) -> Popular:
    """Return the items with the highest mean reward; those that earned nothing yet are at the mean of all."""
    found = await recommender.earnings.scores(name, seconds)
    _, items = await recommender.items(name)
    scores, boosts = found.of(items), items.boosts.used
    best = best_rows(items, items.showable(time()), n, scores, boosts)
    listed = [
        PopularItem(items.ids[row], float(scores[row]), found.earned.get(items.ids[row], (0, 0.0))[0]) for row in best
    ]
    return Popular(listed, found.n_events)

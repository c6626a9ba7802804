"""The items that earned most, for everybody: what to show where nobody is known, or beside a page."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time
from typing import Any

import msgspec
import numpy as np

from service.plugins.recommend.items import Items
from service.plugins.recommend.recommender import Recommender
from service.plugins.reports.reader import LoopReader, read_loop
from service.rank.ranker import RankerContext

DAY = 86_400.0  # seconds
LONGEST_WINDOW = 365 * DAY
PRIOR_EVENTS = 10  # as many events with the mean reward of all are added to those of each item
FRESH_SECONDS = 5.0  # an answer is good for so long


class PopularItem(msgspec.Struct):
    """An item and what it earned."""

    id: str
    score: float  # the mean reward of its events, and of the prior's
    events: int  # finished ones with a reward, in the window


class Popular(msgspec.Struct):
    """Items of the catalogue that may be shown, the best one first."""

    items: list[PopularItem]
    events: int  # of all actions, in the window


Score = Callable[[Items, int], float]
Earned = dict[str, tuple[int, float]]  # by action: events and the sum of their rewards


def earned(reader: LoopReader, seconds: float) -> Earned:
    """Return what actions earned in the last seconds, by the newest 50,000 finished events and as much feedback."""
    found: Earned = {}
    decided = [(each.time, each.actions[each.chosen], each.reward) for each in reader.finished]
    for when, action, reward in (*decided, *reader.feedback):
        if reward is not None and when > reader.time - 1e6 * seconds:
            n, total = found.get(action, (0, 0.0))
            found[action] = n + 1, total + reward
    return found


class Popularity:
    """Lists of popular items of one ranker."""

    def __init__(self, context: RankerContext, recommender: Recommender) -> None:
        self._context, self._recommender = context, recommender
        self._known: dict[tuple[str, float], tuple[float, Any, Earned]] = {}  # and until when, of which loop

    async def popular(self, name: str, n: int, seconds: float) -> Popular:
        """Return the items with the highest mean reward; those that earned nothing yet are at the mean of all."""
        found = await self._earned(name, seconds)
        score = await self.scores(name, seconds)
        _, items = await self._recommender.items(name)
        boosts = items.boosts.used
        rows = np.flatnonzero(items.showable(time())).tolist()
        best = sorted(rows, key=lambda row: (-score(items, row), -boosts[row], items.ids[row]))[:n]
        counts = {name: count for name, (count, _) in found.items()}
        listed = [PopularItem(items.ids[row], score(items, row), counts.get(items.ids[row], 0)) for row in best]
        return Popular(listed, sum(counts.values()))

    async def scores(self, name: str, seconds: float) -> Score:
        """Return what says of a row of items how popular that item is."""
        found = await self._earned(name, seconds)
        n_events, total = sum(count for count, _ in found.values()), sum(reward for _, reward in found.values())
        prior = total / n_events if n_events else 0.0

        def score(items: Items, row: int) -> float:
            count, reward = found.get(items.ids[row], (0, 0.0))
            return (reward + PRIOR_EVENTS * prior) / (count + PRIOR_EVENTS)

        return score

    async def _earned(self, name: str, seconds: float) -> Earned:
        now, loop = monotonic(), self._context.loop(name).view
        until, known_loop, found = self._known.get((name, seconds), (0.0, None, {}))
        if now >= until or known_loop != loop.created_at:
            answer = await self._context.reports.call(read_loop, name, loop.created_at, earned, seconds)
            found = msgspec.json.decode(answer, type=Earned)
            self._known = {key: value for key, value in self._known.items() if value[0] > now}
            self._known[name, seconds] = now + FRESH_SECONDS, loop.created_at, found
        return found

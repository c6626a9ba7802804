"""Rewards of items in the log: their popularity, for lists and for pages of a loop that has learned nothing."""

from __future__ import annotations

from heapq import nsmallest
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedres.checks import Array
from service.plugins.recommend.items import Items
from service.plugins.reports.reader import LoopReader, ask_reader
from service.rank.ranker import RankerContext

DAY = 86_400.0  # seconds
WINDOW = 30 * DAY  # of popular items, by default
PRIOR_EVENTS = 10  # as many events with the mean reward of all are added to those of each item
FRESH_SECONDS = 5.0  # for which a result is cached

Earned = dict[str, tuple[int, float]]  # by action: events and the sum of their rewards


def earned(reader: LoopReader, seconds: float) -> Earned:
    """Return the rewards of actions in the last seconds, by the newest 50,000 finished events and as much feedback."""
    sums: Earned = {}
    decided = [(each.time, each.action, each.reward) for each in reader.finished]
    for when, action, reward in (*decided, *reader.feedback):
        if reward is not None and when > reader.time - 1e6 * seconds:
            n, total = sums.get(action, (0, 0.0))
            sums[action] = n + 1, total + reward
    return sums


class Popularity(NamedTuple):
    """The popularity of items."""

    earned: Earned

    @property
    def n_events(self) -> int:
        return sum(count for count, _ in self.earned.values())

    def of(self, items: Items) -> Array:
        """Return the mean reward of each row's events, and of the prior events, which have the mean of all."""
        n_events = self.n_events
        prior = sum(reward for _, reward in self.earned.values()) / n_events if n_events else 0.0
        scores = np.full(items.n_rows, prior)
        for name, (count, reward) in self.earned.items():
            row = items.rows.get(name)
            if row is not None:
                scores[row] = (reward + PRIOR_EVENTS * prior) / (count + PRIOR_EVENTS)
        return scores


def best_rows(items: Items, allowed: Array, n: int, *keys: Array) -> list[int]:
    """Return the ``n`` allowed rows with the highest first key, then the highest second one, ..., then by rising id."""
    rows = np.flatnonzero(allowed)
    if rows.size > n:
        first = keys[0][rows]
        rows = rows[first >= np.partition(first, rows.size - n)[rows.size - n]]
    columns = [key[rows] for key in keys]
    order = np.lexsort([-column for column in reversed(columns)])
    if order.size > n:
        last = order[n - 1]
        is_tied = np.logical_and.reduce([column == column[last] for column in columns])
        front = [place for place in order[:n].tolist() if not is_tied[place]]
        tied = nsmallest(n - len(front), np.flatnonzero(is_tied).tolist(), key=lambda place: items.ids[rows[place]])
        order = np.array([*front, *tied], np.int64)
    chosen = [int(rows[place]) for place in order]
    return sorted(chosen, key=lambda row: (*[-float(key[row]) for key in keys], items.ids[row]))


class Earnings:
    """The rewards of all loops' items, cached in one ranker."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context
        self._cached: dict[tuple[str, float], tuple[float, Any, Popularity]] = {}  # until when, of which loop

    async def scores(self, name: str, seconds: float = WINDOW) -> Popularity:
        """Return the popularity of a loop's items, at most a few seconds old."""
        now, loop = monotonic(), self._context.loop(name).view
        until, created_at, scores = self._cached.get((name, seconds), (0.0, None, Popularity({})))
        if now >= until or created_at != loop.created_at:
            answer = await ask_reader(self._context, name, earned, seconds)
            scores = Popularity(msgspec.json.decode(answer, type=Earned))
            self._cached = {key: value for key, value in self._cached.items() if value[0] > now}
            self._cached[name, seconds] = now + FRESH_SECONDS, loop.created_at, scores
        return scores

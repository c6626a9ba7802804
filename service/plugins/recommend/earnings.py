"""Rewards of items in the log: their popularity, for lists and for pages of a loop that has learned nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container
from heapq import nsmallest
from time import monotonic
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from fedres.checks import Array
from service.plugins.recommend.items import Items
from service.plugins.reports.reader import LoopReader, ask_reader
from service.rank.ranker import RankerContext

DAY = 86_400.0  # seconds
WINDOW = 30 * DAY  # of popular items, by default
PRIOR_EVENTS = 10  # as many events with the mean reward of all are added to those of each item
WINDOWS = (60.0, 3_600.0, 21_600.0, DAY, 7 * DAY, WINDOW, 90 * DAY, 365 * DAY)  # for which lists are made
FRESH_SECONDS = 5.0  # for which a list is new
# A page waits this long for the first list.
PATIENCE_SECONDS = 2.0
WINDOWS_OF_A_LOOP = 2  # whose lists are kept
MOST_BYTES = 32_000_000  # of the JSON of all lists that are kept
DECODED_TOGETHER = 2_000  # actions

log = logging.getLogger("fedres.service")

Earned = dict[str, tuple[int, float]]  # by action: events and the sum of their rewards


def window_of(seconds: float) -> float:
    """Return the shortest window that is as long.

    >>> window_of(100_000.0) == 7 * DAY
    True
    """
    return next(window for window in WINDOWS if seconds <= window)


def earned(reader: LoopReader, seconds: float) -> list[Earned]:
    """Return the rewards of actions in the last seconds, by the newest 50,000 finished events and as much feedback.

    They come in pieces, each of which a ranker decodes in a step.
    """
    sums: Earned = {}
    decided = [(each.time, each.action, each.reward) for each in reader.finished]
    for when, action, reward in (*decided, *reader.feedback):
        if reward is not None and when > reader.time - 1e6 * seconds:
            n, total = sums.get(action, (0, 0.0))
            sums[action] = n + 1, total + reward
    entries = [*sums.items()]
    return [dict(entries[k : k + DECODED_TOGETHER]) for k in range(0, len(entries), DECODED_TOGETHER)]


class Popularity:
    """The popularity of items."""

    def __init__(self, earned: Earned) -> None:
        self.earned = earned
        self.n_events = sum(count for count, _ in earned.values())
        total = sum(reward for _, reward in earned.values())
        self._prior = total / self.n_events if self.n_events else 0.0
        self._scored: tuple[Items, int, Array] | None = None  # the newest result, and for which version of which items

    def of(self, items: Items) -> Array:
        """Return the mean reward of each row's events, and of the prior events, which have the mean of all."""
        scored = self._scored
        if scored is not None and scored[0] is items and scored[1] == items.version:
            return scored[2]
        prior = self._prior
        scores = np.full(items.n_rows, prior)
        for name, (count, reward) in self.earned.items():
            row = items.rows.get(name)
            if row is not None:
                scores[row] = (reward + PRIOR_EVENTS * prior) / (count + PRIOR_EVENTS)
        scores.flags.writeable = False
        self._scored = items, items.version, scores
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


class _Cached(NamedTuple):
    """A list that a ranker keeps."""

    until: float  # when it is outdated
    created_at: int  # of the loop
    n_bytes: int
    popularity: Popularity


class Earnings:
    """The rewards of all loops' items, cached in one ranker."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context
        self._cached: dict[tuple[str, float], _Cached] = {}  # by loop and window, the newest last
        self._reading: dict[tuple[str, float], asyncio.Task[Popularity]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by loop: one report at a time

    async def scores(self, name: str, seconds: float = WINDOW) -> Popularity:
        """Return the popularity of a loop's items in a window, at most a few seconds old."""
        window = window_of(seconds)
        cached = self._known(name, window)
        if cached is not None and monotonic() < cached.until:
            return cached.popularity
        return await asyncio.shield(self._read(name, window))

    async def newest(self, name: str) -> Popularity:
        """Return the popularity as it was last read, for a page, which does not wait for long; empty if it never was.

        It is read again in the background.
        """
        cached = self._known(name, WINDOW)
        if cached is not None and monotonic() < cached.until:
            return cached.popularity
        reading = self._read(name, WINDOW)
        if cached is not None:
            return cached.popularity
        await asyncio.wait([reading], timeout=PATIENCE_SECONDS)
        return reading.result() if reading.done() and reading.exception() is None else Popularity({})

    def forget_others(self, names: Container[str]) -> None:
        """Drop lists of loops that do not exist any more."""
        self._cached = {key: cached for key, cached in self._cached.items() if key[0] in names}

    def _known(self, name: str, window: float) -> _Cached | None:
        cached = self._cached.get((name, window))
        return cached if cached is not None and cached.created_at == self._context.loop(name).view.created_at else None

    def _read(self, name: str, window: float) -> asyncio.Task[Popularity]:
        """Begin to read a list, unless that has begun; return the task."""
        task = self._reading.get((name, window))
        if task is None:
            task = self._reading[name, window] = asyncio.create_task(self._keep(name, window))
            task.add_done_callback(lambda done: self._end(name, window, done))
        return task

    def _end(self, name: str, window: float, task: asyncio.Task[Popularity]) -> None:
        del self._reading[name, window]
        # Callers that wait for the task get the error too.
        if not task.cancelled() and task.exception() is not None:
            log.info("popular items of loop %r could not be read: %s", name, task.exception())

    async def _keep(self, name: str, window: float) -> Popularity:
        turn = self._turns.setdefault(name, asyncio.Lock())
        async with turn:
            created_at = self._context.loop(name).view.created_at
            answer = await ask_reader(self._context, name, earned, window)
        rewards: Earned = {}
        for piece in msgspec.json.decode(answer, type=list[msgspec.Raw]):
            rewards |= msgspec.json.decode(piece, type=Earned)
            await asyncio.sleep(0)
        popularity = Popularity(rewards)
        self._cached.pop((name, window), None)
        self._cached[name, window] = _Cached(monotonic() + FRESH_SECONDS, created_at, len(answer), popularity)
        self._drop_some(name)
        return popularity

    def _drop_some(self, name: str) -> None:
        """Drop the oldest lists of a loop that has many, and of all loops if they take much memory."""
        of_loop = [key for key in self._cached if key[0] == name]
        for key in of_loop[:-WINDOWS_OF_A_LOOP]:
            del self._cached[key]
        while len(self._cached) > 1 and sum(each.n_bytes for each in self._cached.values()) > MOST_BYTES:
            del self._cached[next(iter(self._cached))]

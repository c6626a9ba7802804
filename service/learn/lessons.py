"""When events are learned from where failures are not told, as where callers send clicks and nothing else.

An event then fails silently: that it did is certain only when its wait time is over. Learned as they come, clicks would
be known long before the failures of the same time, and all that was ever clicked would look perfect. So such an event
is learned from after a time that is logged with its decision, with the reward that came by then, else with the default.
A reward that comes later counts in all figures and is not learned from.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from service.learn.join import Decided, feature_bytes

LESSON_BYTES = 400  # of memory that a lesson takes beside features and ids


class Lesson(msgspec.Struct, gc=False):
    """An event that is to be learned from; ``reward`` is None as long as none is known."""

    event: str
    order: int  # position of its decision
    decided: Decided
    n_bytes: int  # of memory that it takes, about, beside what the join has
    reward: float | None = None


class Lessons:
    """The events of a loop that are learned from after a time."""

    def __init__(self) -> None:
        self._waiting: dict[str, Lesson] = {}  # in the order of their decisions
        self._times: list[tuple[int, int, str]] = []  # a heap of (microseconds, order, event)
        self.n_bytes = 0  # of memory that they take, about
        self.assumed: set[str] = set()  # learned with the default, and still waiting for a reward

    def put(self, event: str, order: int, time: int, decided: Decided) -> None:
        """Let an event be learned from at a time."""
        n_bytes = LESSON_BYTES + len(event)
        self._waiting[event] = Lesson(event, order, decided, n_bytes)
        self.n_bytes += n_bytes
        heapq.heappush(self._times, (time, order, event))

    def settle(self, event: str, reward: float | None) -> bool:
        """Take note of a final reward; return whether the event is learned from apart from it, before or after."""
        if event in self.assumed:
            self.assumed.remove(event)
            return True
        lesson = self._waiting.get(event)
        if lesson is None:
            return False
        lesson.reward = reward
        lesson.n_bytes += feature_bytes(lesson.decided)  # which the join has no more
        self.n_bytes += feature_bytes(lesson.decided)
        return True

    def due(self, time: int) -> Iterator[Lesson]:
        """Yield what is to be learned from by then."""
        while self._times and self._times[0][0] <= time:
            lesson = self._waiting.pop(heapq.heappop(self._times)[2], None)
            if lesson is not None:
                self.n_bytes -= lesson.n_bytes
                if lesson.reward is None:
                    self.assumed.add(lesson.event)
                yield lesson

    def next_time(self) -> int | None:
        """Return when something is due next, None if nothing will be."""
        return self._times[0][0] if self._times else None

    def oldest(self) -> int | None:
        """Return the position of the first decision that is not learned from."""
        return next((lesson.order for lesson in self._waiting.values()), None)

    def forget(self, events: set[str]) -> None:
        """Leave nothing of events."""
        for event in events & self._waiting.keys():
            self.n_bytes -= self._waiting.pop(event).n_bytes
        self._times = [entry for entry in self._times if entry[2] not in events]
        heapq.heapify(self._times)
        self.assumed -= events

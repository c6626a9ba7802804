"""Removing old events from the log, without stopping anything; models keep what they learned from them.

1. One machine, the holder, logs up to which position events are to go (``erase`` without a user). No event of which it
   waits for a reward is among them. Every learner forgets them there, so that their ids are new from that record on.
2. The holder logs the current models, as after an erasure, and then ``erased`` with a cut.
3. Its log writer deletes the old events, a few hundred records at a time. A restart continues this.

``retention`` counts from now, but from no later than a day after the newest request: a clock that is ahead must not
remove what is not old. A machine whose clock is right again after it was ahead goes by that clock, not by the log's,
which never goes back. ``fedres log prune`` names a time, and is believed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from service.learn.erasures import log_base
from service.learn.follower import Follower
from service.learn.loop_state import LoopState
from service.log.protocol import Log
from service.log.records import ERASE, ERASED, EraseBody, ErasedBody, Record, encode
from service.log.writer import is_pruned
from service.settings import LEAST_RETENTION
from service.times import DAY, system_clock

RETRY_SECONDS = 5.0
LEAST_INTERVAL = 60_000_000  # microseconds between two looks for old events of a loop
SHARE = 10  # events are removed when they are older than the retention by this part of it, and a day at most


class Prunings:
    """The prunings under way on this machine. ``step`` does a small part of the work."""

    def __init__(self) -> None:
        self._after: dict[str, tuple[int, int | None]] = {}  # by loop: the pruning and its progress, None if done
        self._looked: dict[str, int] = {}  # when old events were last looked for
        self._retry: dict[str, float] = {}  # when to check again whether this machine is a loop's holder
        self.busy = False  # True: this machine deletes records
        self.clock: Callable[[], int] = system_clock  # of this machine, while the log's may be ahead of it
        self.kept: dict[str, int] = {}  # loops whose old events are kept as no request shows the time; of the newest

    def step(self, follower: Follower) -> None:
        self.busy = False
        self._forget_others(follower)
        for name, state in list(follower.loops.items()):
            if time.monotonic() < self._retry.get(name, 0.0):
                continue
            if self._is_under_way(state) or state.metadata.to_prune or self._is_due(follower, state):
                epoch = follower.epoch_to_end(name)
                if epoch is None:
                    self._retry[name] = time.monotonic() + RETRY_SECONDS
                elif follower.has_read(state, epoch):
                    with follower.alone(name):
                        self._go_on(follower, state, epoch)

    def _forget_others(self, follower: Follower) -> None:
        """Forget loops that were deleted."""
        for kept in (self._after, self._looked, self._retry, self.kept):
            for name in [*kept] if len(kept) > len(follower.loops) else ():
                if name not in follower.loops:
                    del kept[name]

    def _is_under_way(self, state: LoopState) -> bool:
        """Return whether a pruning may still be unfinished."""
        begun = state.metadata.pruned.begun
        return begun > 0 and self._after.get(state.metadata.name) != (begun, None)

    def _is_due(self, follower: Follower, state: LoopState) -> bool:
        """Return, at intervals, whether there may be events that are too old."""
        metadata, now = state.metadata, follower.log.now()
        retention = _retention(state)
        if retention is None:
            self.kept.pop(metadata.name, None)
            return False
        interval = max(min(DAY, retention // SHARE), LEAST_INTERVAL)
        if now - max(self._looked.get(metadata.name, 0), metadata.pruned.before + retention) < interval:
            return False
        self._looked[metadata.name] = now
        return True

    def _before(self, follower: Follower, state: LoopState, retention: int) -> int:
        """Return the time before which events are too old."""
        now = min(follower.log.now(), self.clock())
        latest = state.metadata.traffic.trusted + DAY
        if now > latest:
            self.kept[state.metadata.name] = state.metadata.traffic.trusted
        else:
            self.kept.pop(state.metadata.name, None)
        return min(now, latest) - retention

    def _go_on(self, follower: Follower, state: LoopState, epoch: int) -> None:
        metadata = state.metadata
        if metadata.pruned.begun and not metadata.pruned.done:
            _complete(follower, state, epoch)
        elif self._is_under_way(state):
            self._delete_some(follower, state, epoch)
        elif metadata.to_prune:
            token, before = next(iter(metadata.to_prune.items()))
            _begin(follower, state, before, token, epoch)
        elif (retention := _retention(state)) is not None:
            before = self._before(follower, state, retention)
            if old_events(follower.log, state, before) > _least_cut(state):
                _begin(follower, state, before, os.urandom(8).hex(), epoch)

    def _delete_some(self, follower: Follower, state: LoopState, epoch: int) -> None:
        name, old = state.metadata.name, state.metadata.pruned
        begun, after = self._after.get(name, (0, 0))
        if begun != old.begun:
            after = None if is_pruned(follower.log, name, old.begun) else 0
        if after is not None:
            after, self.busy = follower.writer.prune(name, old, after, epoch), True
        self._after[name] = (old.begun, after)


def _retention(state: LoopState) -> int | None:
    """Return a loop's retention in microseconds."""
    retention = state.metadata.settings.retention
    return None if retention is None else round(max(retention, LEAST_RETENTION) * 1e6)


def _least_cut(state: LoopState) -> int:
    """Return the position up to which there are no events."""
    return max(state.metadata.created_at, state.metadata.pruned.cut)


def old_events(log: Log, state: LoopState, before: int) -> int:
    """Return up to which position events are older than a time, and none is in use."""
    needed, least = state.oldest_needed(), _least_cut(state)
    unneeded = state.position if needed is None else needed - 1
    return max(min(last_before(log, state.metadata.name, before, least), unneeded), least)


def _begin(follower: Follower, state: LoopState, before: int, token: str, epoch: int) -> None:
    """Log up to which position events are to go; if none are, the log begins where it began before."""
    cut = old_events(follower.log, state, before)
    begins = state.metadata.pruned.before
    body = encode(EraseBody(token, max(before, begins) if cut > _least_cut(state) else begins, cut))
    follower.writer.append([[Record(state.metadata.name, ERASE, body=body)]], {state.metadata.name: epoch})
    follower.wrote(state.metadata.name)


def _complete(follower: Follower, state: LoopState, epoch: int) -> None:
    follower.saver.flush(follower.loops)  # all models are in the snapshot after this
    log_base(follower, state, epoch)
    name, old = state.metadata.name, state.metadata.pruned
    body = ErasedBody(0, state.position, old.token, cut=old.cut, begun=old.begun, before=old.before)
    follower.writer.append([[Record(name, ERASED, body=encode(body))]], {name: epoch})
    follower.wrote(state.metadata.name)


def last_before(log: Log, loop: str, moment: int, low: int) -> int:
    """Return the last position, ``low`` or behind it, whose record is older than a moment: times never go back."""
    high = log.heads()[loop].last
    while low < high:
        middle = (low + high + 1) // 2
        entries = log.read(loop, middle - 1, 1, bodies=False)
        if entries and entries[0].time < moment:
            low = entries[0].position
        else:
            high = middle - 1
    return low

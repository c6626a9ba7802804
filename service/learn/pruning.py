"""Removing old events from the log, without stopping anything; models keep what they learned from them.

1. One machine, the holder, logs up to which position events are to go (``erase`` without a user). No event of which it
   waits for a reward is among them. Every learner forgets them there, so that their ids are new from that record on.
2. The holder logs the current models, as after an erasure, and then ``erased`` with a cut.
3. Its log writer deletes the old events, a few hundred records at a time. A restart continues this.
"""

from __future__ import annotations

import os
import time

from service.learn.erasures import log_base
from service.learn.follower import Follower
from service.learn.loop_state import LoopState
from service.log.protocol import Log
from service.log.records import ERASE, ERASED, EraseBody, ErasedBody, Record, encode
from service.log.writer import is_pruned
from service.times import DAY

RETRY_SECONDS = 5.0
SHARE = 10  # events are removed when they are older than the retention by this part of it, and a day at most


class Prunings:
    """The prunings under way on this machine. ``step`` does a small part of the work."""

    def __init__(self) -> None:
        self._after: dict[str, tuple[int, int | None]] = {}  # by loop: the pruning and its progress, None if done
        self._looked: dict[str, int] = {}  # when old events were last looked for
        self._retry: dict[str, float] = {}  # when to check again whether this machine is a loop's holder
        self.busy = False  # True: this machine deletes records

    def step(self, follower: Follower) -> None:
        self.busy = False
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

    def _is_under_way(self, state: LoopState) -> bool:
        """Return whether a pruning may still be unfinished."""
        begun = state.metadata.pruned.begun
        return begun > 0 and self._after.get(state.metadata.name) != (begun, None)

    def _is_due(self, follower: Follower, state: LoopState) -> bool:
        """Return, at intervals, whether there may be events that are too old."""
        metadata, now = state.metadata, follower.log.now()
        if metadata.settings.retention is None:
            return False
        retention = round(metadata.settings.retention * 1e6)
        interval = min(DAY, retention // SHARE)
        if now - max(self._looked.get(metadata.name, 0), metadata.pruned.before + retention) < interval:
            return False
        self._looked[metadata.name] = now
        return True

    def _go_on(self, follower: Follower, state: LoopState, epoch: int) -> None:
        metadata = state.metadata
        if metadata.pruned.begun and not metadata.pruned.done:
            _complete(follower, state, epoch)
        elif self._is_under_way(state):
            self._delete_some(follower, state, epoch)
        elif metadata.to_prune:
            token, before = next(iter(metadata.to_prune.items()))
            _begin(follower, state, before, token, epoch)
        elif metadata.settings.retention is not None:
            before = follower.log.now() - round(metadata.settings.retention * 1e6)
            if old_events(follower.log, state, before) > metadata.pruned.cut:
                _begin(follower, state, before, os.urandom(8).hex(), epoch)

    def _delete_some(self, follower: Follower, state: LoopState, epoch: int) -> None:
        name, old = state.metadata.name, state.metadata.pruned
        begun, after = self._after.get(name, (0, 0))
        if begun != old.begun:
            after = None if is_pruned(follower.log, name, old.begun) else 0
        if after is not None:
            after, self.busy = follower.writer.prune(name, old, after, epoch), True
        self._after[name] = (old.begun, after)


def old_events(log: Log, state: LoopState, before: int) -> int:
    """Return up to which position events are older than a time, and none is in use."""
    metadata, needed = state.metadata, state.oldest_needed()
    least = max(metadata.created_at, metadata.pruned.cut)
    unneeded = state.position if needed is None else needed - 1
    return max(min(last_before(log, metadata.name, before, least), unneeded), least)


def _begin(follower: Follower, state: LoopState, before: int, token: str, epoch: int) -> None:
    cut = old_events(follower.log, state, before)
    body = encode(EraseBody(token, max(before, state.metadata.pruned.before), cut))
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

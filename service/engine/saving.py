"""Snapshots taken while the learner goes on: collected on its thread, written on another."""

from __future__ import annotations

import math
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from service.engine.learner import Learner, LoopState
from service.engine.personal import PersonalModels
from service.engine.snapshots import Changes, LoopPart, Snapshots, State
from service.store import Entry, StoreUnavailable

MOST_UNSAVED = 50_000  # personal models; more of them are written before the snapshot is due


class Saver:
    """Writes what changed every ``every`` seconds; all methods are for the learner's thread."""

    def __init__(self, snapshots: Snapshots, personal: PersonalModels, every: float) -> None:
        self.position = 0  # of the snapshot in the file
        self.saved: dict[int, int] = {}  # version of the shared model there, by loop
        self._snapshots, self._personal, self._every = snapshots, personal, every
        self._begun_at = time.monotonic()
        self._unwritten: Changes | None = None
        self._writing: Future[None] | None = None
        self._writer = ThreadPoolExecutor(1, "snapshot")

    def seconds_left(self, position: int) -> float:
        """Return when the next snapshot is due."""
        return self._begun_at + self._every - time.monotonic() if position > self.position else math.inf

    def save_if_due(self, learner: Learner, last: Entry | None) -> None:
        """Begin to write a snapshot if it is time; raise ``StoreUnavailable`` if the last one could not be written."""
        if self._writing is not None and self._writing.done():
            self._end()
        full = self._personal.n_unsaved > MOST_UNSAVED or learner.erased
        if self._writing is None and (full or self.seconds_left(learner.position) <= 0):
            self._begin(learner, last)

    def begin(self, learner: Learner, last: Entry | None) -> Future[None] | None:
        """Return what is done once the snapshot on its way is written; begin one if there is none but must be."""
        if self._writing is not None and self._writing.done():
            self._end()
        if self._writing is None and (learner.position > self.position or self._unwritten is not None):
            self._begin(learner, last)
        return self._writing

    def note_based(self, since: int, users: list[str]) -> None:
        """Write that the log has a base of users' models, after what is being written and before all later changes."""
        self._writer.submit(self._snapshots.note_based, since, users)

    def flush(self, learner: Learner, last: Entry | None) -> None:
        """Return once the file is up to date; raise ``StoreUnavailable`` if it cannot be."""
        if self._writing is not None:
            self._end()
        if learner.position > self.position or self._unwritten is not None:
            self._begin(learner, last)
            self._end()

    def discard(self) -> None:
        """Throw away all that is saved, and all that was to be."""
        if self._writing is not None:
            self._writing.exception()
        self._writing = self._unwritten = None
        self._snapshots.discard()
        self._personal.clear()
        self.saved, self.position = {}, 0

    def close(self) -> None:
        self._writer.shutdown()

    def _begin(self, learner: Learner, last: Entry | None) -> None:
        self._unwritten = self._changes(learner, last)
        self._begun_at = time.monotonic()
        self._writing = self._writer.submit(self._snapshots.write, self._unwritten)

    def _end(self) -> None:
        """Wait for the snapshot on its way; what could not be written is part of the next."""
        assert self._writing is not None
        assert self._unwritten is not None
        error = self._writing.exception()
        self._writing = None
        self._personal.end_flush(written=error is None)
        if error is not None:
            raise StoreUnavailable("io", f"the snapshot could not be written: {error}") from error
        self.position, self._unwritten = self._unwritten.state.position, None

    def _changes(self, learner: Learner, last: Entry | None) -> Changes:
        changes = Changes(State(learner.position, learner.time, mark(last), 0, []))
        for since, _ in learner.erased:
            self.saved.pop(since, None)  # what waited in the shared model is gone too, and its version stayed
        for state in learner.loops.values():
            self._add_loop(changes, state)
        changes.personal = dict(self._personal.start_flush())
        changes.dropped, learner.dropped = learner.dropped, []
        changes.erased, learner.erased = learner.erased, []
        changes.based = [since for since, _ in changes.erased]
        return changes if self._unwritten is None else changes.after(self._unwritten)

    def _add_loop(self, changes: Changes, state: LoopState) -> None:
        head, join = state.head, state.join
        part = LoopPart(head, list(join.unmatched), len(join.slots))
        changes.state.loops.append(msgspec.Raw(msgspec.msgpack.encode(part)))
        if self.saved.get(head.since) != head.version:
            changes.shared[head.since] = state.shared.to_bytes()
            self.saved[head.since] = head.version
        for event in join.changed:
            slot = join.slots.get(event)
            changes.slots[head.since, event] = None if slot is None else msgspec.msgpack.encode(slot)
        join.changed.clear()


def mark(entry: Entry | None) -> int:
    """Return what tells a record of the log from others at its position."""
    if entry is None:
        return 0
    return zlib.crc32(entry.body, zlib.crc32(repr(entry[:6]).encode()))

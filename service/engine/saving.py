"""Snapshots taken while the learner goes on: collected on its thread, bit by bit, and written on another."""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import msgspec

from service.engine.joining import Join, Unmatched
from service.engine.learner import Learner, LoopState
from service.engine.pages import SIZE, Pages
from service.engine.personal import PersonalModels
from service.engine.snapshots import Changes, LoopPart, Snapshots, State
from service.scheduling import yield_to_others
from service.store import Entry, StoreUnavailable

MOST_UNSAVED = 50_000  # personal models; more of them are written before the snapshot is due
MOST_PAGES = 4_000  # of events, about 150 MB; the same
REST = 0.002  # seconds between two pages that are written: a disk that is busy with one lot is not free for others
LONGEST_HOLD = 0.0001  # seconds of work before other threads get their turn: a page is more


class Saver:
    """Writes what changed every ``every`` seconds; all methods are for the learner's thread."""

    def __init__(self, snapshots: Snapshots, personal: PersonalModels, every: float) -> None:
        self.position = 0  # of the snapshot in the file
        self.saved: dict[int, int] = {}  # version of the shared model there, by loop
        self.pages: dict[int, Pages] = {}  # of events, by loop
        self._snapshots, self._personal, self._every = snapshots, personal, every
        self._begun_at = time.monotonic()
        self._unwritten: Changes | None = None
        self._writing: Future[None] | None = None
        self._writer = ThreadPoolExecutor(1, "snapshot", yield_to_others)
        self._awaited = threading.Event()  # what is being written is

    def seconds_left(self, position: int) -> float:
        """Return when the next snapshot is due."""
        return self._begun_at + self._every - time.monotonic() if position > self.position else math.inf

    def is_full(self) -> bool:
        """Return whether so much waits that it is to be written before a snapshot is due."""
        n_pages = sum(pages.n_unwritten for pages in self.pages.values())
        return self._personal.n_unsaved > MOST_UNSAVED or n_pages > MOST_PAGES

    def encode_some(self, learner: Learner, rest: float) -> None:
        """Make pages of events that changed, for the next snapshot, as far as these fill them."""
        for state in learner.loops.values():
            self.encode_full(state, rest)

    def encode_full(self, state: LoopState, rest: float | None = None) -> None:
        """Do that for one loop."""
        if len(state.join.changed) + len(state.join.left) >= SIZE:
            put_changed(state.join, self._pages_of(state), Turns(rest), at_least=SIZE)

    def save_if_due(self, learner: Learner, last: Entry | None, rest: float) -> None:
        """Begin to write a snapshot if it is time; raise ``StoreUnavailable`` if the last one could not be written."""
        if self._writing is not None and self._writing.done():
            self._end()
        now = self.is_full() or learner.erased
        if self._writing is None and (now or self.seconds_left(learner.position) <= 0):
            self._begin(learner, last, 0.0 if learner.erased else rest)  # somebody waits for an erasure

    def begin(self, learner: Learner, last: Entry | None) -> Future[None] | None:
        """Return what is done once the snapshot on its way is written; begin one if there is none but must be."""
        if self._writing is not None and self._writing.done():
            self._end()
        if self._writing is None and (learner.position > self.position or self._unwritten is not None):
            self._begin(learner, last)
        self._awaited.set()
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
            self._awaited.set()
            self._writing.exception()
        self._writing = self._unwritten = None
        self._snapshots.discard()
        self._personal.clear()
        self.saved, self.pages, self.position = {}, {}, 0

    def close(self) -> None:
        self._writer.shutdown()

    def _begin(self, learner: Learner, last: Entry | None, rest: float = 0.0) -> None:
        self._unwritten = self._changes(learner, last, Turns(rest))
        self._begun_at = time.monotonic()
        self._awaited.clear()
        self._writing = self._writer.submit(self._snapshots.write, self._unwritten, self._pause)

    def _pause(self) -> None:
        self._awaited.wait(REST)

    def _end(self) -> None:
        """Wait for the snapshot on its way; what could not be written is part of the next."""
        assert self._writing is not None
        assert self._unwritten is not None
        self._awaited.set()
        error = self._writing.exception()
        self._writing = None
        self._personal.end_flush(written=error is None)
        if error is not None:
            raise StoreUnavailable("io", f"the snapshot could not be written: {error}") from error
        self.position, self._unwritten = self._unwritten.state.position, None

    def _changes(self, learner: Learner, last: Entry | None, turns: Turns) -> Changes:
        changes = Changes(State(learner.position, learner.time, mark(last), 0, []))
        for since, _ in learner.erased:
            self.saved.pop(since, None)  # what waited in the shared model is gone too, and its version stayed
        for state in learner.loops.values():
            self._add_loop(changes, state, turns)
        changes.personal = self._personal.start_flush()
        changes.dropped, learner.dropped = learner.dropped, []
        changes.erased, learner.erased = learner.erased, []
        changes.based = [since for since, _ in changes.erased]
        for since in changes.dropped:
            self.pages.pop(since, None)
        return changes if self._unwritten is None else changes.after(self._unwritten)

    def _add_loop(self, changes: Changes, state: LoopState, turns: Turns) -> None:
        head, join, pages = state.head, state.join, self._pages_of(state)
        part = LoopPart(head, list(_encoded(join.unmatched, turns)), len(join.slots))
        changes.state.loops.append(msgspec.Raw(msgspec.msgpack.encode(part)))
        if self.saved.get(head.since) != head.version:
            turns.next()
            changes.shared[head.since] = state.shared.to_bytes()
            self.saved[head.since] = head.version
        put_everything(join, pages, turns)
        changes.pages[head.since] = pages.take()

    def _pages_of(self, state: LoopState) -> Pages:
        return self.pages.setdefault(state.head.since, Pages())


class Turns:
    """Lets other threads have the interpreter now and then: for ``rest`` seconds, after each bit of work, or never."""

    def __init__(self, rest: float | None) -> None:
        self._rest, self._until = rest, time.perf_counter() + LONGEST_HOLD

    def next(self) -> None:
        if self._rest is not None and time.perf_counter() > self._until:
            time.sleep(self._rest)
            self._until = time.perf_counter() + LONGEST_HOLD


def put_everything(join: Join, pages: Pages, turns: Turns) -> None:
    """Bring pages up to date, leave few of them sparse, and nothing in them of who was forgotten."""
    for user, events in join.forgotten:
        _put_again(join, pages.purge(user, events), turns)
    join.forgotten = []
    put_changed(join, pages, turns, at_least=SIZE)
    if join.changed or pages.n_sparse > 1:
        _put_again(join, pages.thin_out(), turns)
    put_changed(join, pages, turns)


def _put_again(join: Join, found: Iterator[list[str]], turns: Turns) -> None:
    for events in found:
        join.changed.update((event, join.slots[event]) for event in events if event in join.slots)
        turns.next()


def put_changed(join: Join, pages: Pages, turns: Turns, at_least: int = 1) -> None:
    """Let go of what is gone; put all that changed into pages, while there is ``at_least`` so much of it."""
    left, join.left = iter(join.left), []
    while places := list(islice(left, SIZE)):
        pages.kill(places)
        turns.next()
    changed = iter(join.changed.items())
    while len(some := dict(islice(changed, SIZE))) >= at_least:
        pages.put(some)
        turns.next()
    join.changed = some


def _encoded(unmatched: Iterable[Unmatched], turns: Turns) -> Iterator[msgspec.Raw]:
    """Yield a few at a time."""
    left = iter(unmatched)
    while some := list(islice(left, SIZE)):
        yield msgspec.Raw(msgspec.msgpack.encode(some))
        turns.next()


def mark(entry: Entry | None) -> int:
    """Return what tells a record of the log from others at its position."""
    if entry is None:
        return 0
    return zlib.crc32(entry.body, zlib.crc32(repr(entry[:6]).encode()))

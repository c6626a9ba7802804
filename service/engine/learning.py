"""The learner's thread: reads the log, learns, publishes, keeps snapshots, and logs ticks when wait times run out."""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from service.engine.deciding import View
from service.engine.given import GivenReader
from service.engine.heads import Base, forgetting
from service.engine.history import followed
from service.engine.joining import Join, Unmatched
from service.engine.learner import Erasure, Learner, LoopState, digest
from service.engine.personal import PersonalModels
from service.engine.records import BASE, ERASED, NOTHING, RANK, TICK
from service.engine.saving import MOST_UNSAVED, Saver, mark
from service.engine.shared import bytes_without, read_model
from service.engine.snapshots import Damaged, LoopPart, Snapshots
from service.store import Commits, Entry, EventLog, Record, StoreUnavailable

CHUNK = 500  # records read at once
LONGEST_SLEEP = 1.0  # seconds; that the machine slept, which a thread's wait does not count, is noticed after that many
MOST_FED = 30_000  # records that wait in memory
NOTED_AT_ONCE = 3  # lots of them, by who brings another
AT_ONCE = 64  # of them, learned before a look at the clock
LONGEST_HOLD = 0.0005  # seconds of learning before other threads get their turn
REST = 0.002  # seconds of it: an event loop under load is held up for a moment now and then, and never for long
BEHIND = 200  # records, with which the learner does not rest longer than
BRIEF = 0.00005  # seconds: after none, who waits for the interpreter would not have woken up
RETRY = 0.2  # seconds, while the store is unavailable
CHECK = 1.0  # seconds between two looks whether it still is ours

Answer = TypeVar("Answer")


class Learning:
    """Owns the learner. Its thread changes it, and who feeds it, each in its turn; others ask by ``call``."""

    def __init__(
        self,
        log: EventLog,
        snapshots: Snapshots,
        personal: PersonalModels,
        clock: Callable[[], int],
        snapshot_seconds: float,
    ) -> None:
        self.views: dict[str, View] = {}
        self.position = 0  # up to which all is learned and published
        self.trouble: Exception | None = None
        self.rebuilt = 0  # how often the snapshot was thrown away
        self.followed: set[str] = set()  # loops whose devices ask what has changed
        self._given = GivenReader(log)
        self.learner = Learner(self._stored, self._given.features)
        self._log, self._snapshots, self._personal = log, snapshots, personal
        self._clock = clock
        self.check: Callable[[], None] | None = None  # raises if the store is lost, which not every store can be
        self._check_at = 0.0
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._fed: deque[Sequence[Entry]] = deque()  # each without gaps
        self._turn = threading.Lock()  # whoever has it may change the learner
        self._yield_at = 0.0
        self._awake, self._urgent = threading.Event(), threading.Event()
        self._stopping = False
        self._from_scratch = False
        self._last: Entry | None = None
        self._saver = Saver(snapshots, personal, snapshot_seconds)
        self._published_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._commits: Commits | None = None

    def open(self) -> None:
        """Bring the learner to the end of the log, from the snapshot where that is good."""
        try:
            self._restore()
            self._catch_up()
        except Damaged as damage:
            self._rebuild(damage)
        self._from_scratch = False
        self._publish()

    def start(self, commits: Commits) -> None:
        self._commits = commits
        commits.appended = self.feed
        self._thread.start()

    def stop(self) -> None:
        """Learn and save all that is logged, and end the thread."""
        self._stopping = True
        self._hurry()
        if self._thread.ident is not None:
            self._thread.join()
        self._saver.close()
        self._log.close()

    def wake(self) -> None:
        """Say that something was logged."""
        if not self._awake.is_set():
            self._awake.set()

    def call(self, function: Callable[[], Answer]) -> Future[Answer]:
        """Return what ``function`` answers on the learner's thread, once all that was logged before is published."""
        if self._stopping:
            raise StoreUnavailable("closed", "the learner has stopped")
        future: Future[Answer] = Future()
        self._calls.put(lambda: _run_into(future, function))
        self._hurry()
        return future

    def _hurry(self) -> None:
        self._urgent.set()
        self._awake.set()

    def _run(self) -> None:
        idle_seconds = 0.0
        while not self._stopping:
            self._awake.wait(idle_seconds)
            self._urgent.wait(max(0.0, self._published_at + self._interval() - time.monotonic()))
            self._awake.clear()
            self._urgent.clear()
            with self._turn:
                self._step()
                idle_seconds = self._idle_seconds()
        with self._turn:
            self._step()
            self._finish()

    def _idle_seconds(self) -> float:
        if self.trouble is not None:
            return RETRY
        ends = [LONGEST_SLEEP, self._saver.seconds_left(self.learner.position)]
        ends += [(deadline - self._clock()) / 1e6 for deadline, _ in self.learner.next_deadline()[:1]]
        return max(0.0, min(ends))

    def _interval(self) -> float:
        return min((view.settings.update_interval for view in self.views.values()), default=LONGEST_SLEEP)

    def _step(self) -> None:
        calls = self._waiting_calls()  # first: all that was logged before them is then read
        try:
            if calls or self._stopping or not self._apply_fed():
                self._catch_up()
            if self._tick():
                self._catch_up()
            self._publish()
            self._check_store()
            self.trouble = None
        except Damaged as damage:
            self.rebuild(damage)
        except Exception as error:
            self._note(error)
        for call in calls:
            call()
        try:
            self._saver.encode_some(self.learner, self._rest())
            self._saver.save_if_due(self.learner, self._last, self._rest())
        except StoreUnavailable as error:
            self._note(error)

    def _rest(self) -> float:
        """Return how long to let others have the interpreter; if there is much to learn, just for their turn."""
        behind = self._fed and self._fed[-1][-1].seq > self.learner.position + BEHIND
        return BRIEF if behind or self._urgent.is_set() else REST

    def _check_store(self) -> None:
        if self.check is not None and time.monotonic() >= self._check_at:
            self.check()
            self._check_at = time.monotonic() + CHECK

    def _note(self, error: Exception) -> None:
        if type(error) is not type(self.trouble):
            logging.getLogger(__name__).error("the learner waits: %s", error, exc_info=not _expected(error))
        self.trouble = error

    def _waiting_calls(self) -> list[Callable[[], None]]:
        return [self._calls.get() for _ in range(self._calls.qsize())]  # nobody else takes any

    def feed(self, entries: Sequence[Entry]) -> None:
        """Take what was just made durable, to save reading it again; from any one thread.

        Decisions that simply wait are noted at once, unless the learner's thread is at work: all about them is still in
        the processor's caches.
        """
        if entries and entries[-1].seq < self.learner.position + MOST_FED:  # what is left out is read from the log
            self._fed.append(entries)
        if self._turn.acquire(blocking=False):
            try:
                self._note_ranks()
            except Exception as error:  # the thread meets it too; who brings entries has others to serve
                self._note(error)
            finally:
                self._turn.release()
        self.wake()

    def _note_ranks(self) -> None:
        """Apply what was fed first, a little of it, as far as it is decisions that simply wait."""
        for _ in range(min(len(self._fed), NOTED_AT_ONCE)):
            entries, n_taken = self._fed[0], 0
            if entries[0].seq == self.learner.position + 1:
                n_taken = self.learner.apply_ranks(entries)
            if n_taken:
                self._last = entries[n_taken - 1]
                self._saver.encode_full(self.learner.loops[self._last.loop])
            if n_taken < len(entries):
                self._fed[0] = entries[n_taken:]
                return
            self._fed.popleft()

    def _apply_fed(self) -> bool:
        """Apply what was fed; return whether anything is new since it was last published, and nothing missing."""
        self._yield_at = time.perf_counter() + LONGEST_HOLD
        for _ in range(len(self._fed)):  # what comes meanwhile waits: this is to be published
            entries = self._fed.popleft()
            n_known = self.learner.position + 1 - entries[0].seq  # were read from the log
            if n_known < 0:
                return False
            self._apply_all(entries[n_known:])
        return self.learner.position > self.position

    def _apply_all(self, entries: Sequence[Entry]) -> None:
        while entries:
            n_taken, rest = self.learner.apply_ranks(entries[:AT_ONCE]), self._rest()
            if n_taken:
                self._last = entries[n_taken - 1]
                self._yield(rest)
            else:
                n_taken = 1
                self._apply(entries[0], rest)
            entries = entries[n_taken:]

    def _catch_up(self) -> None:
        """Apply all that is in the log now; what comes meanwhile may come faster than it is learned."""
        self._apply_fed()
        end, rest = self._log.last(), 0.0 if self._commits is None else BRIEF
        while self.learner.position < end and (entries := self._log.read(self.learner.position, CHUNK)):
            for entry in entries:
                self._apply(entry, rest)
            self._saver.encode_some(self.learner, 0.0)
            unsaved = sum(len(state.working) for state in self.learner.loops.values())
            if unsaved > MOST_UNSAVED or self._saver.is_full():
                self._take_personal()
                self.flush()
            if not self._from_scratch and time.monotonic() > self._published_at + self._interval():
                self._publish()

    def _apply(self, entry: Entry, rest: float = 0.0) -> None:
        if entry.kind == ERASED and self.learner.erasing is None and not self._from_scratch:
            raise Damaged("the snapshot is older than an erasure")  # it may hold what was erased
        self.learner.apply(entry, lambda: self._yield(rest))
        self._last = entry
        self._yield(rest)

    def _yield(self, rest: float) -> None:
        """Let others have the interpreter if it is time."""
        if time.perf_counter() > self._yield_at:
            time.sleep(rest)
            self._yield_at = time.perf_counter() + LONGEST_HOLD

    def _tick(self) -> bool:
        """Log a tick where a wait time has run out and nothing else says so; return whether there was one."""
        now = self._clock()
        due = [name for deadline, name in self.learner.next_deadline() if deadline <= now]
        if not due or self._commits is None or self._stopping:
            return False
        try:
            self._append(*[Record(name, TICK, None, None, NOTHING) for name in due])
        except StoreUnavailable as error:
            if error.code == "closed":  # a moment before this is stopped: it is due after the next start too
                return False
            raise
        return True

    def barrier(self, loop: str) -> None:
        """Learn all that was handed to the store before."""
        self._append(Record(loop, TICK, None, None, NOTHING))
        self._catch_up()

    def _append(self, *records: Record) -> None:
        assert self._commits is not None
        self._commits.append(records)

    def _publish(self) -> None:
        self._published_at = time.monotonic()
        self._take_personal()
        self.views = {name: self._view(state) for name, state in self.learner.loops.items()}
        self.position = self.learner.position

    def _take_personal(self) -> None:
        for state in self.learner.loops.values():
            since, working = state.head.since, state.working
            state.working = {}
            self._personal.publish(((since, user), model) for user, model in working.items())
        for key in self.learner.erased:
            self._personal.remove(key)

    def _view(self, state: LoopState) -> View:
        head, old = state.head, self.views.get(state.head.name)
        same = old is not None and (old.since, old.version) == (head.since, head.version)
        weights = old.weights if same and old is not None else state.shared.weights.copy()
        statistics = msgspec.structs.replace(head.statistics)
        history = None
        if head.name in self.followed and old is not None and old.since == head.since:
            history = followed(old.history, (old.version, old.weights), (head.version, weights))
        return View(
            head.name,
            head.since,
            head.settings,
            head.settings_version,
            head.catalogue,
            weights,
            head.version,
            statistics,
            state.join.n_waiting,
            state.shared.reward_range,
            state.shared.newest,
            head.clients,
            history,
        )

    def _stored(self, since: int, user: str) -> Any:
        return self._personal.load((since, user))

    def _restore(self) -> None:
        state = self._snapshots.load()
        if state is None:
            self._from_scratch = True
            return
        entries = self._log.read(max(state.position - 1, 0), 1)
        if not entries or entries[0].seq != state.position or mark(entries[0]) != state.mark:
            raise Damaged("the snapshot is of another log")
        for raw in state.loops:
            part = msgspec.msgpack.decode(raw, type=LoopPart)
            since = part.head.since
            slots, self._saver.pages[since] = self._snapshots.slots(since, part.n_slots)
            unmatched = [one for some in part.unmatched for one in msgspec.msgpack.decode(some, type=list[Unmatched])]
            shared = read_model(part.head.settings, self._snapshots.shared(since))
            self.learner.add(part.head, Join(slots, unmatched), shared)
            self._saver.saved[since] = part.head.version
        self.learner.position, self.learner.time, self._last = state.position, state.time, entries[0]
        self._saver.position = state.position

    def _rebuild(self, damage: Damaged) -> None:
        """Throw the snapshot away and learn all from the log again."""
        logging.getLogger(__name__).warning("learning from the whole log again: %s", damage)
        self.rebuilt += 1
        self._saver.discard()
        self.learner = Learner(self._stored, self._given.features)
        self._from_scratch = True
        self._catch_up()
        self._from_scratch = False

    def rebuild(self, damage: Damaged) -> None:
        try:
            self._rebuild(damage)
            self._publish()
        except Exception as error:
            self._note(error)

    def flush(self) -> None:
        """Bring the snapshot file up to date; raise ``StoreUnavailable`` if it cannot be."""
        self._take_personal()
        self._saver.flush(self.learner, self._last)

    def _finish(self) -> None:
        try:
            self.flush()
        except StoreUnavailable as error:
            self._note(error)
        for call in self._waiting_calls():
            call()

    def raise_trouble(self) -> None:
        if isinstance(self.trouble, StoreUnavailable):
            raise StoreUnavailable(self.trouble.code, self.trouble.message)
        if self.trouble is not None:
            raise StoreUnavailable("failed", repr(self.trouble))

    def lag_seconds(self) -> float:
        """Return how old the last record is that was learned from."""
        return max(self._clock() - self.learner.time, 0) / 1e6

    def digest(self, loop: str) -> str:
        self.flush()
        state = self.learner.loops[loop]
        return digest(state.shared, self._snapshots.all_personal(state.head.since))

    def begin_save(self) -> Future[None] | None:
        """Return what is done once the snapshot that is being written is, None where the file is up to date."""
        self._take_personal()
        return self._saver.begin(self.learner, self._last)

    def n_without_base(self, loop: str) -> int:
        return self._snapshots.n_without_base(self.learner.loops[loop].head.since)

    def base_some(self, loop: str, without: str, after: int, limit: int) -> tuple[int | None, list[str]]:
        """Log at most ``limit`` models of users as they are; nobody may log anything meanwhile.

        Only models that are saved and that the log has no base of, in rows after ``after`` of the snapshot. Return the
        last row looked at, None where there are no more, and the users.
        """
        self.barrier(loop)
        self._take_personal()
        since = self.learner.loops[loop].head.since
        found = self._snapshots.some_without_base(since, after, limit)
        own = [(user, model) for _, user, model in found if user != without and self._personal.is_saved((since, user))]
        self.learner.basing = True
        try:
            self._append(*[Record(loop, BASE, None, user, model) for user, model in own])
        finally:
            self._catch_up()
            self.learner.basing = False
        users = [user for user, _ in own]
        self._saver.note_based(since, users)
        return (found[-1][0] if found else None), users

    def erase(self, loop: str, user: str) -> int:
        """Return how many records were erased; nobody may log anything meanwhile. A ``flush`` must follow."""
        self.barrier(loop)
        self.flush()
        state = self.learner.loops[loop]
        events = tuple(self._log.events_of(loop, user, RANK))
        base = self._base(state, user)
        self.learner.erasing, self.learner.basing = Erasure(loop, user, events), True
        try:
            assert self._commits is not None
            n_erased = self._commits.erase(loop, user, base, state.head.base)
        finally:
            self._catch_up()
            self.learner.erasing, self.learner.basing = None, False  # still there if nothing was erased
            self._publish()
        return n_erased

    def _base(self, state: LoopState, without: str) -> list[Record]:
        """Return records of the loop's models as they are: those of users first, the shared one last."""
        loop, head = state.head.name, state.head
        own = self._snapshots.all_personal(head.since, without_base=True)
        clients, guard = head.clients.without(without), forgetting(head.guard, without)
        weights = bytes_without(state.shared, head.clients.numbers.get(without))
        shared = Base(weights, head.version, head.statistics, clients, guard)
        return [
            *[Record(loop, BASE, None, user, model) for user, model in own if user != without],
            Record(loop, BASE, None, None, msgspec.msgpack.encode(shared)),
        ]


def _expected(error: Exception) -> bool:
    return isinstance(error, StoreUnavailable | sqlite3.Error)


def _run_into(future: Future[Answer], function: Callable[[], Answer]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)

"""Follows the log: how each loop of a machine begins, moves on, and begins again.

A loop begins from its snapshot, from the base of an erasure, or with its first record. A failure in one loop stops
that loop only: a loop that cannot learn a record halts before it and is reported with the record and a remedy. Its
last models still decide, and all other loops continue. Failures of the store and of the machine affect all loops.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from service.learn.loop_state import LoopState, new_loop, record_checksum
from service.learn.snapshots import DamagedSnapshot, SavedLoop, Saver, Snapshots
from service.log.client import BlockingWriter
from service.log.protocol import Head, Log, StoreUnavailable, live_loop
from service.log.records import (
    BASE,
    DELETED,
    ERASE,
    ERASED,
    LOOP,
    RANK,
    DamagedRecord,
    Entry,
    ErasedBody,
    decode_erased,
)
from service.log.writer import DirectWriter
from service.models.loop_metadata import Base, PersonalBase
from service.models.personal import PersonalModels
from service.models.table import model_kind

BATCH = 2_000  # records that are read together
ROOM_BYTES = 1 << 24  # free memory for models required before learning
MACHINE = (StoreUnavailable, DamagedSnapshot, sqlite3.Error, OSError, MemoryError)  # errors that are of no single loop

GONE = "gone"  # stands for the kind of a record that no longer exists


class UnlearnableRecord(Exception):  # noqa: N818
    """A record that its loop cannot learn from. The loop is halted; ``at`` is the record that showed it."""

    def __init__(self, entry: Entry, error: Exception, at: int | None = None, model_replaced_at: int = 0) -> None:
        super().__init__(entry.loop, entry.position, str(error))
        self.loop, self.position, self.kind, self.event = entry.loop, entry.position, entry.kind, entry.event
        self.at, self.model_replaced_at = entry.position if at is None else at, model_replaced_at
        self.reason = f"{type(error).__name__}: {error}"

    def __str__(self) -> str:
        event = "" if self.event is None else f", event {self.event!r}"
        replaced = self.model_replaced_at
        model = f", or record {replaced}, which is the model it learns with," if replaced else ""
        return (
            f"record {self.position} of loop {self.loop!r} ({self.kind}{event}) cannot be learned from: {self.reason}. "
            f"The loop stands still, with the models that it had learned before; other loops go on. Give the "
            f"record{model} up (fedres log drop {self.loop} {self.position} --force), or delete the loop"
        )


Trouble = DamagedRecord | UnlearnableRecord


class Follower:
    """The loops of a machine, how far each has read its log, and the halted ones.

    Loops other than ``only`` are left to other machines. ``hold`` is the log's: whether this machine ends wait times
    and erasures of a loop.
    """

    def __init__(
        self,
        log: Log,
        writer: BlockingWriter | DirectWriter,
        snapshots: Snapshots,
        personal: PersonalModels,
        saver: Saver,
        *,
        only: Collection[str] | None = None,
        hold: Callable[[str], int | None] | None = None,
    ) -> None:
        self.log, self.writer, self.hold = log, writer, hold or log.hold
        self.snapshots, self.personal, self.saver = snapshots, personal, saver
        self.loops: dict[str, LoopState] = {}
        self.positions: dict[str, int] = {}  # how far each loop's log was read, also of deleted loops
        self.halted: dict[str, Trouble] = {}  # halted loops, and the record that each cannot process
        self.trouble: Exception | None = None
        self.rebuilt = 0  # how often a snapshot was thrown away
        self.n_taken = 0  # records so far
        self.beat: Callable[[], None] = lambda: None  # a sign of life, also during long work
        self.lag = 0.0  # seconds from the last record learned to the end of its log, of the loop furthest behind
        self._only = only
        self._shrunk: str | None = None  # name of the log that has become shorter
        self._removed: dict[str, tuple[int, int]] = {}  # records that went, and where the last pruning began

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Halt a loop that raises an error; the caller continues with the others."""
        try:
            yield
        except MACHINE:
            raise
        except (DamagedRecord, UnlearnableRecord) as trouble:
            self.halt(name, trouble)
        except Exception as error:
            position = self.positions.get(name, 0)
            self.halt(name, UnlearnableRecord(entry_at(self.log, name, position), error))

    def halt(self, name: str, trouble: Trouble) -> None:
        logging.getLogger(__name__).error("loop %r stands still: %s", name, trouble)
        self.halted[name] = self.trouble = trouble

    # how a loop begins

    def open_loop(self, name: str, saved: SavedLoop | None) -> None:
        """Begin a loop; if its first records or its base are damaged, it is not served."""
        with self.alone(name):
            self.restore_or_rebuild(name, saved)

    def restore_or_rebuild(self, name: str, saved: SavedLoop | None) -> None:
        if saved is not None:
            try:
                self.restore(name, saved)
                return
            except DamagedSnapshot as damage:
                logging.getLogger(__name__).warning("loop %r is learned from the log again: %s", name, damage)
                self.rebuilt += 1
                self.personal.remove(saved.metadata.id, self.saved_users(name))
                self.saver.drop(name)
        self.rebuild(name)

    def restore(self, name: str, saved: SavedLoop) -> None:
        """Restore a loop from the snapshot; join its pending events again, without learning."""
        if record_checksum(entry_at(self.log, name, saved.position)) != saved.record:
            raise DamagedSnapshot("the snapshot is of another log")
        if any(decode_erased(entry.body).base > saved.position for entry in self.log.of_kind(name, ERASED)):
            raise DamagedSnapshot("the snapshot is older than an erasure")
        kind = model_kind(saved.metadata.settings)
        try:
            shared = kind.from_bytes(saved.metadata.settings, self.snapshots.shared(name))
        except ValueError as error:
            raise DamagedSnapshot(str(error)) from error
        for user, changed, model in self.snapshots.personal(name, n_users=saved.n_personal):
            self.beat()
            self.personal.put(saved.metadata.id, user, kind.personal_data(changed, model), saved=True)
        saved.metadata.catalogue = self.snapshots.catalogue(name, saved.n_actions)
        state = LoopState(saved.metadata, shared, self.personal)
        state.learn_from = saved.position + 1
        state.position = max(saved.metadata.created_at, saved.pending_from - 1)
        self.join_again(state, saved.position)
        state.join.unmatched.clear()
        state.join.unmatched.extend(saved.unmatched)
        state.position, state.time, state.record_checksum = saved.position, saved.time, saved.record
        self.loops[name], self.positions[name] = state, saved.position
        self.saver.note_saved(state)

    def join_again(self, state: LoopState, last: int) -> None:
        """Join a loop's records up to the position of its models; halt it if one is damaged."""
        while state.position < last:
            self.beat()
            try:
                entries = self.log.read(state.metadata.name, state.position, BATCH, bodies=False)
            except DamagedRecord as damage:
                if damage.position <= last:
                    self.halt(state.metadata.name, damage)
                    break
                entries = in_front_of(self.log, damage, state.position)
            with blaming(self.log, entries, state):
                take(self.log, state, [entry for entry in entries if entry.position <= last])
            if not entries or entries[-1].position >= last:
                break
        forget_settled(self.log, state, last)

    def rebuild(self, name: str) -> None:
        """Begin with the record that made the loop, or with the base of its last erasure or pruning."""
        try:
            while True:
                old = last_pruning(self.log, name)
                self._rebuild(name, old)
                if last_pruning(self.log, name) == old:
                    return
                self.forget(name)  # the records read meanwhile may have had gaps
        except Exception:
            self.forget(name)  # without its first records or its base it is not served
            raise

    def _rebuild(self, name: str, old: ErasedBody | None) -> None:
        made = live_loop(self.log, name)
        if made is None:
            self.positions[name] = last_deletion(self.log, name)
            return
        state = self.begin(made)
        state.pruned_to = 0 if old is None else old.cut
        erased = [entry for entry in self.log.of_kind(name, ERASED) if entry.position > state.metadata.created_at]
        if erased:
            with blaming(self.log, erased[-1:]):
                base = decode_erased(erased[-1].body).base
            state.learn_from = base + 1
            self.join_again(state, base)
            self.install(state, erased[-1], base)
            state.metadata.base = base  # also if its shared model was dropped
            self.positions[name] = base

    def begin(self, made: Entry) -> LoopState:
        with blaming(self.log, [made]):
            state = self.loops[made.loop] = new_loop(made, self.personal)
        self.positions[made.loop] = made.position
        return state

    def install(self, state: LoopState, erased: Entry, base: int) -> None:
        """Put in the models as they were at the base of an erasure."""
        metadata, after = state.metadata, state.metadata.created_at
        while entries := self.log.of_kind(metadata.name, BASE, after, limit=500):
            for entry in entries:
                if entry.position < erased.position:
                    with blaming(self.log, [entry]):
                        self._install_base(state, entry, base)
            after = entries[-1].position
        for user in metadata.erasing:  # older bases may still have them
            state.forget_models(user)

    def _install_base(self, state: LoopState, entry: Entry, base: int) -> None:
        self.beat()
        metadata = state.metadata
        if entry.user is not None:
            personal = msgspec.msgpack.decode(entry.body, type=PersonalBase)
            self.personal.put(metadata.id, entry.user, state.kind.personal_data(personal.changed, personal.model))
            return
        saved = msgspec.msgpack.decode(entry.body, type=Base)
        state.shared = state.kind.from_bytes(metadata.settings, saved.shared)
        state.begin_at(base, saved.time)
        metadata.version, metadata.statistics, metadata.base = saved.version, saved.statistics, base
        metadata.clients, metadata.guard = saved.clients, saved.guard

    # how it moves on

    def step_log(self) -> bool:
        """Take at most one batch of each loop; return whether there may be more."""
        self.beat()
        self._make_room()
        more, lag, heads = False, 0, self.log.heads()
        self._check_length(heads)
        for name, head in heads.items():
            position = self.positions.get(name, 0)
            if head.last > position and self.follows(name):
                entries: list[Entry] = []
                with self.alone(name):
                    entries = self.read_batch(name, position)
                    if entries and self.has_gaps(name, position):
                        self.relearn(name)
                    else:
                        self.take_or_step_back(name, entries)
                began_again = bool(entries) and self.positions.get(name, 0) < entries[-1].position
                more |= len(entries) == BATCH or began_again
                if name in self.loops and name not in self.halted and self.positions[name] < head.last:
                    lag = max(lag, head.time - self.loops[name].time)
        self.lag = lag / 1e6
        return more

    def catch_up(self, state: LoopState) -> bool:
        """Read all that the last holder has done, who can do nothing more; return whether the loop is still this."""
        while self.step_log():
            pass
        return self.loops.get(state.metadata.name) is state

    def _check_length(self, heads: dict[str, Head]) -> None:
        """Learn no more once a log has become shorter: others may take the places of records that were learned."""
        for name, position in self.positions.items():
            last = heads[name].last if name in heads else 0
            if last < position and self._shrunk is None:
                self._shrunk = f"the log of loop {name!r} ends at {last}, but was learned up to {position}"
        if self._shrunk is not None:
            raise StoreUnavailable("damaged", f"{self._shrunk}: records were lost; restart the service")

    def _make_room(self) -> None:
        """Learn nothing without room to publish it: an error in the middle would leave models half learned."""
        try:
            self.personal.memory.make_room(ROOM_BYTES)
        except OSError as error:
            where = self.personal.memory.path.parent
            raise StoreUnavailable("full", f"there is no room for models in {where}: {error}") from error

    def follows(self, name: str) -> bool:
        return self._only is None or name in self._only

    def epoch_to_end(self, name: str) -> int | None:
        """Return the epoch in which this machine ends wait times and erasures of a loop, None if it does not.

        A loop that stands still could not learn of it.
        """
        return None if name in self.halted else self.hold(name)

    def read_batch(self, name: str, position: int) -> list[Entry]:
        """Return a batch, or the records before a damaged one; continue once that is dropped or the loop is deleted."""
        if name in self.halted:
            trouble = self.halted[name]
            deleted = last_deletion(self.log, name)
            if deleted > max(position, trouble.position):
                self.drop(name)
                self.positions[name] = deleted
            elif is_in_the_way(self.log, trouble):
                return []
            elif isinstance(trouble, UnlearnableRecord) or trouble.position <= position or name not in self.loops:
                self.relearn(name)  # the dropped record was used in part, or is joined again
            del self.halted[name]
            position = self.positions.get(name, 0)
        try:
            return self.log.read(name, position, BATCH, bodies=False)
        except DamagedRecord as damage:
            self.halt(name, damage)
            return in_front_of(self.log, damage, position)

    def has_gaps(self, name: str, position: int) -> bool:
        """Return whether old events may be missing from the records just read from behind a position.

        They are deleted once the loop's holder has read the record that announces it; those it had read are needed.
        """
        removed = self.log.heads()[name].removed
        if self._removed.get(name, (0, 0))[0] != removed:
            old = last_pruning(self.log, name)
            self._removed[name] = removed, 0 if old is None else old.begun
        return name in self.loops and self._removed.get(name, (0, 0))[1] > position

    def take_or_step_back(self, name: str, entries: list[Entry]) -> None:
        """Process a batch. If that fails, set the loop back to before the record it cannot learn, and name the record.

        Learning goes by batches, in place, so the loop begins again from its snapshot, twice: to find the record, and
        to stop before it. If nothing fails this time, the loop continues.
        """
        try:
            self.take_batch(name, entries)
            return
        except (*MACHINE, UnlearnableRecord):
            raise
        except Exception:
            logging.getLogger(__name__).exception("loop %r fails, and goes back to what it had learned before", name)
        self._begin_again(name, self.positions.get(name, 0))
        try:
            self._take_carefully(name)
        except UnlearnableRecord as trouble:
            self._begin_again(name, trouble.at - 1)
            raise

    def take_batch(self, name: str, entries: list[Entry]) -> None:
        start = 0
        self.n_taken += len(entries)
        for k, entry in enumerate(entries):
            if entry.kind in (LOOP, DELETED):
                if name in self.loops:
                    take(self.log, self.loops[name], entries[start:k])
                start = k + 1
                if entry.kind == LOOP and name not in self.loops:
                    self.begin(entry)
                elif entry.kind == DELETED:
                    self.drop(name)
        if name in self.loops:
            take(self.log, self.loops[name], entries[start:])
        if entries:
            self.positions[name] = entries[-1].position
        if name in self.loops and self.loops[name].missed_erasure:
            self.relearn(name)

    def _take_carefully(self, name: str) -> None:
        """Process all logged records, one record and one event at a time, to name the one that fails."""
        if name in self.loops:
            self.loops[name].careful = True
        try:
            while entries := self.log.read(name, self.positions.get(name, 0), 1, bodies=False):
                self.beat()
                with blaming(self.log, entries, self.loops.get(name)):
                    self.take_batch(name, entries)
        finally:
            if name in self.loops:
                self.loops[name].careful = False

    def _begin_again(self, name: str, last: int) -> None:
        """Begin a loop again, and learn up to a position that it had reached before."""
        self.forget(name)
        self.saver.finish()
        saved = [loop for loop in self.snapshots.loops() if loop.metadata.name == name] if self.saver.has(name) else []
        self.restore_or_rebuild(name, saved[0] if saved else None)
        try:
            while name in self.loops and self.positions[name] < last:
                entries = self.log.read(name, self.positions[name], BATCH, bodies=False)
                entries = [entry for entry in entries if entry.position <= last]
                if not entries:
                    return
                self.beat()
                self.take_batch(name, entries)
        except MACHINE:
            raise
        except Exception:
            self.forget(name)  # it is in no state to be published
            raise

    # how it ends

    def relearn(self, name: str) -> None:
        """Begin a loop again, from the base of its last erasure: records that it had not read were deleted."""
        logging.getLogger(__name__).warning("loop %r is learned again: records that it needs are gone", name)
        self.forget(name)
        self.saver.drop(name)
        self.rebuild(name)

    def forget(self, name: str) -> LoopState | None:
        """Forget a loop's models in memory; published models stay until the loop begins again."""
        state = self.loops.pop(name, None)
        if state is not None:
            self.saver.finish()
            unsaved = {user for loop, user in self.personal.unsaved if loop == state.metadata.id}
            self.personal.remove(state.metadata.id, {*self.saved_users(name), *unsaved})
        return state

    def saved_users(self, name: str) -> list[str]:
        try:
            return self.snapshots.users(name)
        except DamagedSnapshot:
            return []

    def drop(self, name: str) -> LoopState | None:
        """Remove a deleted loop; return it."""
        state = self.forget(name)
        if state is not None:
            self.saver.drop(name)
        return state


def forget_settled(log: Log, state: LoopState, last: int) -> None:
    """Forget rewards that look early only because the decision they belong to was not read or is deleted.

    A reward logged after a pruning had begun is not for a decision that it deletes.
    """
    metadata, early = state.metadata, state.join.early()
    if not early:
        return
    with contextlib.suppress(DamagedRecord):
        there, settled = set(), set()
        for entry in log.find(metadata.name, sorted(early)):
            if metadata.created_at < entry.position <= last and entry.event in early:
                there.add(entry.event)
                is_old = entry.position <= metadata.pruned.cut
                if entry.kind == RANK and not (is_old and early[entry.event].first > metadata.pruned.begun):
                    settled.add(entry.event)
        state.join.forget(settled | (early.keys() - there))


def take(log: Log, state: LoopState, entries: Sequence[Entry]) -> None:
    """Advance a loop. Where a pruning begins, all learners must forget the same events: the log has the old ones."""
    start = 0
    for k, entry in enumerate(entries):
        if entry.kind == ERASE and entry.user is None:
            state.take(entries[start : k + 1])
            forget_settled(log, state, entry.position)
            start = k + 1
    state.take(entries[start:])


def last_pruning(log: Log, name: str) -> ErasedBody | None:
    """Return the newest pruning whose events are being deleted."""
    return next(
        (body for entry in reversed(log.of_kind(name, ERASED)) if (body := decode_erased(entry.body)).cut), None
    )


def in_front_of(log: Log, damage: DamagedRecord, position: int) -> list[Entry]:
    """Return the records from behind a position up to a damaged one."""
    entries: list[Entry] = []
    with contextlib.suppress(DamagedRecord):  # the next record if those between were erased
        while position < damage.position - 1:
            entries += log.read(damage.loop, position, 1, bodies=False)
            position = entries[-1].position
    return entries


@contextlib.contextmanager
def blaming(log: Log, entries: Sequence[Entry], state: LoopState | None = None) -> Iterator[None]:
    """Name the record in errors: the decision being settled or learned, else the record being read."""
    try:
        yield
    except (*MACHINE, DamagedRecord, UnlearnableRecord):
        raise
    except Exception as error:
        if state is None:
            raise UnlearnableRecord(entries[0], error) from error
        at = next((entry for entry in entries if entry.position == state.position), entries[0])
        event = state.join.current
        about = [] if event is None else log.find(at.loop, [event])
        blamed = next((entry for entry in about if entry.kind == RANK), at)
        raise UnlearnableRecord(blamed, error, at.position, state.metadata.model_replaced_at) from error


def is_in_the_way(log: Log, trouble: Trouble) -> bool:
    """Return whether the record that halted a loop still exists, unchanged."""
    if isinstance(trouble, UnlearnableRecord):
        named = [position for position in (trouble.position, trouble.model_replaced_at) if position]
        return all(entry_at(log, trouble.loop, position).kind != GONE for position in named)
    try:
        log.read(trouble.loop, trouble.position - 1, 1)
    except DamagedRecord as damage:
        return damage.position == trouble.position
    return False


def last_deletion(log: Log, name: str) -> int:
    """Return the position of a loop's last deletion, 0 if there is none."""
    with contextlib.suppress(DamagedRecord):
        return max([0, *(entry.position for entry in log.of_kind(name, DELETED))])
    return 0


def entry_at(log: Log, name: str, position: int) -> Entry:
    """Return the record at a position, or one of the kind ``GONE``."""
    with contextlib.suppress(DamagedRecord):
        for entry in log.read(name, position - 1, 1, bodies=False):
            if entry.position == position:
                return entry
    return Entry(name, position, 0, GONE, None, None, None, b"")

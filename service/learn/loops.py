"""The loops of a machine: how each begins, moves on by its log, and begins again.

A loop begins from its snapshot, from the base of an erasure, or with its first record. What is wrong with one loop
stops that loop only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

import msgspec

from service.learn.isolation import (
    MACHINE,
    Trouble,
    UnlearnableRecord,
    blaming,
    deleted_at,
    entry_at,
    is_in_the_way,
)
from service.learn.loop_state import LoopState, new_loop, record_checksum
from service.learn.snapshots import DamagedSnapshot, SavedLoop, Saver, Snapshots
from service.log.protocol import Head, Log
from service.log.records import DELETED, ERASE, ERASED, LOOP, RANK, DamagedRecord, Entry, ErasedBody, decode_erased
from service.models.loop_metadata import Base, PersonalBase
from service.models.personal import PersonalModels
from service.models.table import model_kind

BATCH = 2_000  # records that are read together


class FollowedLoops:
    """The loops of a machine, how far each has read its log, and those that stand still."""

    def __init__(self, log: Log, snapshots: Snapshots, personal: PersonalModels, saver: Saver) -> None:
        self.log, self.snapshots, self.personal, self.saver = log, snapshots, personal, saver
        self.loops: dict[str, LoopState] = {}
        self.positions: dict[str, int] = {}  # how far each loop's log was read; a deleted loop is in no other place
        self.halted: dict[str, Trouble] = {}  # loops that stand still, and the record that each cannot take
        self.trouble: Exception | None = None
        self.rebuilt = 0  # how often a snapshot was thrown away
        self.n_taken = 0  # records so far
        self.beat: Callable[[], None] = lambda: None  # a sign of life, given within long work too
        self._removed: dict[str, tuple[int, int]] = {}  # records that went, and where the last pruning began

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Let a loop in which something goes wrong stand still, and the caller go on with the others."""
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

    def open_loop(self, name: str, head: Head, saved: SavedLoop | None) -> None:
        """Begin a loop; one of whose first records, or of whose base, is damaged is not served."""
        with self.alone(name):
            self.restore_or_rebuild(name, head, saved)

    def restore_or_rebuild(self, name: str, head: Head, saved: SavedLoop | None) -> None:
        if saved is not None:
            try:
                self.restore(name, head, saved)
                return
            except DamagedSnapshot as damage:
                logging.getLogger(__name__).warning("loop %r is learned from the log again: %s", name, damage)
                self.rebuilt += 1
                self.personal.remove(saved.metadata.id, self.known_users(name))
                self.saver.drop(name)
        self.rebuild(name)

    def restore(self, name: str, head: Head, saved: SavedLoop) -> None:
        """Take a loop from the snapshot; join its pending events again, without learning."""
        try:
            at = self.log.read(name, saved.position - 1, 1)
        except DamagedRecord as damage:
            raise DamagedSnapshot("the record that it ends with is damaged") from damage
        if head.last < saved.position or not at or record_checksum(at[0]) != saved.record:
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
        state.resume_erasures()
        state.position = max(saved.metadata.created_at, saved.pending_from - 1)
        self.join_again(state, saved.position)
        forget_settled(self.log, state, saved.position)
        state.join.unmatched.clear()
        state.join.unmatched.extend(saved.unmatched)
        state.position, state.time, state.record_checksum = saved.position, saved.time, saved.record
        self.loops[name], self.positions[name] = state, saved.position
        self.saver.note_saved(state)

    def join_again(self, state: LoopState, last: int) -> None:
        """Join a loop's records up to a position whose models are known; stand still where one is damaged."""
        while state.position < last:
            self.beat()
            try:
                entries = self.log.read(state.metadata.name, state.position, BATCH, bodies=False)
            except DamagedRecord as damage:
                if damage.position <= last:
                    self.halt(state.metadata.name, damage)
                    return
                entries = in_front_of(self.log, damage, state.position)
            with blaming(self.log, entries, state):
                take(self.log, state, [entry for entry in entries if entry.position <= last])
            if not entries or entries[-1].position >= last:
                return

    def rebuild(self, name: str) -> None:
        """Begin with the record that made the loop, or with the base of its last erasure or pruning."""
        old = last_pruning(self.log, name)
        try:
            self._rebuild(name, old)
            while (now := last_pruning(self.log, name)) != old:  # what was read meanwhile may have had gaps
                if name in self.loops:
                    self.remove_personal(self.loops[name])
                old = now
                self._rebuild(name, old)
        except Exception:
            self.forget(name)  # without its first records or its base it is not served
            raise

    def _rebuild(self, name: str, old: ErasedBody | None) -> None:
        made = self.log.of_kind(name, LOOP)
        deleted = self.log.of_kind(name, DELETED)
        if not made or (deleted and deleted[-1].position > made[-1].position):
            self.positions[name] = deleted[-1].position if deleted else 0
            return
        state = self.begin(made[-1])
        state.pruned_to = 0 if old is None else old.cut
        erased = [entry for entry in self.log.of_kind(name, ERASED) if entry.position > state.metadata.created_at]
        if erased:
            with blaming(self.log, erased[-1:]):
                base = decode_erased(erased[-1].body).base
            state.learn_from = base + 1
            self.join_again(state, base)
            forget_settled(self.log, state, base)
            self.install(state, erased[-1], base)
            state.metadata.base = base  # also if its shared model was given up
            self.positions[name] = base

    def begin(self, made: Entry) -> LoopState:
        with blaming(self.log, [made]):
            state = self.loops[made.loop] = new_loop(made, self.personal)
        self.positions[made.loop] = made.position
        return state

    def install(self, state: LoopState, erased: Entry, base: int) -> None:
        """Put in the models as they were at the base of an erasure."""
        metadata = state.metadata
        for entry in self.log.bases(metadata.name, erased.position):
            if entry.position > metadata.created_at:
                with blaming(self.log, [entry]):
                    self._install_base(state, entry, base)
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

    def read_batch(self, name: str, position: int) -> list[Entry]:
        """Return a batch, or what is in front of a damaged record; go on once that is dropped, or the loop deleted."""
        if name in self.halted:
            trouble = self.halted[name]
            deleted = deleted_at(self.log, trouble)
            if deleted > max(position, trouble.position):
                self.drop(name)
                self.positions[name] = deleted
            elif is_in_the_way(self.log, trouble):
                return []
            elif isinstance(trouble, UnlearnableRecord) or trouble.position <= position or name not in self.loops:
                self.relearn(name)  # what was dropped was taken in part, or is among those that are joined again
            del self.halted[name]
            position = self.positions.get(name, 0)
        try:
            return self.log.read(name, position, BATCH, bodies=False)
        except DamagedRecord as damage:
            self.halt(name, damage)
            return in_front_of(self.log, damage, position)

    def has_gaps(self, name: str, position: int) -> bool:
        """Return whether old events may have gone from what was just read from behind a position.

        They go once the loop's holder has read up to the record that announces it; what it had read before is needed.
        """
        removed = self.log.heads()[name].removed
        if self._removed.get(name, (0, 0))[0] != removed:
            old = last_pruning(self.log, name)
            self._removed[name] = removed, 0 if old is None else old.begun
        return name in self.loops and self._removed.get(name, (0, 0))[1] > position

    def take_or_step_back(self, name: str, entries: list[Entry]) -> None:
        """Take a batch. If that fails, put the loop in front of the record that it cannot learn from, and name that.

        Learning goes by batches, in place, so the loop begins again from its snapshot, twice: to find the record, and
        to stop in front of it. If nothing fails this time, it goes on.
        """
        try:
            self.take_batch(name, entries)
            return
        except (*MACHINE, UnlearnableRecord):
            raise
        except Exception:
            logging.getLogger(__name__).exception("loop %r fails, and goes back to what it had learned before", name)
        trouble = self._first_trouble(name, self.positions.get(name, 0))
        if trouble is not None:
            self._begin_again(name, trouble.at - 1)
            raise trouble

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

    def _first_trouble(self, name: str, good: int) -> UnlearnableRecord | None:
        self._begin_again(name, good)
        if name in self.loops:
            self.loops[name].careful = True
        try:
            while entries := self.log.read(name, self.positions.get(name, 0), 1, bodies=False):
                self.beat()
                with blaming(self.log, entries, self.loops.get(name)):
                    self.take_batch(name, entries)
        except UnlearnableRecord as trouble:
            return trouble
        finally:
            if name in self.loops:
                self.loops[name].careful = False
        return None

    def _begin_again(self, name: str, last: int) -> None:
        """Begin a loop again, and learn up to a position from which it has learned before."""
        self.forget(name)
        self.saver.finish()
        saved = [loop for loop in self.snapshots.loops() if loop.metadata.name == name] if self.saver.has(name) else []
        self.restore_or_rebuild(name, self.log.heads()[name], saved[0] if saved else None)
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
        """Begin a loop again, from the base of its last erasure: records that it had not read are gone."""
        logging.getLogger(__name__).warning("loop %r is learned again: records that it needs are gone", name)
        self.forget(name)
        self.saver.drop(name)
        self.rebuild(name)

    def forget(self, name: str) -> None:
        """Leave nothing of what was learned in a loop, in memory; what is published stays until it begins again."""
        state = self.loops.pop(name, None)
        if state is not None:
            self.remove_personal(state)

    def remove_personal(self, state: LoopState) -> None:
        name = state.metadata.name
        self.saver.finish()
        users = {
            *self.known_users(name),
            *(user for loop, user in self.personal.unsaved if loop == state.metadata.id),
        }
        self.personal.remove(state.metadata.id, users)

    def known_users(self, name: str) -> list[str]:
        try:
            return self.snapshots.users(name)
        except DamagedSnapshot:
            return []

    def drop(self, name: str) -> LoopState | None:
        """Leave nothing of a loop that was deleted; return it."""
        state = self.loops.pop(name, None)
        if state is not None:
            self.remove_personal(state)
            self.saver.drop(name)
        return state


def forget_settled(log: Log, state: LoopState, last: int) -> None:
    """Forget rewards that look as if they came early, because the decision they belong to was not read, or is deleted.

    A reward that came after a pruning had begun is not about a decision that goes with it.
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
    """Move a loop on. Where a pruning begins, all learners must forget the same events: the log tells which are old."""
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
    with contextlib.suppress(DamagedRecord):  # that is the next where the records between the two were erased
        while position < damage.position - 1:
            entries += log.read(damage.loop, position, 1, bodies=False)
            position = entries[-1].position
    return entries

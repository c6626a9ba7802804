"""Follows the log: how each loop of a machine begins, moves on, and begins again.

A loop begins from its snapshot, from the base of an erasure, or with its first record. A failure in one loop stops
that loop only: a loop that cannot learn a record halts before it and is reported with the record and a remedy. Its
last models still decide, and all other loops continue. Failures of the store and of the machine affect all loops.

Loops take turns: each works for a slice of time, and goes on in its next turn where it has stopped, so that a loop
with much to do delays another by one slice for each such loop.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from service.learn.loop_state import REMEMBERED_ERASURES, LoopState, new_loop, record_checksum
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
    decode_erase,
    decode_erased,
)
from service.log.writer import DirectWriter
from service.models.loop_metadata import Base, PersonalBase
from service.models.personal import PersonalModels
from service.models.table import model_kind

BATCH = 2_000  # records that are read together, at most
FEWEST = 16  # records that a loop reads together whose records take long to learn from
SLICE_SECONDS = 0.05  # of a loop's turn
ROUND_SECONDS = 0.25  # of turns between two looks at what else is to be done
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
        self.clock: Callable[[], float] = time.monotonic  # seconds, for slices
        self._only = only
        self._beginning: dict[str, Iterator[bool]] = {}  # loops that begin, each with the rest of the work
        self._midway: dict[str, tuple[Iterator[bool], list[Entry]]] = {}  # in a record: the rest of the work, of these
        self._limits: dict[str, int] = {}  # how many records a loop reads together
        self._ends: dict[str, int] = {}  # where the loops' logs ended when this round began
        self._complete_at: dict[str, int] = {}  # positions that loops must reach before they are shown
        self._to_read: dict[str, tuple[int, int]] = {}  # by loop: the epoch of its holder, and what to read first
        self._last_turn = ""  # the loop that had a turn last
        self.orphans: dict[str, dict[str, str]] = {}  # erasures in deleted loops: tokens by loop and user
        self.orphans_erased: list[str] = []  # tokens of those that are complete
        self.seconds: defaultdict[str, float] = defaultdict(float)  # of work so far, by loop
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
        """Let a loop begin with its next turn; if its first records or its base are damaged, it is not served."""
        if saved is not None:
            self.saver.note_there(name)
        with contextlib.suppress(DamagedRecord):
            if live_loop(self.log, name) is None:
                self.positions[name] = last_deletion(self.log, name)
                self.saver.drop(name)
                return
        self._beginning[name] = self.restore_or_rebuild(name, saved)
        self._complete_at[name] = self.log.heads()[name].last

    def restore_or_rebuild(self, name: str, saved: SavedLoop | None) -> Iterator[bool]:
        if saved is not None:
            try:
                yield from self.restore(name, saved)
                return
            except DamagedSnapshot as damage:
                logging.getLogger(__name__).warning("loop %r is learned from the log again: %s", name, damage)
                self.rebuilt += 1
                self.personal.remove(saved.metadata.id, self.saved_users(name))
                self.saver.drop(name)
        yield from self.rebuild(name)

    def restore(self, name: str, saved: SavedLoop) -> Iterator[bool]:
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
            self.personal.put(saved.metadata.id, user, kind.personal_data(changed, model), saved=True)
            yield False
        saved.metadata.catalogue = self.snapshots.catalogue(name, saved.n_actions)
        state = LoopState(saved.metadata, shared, self.personal)
        state.learn_from = saved.position + 1
        state.position = max(saved.metadata.created_at, saved.pending_from - 1)
        yield from self.join_again(state, saved.position)
        state.join.unmatched.clear()
        state.join.unmatched.extend(saved.unmatched)
        state.position, state.time, state.record_checksum = saved.position, saved.time, saved.record
        self.loops[name], self.positions[name] = state, saved.position
        self.saver.note_saved(state)

    def join_again(self, state: LoopState, last: int) -> Iterator[bool]:
        """Join a loop's records up to the position of its models; halt it if one is damaged."""
        while state.position < last:
            yield False
            try:
                entries = self.log.read(state.metadata.name, state.position, BATCH, bodies=False)
            except DamagedRecord as damage:
                if damage.position <= last:
                    self.halt(state.metadata.name, damage)
                    break
                entries = in_front_of(self.log, damage, state.position)
            with blaming(self.log, entries, state):
                for _ in taking(self.log, state, [entry for entry in entries if entry.position <= last]):
                    yield False
            if not entries or entries[-1].position >= last:
                break
        forget_settled(self.log, state, last)

    def rebuild(self, name: str) -> Iterator[bool]:
        """Begin with the record that made the loop, or with the base of its last erasure or pruning."""
        try:
            while True:
                old = last_pruning(self.log, name)
                yield from self._rebuild(name, old)
                if last_pruning(self.log, name) == old:
                    return
                self.forget(name)  # the records read meanwhile may have had gaps
        except Exception:
            self.forget(name)  # without its first records or its base it is not served
            raise

    def _rebuild(self, name: str, old: ErasedBody | None) -> Iterator[bool]:
        made = live_loop(self.log, name)
        if made is None:
            self.positions[name] = last_deletion(self.log, name)
            return
        state = self.begin(made)
        state.pruned_to = 0 if old is None else old.cut
        erased = [entry for entry in self.log.of_kind(name, ERASED) if entry.position > state.metadata.created_at]
        with blaming(self.log, erased[-1:]):
            erased = [entry for entry in erased if decode_erased(entry.body).base]  # others were of a deleted loop
        base = decode_erased(erased[-1].body).base if erased else 0
        if erased and self._is_of_another_version(state, erased[-1]):
            message = "loop %r is learned from the records that its log still has: its base is of another version"
            logging.getLogger(__name__).warning(message, name)
            state.unreadable_base = base
        elif erased:
            state.learn_from = base + 1
            yield from self.join_again(state, base)
            yield from self.install(state, erased[-1], base)
            state.metadata.base = base  # also if its shared model was dropped
            self.positions[name] = base

    def _is_of_another_version(self, state: LoopState, erased: Entry) -> bool:
        """Return whether another version of the model wrote the base of an erasure."""
        shared: bytes | None = None
        after = state.metadata.created_at
        while entries := self.log.of_kind(state.metadata.name, BASE, after, limit=500):
            for entry in entries:
                if entry.user is None and entry.position < erased.position:
                    with blaming(self.log, [entry]):
                        shared = msgspec.msgpack.decode(entry.body, type=Base).shared
            after = entries[-1].position
        return shared is not None and state.kind.is_of_another_version(shared)

    def begin(self, made: Entry) -> LoopState:
        with blaming(self.log, [made]):
            state = self.loops[made.loop] = new_loop(made, self.personal)
        self.positions[made.loop] = made.position
        return state

    def install(self, state: LoopState, erased: Entry, base: int) -> Iterator[bool]:
        """Put in the models as they were at the base of an erasure."""
        metadata, after = state.metadata, state.metadata.created_at
        while entries := self.log.of_kind(metadata.name, BASE, after, limit=500):
            for entry in entries:
                if entry.position < erased.position:
                    with blaming(self.log, [entry]):
                        self._install_base(state, entry, base)
                    yield False
            after = entries[-1].position
        for user in metadata.erasing:  # older bases may still have them
            state.forget_models(user)

    def _install_base(self, state: LoopState, entry: Entry, base: int) -> None:
        metadata = state.metadata
        if entry.user is not None:
            personal = msgspec.msgpack.decode(entry.body, type=PersonalBase)
            if state.kind.is_of_another_version(personal.model):
                return
            self.personal.put(metadata.id, entry.user, state.kind.personal_data(personal.changed, personal.model))
            return
        saved = msgspec.msgpack.decode(entry.body, type=Base)
        if state.kind.is_of_another_version(saved.shared):
            return
        state.shared = state.kind.from_bytes(metadata.settings, saved.shared)
        state.begin_at(base, saved.time)
        metadata.version, metadata.statistics, metadata.base = saved.version, saved.statistics, base
        metadata.clients, metadata.guard = saved.clients, saved.guard

    # how it moves on

    def step_log(self) -> bool:
        """Give loops with new records a turn each, one after the other; return whether there is more to do at once."""
        self.beat()
        self._make_room()
        heads = self.log.heads()
        self._check_length(heads)
        self._ends = {name: head.last for name, head in heads.items()}
        began = self.clock()
        more = False
        for name in self._in_turn():
            if self.clock() - began > ROUND_SECONDS:
                return True
            self._last_turn = name
            more |= self.turn(name)
        return more

    def _in_turn(self) -> list[str]:
        """Return the loops that have something to do, beginning behind the last one that had a turn."""
        due = [
            name
            for name, end in self._ends.items()
            if self.follows(name) and (self.positions.get(name, 0) < end or not self.is_at_rest(name))
        ]
        return sorted(due, key=lambda name: (name <= self._last_turn, name))

    def turn(self, name: str) -> bool:
        """Work on a loop for a slice of time; return whether there is more to do at once."""
        began = self.clock()
        more = False
        with self.alone(name):
            until = began + SLICE_SECONDS
            more = self._begin_more(name, until) if name in self._beginning else self._take_more(name, until)
        has_all = name in self.halted or self.positions.get(name, 0) >= self._complete_at.get(name, 0)
        if has_all and name not in self._beginning:
            self._complete_at.pop(name, None)
        if name in self.loops:
            self.loops[name].is_midway = not self.is_at_rest(name)
        self.seconds[name] += self.clock() - began
        return more

    def _begin_more(self, name: str, until: float) -> bool:
        work = self._beginning.pop(name)
        try:
            if self._run(work, until) is not None:
                self._beginning[name] = work
        except StoreUnavailable:
            self.begin_again(name)
            raise
        return True

    def _take_more(self, name: str, until: float) -> bool:
        """Learn records; a loop that is still in the middle of one goes on from there in its next turn."""
        position, limit = self.positions.get(name, 0), self._limits.get(name, BATCH)
        if name in self._midway:
            work, entries = self._midway.pop(name)
        else:
            entries = self.read_batch(name, position, limit)
            if entries and self.has_gaps(name, position):
                self.relearn(name)
            if name in self._beginning:
                return True
            if not entries:
                # The last records before the head were removed, so the loop has all that there are.
                self._complete_at.pop(name, None)
            work = self.taking_batch(name, entries)
        last = entries[-1].position if entries else position
        try:
            is_whole = self._run(work, until)
            if is_whole is not False:
                self._note_taken(name, last if is_whole is None else self.loops[name].position)
        except StoreUnavailable:
            self.begin_again(name)  # how much of the records it has learned is unknown
            raise
        except (*MACHINE, UnlearnableRecord):
            raise
        except Exception:
            self._step_back(name, last)
            return True
        if is_whole is False:
            self._midway[name] = work, entries
        n_taken = sum(entry.position <= self.positions.get(name, 0) for entry in entries)
        self._limits[name] = min(max(2 * n_taken, FEWEST), BATCH)
        has_more = bool(entries) and self.positions.get(name, 0) < self._ends.get(name, 0)
        return is_whole is not None or has_more or name in self._beginning

    def _run(self, work: Iterator[bool], until: float) -> bool | None:
        """Work until a time; return whether the loop is in a state to be shown, None if all is done."""
        for is_whole in work:
            self.beat()
            if self.clock() >= until:
                return is_whole
        return None

    def _note_taken(self, name: str, last: int) -> None:
        """Note that a loop has learned all records up to a position."""
        state = self.loops.get(name)
        if state is not None:
            state.check()
        self.n_taken += max(last - self.positions.get(name, 0), 0)
        self.positions[name] = last
        if state is not None and state.missed_erasure:
            self.relearn(name)

    def is_at_rest(self, name: str) -> bool:
        """Return whether a loop neither begins nor is in the middle of a record."""
        return name not in self._beginning and name not in self._midway

    def is_complete(self, name: str) -> bool:
        """Return whether a loop has all that was logged before it began again, so that it may be shown."""
        return self.is_at_rest(name) and name not in self._complete_at

    def incomplete(self) -> list[str]:
        return sorted(self._complete_at)

    def has_read(self, state: LoopState, epoch: int) -> bool:
        """Return whether a loop has read all that its last holder has done, who can do nothing more, and we ourselves.

        Call ``wrote`` after each record that this machine logs as the holder.
        """
        name = state.metadata.name
        if self._to_read.get(name, (None, 0))[0] != epoch:
            self._to_read[name] = epoch, self.log.heads()[name].last
        return self.is_complete(name) and self.positions[name] >= self._to_read[name][1]

    def wrote(self, name: str) -> None:
        self._to_read.pop(name, None)

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

    def read_batch(self, name: str, position: int, limit: int) -> list[Entry]:
        """Return a batch, or the records before a damaged one; continue once that is dropped or the loop is deleted."""
        if name in self.halted:
            trouble = self.halted[name]
            deleted = last_deletion(self.log, name)
            if deleted > max(position, trouble.position):
                self.drop(name)
                self.positions[name] = deleted
            elif is_in_the_way(self.log, trouble):
                if isinstance(trouble, DamagedRecord) and name in self.loops:
                    return in_front_of(self.log, trouble, position, limit)
                return []
            elif isinstance(trouble, UnlearnableRecord) or trouble.position <= position or name not in self.loops:
                self.relearn(name)  # the dropped record was used in part, or is joined again
            del self.halted[name]
            if name in self._beginning:
                return []
            position = self.positions.get(name, 0)
        try:
            return self.log.read(name, position, limit, bodies=False)
        except DamagedRecord as damage:
            self.halt(name, damage)
            return in_front_of(self.log, damage, position, limit)

    def has_gaps(self, name: str, position: int) -> bool:
        """Return whether old events may be missing from the records just read from behind a position.

        They are deleted once the loop's holder has read the record that announces it; those it had read are needed.
        """
        removed = self.log.heads()[name].removed
        if self._removed.get(name, (0, 0))[0] != removed:
            old = last_pruning(self.log, name)
            self._removed[name] = removed, 0 if old is None else old.begun
        return name in self.loops and self._removed.get(name, (0, 0))[1] > position

    def taking_batch(self, name: str, entries: Sequence[Entry]) -> Iterator[bool]:
        """Process a batch, in steps as ``LoopState.taking``."""
        start = 0
        for k, entry in enumerate(entries):
            if entry.kind in (LOOP, DELETED):
                if name in self.loops:
                    yield from taking(self.log, self.loops[name], entries[start:k])
                start = k + 1
                if entry.kind == LOOP and name not in self.loops:
                    self.orphans.pop(name, None)  # a repeated request erases in both loops of this name
                    self.begin(entry)
                elif entry.kind == DELETED:
                    self.drop(name)
            elif name not in self.loops:
                self._take_orphan(entry)
        if name in self.loops:
            yield from taking(self.log, self.loops[name], entries[start:])

    def _take_orphan(self, entry: Entry) -> None:
        """Note that a user is to be erased, or was, in a loop that is deleted."""
        erasures = self.orphans.setdefault(entry.loop, {})
        if entry.kind == ERASE and entry.user is not None:
            erasures[entry.user] = decode_erase(entry.body).token
        elif entry.kind == ERASED:
            body = decode_erased(entry.body)
            self.note_orphans_erased(entry.loop, [body.token, *body.others])

    def note_orphans_erased(self, loop: str, tokens: Collection[str]) -> None:
        erasures = self.orphans.get(loop, {})
        self.orphans[loop] = {user: token for user, token in erasures.items() if token not in tokens}
        self.orphans_erased = [*dict.fromkeys([*self.orphans_erased, *tokens])][-REMEMBERED_ERASURES:]

    def take_batch(self, name: str, entries: Sequence[Entry]) -> None:
        """Process a batch at once."""
        for _ in self.taking_batch(name, entries):
            self.beat()
        if entries:
            self._note_taken(name, entries[-1].position)

    def _step_back(self, name: str, last: int) -> None:
        """Set a loop back to before the record that it cannot learn, among those up to ``last``, and name the record.

        Learning goes by steps, in place, so the loop begins again from its snapshot, twice: to find the record, and
        to stop before it. If nothing fails this time, the loop continues.
        """
        logging.getLogger(__name__).exception("loop %r fails, and goes back to what it had learned before", name)
        self._learn_again(name, self.positions.get(name, 0))
        try:
            self._take_carefully(name, last)
        except UnlearnableRecord as trouble:
            self._learn_again(name, trouble.at - 1)
            raise

    def _take_carefully(self, name: str, last: int) -> None:
        """Process logged records up to a position, one record and one event at a time, to name the one that fails."""
        if name in self.loops:
            self.loops[name].careful = True
        try:
            while self.positions.get(name, 0) < last:
                entries = self.log.read(name, self.positions.get(name, 0), 1, bodies=False)
                if not entries:
                    return
                with blaming(self.log, entries, self.loops.get(name)):
                    self.take_batch(name, entries)
        finally:
            if name in self.loops:
                self.loops[name].careful = False

    def _learn_again(self, name: str, last: int) -> None:
        """Begin a loop again, and learn up to a position that it had reached before."""
        self.begin_again(name)
        for _ in self._beginning.pop(name):
            self.beat()
        self._complete_at.pop(name, None)
        try:
            while name in self.loops and self.positions[name] < last:
                entries = self.log.read(name, self.positions[name], BATCH, bodies=False)
                entries = [entry for entry in entries if entry.position <= last]
                if not entries:
                    return
                self.take_batch(name, entries)
        except MACHINE:
            raise
        except Exception:
            self.forget(name)  # it is in no state to be published
            raise

    def begin_again(self, name: str) -> None:
        """Let a loop begin again from its snapshot, with its next turn."""
        last = self.positions.get(name, 0)
        self.forget(name)
        self.saver.finish()
        saved = [loop for loop in self.snapshots.loops() if loop.metadata.name == name] if self.saver.has(name) else []
        self._beginning[name] = self.restore_or_rebuild(name, saved[0] if saved else None)
        self._complete_at[name] = last

    # how it ends

    def relearn(self, name: str) -> None:
        """Let a loop begin again, from the base of its last erasure: records that it had not read were deleted."""
        logging.getLogger(__name__).warning("loop %r is learned again: records that it needs are gone", name)
        self.forget(name)
        self.saver.drop(name)
        self._beginning[name] = self.rebuild(name)
        self._complete_at[name] = self.log.heads()[name].last

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
        self._limits.pop(name, None)
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


def forget_gone(log: Log, state: LoopState) -> None:
    """Forget early, late and unmatched rewards of which the log has nothing."""
    events = {*state.join.early(), *(reward.event_id for reward in state.join.unmatched)}
    if events:
        state.join.forget(events - log.existing(state.metadata.name, events))


def taking(log: Log, state: LoopState, entries: Sequence[Entry]) -> Iterator[bool]:
    """Advance a loop, in steps as ``LoopState.taking``.

    Where a pruning begins, all learners must forget the same events: the log has the old ones. Where an erasure ends,
    they forget rewards of events that they did not know to be the user's: the log has none of them.
    """
    start = 0
    for k, entry in enumerate(entries):
        if entry.kind == ERASED or (entry.kind == ERASE and entry.user is None):
            for _ in state.taking(entries[start : k + 1]):
                yield False
            if entry.kind == ERASED:
                forget_gone(log, state)
            else:
                forget_settled(log, state, entry.position)
            yield True
            start = k + 1
    yield from state.taking(entries[start:])


def last_pruning(log: Log, name: str) -> ErasedBody | None:
    """Return the newest pruning whose events are being deleted."""
    return next(
        (body for entry in reversed(log.of_kind(name, ERASED)) if (body := decode_erased(entry.body)).cut), None
    )


def in_front_of(log: Log, damage: DamagedRecord, position: int, limit: int = BATCH) -> list[Entry]:
    """Return at most ``limit`` records from behind a position up to a damaged one."""
    entries: list[Entry] = []
    with contextlib.suppress(DamagedRecord):  # the next record if those between were erased
        while position < damage.position - 1 and len(entries) < limit:
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

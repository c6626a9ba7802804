"""The learner: follows the log, learns, publishes, takes snapshots, and ends what only one machine may end.

``step`` is one turn, on one thread. Models are a function of the log; everything else here is a loop around it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from fedres.checks import Array
from fedres.scoring.model import PersonalModel
from service.learn.erasures import clean_files, complete_erasures
from service.learn.heads import Base, PersonalBase
from service.learn.history import History
from service.learn.loop_state import LoopState, digest, new_loop, record_mark
from service.learn.saving import Saver
from service.learn.shared_models import read_model
from service.learn.snapshots import DamagedSnapshot, SavedLoop, Snapshots
from service.log.protocol import NO_EPOCHS, Group, Head, Log, Outcome, StoreUnavailable
from service.log.records import DELETED, ERASED, LOOP, TICK, DamagedRecord, Entry, Record, decode_erased
from service.models.personal import PersonalModels
from service.models.published import LearnerView, LoopView, Publisher

BATCH = 2_000  # records that are learned from together
IDLE_SECONDS = 0.025  # between two looks at the log where no loop says otherwise


class Appender(Protocol):
    """What the learner asks of the log writer."""

    def append(self, groups: list[Group], epochs: Mapping[str, int] = ...) -> list[Outcome]: ...
    def erase(self, loop: str, user: str, base: int, token: str, epoch: int | None) -> int: ...
    def scrub(self) -> None: ...


class Learner:
    """All loops of a machine. ``hold`` is the log's: whether this machine ends wait times and erasures of a loop."""

    def __init__(
        self,
        log: Log,
        writer: Appender,
        snapshots: Snapshots,
        publisher: Publisher,
        *,
        snapshot_seconds: float = 10.0,
        fork: bool = False,
        only: Collection[str] | None = None,
        hold: Callable[[str], int | None] | None = None,
    ) -> None:
        self.log, self.writer, self.snapshots, self.publisher = log, writer, snapshots, publisher
        self.personal = PersonalModels(publisher.memory)
        self.loops: dict[str, LoopState] = {}
        self.saver = Saver(snapshots, self.personal, snapshot_seconds, fork=fork)
        self.hold = hold or log.hold
        self.rebuilt = 0
        self.n_taken = 0  # records so far
        self.lag = (
            0.0  # seconds from the last record learned to the end of its log, of the loop that is furthest behind
        )
        self.trouble: Exception | None = None
        self._only = only
        self._positions: dict[str, int] = {}  # how far each loop's log was read; a deleted loop is in no other place
        self.broken: dict[str, DamagedRecord] = {}  # loops that stand still in front of a damaged record
        self.cleaned: set[str] = set()  # tokens of erasures after which no file has anything of the user
        self._published: dict[str, int] = {}  # position at which each loop was last published
        self._names: list[str] | None = None
        self._followed: dict[str, tuple[int, Array, History | None]] = {}  # loops whose devices ask what has changed

    # start

    def open(self) -> None:
        """Bring all loops to the end of the log, from the snapshot where that is good, and show them."""
        heads = self.log.heads()
        try:
            self.snapshots.claim()
            saved = {loop.head.name: loop for loop in self.snapshots.loops()}
        except DamagedSnapshot as damage:
            logging.getLogger(__name__).warning("all is learned from the log again: %s", damage)
            self.rebuilt += 1
            self.snapshots.discard()
            self.snapshots.claim()
            saved = {}
        for name in heads:
            if self._follows(name):
                self._open_loop(name, heads[name], saved.get(name))
        while self.step_log():
            pass
        self.publish()
        self.publisher.show()

    def _open_loop(self, name: str, head: Head, saved: SavedLoop | None) -> None:
        try:
            self._restore_or_rebuild(name, head, saved)
        except DamagedRecord as damage:  # of the few that nothing can be learned without
            self.loops.pop(name, None)
            self._stand_still(name, damage)

    def _restore_or_rebuild(self, name: str, head: Head, saved: SavedLoop | None) -> None:
        if saved is not None:
            try:
                self._restore(name, head, saved)
                return
            except DamagedSnapshot as damage:
                logging.getLogger(__name__).warning("loop %r is learned from the log again: %s", name, damage)
                self.rebuilt += 1
                self.personal.remove(saved.head.id, self._users(name))
                self.saver.drop(name)
        self._rebuild(name)

    def _users(self, name: str) -> list[str]:
        try:
            return self.snapshots.users(name)
        except DamagedSnapshot:
            return []

    def _restore(self, name: str, head: Head, saved: SavedLoop) -> None:
        """Take a loop from the snapshot; join its pending events again, without learning."""
        try:
            at = self.log.read(name, saved.position - 1, 1)
        except DamagedRecord as damage:
            raise DamagedSnapshot("the record that it ends with is damaged") from damage
        if head.last < saved.position or not at or record_mark(at[0]) != saved.record:
            raise DamagedSnapshot("the snapshot is of another log")
        if any(decode_erased(entry.body).base > saved.position for entry in self.log.of_kind(name, ERASED)):
            raise DamagedSnapshot("the snapshot is older than an erasure")
        try:
            shared = read_model(saved.head.settings, self.snapshots.shared(name))
        except ValueError as error:
            raise DamagedSnapshot(str(error)) from error
        n_users = 0
        for user, changed, model in self.snapshots.personal(name):
            self.personal.put(saved.head.id, user, changed, PersonalModel.from_bytes(model), saved=True)
            n_users += 1
        if n_users != saved.n_personal:
            raise DamagedSnapshot(f"{n_users} of {saved.n_personal} personal models are there")
        state = LoopState(saved.head, shared, self.personal)
        state.learn_from = saved.position + 1
        state.resume_erasures()
        state.position = max(saved.head.since, saved.pending_from - 1)
        self._join_again(state, saved.position)
        state.join.unmatched.clear()
        state.join.unmatched.extend(saved.unmatched)
        state.position, state.time, state.mark = saved.position, saved.time, saved.record
        self.loops[name], self._positions[name] = state, saved.position
        self.saver.note_saved(state)

    def _join_again(self, state: LoopState, last: int) -> None:
        """Join a loop's records up to a position whose models are known; stand still where one is damaged."""
        while state.position < last:
            try:
                entries = self.log.read(state.head.name, state.position, BATCH, bodies=False)
            except DamagedRecord as damage:
                if damage.position <= last:
                    self._stand_still(state.head.name, damage)
                    return
                entries = self._in_front_of(damage, state.position)
            state.take([entry for entry in entries if entry.position <= last])
            if not entries or entries[-1].position >= last:
                return

    def _rebuild(self, name: str) -> None:
        """Begin with the record that made the loop, or with the base of its last erasure."""
        made = self.log.of_kind(name, LOOP)
        deleted = self.log.of_kind(name, DELETED)
        if not made or (deleted and deleted[-1].position > made[-1].position):
            self._positions[name] = deleted[-1].position if deleted else 0
            return
        state = self._begin(made[-1])
        erased = [entry for entry in self.log.of_kind(name, ERASED) if entry.position > state.head.since]
        if erased:
            base = decode_erased(erased[-1].body).base
            state.learn_from = base + 1
            self._join_again(state, base)
            self._install(state, erased[-1], base)
            self._positions[name] = base

    def _begin(self, made: Entry) -> LoopState:
        state = self.loops[made.loop] = new_loop(made, self.personal)
        self._positions[made.loop] = made.position
        return state

    def _install(self, state: LoopState, erased: Entry, base: int) -> None:
        """Put in the models as they were at the base of an erasure."""
        head = state.head
        for entry in self.log.bases(head.name, erased.position):
            if entry.position <= head.since:
                continue
            if entry.user is not None:
                own = msgspec.msgpack.decode(entry.body, type=PersonalBase)
                self.personal.put(head.id, entry.user, own.changed, PersonalModel.from_bytes(own.model))
                continue
            known = msgspec.msgpack.decode(entry.body, type=Base)
            state.models.replace_shared(read_model(head.settings, known.shared))
            state.begin_at(base, known.time)
            head.version, head.statistics, head.base = known.version, known.statistics, base
            head.clients, head.guard = known.clients, known.guard
        for user in head.erasing:  # older bases may still have them
            state.forget_models(user)

    # one turn

    def step(self) -> bool:
        """Learn what is new, publish, and see to what is due; return whether there is more to learn at once."""
        more = False
        try:
            more = self.step_log()
            self._tick()
            complete_erasures(self)
            clean_files(self)
            self.trouble = None
        except StoreUnavailable as error:
            self._note(error)
        if self.broken:
            self.trouble = next(iter(self.broken.values()))
        self.publish()
        self.saver.save_if_due(self.loops)
        return more

    def step_log(self) -> bool:
        """Take at most one batch of each loop; return whether there may be more."""
        more, lag = False, 0
        for name, head in self.log.heads().items():
            position = self._positions.get(name, 0)
            if head.last > position and self._follows(name):
                entries = self._read(name, position)
                self._take(name, entries)
                more |= len(entries) == BATCH
                if name in self.loops and self._positions[name] < head.last:
                    lag = max(lag, head.time - self.loops[name].time)
        self.lag = lag / 1e6
        return more

    def _read(self, name: str, position: int) -> list[Entry]:
        """Return a batch, or what is in front of a damaged record; go on once that is dropped."""
        if name in self.broken:
            if self._is_damaged(self.broken[name]):
                return []
            if self.broken.pop(name).position <= position:  # it was among those that are joined again
                self._relearn(name)
                position = self._positions.get(name, 0)
        try:
            return self.log.read(name, position, BATCH, bodies=False)
        except DamagedRecord as damage:
            self._stand_still(name, damage)
            return self._in_front_of(damage, position)

    def _is_damaged(self, damage: DamagedRecord) -> bool:
        try:
            self.log.read(damage.loop, damage.position - 1, 1)
        except DamagedRecord as found:
            return found.position == damage.position
        return False

    def _in_front_of(self, damage: DamagedRecord, position: int) -> list[Entry]:
        """Return the records from behind a position up to a damaged one."""
        entries: list[Entry] = []
        with contextlib.suppress(DamagedRecord):  # that is the next where the records between the two were erased
            while position < damage.position - 1:
                entries += self.log.read(damage.loop, position, 1, bodies=False)
                position = entries[-1].position
        return entries

    def _stand_still(self, name: str, damage: DamagedRecord) -> None:
        logging.getLogger(__name__).error("the learner stops: %s", damage)
        self.broken[name] = self.trouble = damage

    def _take(self, name: str, entries: list[Entry]) -> None:
        start = 0
        self.n_taken += len(entries)
        for k, entry in enumerate(entries):
            if entry.kind in (LOOP, DELETED):
                if name in self.loops:
                    self.loops[name].take(entries[start:k])
                start = k + 1
                if entry.kind == LOOP and name not in self.loops:
                    self._begin(entry)
                elif entry.kind == DELETED:
                    self._drop(name)
        if entries:
            self._positions[name] = entries[-1].position
        if name in self.loops:
            self.loops[name].take(entries[start:])
            if self.loops[name].missed_erasure:
                self._relearn(name)

    def _relearn(self, name: str) -> None:
        """Begin a loop again, from the base of its last erasure: records that it had not read are gone."""
        logging.getLogger(__name__).warning("loop %r is learned again: records that it needs were erased", name)
        state = self.loops.pop(name, None)
        if state is not None:
            self._remove_personal(state)
        self.saver.drop(name)
        self._rebuild(name)

    def _remove_personal(self, state: LoopState) -> None:
        name = state.head.name
        self.saver.finish()
        users = {*self._users(name), *(user for loop, user in self.personal.unsaved if loop == state.head.id)}
        self.personal.remove(state.head.id, users)

    def _drop(self, name: str) -> None:
        state = self.loops.pop(name, None)
        if state is None:
            return
        self._remove_personal(state)
        self.publisher.drop(name, state.head.id)
        self._published.pop(name, None)
        self.saver.drop(name)

    def _follows(self, name: str) -> bool:
        return self._only is None or name in self._only

    def epoch_to_end(self, name: str) -> int | None:
        """Return the epoch in which this machine ends wait times and erasures of a loop, None if it does not.

        A loop that stands still in front of a damaged record could not learn of it.
        """
        return None if name in self.broken else self.hold(name)

    def _tick(self) -> None:
        """Log that time has passed where a wait time is over and no other record says so."""
        now = self.log.now()
        groups: list[Group] = []
        for name, state in self.loops.items():
            deadline = state.join.next_deadline()
            if deadline is not None and deadline <= now and self.epoch_to_end(name) is not None:
                groups.append([Record(name, TICK)])
        if groups:
            self.writer.append(groups)
            self.step_log()

    def _note(self, error: Exception) -> None:
        if type(error) is not type(self.trouble):
            logging.getLogger(__name__).error("the learner waits: %s", error)
        self.trouble = error

    def seconds_until_due(self) -> float:
        """Return how long to wait before the next ``step``."""
        return min([IDLE_SECONDS, *(state.head.settings.update_interval for state in self.loops.values())])

    # what others see

    def publish_again(self) -> None:
        """Let the next ``publish`` publish all loops."""
        self._published.clear()

    def publish(self) -> None:
        """Publish the loops that have changed."""
        for name, state in self.loops.items():
            if self._published.get(name) != state.position:
                self._publish_loop(state)
                self._published[name] = state.position
        names = sorted(self.loops)
        if names != self._names:
            self.publisher.publish_names(names)
            self._names = names
        trouble = None if self.trouble is None else str(self.trouble)
        used = self.publisher.memory.used_bytes
        self.publisher.publish_learner(LearnerView(trouble, self.rebuilt, used, lag=self.lag))
        self.publisher.done()

    def _publish_loop(self, state: LoopState) -> None:
        head = state.head
        view = LoopView(
            head.name,
            head.since,
            state.position,
            state.time,
            head.version,
            head.settings,
            head.settings_version,
            head.statistics,
            state.join.n_waiting,
            state.models.shared.reward_range,
            state.models.shared.newest,
            head.catalogue_version,
            head.clients.joined * 2**20 + len(head.clients.numbers),
            [token for token in head.erased if token in self.cleaned],
        )
        if state.catalogue_changed:
            self.publisher.publish_catalogue(view, head.catalogue)
            state.catalogue_changed = False
        if state.clients_changed:
            self.publisher.publish_clients(view, head.clients)
            state.clients_changed = False
        self._follow(state)
        self.publisher.publish(view, state.models.shared.weights, state.models.changed)

    def _follow(self, state: LoopState) -> None:
        """Note which weights changed, for devices that fetch only those."""
        known = self._followed.get(state.head.name)
        if known is None or known[0] == state.head.version:
            return
        version, weights, history = known
        now = state.models.shared.weights.copy()
        if weights.size == now.size and version >= state.head.since:
            history = history or History(version, now.size)
            history.add(weights, state.head.version, now)
        else:
            history = None
        self._followed[state.head.name] = (state.head.version, now, history)

    def history(self, loop: str) -> History | None:
        """Return which of a loop's weights changed when, from the first call on."""
        state = self.loops[loop]
        if loop not in self._followed:
            self._followed[loop] = (state.head.version, state.models.shared.weights.copy(), None)
        return self._followed[loop][2]

    def digest(self, loop: str) -> str:
        """Return the SHA-256 of a loop's models."""
        self.saver.flush(self.loops)
        models = ((user, model) for user, _, model in self.snapshots.personal(loop))
        return digest(self.loops[loop].models.shared, models)

    def close(self) -> None:
        """Save what was learned."""
        try:
            self.saver.flush(self.loops)
        finally:
            self.snapshots.close()
            self.log.close()
            self.publisher.close()


def replay(log: Log, folder: Path) -> dict[str, str]:
    """Return the digest of each loop's models, learned anew from the log; ``folder`` is for what that takes."""
    snapshots = Snapshots(folder / f"replay-{time.monotonic_ns()}")
    publisher = Publisher(folder, time.monotonic_ns())
    learner = Learner(log, _NoWriter(), snapshots, publisher, snapshot_seconds=1e9, hold=lambda loop: None)
    try:
        for name in log.heads():
            learner._rebuild(name)
        while learner.step_log():
            pass
        return {name: learner.digest(name) for name in learner.loops}
    finally:
        snapshots.close()
        publisher.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{snapshots.path}{suffix}").unlink(missing_ok=True)


class _NoWriter:
    def append(self, groups: list[Group], epochs: Mapping[str, int] = NO_EPOCHS) -> list[Outcome]:
        raise StoreUnavailable("readonly", "a replay appends nothing")

    def erase(self, loop: str, user: str, base: int, token: str, epoch: int | None) -> int:
        raise StoreUnavailable("readonly", "a replay erases nothing")

    def scrub(self) -> None:
        raise StoreUnavailable("readonly", "a replay erases nothing")

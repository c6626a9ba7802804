"""The learner: follows the log, learns, publishes, takes snapshots, and ends what only one machine may end.

``step`` is one turn, on one thread. Models are a function of the log; everything else here is a loop around it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from service.learn.erasures import Erasures
from service.learn.loop_state import LoopState, digest
from service.learn.loops import BATCH, FollowedLoops
from service.learn.pruning import Prunings
from service.learn.publishing import WeightHistories, is_due, publish_loop
from service.learn.snapshots import DamagedSnapshot, Saver, Snapshots
from service.log.direct import DirectWriter
from service.log.protocol import Group, Head, Log, Outcome, Pruning, StoreUnavailable
from service.log.records import TICK, Entry, Record
from service.models.loop_metadata import LearnerView
from service.models.personal import PersonalModels
from service.models.published import Publisher

ROOM_BYTES = 1 << 24  # that must be free for models before records are learned from
MOST_TOLD = 5  # loops that stand still and are named at once
TELL_SECONDS = 5.0  # between two lines about a long start
IDLE_SECONDS = 0.025  # between two looks at the log where no loop says otherwise


class LearnerLog(Protocol):
    """What the learner asks of the log writer."""

    def append(self, groups: list[Group], epochs: Mapping[str, int] = ...) -> list[Outcome]: ...
    def erase(self, loop: str, user: str, base: int, token: str, epoch: int | None) -> int: ...
    def prune(self, loop: str, old: Pruning, after: int, epoch: int | None) -> int | None: ...
    def scrub(self, ticket: int) -> bool: ...


class Learner(FollowedLoops):
    """All loops of a machine. ``hold`` is the log's: whether this machine ends wait times and erasures of a loop."""

    def __init__(
        self,
        log: Log,
        writer: LearnerLog,
        snapshots: Snapshots,
        publisher: Publisher,
        *,
        snapshot_seconds: float = 10.0,
        fork: bool = False,
        only: Collection[str] | None = None,
        hold: Callable[[str], int | None] | None = None,
    ) -> None:
        personal = PersonalModels(publisher.memory)
        super().__init__(log, snapshots, personal, Saver(snapshots, personal, snapshot_seconds, fork=fork))
        self.writer, self.publisher, self.hold = writer, publisher, hold or log.hold
        self.lag = 0.0  # seconds from the last record learned to the end of its log, of the loop furthest behind
        self._shrunk: str | None = None  # which log has become shorter
        self._only = only
        self._shown: set[str] = set()  # loops that rankers can see, also while they stand still
        self._names: list[str] | None = None
        self.erasures, self.prunings = Erasures(), Prunings()
        self.weight_histories = WeightHistories()

    # start

    def open(self) -> None:
        """Bring all loops to the end of the log, from the snapshot where that is good, and show them."""
        heads = self.log.heads()
        try:
            self.snapshots.claim()
            saved = {loop.metadata.name: loop for loop in self.snapshots.loops()}
        except DamagedSnapshot as damage:
            logging.getLogger(__name__).warning("all is learned from the log again: %s", damage)
            self.rebuilt += 1
            self.snapshots.discard()
            self.snapshots.claim()
            saved = {}
        for name in heads:
            if self._follows(name):
                self.open_loop(name, heads[name], saved.get(name))
        try:
            self._catch_up()
        except StoreUnavailable as error:  # what was learned so far is worth showing
            self._note(error)
        self.publish()
        self.publisher.show()

    def _catch_up(self) -> None:
        """Learn all that is logged; where that takes long, say how far it is."""
        due = time.monotonic() + TELL_SECONDS
        while self.step_log():
            if time.monotonic() > due:
                due += TELL_SECONDS
                n_read, n = sum(self.positions.values()), sum(head.last for head in self.log.heads().values())
                logging.getLogger(__name__).warning("learning from the log: %s of %s records", f"{n_read:,}", f"{n:,}")

    # one turn

    def step(self, *, urgent: bool = True) -> bool:
        """Learn what is new, publish, and see to what is due; return whether there is more to learn at once.

        Unless it is ``urgent``, what was learned is published once a loop's ``update_interval`` is over.
        """
        more = False
        try:
            more = self.step_log()
            self._tick()
            self.erasures.step(self)
            self.prunings.step(self)
            self.trouble = None
        except StoreUnavailable as error:
            self._note(error)
        if self.halted and self.trouble is None:
            self.trouble = next(iter(self.halted.values()))
        self.publish(urgent=urgent)
        if not self.erasures.is_cleaning:
            self.saver.save_if_due(self.loops)
        return more

    def step_log(self) -> bool:
        """Take at most one batch of each loop; return whether there may be more."""
        self.beat()
        self._make_room()
        more, lag, heads = False, 0, self.log.heads()
        self._check_length(heads)
        for name, head in heads.items():
            position = self.positions.get(name, 0)
            if head.last > position and self._follows(name):
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
            self.publisher.memory.make_room(ROOM_BYTES)
        except OSError as error:
            where = self.publisher.memory.path.parent
            raise StoreUnavailable("full", f"there is no room for models in {where}: {error}") from error

    def drop(self, name: str) -> LoopState | None:
        state = super().drop(name)
        self._shown.discard(name)
        if state is not None:
            self.publisher.drop(name, state.metadata.id)
        return state

    def _follows(self, name: str) -> bool:
        return self._only is None or name in self._only

    def epoch_to_end(self, name: str) -> int | None:
        """Return the epoch in which this machine ends wait times and erasures of a loop, None if it does not.

        A loop that stands still could not learn of it.
        """
        return None if name in self.halted else self.hold(name)

    def _tick(self) -> None:
        """Log that time has passed where a wait time is over and no other record says so."""
        now = self.log.now()
        groups: list[Group] = []
        for name, state in self.loops.items():
            with self.alone(name):
                deadline = state.next_deadline()
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
        return min([IDLE_SECONDS, *(state.metadata.settings.update_interval for state in self.loops.values())])

    # what others see

    def publish_again(self) -> None:
        """Let the next ``publish`` publish all loops."""
        for state in self.loops.values():
            state.published = None

    def publish(self, *, urgent: bool = True) -> None:
        """Publish the loops that have changed."""
        waiting_bytes = sum(state.waiting_bytes for state in self.loops.values())
        for name, state in self.loops.items():
            if is_due(state, urgent=urgent):
                with self.alone(name):
                    self.weight_histories.note(state)
                    publish_loop(self.publisher, state, self.erasures.cleaned, waiting_bytes)
                    self._shown.add(name)
        names = sorted({*self.loops, *(self.halted.keys() & self._shown)})
        if names != self._names:
            self.publisher.publish_names(names)
            self._names = names
        standing_still = "; ".join([str(each) for each in [*self.halted.values()][:MOST_TOLD]]) or None
        of_all = None if self.trouble in [None, *self.halted.values()] else str(self.trouble)
        used = self.publisher.memory.used_bytes
        self.publisher.publish_learner(LearnerView(of_all, standing_still, self.rebuilt, used, self.lag))
        self.publisher.done()

    def digest(self, loop: str) -> str:
        """Return the SHA-256 of a loop's models."""
        self.saver.flush(self.loops)
        models = ((user, model) for user, _, model in self.snapshots.personal(loop))
        return digest(self.loops[loop].shared, models)

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
    with relearned(log, folder) as learner:
        return {name: learner.digest(name) for name in learner.loops}


@contextlib.contextmanager
def relearned(log: Log, folder: Path) -> Iterator[Learner]:
    """Lend a learner that has learned all loops anew from the log; it holds none, so it writes nothing."""
    snapshots = Snapshots(folder / f"replay-{time.monotonic_ns()}")
    publisher = Publisher(folder, time.monotonic_ns())
    learner = Learner(log, DirectWriter(log), snapshots, publisher, snapshot_seconds=1e9, hold=lambda loop: None)
    try:
        for name, head in log.heads().items():
            learner.open_loop(name, head, None)
        while learner.step_log():
            pass
        yield learner
    finally:
        snapshots.close()
        publisher.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{snapshots.path}{suffix}").unlink(missing_ok=True)

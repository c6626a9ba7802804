"""The learner: follows the log, learns, publishes, saves snapshots; as a loop's holder, ends wait times and erasures.

``step`` is one turn, on one thread. Models are a function of the log; everything else here is a loop around it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from service.learn.erasures import Erasures
from service.learn.follower import Follower
from service.learn.loop_state import LoopState, digest
from service.learn.pruning import Prunings
from service.learn.publishing import is_due, note_weights, publish_loop
from service.learn.snapshots import DamagedSnapshot, Saver, Snapshots
from service.log.client import BlockingWriter
from service.log.files import with_companions
from service.log.protocol import Group, Log, StoreUnavailable
from service.log.records import TICK, Record
from service.log.writer import DirectWriter
from service.models.loop_metadata import LearnerView
from service.models.personal import PersonalModels
from service.models.published import Publisher

MOST_TOLD = 5  # loops that stand still and are named at once
TELL_SECONDS = 5.0  # between two log lines about a long start
IDLE_SECONDS = 0.025  # between two looks at the log where no loop says otherwise


class Learner(Follower):
    """All loops of a machine. ``only`` and ``hold`` are as in ``Follower``."""

    def __init__(
        self,
        log: Log,
        writer: BlockingWriter | DirectWriter,
        snapshots: Snapshots,
        publisher: Publisher,
        *,
        snapshot_seconds: float = 10.0,
        fork: bool = False,
        only: Collection[str] | None = None,
        hold: Callable[[str], int | None] | None = None,
    ) -> None:
        personal = PersonalModels(publisher.memory)
        saver = Saver(snapshots, personal, snapshot_seconds, fork=fork)
        super().__init__(log, writer, snapshots, personal, saver, only=only, hold=hold)
        self.publisher = publisher
        self._shown: set[str] = set()  # loops that rankers can see, also while they stand still
        self._names: list[str] | None = None
        self.erasures, self.prunings = Erasures(), Prunings()

    # start

    def open(self) -> None:
        """Bring all loops to the end of the log, from the snapshot if it is valid, and show them."""
        try:
            self.snapshots.claim()
            saved = {loop.metadata.name: loop for loop in self.snapshots.loops()}
        except DamagedSnapshot as damage:
            logging.getLogger(__name__).warning("all is learned from the log again: %s", damage)
            self.rebuilt += 1
            self.snapshots.discard()
            self.snapshots.claim()
            saved = {}
        for name in self.log.heads():
            if self.follows(name):
                self.open_loop(name, saved.get(name))
        try:
            self._catch_up()
        except StoreUnavailable as error:  # publish the events learned so far
            self._note(error)
        self.publish()
        self.publisher.show()

    def _catch_up(self) -> None:
        """Learn all logged records; log the progress if that takes long."""
        due = time.monotonic() + TELL_SECONDS
        while self.step_log():
            if time.monotonic() > due:
                due += TELL_SECONDS
                n_read, n = sum(self.positions.values()), sum(head.last for head in self.log.heads().values())
                logging.getLogger(__name__).warning("learning from the log: %s of %s records", f"{n_read:,}", f"{n:,}")

    # one turn

    def step(self, *, urgent: bool = True) -> bool:
        """Learn new records, publish, and do pending work; return whether there is more to learn at once.

        Unless ``urgent``, models are published once a loop's ``update_interval`` is over.
        """
        more = False
        try:
            more = self.step_log()
            self._tick()
            self.erasures.step(self)
            if not self.erasures.is_cleaning:
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

    def drop(self, name: str) -> LoopState | None:
        state = super().drop(name)
        self._shown.discard(name)
        if state is not None:
            self.publisher.drop(name, state.metadata.id)
        return state

    def _tick(self) -> None:
        """Log a tick if a wait time is over and no other record shows that this time has passed."""
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

    # published state

    def publish(self, *, urgent: bool = True) -> None:
        """Publish the loops that have changed."""
        waiting_bytes = sum(state.waiting_bytes for state in self.loops.values())
        for name, state in self.loops.items():
            if is_due(state, urgent=urgent):
                with self.alone(name):
                    began = time.monotonic()
                    note_weights(state)
                    publish_loop(self.publisher, state, self.erasures.cleaned, waiting_bytes)
                    state.publish_seconds = time.monotonic() - began
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
    """Return the digest of each loop's models, learned anew from the log; ``folder`` is for temporary files."""
    with relearned(log, folder) as learner:
        return {name: learner.digest(name) for name in learner.loops}


@contextlib.contextmanager
def relearned(log: Log, folder: Path) -> Iterator[Learner]:
    """Lend a learner that has learned all loops anew from the log; it holds none, so it writes nothing."""
    snapshots = Snapshots(folder / f"replay-{time.monotonic_ns()}")
    publisher = Publisher(folder, time.monotonic_ns())
    learner = Learner(log, DirectWriter(log), snapshots, publisher, snapshot_seconds=1e9, hold=lambda loop: None)
    try:
        for name in log.heads():
            learner.open_loop(name, None)
        while learner.step_log():
            pass
        yield learner
    finally:
        snapshots.close()
        publisher.close()
        for file in with_companions(snapshots.path):
            file.unlink(missing_ok=True)

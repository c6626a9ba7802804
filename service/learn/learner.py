"""The learner: follows the log, learns, publishes, saves snapshots; as a loop's holder, ends wait times and erasures.

``step`` is one turn, on one thread. Models are a function of the log; everything else here is a loop around it.
"""

from __future__ import annotations

import contextlib
import logging
import math
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
from service.times import iso_time

MOST_TOLD = 5  # loops that stand still and are named at once
TELL_SECONDS = 5.0  # between two log lines about a long start
SHOW_SECONDS = 1.0  # after a start, for loops that take longer to have all records: then the others are shown
DONE_SECONDS = 0.02  # between two announcements of publications: each lets rankers look at all that they read
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
        self._urgent = True  # publish without regard to ``update_interval``
        self._done_at = 0.0
        self._show_at = math.inf  # when to show this learner's models at the latest
        self._tell_at = math.inf  # when to log next how far a long start is
        self.erasures, self.prunings = Erasures(), Prunings()

    # start

    def start(self) -> None:
        """Let all loops begin with their first turns, from the snapshot if it is valid.

        Rankers see each loop once it has all records logged so far, the first ones of them a little later.
        """
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
        self._tell_at = self.clock() + TELL_SECONDS
        self._show_at = self.clock() + SHOW_SECONDS

    def open(self) -> None:
        """Start, and bring all loops to the end of the log."""
        self.start()
        try:
            while self.step_log():
                self._tell_progress()
        except StoreUnavailable as error:  # publish the events learned so far
            self._note(error)
        self._show_at = 0.0
        self.publish()

    def _tell_progress(self) -> None:
        """Log how far a long start is."""
        if not self.incomplete():
            self._tell_at = math.inf
        elif self.clock() > self._tell_at:
            self._tell_at = self.clock() + TELL_SECONDS
            n_read, n = sum(self.positions.values()), sum(self._ends.values())
            logging.getLogger(__name__).warning("learning from the log: %s of %s records", f"{n_read:,}", f"{n:,}")

    # one turn

    def step(self, *, urgent: bool = True) -> bool:
        """Learn new records for a while, publish, and do pending work; return whether there is more to do at once.

        Unless ``urgent``, models are published once a loop's ``update_interval`` is over.
        """
        more = False
        self._urgent = urgent
        try:
            more = self.step_log()
            more |= self._tick()
            if not self.erasures.is_busy:
                self.prunings.step(self)
            more |= self.erasures.step(self)
            self.trouble = None
        except StoreUnavailable as error:
            self._note(error)
        if self.halted and self.trouble is None:
            self.trouble = next(iter(self.halted.values()))
        self.publish()
        self._tell_progress()
        if not self.erasures.is_cleaning:
            self.saver.save_if_due(self.loops)
        return more

    def turn(self, name: str) -> bool:
        more = super().turn(name)
        if self._publish_if_due(name) and self.clock() - self._done_at > DONE_SECONDS:
            self._done_at = self.clock()
            self.publisher.done()
        return more

    def drop(self, name: str) -> LoopState | None:
        state = super().drop(name)
        self._shown.discard(name)
        if state is not None:
            self.publisher.drop(name, state.metadata.id)
        return state

    def _tick(self) -> bool:
        """Log a tick if a wait time is over and no other record shows that this time has passed.

        Return whether there is more to learn at once.
        """
        now = self.log.now()
        groups: list[Group] = []
        for name, state in self.loops.items():
            with self.alone(name):
                deadline = state.next_deadline()
                is_silent = self.is_complete(name) and self.positions[name] == self._ends.get(name)
                if is_silent and deadline is not None and deadline <= now and self.epoch_to_end(name) is not None:
                    groups.append([Record(name, TICK)])
        if not groups:
            return False
        self.writer.append(groups)
        return self.step_log()

    def _note(self, error: Exception) -> None:
        if type(error) is not type(self.trouble):
            logging.getLogger(__name__).error("the learner waits: %s", error)
        self.trouble = error

    def seconds_until_due(self) -> float:
        """Return how long to wait before the next ``step``."""
        return min([IDLE_SECONDS, *(state.metadata.settings.update_interval for state in self.loops.values())])

    # published state

    def publish(self) -> None:
        """Publish the loops that have changed, which loops there are, and how the learner is."""
        for name in [*self.loops]:
            self._publish_if_due(name)
        incomplete = self.incomplete()
        names = sorted({*self.loops, *incomplete, *(self._shown & self.halted.keys())})
        if names != self._names:
            self.publisher.publish_names(names)
            self._names = names
        notes = [*(str(each) for each in self.halted.values()), *map(_kept, self.prunings.kept.items())]
        standing_still = "; ".join(notes[:MOST_TOLD]) or None
        of_all = None if self.trouble in [None, *self.halted.values()] else str(self.trouble)
        used = self.publisher.memory.used_bytes
        erased = [token for token in self.orphans_erased if token in self.erasures.cleaned]
        view = LearnerView(of_all, standing_still, self.rebuilt, used, incomplete, erased)
        self.publisher.publish_learner(view)
        self.publisher.note_waiting(sum(state.waiting_bytes for state in self.loops.values()))
        self.publisher.done()
        if self._show_at < math.inf and (not incomplete or self.clock() > self._show_at):
            self._show_at = math.inf
            self.publisher.show()

    def _publish_if_due(self, name: str) -> bool:
        """Publish a loop that has changed; return whether it has."""
        state = self.loops.get(name)
        if state is None or not self.is_complete(name) or not is_due(state, urgent=self._urgent):
            return False
        with self.alone(name):
            began = time.monotonic()
            note_weights(state)
            publish_loop(self.publisher, state, self.erasures.cleaned, self.seconds[name])
            state.publish_seconds = time.monotonic() - began
            self._shown.add(name)
        return True

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


def _kept(loop_and_time: tuple[str, int]) -> str:
    """Return why a loop's old events stay."""
    loop, newest = loop_and_time
    return (
        f"the newest request of loop {loop!r} is of {iso_time(newest)}, over a day ago by the clock: its retention "
        f"counts from a day after that until requests have come for a day (if the clock is right, fedres log prune "
        f"removes older events at once)"
    )


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

"""A machine in one process, for tests: a ranker, a learner that steps when told to, and a real log between them."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

import msgspec

from service.admin.admin import Admin
from service.learn.control import LearnerQuestion, answer
from service.learn.learner import Learner, replay
from service.learn.snapshots import Snapshots
from service.log.opening import continued
from service.log.protocol import StoreUnavailable
from service.log.records import LOOP, Record, encode
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.log.writer import erase, prune
from service.models.published import PublishedModels, Publisher, make_current, new_generation
from service.plugins.devices.devices import Devices
from service.plugins.reports.reports import Reports
from service.rank.ranker import Ranker, RankerContext
from service.settings import DEFAULT_LOOP, Settings

SECOND = 1_000_000


class Clock:
    """Microseconds that pass when told."""

    def __init__(self):
        self.now = 1_700_000_000 * SECOND

    def __call__(self):
        return self.now

    def pass_seconds(self, seconds):
        self.now += round(seconds * SECOND)


class InlineWriter:
    """Appends to the log at once, for rankers and the learner."""

    def __init__(self, log):
        self.log, self.trouble = log, None

    def append(self, groups, futures=None):
        if asyncio._get_running_loop() is None:
            return self.log.append(groups)
        loop = asyncio.get_running_loop()
        futures = futures or [loop.create_future() for _ in groups]
        for future, outcome in zip(futures, self.log.append(groups), strict=True):
            future.set_result(outcome)
        return futures

    def scrub(self, ticket):
        for _ in self.log.scrub():
            pass
        return True

    def prune(self, loop, old, after, epoch):
        return prune(self.log, loop, old, after, epoch)

    def erase(self, loop, user, base, token, epoch):
        return erase(self.log, loop, user, base, token, epoch)


class LearnerWriter(InlineWriter):
    def append(self, groups, epochs=()):
        return self.log.append(groups, dict(epochs))


class InlineLearner:
    """Asks the learner without a socket."""

    def __init__(self, learner):
        self.learner = learner

    async def ask(self, what, loop="", since=0):
        reply = answer(self.learner, LearnerQuestion(what, loop, since))
        if reply.error is not None:
            raise StoreUnavailable("learner", reply.error)
        return msgspec.msgpack.decode(msgspec.msgpack.encode(reply.body))


class SteppingMachine(RankerContext):
    """Lets the learner step while something waits for it."""

    learner_steps = True

    async def until(self, published, seconds=15.0):
        for _ in range(50):
            if published():
                return
            if self.learner_steps:
                self.core.step()
        await super().until(published, 0.0)


class Engine:
    """All parts of a ranker and its learner, on the store at ``folder / "store.db"``; ``settings`` are of the loop.

    Models are shown in a folder of their own in ``memory``.
    """

    def __init__(
        self,
        folder,
        *,
        clock=None,
        connect=None,
        snapshot_seconds=3_600,
        limits=None,
        open_log=None,
        memory="/dev/shm",
        **settings,
    ):
        self.folder = Path(folder)
        self.clock = clock or Clock()
        connect = connect or sqlite_file(self.folder / "store.db")
        self._open_log = open_log or (lambda: SqliteLog(connect, clock=self.clock))
        self.log = self._open_log()
        heads = self.log.heads()
        self.own_clock = self.clock  # which tests set
        self.log.clock = self.clock = continued(self.clock, max([0, *(head.time for head in heads.values())]))
        if DEFAULT_LOOP not in heads:
            self.log.append([[Record(DEFAULT_LOOP, LOOP, "loop after 0", body=encode(Settings(**settings)))]])
        self._run = tempfile.TemporaryDirectory(prefix="fedres-test-", dir=memory)
        run = Path(self._run.name)
        make_current(run)
        self.snapshots = Snapshots(self.folder / "store.db-models")
        self.publisher = Publisher(run, new_generation(run))
        self.learner = Learner(
            self._open_log(), LearnerWriter(self.log), self.snapshots, self.publisher, snapshot_seconds=snapshot_seconds
        )
        self.learner.log.clock = self.clock
        self.learner.open()
        self.context = SteppingMachine(
            PublishedModels(run), InlineWriter(self.log), InlineLearner(self.learner), self._open_log, limits
        )
        self.context.core = self.learner
        self.admin = Admin(self.context)
        self.parts = [Ranker(self.context), self.admin, Devices(self.context), Reports(self.context)]

    def __getattr__(self, name):
        for part in self.__dict__["parts"]:
            if hasattr(part, name):
                return getattr(part, name)
        raise AttributeError(name)

    def view(self, loop=DEFAULT_LOOP):
        return self.context.loop(loop).view

    async def settle(self):
        while self.learner.step():
            pass
        if self.learner.trouble is not None:
            raise self.learner.trouble

    def digest(self, loop=DEFAULT_LOOP):
        while self.learner.step():
            pass
        return self.learner.digest(loop)

    def rebuilt(self, loop=DEFAULT_LOOP):
        """Return the digest of the models learned anew from the log."""
        log = self._open_log()
        with contextlib.closing(log):
            return replay(log, Path(self._run.name))[loop]

    async def events(self, loop=DEFAULT_LOOP, after=0, limit=None):
        """Return the logged events as they are exported."""
        pieces = [piece async for piece in self.admin.events(loop, after, limit)]
        return [msgspec.json.decode(line) for line in b"".join(pieces).splitlines()]

    def logged(self, loop=DEFAULT_LOOP):
        return self.log.read(loop, 0, 10**6)

    async def close(self):
        self.context.close()
        self.learner.close()
        self.log.close()
        self._run.cleanup()

    def kill(self):
        """Go away without saving anything."""
        self.context.close()
        self.log.close()
        self.learner.log.close()
        self.snapshots.close()
        self._run.cleanup()


@contextlib.asynccontextmanager
async def running(folder, **options):
    engine = Engine(folder, **options)
    try:
        yield engine
    finally:
        await engine.close()


def tell(folder, story, **options):
    """Run an async function of an engine, on the store in a folder, and of the clock that it goes by."""

    async def run():
        clock = Clock()
        async with running(folder, clock=clock, **options) as engine:
            await story(engine, clock)

    asyncio.run(run())

"""What the engine stands on: the store, its threads, and the two ways to change anything."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar
from weakref import WeakValueDictionary

from fedres.scoring.features import Preparer
from fedres.scoring.flattening import Limits
from service.engine.clock import Clock, continued, steady_clock
from service.engine.deciding import (
    View,
    warm_up,
)
from service.engine.exporting import Exporter
from service.engine.given import GivenFeatures
from service.engine.learning import Learning
from service.engine.personal import PersonalModels
from service.engine.records import (
    SETTINGS,
    encode,
)
from service.engine.settings import Settings
from service.engine.snapshots import Snapshots
from service.errors import ApiError, invalid, unavailable
from service.store import (
    Commits,
    Duplicate,
    EventLog,
    GroupCommit,
    Lease,
    Log,
    Record,
    Refused,
    StoreUnavailable,
    Writer,
    sqlite_file,
)
from service.store.opening import Connection

DEFAULT = "default"
YOUNG = 5_000  # objects kept between two looks for cycles, of which requests leave none; a look at more takes longer

Answer = TypeVar("Answer")


Parts = tuple[EventLog, Snapshots, PersonalModels, Exporter, Limits]


class Core:
    """Opens and closes a store, appends to it, and asks the learner."""

    def __init__(self, store: Path, lease: Lease, commits: Commits, learning: Learning, parts: Parts) -> None:
        self.store = store
        self._lease, self._commits, self._learning = lease, commits, learning
        self._log, self._snapshots, self._personal, self._exporter, self._limits = parts
        self._preparers = {crosses: Preparer(crosses=crosses, limits=self._limits) for crosses in (True, False)}
        self._given = GivenFeatures(commits.submit_async, self.stored)
        self._loader = ThreadPoolExecutor(2, "personal")
        self._last = learning.position
        self._changing: asyncio.Event | None = None  # set once what is being changed is in force
        self._turn = asyncio.Lock()
        self._erasing = asyncio.Lock()
        self._closed = False
        self._uploading: Counter[tuple[str, str]] = Counter()  # uploads on their way, by loop and client
        self._filling = WeakValueDictionary[tuple[str, str], asyncio.Lock]()  # calls for slots, by loop and event id
        learning.start(commits)

    @classmethod
    def open(
        cls,
        store: Path,
        *,
        clock: Clock | None = None,
        connect: Callable[[], Connection] | None = None,
        database: str | None = None,
        snapshot_seconds: float = 10.0,
        cache_bytes: int = 256_000_000,
        limits: Limits | None = None,
        wait_seconds: float = 0.0,
        writer_process: bool = False,
    ) -> Self:
        """Return an engine on the store at ``store``, made if need be; raise ``LeaseHeld`` if another has it.

        With a ``database``, an address of PostgreSQL, the log is there, and only what is derived from it at ``store``.
        With ``writer_process`` another process appends to a log in SQLite, and this one has its processor for requests.
        """
        lease = Lease(store)
        lease.acquire(wait_seconds)
        logs: Sequence[EventLog] = ()
        try:
            logs, check = _open_logs(connect or sqlite_file(store), database, wait_seconds)
            log, reader, archive = logs
            log.clock = clock = continued(clock or steady_clock(), reader.last_time())
            snapshots = Snapshots(store.with_name(store.name + "-models"))
            personal = PersonalModels(snapshots, cache_bytes)
            learning = Learning(reader, snapshots, personal, clock, snapshot_seconds)
            learning.check = check
            warm_up()
            learning.open()
            if DEFAULT not in learning.views:
                log.append([Record(DEFAULT, SETTINGS, None, None, encode(Settings()))])
                learning.open()
            apart = writer_process and database is None
            commits = _writer(connect or sqlite_file(store), clock, lease) if apart else GroupCommit(log)
        except BaseException:
            for opened in logs:
                opened.close()
            lease.release()
            raise
        _spare_the_collector()
        parts = (log, snapshots, personal, Exporter(archive), limits or Limits())
        return cls(store, lease, commits, learning, parts)

    async def close(self) -> None:
        """Take no more requests; answer, learn and save those that were taken."""
        self._closed = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._commits.close()
        self._learning.stop()
        self._loader.shutdown()
        self._snapshots.close()
        self._exporter.close()
        self._log.close()
        self._lease.release()

    def _submit(self, record: Record) -> asyncio.Future[int]:
        try:
            return self._commits.submit_async(record)
        except StoreUnavailable as error:
            raise unavailable(error) from error

    def _submit_together(self, records: Sequence[Record]) -> asyncio.Future[int]:
        try:
            return self._commits.submit_together(records)
        except StoreUnavailable as error:
            raise unavailable(error) from error

    async def _stored(self, future: asyncio.Future[int]) -> int:
        try:
            seq = await future
        except StoreUnavailable as error:
            raise unavailable(error) from error
        except Duplicate:
            raise
        except Refused as error:
            raise invalid(str(error)) from error
        self.stored(seq)
        return seq

    def stored(self, seq: int) -> None:
        """Take note that the record is in the store."""
        self._last = max(self._last, seq)
        self._learning.wake()

    async def _view(self, loop: str) -> View:
        """Return the loop as it is published, after any change on its way."""
        while self._changing is not None:
            await self._changing.wait()
        return self.view(loop)

    def view(self, loop: str) -> View:
        """Return the loop as it is published."""
        if self._closed:
            raise ApiError(503, "store_closed", "the service is shutting down")
        view = self._learning.views.get(loop)
        if view is None:
            raise ApiError(404, "unknown_loop", f"loop must be one that exists, got {loop!r}", "loop")
        return view

    @contextlib.asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """Hold everything else up until the change is in force."""
        async with self._turn:
            self._changing = asyncio.Event()
            try:
                yield
            finally:
                self._changing.set()
                self._changing = None

    async def _append_now(self, record: Record) -> int:
        seq = await self._stored(self._submit(record))
        await self.settle()
        return seq

    async def settle(self) -> None:
        """Return once all that was stored before, and all that is due by the clock, is learned and published."""
        await self._on_learner(self._learning.raise_trouble)

    def _learner_says(self, function: Callable[[], Answer]) -> Answer:
        try:
            return self._learning.call(function).result()
        except StoreUnavailable as error:
            raise unavailable(error) from error

    async def _on_learner(self, function: Callable[[], Answer]) -> Answer:
        try:
            return await asyncio.wrap_future(self._learning.call(function))
        except StoreUnavailable as error:
            raise unavailable(error) from error


def _open_logs(
    connect: Callable[[], Connection], database: str | None, wait_seconds: float
) -> tuple[tuple[EventLog, EventLog, EventLog], Callable[[], None] | None]:
    """Return the log to write, two more to read it, and what raises if the store is lost, which a file cannot be."""
    if database is None:
        return (Log(connect, check=True), Log(connect), Log(connect)), None
    from service.store.postgres import open_logs  # its driver need not be there

    log, reader, archive = open_logs(database, wait_seconds)
    return (log, reader, archive), log.check


def _writer(connect: Callable[[], Connection], clock: Clock, lease: Lease) -> Commits:
    return Writer(connect, clock=clock, files=[lease.file])


def _spare_the_collector() -> None:
    """Let the garbage collector look less often, and never at what is here to stay: its pauses are felt in replies."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)

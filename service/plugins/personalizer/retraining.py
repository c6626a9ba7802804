"""Retrains a loop's shared model on its recent log, under the current settings.

Azure does this when reward settings or exploration change. The learner itself does the work, on a view of the log in
which the loop begins with the current settings and has only recent events; the resulting model is uploaded.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from service.admin.admin import Admin
from service.errors import ApiError
from service.learn.learner import relearned
from service.log.protocol import Head, Log, StoreUnavailable
from service.log.records import ACTIVATE, LOOP, RANK, REWARD, TICK, Entry, encode
from service.log.workers import JOB_SECONDS, Worker
from service.logs import log_failure
from service.rank.ranker import RankerContext
from service.settings import Settings
from service.times import DAY

LEARNED = (RANK, REWARD, ACTIVATE)


class RecentLog:
    """A loop's log as if the loop had begun with ``settings``, without events up to a position and a time."""

    def __init__(self, log: Log, loop: str, created_at: int, settings: Settings, after: int, from_time: int) -> None:
        self._log, self._loop, self._created_at = log, loop, created_at
        self._after, self._from_time, self._body = after, from_time, encode(settings)

    def heads(self) -> dict[str, Head]:
        return {self._loop: self._log.heads()[self._loop]}

    def read(self, loop: str, after: int = 0, limit: int = 1_000, *, bodies: bool = True) -> list[Entry]:
        return [
            self._seen(entry) for entry in self._log.read(loop, max(after, self._created_at - 1), limit, bodies=bodies)
        ]

    def of_kind(self, loop: str, kind: str) -> list[Entry]:
        return self.read(loop, 0, 1) if kind == LOOP else []

    def _seen(self, entry: Entry) -> Entry:
        if entry.position == self._created_at:
            return entry._replace(body=self._body)
        is_recent = entry.position > self._after and entry.time >= self._from_time
        if entry.kind in LEARNED and is_recent:
            return entry
        return Entry(entry.loop, entry.position, entry.time, TICK, None, None, None, b"{}")

    def find(self, loop: str, events: Sequence[str]) -> list[Entry]:
        return []

    def now(self) -> int:
        return self._log.now()


class Retrainer:
    """Trains in the background, one loop at a time; the last request for a loop counts."""

    def __init__(self, context: RankerContext, admin: Admin) -> None:
        self._context, self._admin = context, admin
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, loop: str, days: int, after: int) -> None:
        """Train a loop on the events of some days that are behind a position."""
        running = self.tasks.get(loop)
        if running is not None:
            running.cancel()
        self.tasks[loop] = asyncio.create_task(self._train(loop, days, after))
        self.tasks[loop].add_done_callback(log_failure)

    async def _train(self, loop: str, days: int, after: int) -> None:
        try:
            view = self._context.loop(loop).view
            arguments = view.created_at, view.settings, days, after
            state = await self._context.jobs.call(loop, trained, *arguments, seconds=JOB_SECONDS)
            await self._admin.put_model(loop, state)
        except (ApiError, StoreUnavailable) as error:
            logging.getLogger("fedres.service").warning("loop %r could not be trained again: %s", loop, error)


def trained(worker: Worker, loop: str, created_at: int, settings: Settings, days: int, after: int) -> bytes:
    """Return the shared model learned from a loop's recent events."""
    log = worker.log
    recent = RecentLog(log, loop, created_at, settings, after, log.now() - days * DAY)
    with (
        tempfile.TemporaryDirectory(prefix="fedres-retrain-") as folder,
        relearned(recent, Path(folder)) as learner,  # type: ignore[arg-type]  # it is only read
    ):
        return learner.loops[loop].shared.exported(start=True)

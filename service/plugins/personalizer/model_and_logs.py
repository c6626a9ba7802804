"""The model and the log in Azure's API."""

from __future__ import annotations

import os
from typing import Any

from service.admin.admin import Admin
from service.log.protocol import Log
from service.log.records import ERASE, LOOP, MODEL, RANK, EraseBody, Record, encode
from service.models.table import model_kind
from service.plugins.personalizer.configuration import Configurations, retained_after
from service.plugins.personalizer.durations import show_time
from service.rank.ranker import RankerContext

CHUNK = 500


class ModelAndLogs:
    """Resets models and returns when they changed; describes and deletes logs."""

    def __init__(self, context: RankerContext, admin: Admin, configurations: Configurations) -> None:
        self._context, self._admin, self._configurations = context, admin, configurations

    async def reset_model(self, loop: str) -> None:
        """Replace the model by one that has learned nothing."""
        settings = self._configurations.settings(loop)
        await self._admin.put_model(loop, model_kind(settings).new(settings).to_bytes())

    async def model_properties(self, loop: str) -> dict[str, Any]:
        view = self._context.loop(loop).view
        created, changed = await self._context.look_up(
            loop, lambda log: _times(log, loop, view.created_at, view.version)
        )
        return {"creationTime": show_time(created), "lastModifiedTime": show_time(changed)}

    async def log_properties(self, loop: str) -> dict[str, Any]:
        """Return the times of the first and the last decision, empty if there is none."""
        after = await retained_after(self._context, loop)
        times = await self._context.look_up(loop, lambda log: _range(log, loop, after))
        return {} if times is None else {"dateRange": {"from": show_time(times[0]), "to": show_time(times[1])}}

    async def delete_logs(self, loop: str) -> None:
        """Remove all events so far, in the background, and exclude them from all results from now on.

        Pending events are removed later. Models keep what they learned from events.
        """
        self._context.loop(loop)  # refuses a missing loop
        last, now = await self._context.look_up(loop, lambda log: (log.heads()[loop].last, log.now()))
        await self._configurations.keep(loop, logs_after=last)
        body = EraseBody(os.urandom(8).hex(), now)
        await self._context.append_now(Record(loop, ERASE, body=encode(body)))


def _times(log: Log, loop: str, created_at: int, version: int) -> tuple[int, int]:
    created = log.of_kind(loop, LOOP)[-1].time
    entries = log.read(loop, max(version, created_at) - 1, 1)
    changed = entries[0].time if entries else created
    return (changed if entries and entries[0].kind == MODEL else created), changed


def _range(log: Log, loop: str, after: int) -> tuple[int, int] | None:
    """Return the times of the first and the last decision behind a position."""
    first, position = None, after
    while first is None:
        entries = log.read(loop, position, CHUNK, bodies=False)
        if not entries:
            return None
        first = next((entry.time for entry in entries if entry.kind == RANK), None)
        position = entries[-1].position
    end = log.heads()[loop].last
    while True:
        entries = log.read(loop, max(after, end - CHUNK), CHUNK, bodies=False)
        times = [entry.time for entry in entries if entry.kind == RANK]
        if times:
            return first, times[-1]
        end -= CHUNK

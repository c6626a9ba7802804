"""Evaluations and feature importances, kept in the log as notes: any ranker of any machine can show them.

A note replaces the one before of the same kind and id. A job whose process died stays without a result; after
``MOST_SECONDS`` it counts as timed out.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from service.log.protocol import Log
from service.log.records import NOTE, Record, encode
from service.rank.ranker import RankerContext

NAME = "azure-personalizer"  # the event of all notes
MOST_SECONDS = 3_600.0

RUNNING, SUCCEEDED, FAILED, TIMEOUT = "Running", "Succeeded", "Failed", "Timeout"


class Job(msgspec.Struct, kw_only=True):
    """A job and what came of it."""

    kind: str  # evaluation, importance
    id: str
    name: str
    start: str
    end: str
    created: str
    created_at: float  # seconds since 1970
    status: str = RUNNING
    description: str | None = None
    policies: list[dict[str, str]] = []  # that were asked for
    result: dict[str, Any] = {}
    deleted: bool = False


_decode = msgspec.json.Decoder(Job).decode


class Stored:
    """The jobs of loops."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context

    async def put(self, loop: str, job: Job) -> None:
        await self._context.append(Record(loop, NOTE, NAME, body=encode(job)))

    async def list(self, loop: str, kind: str) -> list[Job]:
        """Return the jobs of a kind that were not deleted, oldest first."""
        created_at = self._context.loop(loop).view.created_at
        found = await self._context.look_up(lambda log: _read(log, loop, created_at))
        return [_timed_out(job) for job in found.values() if job.kind == kind and not job.deleted]

    async def find(self, loop: str, kind: str, name: str) -> Job | None:
        return next((job for job in await self.list(loop, kind) if job.id == name), None)


def _read(log: Log, loop: str, created_at: int) -> dict[tuple[str, str], Job]:
    found: dict[tuple[str, str], Job] = {}
    for entry in log.find(loop, [NAME]):
        if entry.kind == NOTE and entry.position > created_at:
            job = _decode(entry.body)
            found[job.kind, job.id] = job
    return found


def _timed_out(job: Job) -> Job:
    if job.status == RUNNING and time.time() > job.created_at + MOST_SECONDS:
        return msgspec.structs.replace(job, status=TIMEOUT, description="the process that worked on it is gone")
    return job

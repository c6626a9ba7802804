"""The engine's methods for devices, which keep their own models and upload what the shared one needs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedres.scoring.sealing import model_tag
from service.engine.core import Core
from service.engine.deciding import Action, View, check_id
from service.engine.federated import (
    Published,
    Residual,
    Update,
    Uploaded,
    check_takes_updates,
    is_as_before,
    loop_full,
    model_bytes,
    number_of,
    residual_bodies,
    round_of,
    score_actions,
    update_bodies,
)
from service.engine.records import JOIN, NOTHING, RESIDUAL, UPDATE
from service.errors import ApiError
from service.store import Duplicate, Record

MOST_OF_A_CLIENT = 1_000  # uploads on their way to the store
MOST_UPLOADS = 5_000  # of all clients: half of what may wait for the store
LONGEST_HOLD = 0.002  # seconds of checks before other requests get their turn


class Devices(Core):
    """Takes uploads through the same log as decisions and rewards, and gives out the shared model."""

    async def residuals(self, loop: str, client: str, residuals: Sequence[Residual]) -> Uploaded:
        """Return where residuals are, once they are stored; all are refused if one breaks a rule."""
        check_id("client", client)
        with self._room_for(loop, client, len(residuals)):
            view, bodies = await self._checked(
                loop, client, lambda view: residual_bodies(view, residuals, self._preparers[view.settings.crosses])
            )
            positions = await self._uploaded(_records(RESIDUAL, view, client, residuals, bodies))
        return Uploaded(positions, self.view(loop).version, None)

    async def updates(self, loop: str, client: str, updates: Sequence[Update]) -> Uploaded:
        """Return where updates are, once they are stored; none at all gives the client its number."""
        check_id("client", client)
        with self._room_for(loop, client, len(updates) or 1):
            view = await self._view(loop)
            check_takes_updates(view)
            if not updates:
                return await self._join(view, client)
            view, bodies = await self._checked(loop, client, lambda view: update_bodies(view, client, updates))
            number = number_of(view, client)
            positions = await self._uploaded(_records(UPDATE, view, client, updates, bodies))
        return Uploaded(positions, self.view(loop).version, number)

    def global_scores(self, loop: str, context: bytes, actions: Sequence[Action]) -> tuple[int, list[float]]:
        """Return the model version and the shared part of each action's score."""
        view = self.view(loop)
        return view.version, score_actions(view, context, actions, self._preparers[view.settings.crosses])

    def federated_model(self, loop: str, since: int | None = None) -> Published:
        """Return the published weights, or what changed of them ``since`` a version."""
        view = self.view(loop)
        self._learning.followed.add(loop)
        return Published(view.version, model_bytes(view, since), model_tag(view.version, view.weights))

    def model_tag(self, loop: str) -> str:
        """Return the tag of the model that is published."""
        view = self.view(loop)
        return model_tag(view.version, view.weights)

    def round(self, loop: str, client: str | None = None, t: int | None = None) -> dict[str, Any]:
        """Return what a device needs to know of a loop, and who uploads after the device's round t."""
        return round_of(self.view(loop), client, t)

    async def _join(self, view: View, client: str) -> Uploaded:
        if client not in view.clients.numbers:
            if view.clients.joined >= view.settings.n_clients:
                raise loop_full(view)
            await self._uploaded([Record(view.name, JOIN, f"{view.since}/{client}", client, NOTHING)])
            await self.settle()
            view = self.view(view.name)
        if client not in view.clients.numbers:
            raise loop_full(view)
        return Uploaded([], view.version, view.clients.numbers[client])

    @contextlib.contextmanager
    def _room_for(self, loop: str, client: str, n: int) -> Iterator[None]:
        """Refuse uploads of a flood, so that the store has room for others; a device waits for its answers."""
        waiting = self._uploading
        if waiting[loop, client] + n > MOST_OF_A_CLIENT or waiting.total() + n > MOST_UPLOADS:
            message = f"uploads must be at most {MOST_OF_A_CLIENT} of a client on their way, and {MOST_UPLOADS} of all"
            raise ApiError(429, "too_many_uploads", message, "client")
        waiting[loop, client] += n
        try:
            yield
        finally:
            waiting[loop, client] -= n
            if not waiting[loop, client]:
                del waiting[loop, client]

    async def _checked(
        self, loop: str, client: str, check: Callable[[View], Iterator[bytes]]
    ) -> tuple[View, list[bytes]]:
        """Return the loop as it is published and what is to be logged by its rules; others get their turn meanwhile."""
        while True:
            checked, bodies, hold_until = await self._view(loop), [], time.perf_counter() + LONGEST_HOLD
            for body in check(checked):
                bodies.append(body)
                if time.perf_counter() > hold_until:
                    await asyncio.sleep(0)
                    hold_until = time.perf_counter() + LONGEST_HOLD
            view = await self._view(loop)
            if is_as_before(view, checked, client):
                return view, bodies

    async def _uploaded(self, records: Sequence[Record]) -> list[int]:
        """Return the positions of records, of a repeat that of the first, once all are stored.

        Nothing may be awaited between the view they were checked by and this.
        """
        futures = self._submit_all(records)
        await asyncio.gather(*futures, return_exceptions=True)
        return [await self._position(future) for future in futures]

    def _submit_all(self, records: Sequence[Record]) -> list[asyncio.Future[int]]:
        futures: list[asyncio.Future[int]] = []
        try:
            for record in records:
                futures.append(self._submit(record))
        except ApiError:
            for future in futures:
                future.cancel()
            raise
        return futures

    async def _position(self, future: asyncio.Future[int]) -> int:
        try:
            return await self._stored(future)
        except Duplicate as repeat:
            return repeat.seq


def _records(
    kind: str, view: View, client: str, uploads: Sequence[Residual | Update], bodies: Sequence[bytes]
) -> list[Record]:
    """Return what is logged; the event is what a repeat is known by, in a loop that may have had namesakes before."""
    return [
        Record(view.name, kind, f"{view.since}/{client}/{upload.seq}", client, body)
        for upload, body in zip(uploads, bodies, strict=True)
    ]

"""Requests of devices, which keep their own models and upload what the shared model learns from."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Raw

from fedres.scoring.features import Preparer
from service.errors import ApiError
from service.log.protocol import Duplicate, StoreUnavailable
from service.log.records import JOIN, Record
from service.models.published import Loop
from service.plugins.devices.uploads import (
    DeviceModel,
    Residual,
    ResidualsStored,
    Update,
    UpdatesStored,
    loop_full,
    number_of,
    residual_records,
    round_of,
    score_actions,
    update_records,
    wrong_upload,
)
from service.rank.decide import work_of
from service.rank.ranker import MOST_WORK, RankerContext
from service.rank.requests import Action, RankRequest, check_id
from service.settings import DEVICE_MODEL

MOST_OF_A_CLIENT = 1_000  # uploads on their way to the log
MOST_UPLOADS = 5_000  # of all clients: half of what may wait for the log
MOST_BYTES = 100_000_000  # of whole models that are kept
LONGEST_HOLD = 0.002  # seconds of checks before other requests get their turn


class Devices:
    """Stores uploads in the same log as decisions and rewards, and returns the shared model."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context
        self._uploading: Counter[tuple[str, str]] = Counter()  # uploads being stored, by loop and client
        self._documents: dict[str, DeviceModel] = {}  # whole models, by the id of their loop, the newest last

    async def residuals(self, loop: str, client: str, residuals: Sequence[Residual]) -> ResidualsStored:
        """Store residuals; return their positions. All are refused if one is invalid."""
        check_id("client", client)
        preparer = self._context.preparer_of(self._loop(loop))
        with self._room_for(loop, client, len(residuals)):
            records = await self._checked(
                loop, lambda published: residual_records(published, client, residuals, preparer)
            )
            positions = await self._upload(records)
        return ResidualsStored(positions, self._context.loop(loop).view.version)

    async def updates(self, loop: str, client: str, updates: Sequence[Update]) -> UpdatesStored:
        """Store updates; return their positions. An empty list gives the client its number."""
        check_id("client", client)
        with self._room_for(loop, client, len(updates) or 1):
            published = self._loop(loop)
            if published.view.settings.takes_residuals:
                raise wrong_upload(published.view, "updates")
            if not updates:
                return await self._join(published, client)
            records = await self._checked(loop, lambda published: update_records(published, client, updates))
            number = number_of(published, client)
            positions = await self._upload(records)
        return UpdatesStored(positions, self._context.loop(loop).view.version, number)

    async def global_scores(self, loop: str, context: bytes, actions: list[Action]) -> tuple[int, list[float]]:
        """Return the model version and the shared part of each action's score."""
        published = self._loop(loop)
        if published.view.settings.has_widths:
            message = f"scores need a loop whose model has no widths, got {loop!r}: {published.view.settings.model!r}"
            raise ApiError(409, "no_device_model", message, "loop")

        def scored(lent: Loop) -> tuple[int, list[float]]:
            preparer = Preparer.within(lent.view.settings.largest_number)
            return lent.view.version, score_actions(lent, context, actions, preparer)

        if work_of(RankRequest(actions=actions, context=Raw(context)), published) <= MOST_WORK:
            return scored(published)
        lend = partial(self._context.lend, loop, [action.id for action in actions])
        return await self._context.threads.call(loop, lend, scored)

    async def federated_model(self, loop: str, since: int | None = None) -> DeviceModel:
        """Return the published model or, for models without widths, its weights that changed ``since`` a version."""
        published = self._loop(loop)
        changed = None
        if not published.view.settings.has_widths:
            with contextlib.suppress(StoreUnavailable):  # without the learner all weights are sent
                # From the first call on, the learner notes which weights change.
                changed = await self._context.learner.ask("changed", loop, since or 0)
        if since is None or published.view.settings.has_widths:
            return await self._document(loop)

        def made(lent: Loop) -> DeviceModel:
            view, weights = lent.view, lent.weights
            indices = None
            if since and changed is not None and since <= view.version <= changed[0]:
                indices = np.array(changed[1], np.int64)
            body = lent.model.for_devices(view, weights, since, indices)
            return DeviceModel(view.version, body, lent.model.tag(view.version, weights))

        return await self._context.threads.call(loop, partial(self._context.lend, loop), made)

    async def model_tag(self, loop: str) -> str:
        """Return the tag of the published model; it is computed once for each version."""
        return (await self._document(loop)).tag

    async def _document(self, loop: str) -> DeviceModel:
        """Return the whole model of a loop, made on a thread once for each version."""
        published = self._context.loop(loop)
        document = self._documents.get(published.id)
        if document is not None and document.version == published.view.version:
            return document

        def made(lent: Loop) -> DeviceModel:
            before = self._documents.get(lent.id)
            view, weights = lent.view, lent.weights
            if before is not None and before.version == view.version:  # it was made while this call waited
                return before
            body = lent.model.for_devices(view, weights, None, None)
            document = DeviceModel(view.version, body, lent.model.tag(view.version, weights))
            # Keep it before the next call of this loop gets the thread.
            self._documents.pop(lent.id, None)
            self._documents[lent.id] = document
            return document

        document = await self._context.threads.call(loop, partial(self._context.lend, loop), made)
        # Other threads may add documents meanwhile, so sum up a copy.
        while len(self._documents) > 1 and sum([len(each.body) for each in [*self._documents.values()]]) > MOST_BYTES:
            self._documents.pop(next(iter([*self._documents])), None)
        return document

    def round(
        self, loop: str, client: str | None = None, t: int | None = None, model: str = DEVICE_MODEL
    ) -> dict[str, Any]:
        """Return the settings of a loop for devices, and who uploads after the device's round t.

        A device that cannot run the loop's ``model`` gets an error here, in its first request.
        """
        published = self._loop(loop)
        if published.view.settings.model != model:
            message = (
                f"loop {loop!r} has the model {published.view.settings.model!r}, and this device runs {model!r}: "
                f"open a new one with the learner {published.model.device_learners}"
            )
            raise ApiError(409, "no_device_model", message, "model")
        return round_of(published, client, t)

    def _loop(self, name: str) -> Loop:
        """Return a loop whose model devices can run."""
        published = self._context.loop(name)
        if not published.model.device_learners:
            message = f"loop {name!r} has the model {published.view.settings.model!r}, which no device runs"
            raise ApiError(409, "no_device_model", message, "loop")
        return published

    async def _join(self, loop: Loop, client: str) -> UpdatesStored:
        name, view = loop.view.name, loop.view
        if client not in loop.clients.numbers:
            if loop.clients.joined >= view.settings.n_clients:
                raise loop_full(view)
            with contextlib.suppress(Duplicate):
                await self._context.append_now(Record(name, JOIN, f"{view.created_at}/{client}", client))
            loop = self._context.loop(name)
        if client not in loop.clients.numbers:
            raise loop_full(view)
        return UpdatesStored([], loop.view.version, loop.clients.numbers[client])

    @contextlib.contextmanager
    def _room_for(self, loop: str, client: str, n: int) -> Iterator[None]:
        """Refuse too many uploads at once, so that the log has room for others; devices wait for their replies."""
        waiting = self._uploading
        if waiting[loop, client] + n > MOST_OF_A_CLIENT or waiting.total() + n > MOST_UPLOADS:
            message = f"in-flight uploads must be at most {MOST_OF_A_CLIENT} per client and {MOST_UPLOADS} in total"
            raise ApiError(429, "too_many_uploads", message, "client")
        waiting[loop, client] += n
        try:
            yield
        finally:
            waiting[loop, client] -= n
            if not waiting[loop, client]:
                del waiting[loop, client]

    async def _checked(self, loop: str, check: Callable[[Loop], Iterator[Record]]) -> list[Record]:
        """Return the records to log, checked by the current settings; other requests run meanwhile."""
        await self._context.until_compiled()
        while True:
            published = self._context.loop(loop)
            version, records, hold_until = published.view.settings_version, [], time.perf_counter() + LONGEST_HOLD
            for record in check(published):
                records.append(record)
                if time.perf_counter() > hold_until:
                    await asyncio.sleep(0)
                    if self._context.loop(loop).view.settings_version != version:
                        break
                    hold_until = time.perf_counter() + LONGEST_HOLD
            else:
                return records

    async def _upload(self, records: Sequence[Record]) -> list[int]:
        """Store records; return their positions, for a repeat that of the first."""
        outcomes = await self._context.append_each(records)
        return [outcome.position if isinstance(outcome, Duplicate) else outcome for outcome in outcomes]

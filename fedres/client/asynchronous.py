"""The device's client for programs with an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any, Self

import httpx
from msgspec.structs import replace

from fedres.client.device import DeviceDecision, Status
from fedres.client.offers import make_offer
from fedres.client.opening import open_device
from fedres.client.synchronous import CLOSE_SECONDS, TRIES, check_seconds
from fedres.client.syncing import Link, Synced
from fedres_client.inputs import Actions, Features, Id
from fedres_client.transport import address, ask_async, headers
from fedres_client.wire import Answer, Failure, Finished, Flow, Wait, advance

if TYPE_CHECKING:
    from fedres.client.privacy import Privacy


class AsyncDeviceClient:
    """``DeviceClient`` for ``async with``, which waits for the first model and starts syncs in the background.

    The constructor reads its folder; later work on models and disk happens in threads, and the event loop never waits
    for it.
    """

    def __init__(
        self,
        url: str | None,
        client: Id,
        folder: str | os.PathLike[str],
        *,
        loop: str = "default",
        key: str | None = None,
        learner: str = "residual-kalman",
        timing: str = "immediate",
        download: bool = True,
        privacy: Privacy | None = None,
        sync_seconds: float | None = 5.0,
        open_seconds: float = 2.0,
        queue_limit: int = 10_000,
        gzip: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        url = address(url)
        check_seconds(sync_seconds, open_seconds)
        self._http = httpx.AsyncClient(base_url=url, headers=headers(key), transport=transport)
        settings: dict[str, Any] = {"loop": loop, "learner": learner, "timing": timing, "download": download}
        self._device = open_device(folder, client=client, privacy=privacy, queue_limit=queue_limit, **settings)
        self._link = Link(self._device, gzip=gzip)
        self._seconds, self._open_seconds = sync_seconds, open_seconds
        self._syncing = asyncio.Lock()  # one sync at a time
        self._closing, self._opened = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._seconds is not None or self._open_seconds:
            self._task = asyncio.create_task(self._run())
        if self._open_seconds:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._opened.wait(), self._open_seconds)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def decide(
        self,
        context: Features,
        actions: Actions,
        private: Features | None = None,
        *,
        exclude: Iterable[Id] = (),
        event_id: Id | None = None,
    ) -> DeviceDecision:
        """Return which of the actions to take, in any of the forms of ``Client.rank``."""
        offer = make_offer(context, actions, private, exclude=exclude, event_id=event_id)
        decision: DeviceDecision = await self._drive(self._link.decide(offer))
        return decision

    async def reward(self, event_id: Id, value: float) -> None:
        """Learn the reward of a decision; it is on the disk when this returns."""
        await asyncio.to_thread(self._device.reward, event_id, value)

    async def sync(self) -> Synced:
        """Upload, and fetch the newest model, now; retry after failures."""
        async with self._syncing:
            return await self._sync(TRIES)

    def status(self) -> Status:
        """Return the numbers of waiting decisions and uploads, and the last trouble of the syncs."""
        return self._device.status()

    async def close(self) -> None:
        """Stop syncing after a last try of a few seconds, and save the models; closing twice is allowed."""
        self._closing.set()
        try:
            await self._end_task()
            await asyncio.to_thread(self._device.close)
        finally:
            await self._http.aclose()

    async def _end_task(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _sync(self, tries: int) -> Synced:
        synced: Synced = await self._drive(self._link.sync(tries))
        return synced

    async def _run(self) -> None:
        """Fetch the first model, then sync until the device is closed, unless callers do."""
        if self._open_seconds:
            async with self._syncing:
                await self._quietly(self._drive(self._link.sync(upload=False), self._open_seconds))
        self._opened.set()
        if self._seconds is not None:
            await self._keep_syncing()

    async def _keep_syncing(self) -> None:
        while True:
            last = self._closing.is_set()
            async with self._syncing:
                await self._quietly(self._sync(1))
                pause = self._link.pause or 0.0
            if last or (await self._wait(max(pause, self._seconds or 0.0)) and pause):
                return

    async def _quietly(self, sync: Awaitable[object]) -> None:
        try:
            await sync
        except Exception as error:
            self._link.failed(error)

    async def _wait(self, seconds: float) -> bool:
        """Wait ``seconds``, or until the device is closed; return whether it is closed."""
        try:
            await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _drive(self, flow: Flow[Any], seconds: float = math.inf) -> Any:
        """Carry out a flow's requests and return its result; each reply may take ``seconds``."""
        answer: Answer | Failure | None = None
        while True:
            step = await asyncio.to_thread(advance, flow, answer)
            if isinstance(step, Finished):
                return step.value
            answer = None
            if isinstance(step, Wait):
                await self._wait(step.seconds)
            else:
                answer = await ask_async(self._http, replace(step, seconds=min(step.seconds, seconds)))

"""The device's client for programs with threads."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

import httpx
from msgspec.structs import replace

from fedres import checks
from fedres.client.device import DeviceDecision, Status
from fedres.client.offers import make_offer
from fedres.client.opening import open_device
from fedres.client.syncing import Link, Synced
from fedres_client.inputs import Actions, Features, Id
from fedres_client.transport import address, ask, headers
from fedres_client.wire import Answer, Failure, Finished, Flow, Wait, advance

if TYPE_CHECKING:
    from fedres.client.privacy import Privacy

TRIES = 5  # of each request of a sync that the caller waits for
LONGEST_OPENING = 3600.0  # seconds
CLOSE_SECONDS = 5.0  # limit for the last sync when closing


def check_seconds(sync_seconds: float | None, open_seconds: float) -> None:
    if sync_seconds is not None:
        checks.positive("sync_seconds", sync_seconds)
    if not 0 <= open_seconds <= LONGEST_OPENING:
        raise ValueError(f"open_seconds must be 0 to {LONGEST_OPENING:g}, got {open_seconds!r}")


class DeviceClient:
    """Decides on the device, learns there, and exchanges residuals for shared models in the background.

    All of its state is in ``folder``, for one process at a time. ``learner`` is "residual-kalman", the model of most
    loops or, for those with "adagrad", "vw" or its twin "linear". Of these two ``timing`` says when they learn:
    "immediate", or "aligned", when the shared model has the upload inside; ``download=False`` asks the service for
    scores instead of keeping its model. ``sync_seconds=None`` leaves syncs to the caller. Queued uploads beyond
    ``queue_limit`` are dropped, the oldest first.

    The constructor waits for the newest model, ``open_seconds`` at most, so that the first decision uses it. If it
    does not arrive, the device continues with the model in its folder. 0 does not request it.
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
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        url = address(url)
        check_seconds(sync_seconds, open_seconds)
        self._http = httpx.Client(base_url=url, headers=headers(key), transport=transport)
        settings: dict[str, Any] = {"loop": loop, "learner": learner, "timing": timing, "download": download}
        try:
            self._device = open_device(folder, client=client, privacy=privacy, queue_limit=queue_limit, **settings)
        except BaseException:
            self._http.close()
            raise
        self._link = Link(self._device, gzip=gzip)
        self._seconds, self._open_seconds = sync_seconds, open_seconds
        self._syncing = threading.Lock()  # one sync at a time
        self._closing, self._opened = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        if sync_seconds is not None or open_seconds:
            self._thread = threading.Thread(target=self._run, name=f"sync of {client}", daemon=True)
            self._thread.start()
            self._opened.wait(open_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decide(
        self,
        context: Features,
        actions: Actions,
        private: Features | None = None,
        *,
        exclude: Iterable[Id] = (),
        event_id: Id | None = None,
    ) -> DeviceDecision:
        """Return which of the actions to take, in any of the forms of ``Client.rank``.

        ``context`` and the actions' features are uploaded with the reward; ``private`` stays here.
        """
        offer = make_offer(context, actions, private, exclude=exclude, event_id=event_id)
        decision: DeviceDecision = self._drive(self._link.decide(offer))
        return decision

    def reward(self, event_id: Id, value: float) -> None:
        """Learn the reward of a decision; it is on the disk when this returns."""
        self._device.reward(event_id, value)

    def sync(self) -> Synced:
        """Upload, and fetch the newest model, now; retry after failures."""
        with self._syncing:
            return self._sync(TRIES)

    def status(self) -> Status:
        """Return the numbers of waiting decisions and uploads, and the last trouble of the syncs."""
        return self._device.status()

    def close(self) -> None:
        """Stop syncing after a last try of a few seconds, and save the models; closing twice is allowed."""
        self._closing.set()
        try:
            if self._thread is not None:
                self._thread.join(CLOSE_SECONDS)
            self._device.close()
        finally:
            if self._thread is None or not self._thread.is_alive():
                self._http.close()

    def _sync(self, tries: int) -> Synced:
        synced: Synced = self._drive(self._link.sync(tries))
        return synced

    def _run(self) -> None:
        """Fetch the first model, then sync until the device is closed, unless callers do.

        A request pending at that time is abandoned, and counts as failed.
        """
        try:
            if self._open_seconds:
                with self._syncing:
                    self._quietly(lambda: self._drive(self._link.sync(upload=False), self._open_seconds))
            self._opened.set()
            if self._seconds is not None:
                self._keep_syncing()
        finally:
            if self._seconds is not None or self._closing.is_set():
                self._http.close()

    def _keep_syncing(self) -> None:
        while not self._device.closed:
            last = self._closing.is_set()
            with self._syncing:
                self._quietly(lambda: self._sync(1))
                pause = self._link.pause or 0.0
            if last or (self._closing.wait(max(pause, self._seconds or 0.0)) and pause):
                return

    def _quietly(self, sync: Callable[[], object]) -> None:
        """Sync in a background thread: failures are logged, and tried again."""
        try:
            sync()
        except Exception as error:
            if not self._device.closed:
                self._link.failed(error)

    def _drive(self, flow: Flow[Any], seconds: float = math.inf) -> Any:
        """Carry out a flow's requests and return its result; each reply may take ``seconds``."""
        answer: Answer | Failure | None = None
        while True:
            step = advance(flow, answer)
            if isinstance(step, Finished):
                return step.value
            answer = None
            if isinstance(step, Wait):
                self._closing.wait(step.seconds)
            else:
                answer = ask(self._http, replace(step, seconds=min(step.seconds, seconds)))

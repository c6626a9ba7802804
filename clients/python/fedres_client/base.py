"""The common base of both clients."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

from fedres_client.availability import TRY, Attempt
from fedres_client.calls import Calls, ServiceCall
from fedres_client.fallbacks import Fallback
from fedres_client.inputs import Id
from fedres_client.rewards import Ask, Rewards
from fedres_client.types import Observed, RewardStatus
from fedres_client.wire import Failure, Request

if TYPE_CHECKING:
    import asyncio
    import ssl

    import httpx
    from typing_extensions import Never, Self

    from fedres_client.spool import Spool

LOCAL = "http://127.0.0.1:8000"  # if there is no address, here or in FEDRES_URL
TIMEOUT = 1.0  # seconds for a decision
CONNECTIONS = 32  # calls at a time; further ones wait, no longer than their deadline


class Connection:
    """What the clients of all loops share."""

    is_closed = False
    http: httpx.AsyncClient | None = None  # of ``AsyncClient``
    event_loop: asyncio.AbstractEventLoop | None = None  # of ``http``
    places: asyncio.Semaphore  # one for each call at a time


class BaseClient:
    """A client's calls, its queue of rewards, and its connection."""

    def __init__(
        self,
        url: str | None = None,
        *,
        loop: str = "default",
        key: str | None = None,
        timeout: float = TIMEOUT,
        admin_timeout: float = 30.0,
        fallback: Fallback | None = "first",
        queue_limit: int = 10_000,
        spool: str | os.PathLike[str] | None = None,
        observe: Callable[[Observed], None] | None = None,
        verify: ssl.SSLContext | None = None,
        transport: httpx.BaseTransport | None = None,
        **former: Never,
    ) -> None:
        from fedres_client.transport import address, headers  # imports httpx, which takes longest

        refuse_former(type(self).__name__, former)
        _check_options(queue_limit, observe, verify)
        url = address(url, LOCAL)
        self._options: dict[str, Any] = {"base_url": url, "headers": headers(key), "verify": _tls(url, verify)}
        if transport is not None:
            self._options["transport"] = transport
        self._connection = Connection()
        self._observe = observe
        self._engines: dict[int, Any] = {}  # of ``Client``, by process
        self._calls = Calls(loop, timeout=timeout, admin_timeout=admin_timeout, fallback=fallback, feedback=self)
        opened = None if spool is None else _spool_in(spool)
        self._rewards = Rewards(self._ask_for_rewards, limit=queue_limit, spool=opened, observe=observe)

    def reward(
        self,
        event_id: Id,
        value: float | None = None,
        *,
        outcomes: Mapping[str, float] | None = None,
        id: Id | None = None,
    ) -> None:
        """Send the reward of an event in the background; two rewards with one ``id`` count once.

        ``outcomes`` are numbers by name, for loops whose reward is a formula over them. Numbers must be finite, True is
        1; all else raises a TypeError or a ValueError. Rewards of fallbacks, identified by their ids, are not sent.
        """
        self._send(self._calls.reward(event_id, value, outcomes, id))

    def activate(self, event_id: Id) -> None:
        """Report in the background that the decision of a deferred event was shown."""
        self._send(self._calls.activate(event_id))

    def _send(self, request: Request | None) -> None:
        if request is not None:
            self._rewards.put(request)

    def with_loop(self, loop: str) -> Self:
        """Return a client of another loop, which shares the connections and the queue of rewards."""
        other = copy(self)
        other._calls = self._calls.with_loop(loop, feedback=other)
        return other

    def reward_status(self) -> RewardStatus:
        """Return the numbers of queued, sent, refused and dropped rewards, and for how long the oldest has waited."""
        return self._rewards.status()

    def _check_open(self) -> None:
        if self._connection.is_closed:
            raise RuntimeError("the client is closed")

    @contextmanager
    def _attempt(self, call: ServiceCall[Any]) -> Iterator[Attempt | None]:
        """Yield how a call may be tried, None if the service is away and another call is trying."""
        availability = self._calls.availability
        attempt = availability.begin() if call.hot else TRY
        try:
            yield attempt
        finally:
            if attempt is not None:
                availability.end(attempt, call.began)

    def _away(self) -> Failure:
        return Failure(f"the service is away: {self._calls.availability.reason}")

    def _repeat_at(self, call: ServiceCall[Any], attempt: Attempt) -> float:
        """Return when a call may be sent a second time, beside its first try: half of its time is left then."""
        return call.began + call.seconds / 2 if call.hot and not attempt.is_probe else math.inf

    def _new_http(self) -> httpx.Client:
        import httpx

        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        return httpx.Client(**self._options, limits=limits)

    @contextmanager
    def _ask_for_rewards(self) -> Iterator[Ask]:
        """Yield the function with which the rewards' thread sends: on a separate connection, so no decision waits."""
        from fedres_client.transport import ask

        with self._new_http() as http:
            yield lambda request: ask(http, request, whole=True)


def _check_options(queue_limit: Any, observe: Any, verify: Any) -> None:
    """Refuse what would fail later, or would be ignored."""
    import ssl

    if isinstance(queue_limit, bool) or not isinstance(queue_limit, int):
        raise TypeError(f"queue_limit must be a whole number, got {queue_limit!r}")
    if observe is not None and not callable(observe):
        raise TypeError(f"observe must be a function, got {observe!r}")
    if verify is not None and not isinstance(verify, ssl.SSLContext):
        raise TypeError(f"verify must be an ssl.SSLContext, got {verify!r}")


FORMER = {"deadline": "timeout", "admin_deadline": "admin_timeout"}


def refuse_former(what: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that do not exist, former names with the new ones."""
    for name in arguments:
        hint = f": it is {FORMER[name]}" if name in FORMER else ""
        raise TypeError(f"{what} has no argument {name!r}{hint}")


def _tls(url: str, verify: ssl.SSLContext | None) -> ssl.SSLContext:
    """Return the TLS settings of all connections; for https, they read the system's certificates, which takes long.

    They are made here, once, and not by the thread of a connection: a fork at that moment would copy OpenSSL's locks,
    for which the child would wait forever.
    """
    import httpx

    return verify or httpx.create_ssl_context(verify=url.startswith("https://"))


def _spool_in(folder: str | os.PathLike[str]) -> Callable[[], Spool]:
    from fedres_client.spool import Spool

    return lambda: Spool(folder)

"""Runs the service: opens the store, listens, says where to look, and drains when it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import uvloop

from fedres import checks
from service.app import create_app
from service.engine import Engine
from service.http.keys import Keys
from service.http.limits import Limits
from service.http.replies import log
from service.http.server import Server, Tls, bound, shown, stop_on_signals
from service.starting import Open, Say, opened, telling
from service.workers import Unlocked, counted, working

STANDBY_SECONDS = 1e9  # as long as it takes
Beside = Callable[[Engine, str], Awaitable[None]]


def serve(
    store: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    insecure: bool = False,
    tls: Tls | None = None,
    limits: Limits | None = None,
    database: str | None = None,
    standby: bool = False,
    beside: Beside | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve ``store`` until SIGTERM or SIGINT; then drain, flush and return.

    With a ``database``, an address of PostgreSQL, the log is there. A ``standby`` waits as long as another service has
    the store, and takes no connections until then. More than one of ``workers`` are processes of their own, in front of
    this one (see ``workers.py``). ``beside`` gets the engine and the address once both are ready, and is cancelled at
    the end.
    """
    keys = Keys(store)
    check_exposure(host, keys, insecure)
    checks.whole("workers", workers)
    opening: Open = partial(Engine.open, store, database=database, writer_process=True)
    with bound(host, port, listening=not standby) as sock:
        if standby:
            opening = _waited_for(opening, say)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(opening, keys, sock, workers, tls, limits or Limits(), beside, say))


def _waited_for(opening: Callable[..., Engine], say: Say) -> Open:
    """Return an engine, open once no other has the store; Ctrl-C ends this wait, which it could not on a thread."""
    say("fedres stands by: it waits until no other service has the store")
    with telling(say):
        engine = opening(wait_seconds=STANDBY_SECONDS)
    return lambda: engine


async def _serve(
    opening: Open,
    keys: Keys,
    sock: socket.socket,
    workers: int,
    tls: Tls | None,
    limits: Limits,
    beside: Beside | None,
    say: Say,
) -> None:
    with telling(say):
        engine = await opened(opening, sock, limits, tls)
    url = f"{'https' if tls else 'http'}://{shown(sock)}"
    try:
        async with _answering(engine, keys, sock, workers, tls, limits) as ended, _running(beside, engine, url):
            say(_welcome(url, engine.store, keys))
            await ended
    finally:
        await engine.close()


@contextlib.asynccontextmanager
async def _answering(
    engine: Engine, keys: Keys, sock: socket.socket, workers: int, tls: Tls | None, limits: Limits
) -> AsyncIterator[Awaitable[object]]:
    """Answer requests; lends what is done once the service is told to stop."""
    if workers == 1:
        server = Server(create_app(engine, keys=keys, limits=limits), sock, limits, tls)
        stop_on_signals(server.stop)
        yield server.serve()
        return
    told = asyncio.Event()
    stop_on_signals(told.set)
    app = create_app(engine, keys=Unlocked(engine.store), limits=limits, at_the_gate=counted(limits))
    async with working(workers, app, engine.store, sock, limits, tls):
        yield told.wait()


@contextlib.asynccontextmanager
async def _running(beside: Beside | None, engine: Engine, url: str) -> AsyncIterator[None]:
    if beside is None:
        yield
        return
    task = asyncio.ensure_future(beside(engine, url))
    task.add_done_callback(_note_failure)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _note_failure(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("what ran beside the service failed; the service goes on", exc_info=task.exception())


def check_exposure(host: str, keys: Keys, insecure: bool) -> None:
    """Refuse to be reached from other machines without a key, unless that is what is wanted."""
    if insecure or len(keys) or is_loopback(host):
        return
    raise ValueError(
        f"host must be a loopback address such as 127.0.0.1 while there is no key, got {host!r}: "
        "make a key (fedres keys add), or say --insecure"
    )


def is_loopback(host: str) -> bool:
    """Return whether all addresses of ``host`` are this machine's own."""
    found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def _welcome(url: str, store: Path, keys: Keys) -> str:
    who = "whoever has a key" if len(keys) else "anyone who can reach it (no key yet: fedres keys add)"
    places = f"  page     {url}/\n  API      {url}/docs\n  metrics  {url}/metrics"
    return f"fedres serves {store} to {who}\n{places}\nCtrl-C ends it."

"""Runs the service: opens the store, listens, says where to look, and drains when it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from service.app import create_app
from service.engine import Engine
from service.http.keys import Keys
from service.http.limits import Limits
from service.http.protocol import protocol
from service.http.replies import log

BACKLOG = 2048

Beside = Callable[[Engine, str], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files of a certificate and its private key, as uvicorn takes them."""

    certificate: str | os.PathLike[str]
    private_key: str | os.PathLike[str] | None = None  # None if the certificate's file has it
    password: str | None = None


class Server(uvicorn.Server):
    """uvicorn on a socket that is already bound; it leaves signals to its caller."""

    def __init__(self, app: Any, sock: socket.socket, limits: Limits, tls: Tls | None = None) -> None:
        config = uvicorn.Config(
            app,
            http=protocol(limits.request_seconds),
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(limits.request_seconds) + 5,
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.private_key if tls else None,
            ssl_keyfile_password=tls.password if tls else None,
        )
        super().__init__(config)
        self._socket, self._handshake_seconds = sock, limits.request_seconds
        self.url = f"{'https' if tls else 'http'}://{_shown(sock)}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, with an end to the patience for TLS handshakes as well."""
        ssl = self.config.ssl
        server = await asyncio.get_running_loop().create_server(
            self._connection,
            sock=self._socket,
            backlog=BACKLOG,
            ssl=ssl,
            ssl_handshake_timeout=self._handshake_seconds if ssl else None,
        )
        self.servers = [server]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Take no more connections, answer what is under way, then let ``serve`` return."""
        self.should_exit = True

    def _connection(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state={}
        )
        return made


def serve(
    store: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    insecure: bool = False,
    tls: Tls | None = None,
    limits: Limits | None = None,
    beside: Beside | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve ``store`` until SIGTERM or SIGINT; then drain, flush and return.

    ``beside`` gets the engine and the address once both are ready, and is cancelled at the end.
    """
    keys = Keys(store)
    check_exposure(host, keys, insecure)
    with bound(host, port) as sock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(store, keys, sock, tls, limits or Limits(), beside, say))


async def _serve(
    store: Path,
    keys: Keys,
    sock: socket.socket,
    tls: Tls | None,
    limits: Limits,
    beside: Beside | None,
    say: Callable[[str], None],
) -> None:
    engine = Engine.open(store)
    try:
        server = Server(create_app(engine, keys=keys, limits=limits), sock, limits, tls)
        _stop_on_signals(server)
        async with _running(beside, engine, server.url):
            say(_welcome(server.url, store, keys))
            await server.serve()
    finally:
        await engine.close()


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


def _stop_on_signals(server: Server) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)


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


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """Lend a socket bound to ``host`` and ``port``; port 0 is any that is free."""
    family, kind, number, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, proto=socket.IPPROTO_TCP
    )[0]
    with socket.socket(family, kind, number) as sock:  # without its number asyncio would not set TCP_NODELAY
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)  # connections that come while the store is being opened wait
        yield sock


def _shown(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # all addresses: the one that works on this machine
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _welcome(url: str, store: Path, keys: Keys) -> str:
    who = "whoever has a key" if len(keys) else "anyone who can reach it (no key yet: fedres keys add)"
    places = f"  page     {url}/\n  API      {url}/docs\n  metrics  {url}/metrics"
    return f"fedres serves {store} to {who}\n{places}\nCtrl-C ends it."

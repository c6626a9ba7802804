"""uvicorn on a socket that is already bound."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import uvicorn

from service.http.protocol import Protocol
from service.http.request import Limits

BACKLOG = 2048
TICKS = 10  # of uvicorn, one second in all, between checks for clients that do not read their replies


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files of a certificate and its private key, as uvicorn takes them."""

    certificate: str | os.PathLike[str]
    private_key: str | os.PathLike[str] | None = None  # None if the certificate's file has it


class HttpServer(uvicorn.Server):
    """uvicorn on a bound socket; the caller handles signals."""

    def __init__(
        self,
        app: Any,
        sock: socket.socket,
        limits: Limits,
        tls: Tls | None = None,
        on_tick: Callable[[], None] = lambda: None,  # called ten times a second
    ) -> None:
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,  # its loggers go where ours go
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(limits.request_seconds) + 5,
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.private_key if tls else None,
        )
        super().__init__(config)
        self._on_tick = on_tick
        self._socket, self._limits = sock, limits
        self.url = f"{'https' if tls else 'http'}://{shown(sock)}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, with a timeout for TLS handshakes too."""
        ssl = self.config.ssl
        server = await asyncio.get_running_loop().create_server(
            partial(Protocol, self._limits, self.config, self.server_state),
            sock=self._socket,
            backlog=BACKLOG,
            ssl=ssl,
            ssl_handshake_timeout=self._limits.request_seconds if ssl else None,
        )
        self.servers = [server]
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        self._on_tick()
        if counter % TICKS == 0:
            for connection in list(self.server_state.connections):
                cast(Protocol, connection).end_if_stuck()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Accept no more connections, finish pending requests, then let ``serve`` return."""
        self.should_exit = True


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a listening socket; port 0 is any that is free.

    ``shared`` lets other processes listen at the same port; the system distributes connections.
    """
    family, kind, number, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, proto=socket.IPPROTO_TCP
    )[0]
    sock = socket.socket(family, kind, number)  # without its number asyncio would not set TCP_NODELAY
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        sock.listen(BACKLOG)  # connections that come while nobody accepts wait
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno, f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from error
    return sock


def shown(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # any address: the local one
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

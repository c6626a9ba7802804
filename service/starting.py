"""What the service says and answers while it starts, where that takes long."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator

from numba.core import event

from service.engine import Engine
from service.errors import ApiError
from service.http.limits import Limits
from service.http.replies import SOON, Receive, Scope, Send, json_reply, refusal, send_reply
from service.http.server import Server, Tls

PATIENCE = 1.0  # seconds in which most stores are open
BETWEEN = 5.0  # seconds between two words on how it goes

Say = Callable[[str], None]
Open = Callable[[], Engine]


class _Compiled(event.Listener):
    """Says that functions are being compiled, and how far it has come."""

    def __init__(self, say: Say) -> None:
        self._say, self._begun, self._said_at, self._n = say, 0.0, 0.0, 0

    def on_start(self, event: object) -> None:
        if not self._begun:
            self._begun = self._said_at = time.monotonic()
            self._say("Compiling what decides and learns: once, about 15 s.")

    def on_end(self, event: object) -> None:
        self._n += 1
        now = time.monotonic()
        if now - self._said_at > BETWEEN:
            self._said_at = now
            self._say(f"  {self._n} functions compiled after {now - self._begun:.0f} s")


@contextlib.contextmanager
def telling(say: Say) -> Iterator[None]:
    """Say so if something is compiled meanwhile; what is in numba's cache is not."""
    with event.install_listener("numba:compile", _Compiled(say)):
        yield


async def opened(opening: Open, sock: socket.socket, limits: Limits, tls: Tls | None) -> Engine:
    """Return the engine, opened on a thread; meanwhile whoever asks on ``sock`` is told to wait."""
    engine = asyncio.ensure_future(asyncio.to_thread(opening))
    await asyncio.wait([engine], timeout=PATIENCE)
    if not engine.done():
        async with _answering(sock, limits, tls):
            await asyncio.wait([engine])
    return await engine


@contextlib.asynccontextmanager
async def _answering(sock: socket.socket, limits: Limits, tls: Tls | None) -> AsyncIterator[None]:
    server = Server(_not_ready, sock.dup(), limits, tls)  # it closes its own
    serving = asyncio.ensure_future(server.serve())
    try:
        yield
    finally:
        server.stop()
        await serving


async def _not_ready(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/healthz":
        await send_reply(send, json_reply(b'{"status":"ok"}'))
    else:
        await send_reply(send, refusal(ApiError(503, "starting", "the service is starting; ask again"), (SOON,)))

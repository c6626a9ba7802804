"""What the service says and answers while it starts, where that takes long."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

from service.errors import ApiError
from service.http.protocol import send_reply
from service.http.replies import SOON, Receive, Reply, Scope, Send, json_reply, refusal
from service.http.server import Server
from service.roles.config import Config

BETWEEN = 5.0  # seconds between two words on how it goes
FUNCTIONS = 243  # that a first start compiles, about: it depends on the versions of numba and Python
HTML = (b"content-type", b"text/html; charset=utf-8")
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>fedres is starting</title>
<body style="font-family: system-ui, sans-serif; margin: 4rem auto; max-width: 36rem">
<h1>fedres is starting</h1>
<p>{progress}</p>
<p>The first start on a machine compiles code, which takes one to three minutes. This page reloads until then.</p>
"""

Say = Callable[[str], None]


class Progress:
    """How many functions were compiled so far, in memory that forked processes share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    @property
    def n(self) -> int:
        return int.from_bytes(self._memory[:8], "little")

    @n.setter
    def n(self, n: int) -> None:
        self._memory[:8] = n.to_bytes(8, "little")

    def shown(self) -> str:
        """Return how far it is; nothing where nothing is compiled."""
        return f"{self.n} of about {max(FUNCTIONS, self.n)} functions are compiled." if self.n else ""


@contextlib.contextmanager
def compiling(say: Say, progress: Progress | None = None) -> Iterator[None]:
    """Say so if something is compiled meanwhile; what is in numba's cache is not."""
    counted, process = progress or Progress(), os.getpid()
    from numba.core import event

    class Compiled(event.Listener):
        begun = said_at = 0.0

        def on_start(self, _: object) -> None:
            if not self.begun and os.getpid() == process:
                self.begun = self.said_at = time.monotonic()
                say("Compiling kernels (first start only, about a minute)")

        def on_end(self, _: object) -> None:
            counted.n += 1
            if os.getpid() == process and time.monotonic() - self.said_at > BETWEEN:
                self.said_at = time.monotonic()
                say(f"  {counted.shown()[:-1]} after {time.monotonic() - self.begun:.0f} s")

    with event.install_listener("numba:compile", Compiled()):
        yield


@contextlib.contextmanager
def serve_starting(config: Config, sock: socket.socket, progress: Progress | None = None) -> Iterator[None]:
    """Answer ``/healthz`` with 200 and all else with 503, in a process of its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()  # before the fork: a parent that has ended meanwhile must be missed
    pid = os.fork()
    if pid == 0:
        try:
            answer_while(config, sock, parent, progress)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def answer_while(config: Config, sock: socket.socket, parent: int, progress: Progress | None = None) -> None:
    """Answer as long as the process that started this one lives."""
    import asyncio

    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    async def serve() -> None:
        server = Server(_not_ready(progress or Progress()), sock.dup(), config.limits, config.tls)

        def look() -> None:
            if os.getppid() != parent:
                server.stop()
            asyncio.get_running_loop().call_later(0.2, look)

        look()
        await server.serve()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def _not_ready(progress: Progress) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return the application that says to programs and to people that the service is not ready yet."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        wants_page = any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
        if scope["path"] == "/healthz":
            await send_reply(send, json_reply(b'{"status":"ok"}'))
        elif scope["method"] == "GET" and wants_page:
            page = PAGE.replace("{progress}", progress.shown())
            await send_reply(send, Reply(503, page.encode(), (HTML, SOON)))
        else:
            message = " ".join(["the service is starting; try again.", progress.shown()]).rstrip(" .")
            await send_reply(send, refusal(ApiError(503, "starting", message), (SOON,)))

    return answer

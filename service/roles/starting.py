"""What the service says and answers while it starts, where that takes long."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

from service.errors import ApiError
from service.http.replies import SOON, Receive, Reply, Scope, Send, json_reply, refusal, send_reply
from service.http.server import Server
from service.roles.config import Config

BETWEEN = 5.0  # seconds between two words on how it goes
HTML = (b"content-type", b"text/html; charset=utf-8")
PAGE = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>fedres is starting</title>
<body style="font-family: system-ui, sans-serif; margin: 4rem auto; max-width: 36rem">
<h1>fedres is starting</h1>
<p>The first start on a machine compiles code, which takes about a minute. This page reloads until then.</p>
"""

Say = Callable[[str], None]


@contextlib.contextmanager
def compiling(say: Say) -> Iterator[None]:
    """Say so if something is compiled meanwhile; what is in numba's cache is not."""
    from numba.core import event

    class Compiled(event.Listener):
        begun = said_at = 0.0
        n = 0

        def on_start(self, _: object) -> None:
            if not self.begun:
                self.begun = self.said_at = time.monotonic()
                say("Compiling what decides and learns: once, a minute or two.")

        def on_end(self, _: object) -> None:
            self.n += 1
            if time.monotonic() - self.said_at > BETWEEN:
                self.said_at = time.monotonic()
                say(f"  {self.n} functions compiled after {time.monotonic() - self.begun:.0f} s")

    with event.install_listener("numba:compile", Compiled()):
        yield


@contextlib.contextmanager
def serve_starting(config: Config, sock: socket.socket) -> Iterator[None]:
    """Answer ``/healthz`` with 200 and all else with 503, in a process of its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()  # before the fork: a parent that has ended meanwhile must be missed
    pid = os.fork()
    if pid == 0:
        try:
            answer_while(config, sock, parent)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def answer_while(config: Config, sock: socket.socket, parent: int) -> None:
    """Answer as long as the process that started this one lives."""
    import asyncio

    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    async def serve() -> None:
        server = Server(_not_ready, sock.dup(), config.limits, config.tls)

        def look() -> None:
            if os.getppid() != parent:
                server.stop()
            asyncio.get_running_loop().call_later(0.2, look)

        look()
        await server.serve()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


async def _not_ready(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/healthz":
        await send_reply(send, json_reply(b'{"status":"ok"}'))
    elif scope["method"] == "GET" and any(
        name == b"accept" and b"text/html" in value for name, value in scope["headers"]
    ):
        await send_reply(send, Reply(503, PAGE, (HTML, SOON)))
    else:
        await send_reply(send, refusal(ApiError(503, "starting", "the service is starting; try again"), (SOON,)))

"""Messages and replies of the service during a long start."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from ctypes import c_int64

from service.errors import ApiError
from service.http.protocol import send_reply
from service.http.replies import SOON, Receive, Reply, Scope, Send, json_reply, refusal
from service.http.server import HttpServer
from service.roles.config import Config

BETWEEN = 5.0  # seconds between two messages about the progress
# About this many compile at a first start; versions of numba and Python matter.
FUNCTIONS = 243
HTML = (b"content-type", b"text/html; charset=utf-8")
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>fedres is starting</title>
<body style="font-family: system-ui, sans-serif; margin: 4rem auto; max-width: 36rem">
<h1>fedres is starting</h1>
<p>{progress}</p>
<p>The first start on a machine compiles code, which takes one to three minutes. This page reloads until then.</p>
"""

Say = Callable[[str], None]


def new_progress() -> c_int64:
    """Return a count of the functions compiled so far, in memory that forked processes share."""
    return c_int64.from_buffer(mmap.mmap(-1, 8))


def shown(progress: c_int64) -> str:
    """Return the progress as a sentence, empty if nothing is compiled."""
    n = progress.value
    return f"{n} of about {max(FUNCTIONS, n)} functions are compiled." if n else ""


@contextlib.contextmanager
def compiling(say: Say, progress: c_int64) -> Iterator[None]:
    """Print the progress of compilation during the block; nothing if numba's cache has all code."""
    process = os.getpid()
    from numba.core import event

    class CompileListener(event.Listener):
        begun = said_at = 0.0

        def on_start(self, _: object) -> None:
            if not self.begun and os.getpid() == process:
                self.begun = self.said_at = time.monotonic()
                say("Compiling kernels (first start only, one to several minutes)")

        def on_end(self, _: object) -> None:
            progress.value += 1
            if os.getpid() == process and time.monotonic() - self.said_at > BETWEEN:
                self.said_at = time.monotonic()
                say(f"  {shown(progress)[:-1]} after {time.monotonic() - self.begun:.0f} s")

    with event.install_listener("numba:compile", CompileListener()):
        yield


@contextlib.contextmanager
def serve_starting(config: Config, sock: socket.socket, progress: c_int64) -> Iterator[None]:
    """Reply to ``/healthz`` with 200 and to all else with 503, in a separate process."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()  # before the fork, so that the child notices a parent that has ended
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


def answer_while(config: Config, sock: socket.socket, parent: int, progress: c_int64) -> None:
    """Serve until the process that started this one ends."""
    import asyncio

    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    async def serve() -> None:
        server = HttpServer(_not_ready(progress), sock.dup(), config.limits, config.tls)

        def look() -> None:
            if os.getppid() != parent:
                server.stop()
            asyncio.get_running_loop().call_later(0.2, look)

        look()
        await server.serve()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def _not_ready(progress: c_int64) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return the application that replies to programs and people that the service is not ready yet."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        wants_page = any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
        if scope["path"] == "/healthz":
            await send_reply(send, json_reply(b'{"status":"ok"}'))
        elif scope["method"] == "GET" and wants_page:
            page = PAGE.replace("{progress}", shown(progress))
            await send_reply(send, Reply(503, page.encode(), (HTML, SOON)))
        else:
            message = f"the service is starting; try again. {shown(progress)}".rstrip(" .")
            await send_reply(send, refusal(ApiError(503, "starting", message), (SOON,)))

    return answer

"""Servers in processes of their own that may be killed, and the process that they are forked from.

That one has imported and compiled everything, so that a server takes a tenth of a second to start and not two. It runs
one server at a time. Run as a script this file is that process; what it does is said in lines on its output.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import obedient

import service.serve
from service.engine import Engine, erasing
from service.engine.clock import steady_clock
from service.engine.deciding import warm_up
from service.store.log import system_clock


def tell(kind, value=None):
    os.write(1, json.dumps([kind, value]).encode() + b"\n")


def main():
    warm_up()
    erasing.PIECE = 3  # personal models: the few that there are take several pieces
    tell("ready")
    while order := next_order():
        options = json.loads(order)
        pid = os.fork()
        if pid == 0:
            os._exit(run(**options))
        tell("started", pid)
        _, status = os.waitpid(pid, 0)
        tell("ended", os.waitstatus_to_exitcode(status))


def next_order():
    """Return one order, empty at the end: the next is given once this one is carried out."""
    os.set_blocking(0, True)  # a server that reads orders too has set it otherwise
    return os.read(0, 65_536)


def run(store, errors, workers=1, database=None, **options):
    """Serve until told to stop; return the exit status."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    try:
        service.serve.Engine = SimpleNamespace(open=partial(open_engine, **options))
        service.serve.serve(Path(store), port=0, workers=workers, database=database, beside=obey, say=lambda text: None)
        return 0
    except Exception as error:
        os.write(2, f"{error!r}\n".encode())
        return 1


async def obey(engine, url):
    """Say where the server listens; then, when asked, what its models hash to or who works for it. Unasked, end."""
    running, orders = asyncio.get_running_loop(), asyncio.Queue()
    running.add_reader(0, lambda: orders.put_nowait(os.read(0, 100)))
    tell("listening", url)
    while order := await orders.get():
        if json.loads(order) == "digests":
            tell("digests", {loop: await asyncio.to_thread(engine.digest, loop) for loop in engine.loops()})
        elif json.loads(order) == "writer":
            tell("writer", engine._commits.pid)
        else:
            tell("workers", [process.pid for process in multiprocessing.active_children()])
    os._exit(1)


def open_engine(store, *, busy_seconds=5.0, **options):
    """Open an engine whose connections do what ``<store>-pragmas`` says; the wall clock is ``<store>-ahead`` off."""
    pragmas, ahead = store.with_name(store.name + "-pragmas"), store.with_name(store.name + "-ahead")
    return Engine.open(
        store,
        connect=partial(obedient.connect, store, busy_seconds, pragmas),
        clock=steady_clock(lambda: system_clock() + int(ahead.read_text() if ahead.exists() else 0)),
        **options,
    )


class Nursery:
    """``async with``: the process that servers are forked from."""

    async def __aenter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": self._folder.name},
        )
        self._told = defaultdict(asyncio.Future)
        self._reading = asyncio.create_task(self._read())
        self._server = None
        await self.told("ready")
        return self

    async def __aexit__(self, *_):
        await self.clear()
        self._process.stdin.close()
        await self._reading
        await self._process.wait()
        self._folder.cleanup()

    async def start(self, store, **options):
        """Return a server on its way up."""
        for kind in ("started", "listening", "ended"):
            self._told.pop(kind, None)
        self.order({"store": str(store), "errors": f"{store}-errors", **options})
        self._server = RunningServer(self, await self.told("started"), Path(f"{store}-errors"))
        return self._server

    async def clear(self):
        """End the server that runs, if one does."""
        if self._server is not None:
            await self._server.kill()

    def is_empty(self):
        """Return whether it is known that no server runs."""
        return self._told["ended"].done()

    def temporary_files(self):
        """Return what servers have put in the folder for temporary files."""
        return sorted(path.name for path in Path(self._folder.name).iterdir())

    def order(self, order):
        self._process.stdin.write(json.dumps(order).encode())

    async def asked(self, kind):
        """Return what the server answers to an order."""
        self._told.pop(kind, None)
        self.order(kind)
        return await self.told(kind)

    async def told(self, kind):
        """Return what was said, or raise if the server ended and never said it."""
        told, ended = self._told[kind], self._told["ended"]
        await asyncio.wait([told, ended, self._reading], return_when=asyncio.FIRST_COMPLETED)
        if not told.done():
            raise ConnectionError(f"the server ended with status {ended.result() if ended.done() else None}")
        return told.result()

    async def _read(self):
        async for line in self._process.stdout:
            kind, value = json.loads(line)
            self._told[kind].set_result(value)


class RunningServer:
    def __init__(self, nursery, pid, errors):
        self.pid, self._nursery, self._errors = pid, nursery, errors

    async def url(self):
        """Return where it listens, once it does."""
        return await self._nursery.told("listening")

    async def digests(self):
        """Return the SHA-256 of each loop's models."""
        return await self._nursery.asked("digests")

    async def writer(self):
        """Return the id of the process that writes for it."""
        return await self._nursery.asked("writer")

    async def workers(self):
        """Return the ids of the processes that answer requests in front of it."""
        return await self._nursery.asked("workers")

    def signal(self, number):
        with suppress(ProcessLookupError):  # it has ended this moment
            os.kill(self.pid, number)

    async def ended(self):
        """Return its exit status, once it has ended."""
        return await self._nursery.told("ended")

    async def kill(self):
        """End it this very moment."""
        if not self._nursery.is_empty():
            self.signal(signal.SIGKILL)
        return await self.ended()

    def errors(self):
        return self._errors.read_text()


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(path):
    """Let another process hold the lock on a database."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        yield


if __name__ == "__main__":
    main()

"""Services in processes of their own that may be killed, and the process that their supervisors are forked from.

That one has imported and compiled everything, so that a service takes a tenth of a second to start and not two. It runs
one supervisor at a time, in a process group of its own. Run as a script this file is that process; it reports in lines
on its output.
"""

import asyncio
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import obedient
from forked import build_app

from service.learn.control import LearnerClient
from service.learn.learner import Learner
from service.log import opening, sqlite
from service.log.opening import Store, steady_clock
from service.log.sqlite import system_clock
from service.roles import learner, ranker, supervisor, writer
from service.roles.config import LEARNER_SOCKET, LOG_SOCKET, Config
from service.roles.warm_up import warm_up

ROLES = ("ranker", "log", "learner", "supervisor")


def tell(kind, value=None):
    os.write(1, json.dumps([kind, value]).encode() + b"\n")


def end_with_parent():
    """Let this process be killed when the one that started it ends, however that ends (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main():
    end_with_parent()
    assert ranker.run
    assert writer.run
    warm_up()
    build_app()
    tell("ready")
    while order := os.read(0, 65_536):  # the next is given once this one is carried out
        options = json.loads(order)
        pid = os.fork()
        if pid == 0:
            os._exit(run(**options))
        os.setpgid(pid, pid)
        tell("started", pid)
        _, status = os.waitpid(pid, 0)
        tell("ended", os.waitstatus_to_exitcode(status))


def run(store, errors, rankers=1, database=None, **faults):
    """Serve until told to stop; return the exit status."""
    end_with_parent()
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    try:
        install(Path(store), **faults)
        config = Config(store=Store(Path(store), database), port=0, rankers=rankers)
        supervisor.serve(config, say=listening, welcome=lambda url: url)
        return 0
    except Exception as error:
        os.write(2, f"{error!r}\n".encode())
        return 1


def listening(text):
    if text.startswith("http"):
        tell("listening", text)


def install(store, busy_seconds=5.0, snapshot_seconds=10.0):
    """Let connections to the log do what ``<store>-pragmas`` says, and the wall clock be ``<store>-ahead`` off."""
    pragmas, ahead = store.with_name(store.name + "-pragmas"), store.with_name(store.name + "-ahead")

    def wall():
        return system_clock() + int(ahead.read_text() if ahead.exists() else 0)

    sqlite.sqlite_file = lambda path: partial(obedient.connect, path, busy_seconds, pragmas)
    opening.steady_clock = lambda: steady_clock(wall)
    learner.Learner = partial(Learner, snapshot_seconds=snapshot_seconds)


class Nursery:
    """``async with``: the process that services are forked from."""

    async def __aenter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", __file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": self._folder.name, "PYTHONPATH": _python_path()},
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
        """Return a service on its way up."""
        for kind in ("started", "listening", "ended"):
            self._told.pop(kind, None)
        order = {"store": str(store), "errors": f"{store}-errors", **options}
        self._process.stdin.write(json.dumps(order).encode())
        self._server = RunningServer(self, await self.told("started"), Path(store))
        return self._server

    async def clear(self):
        """End the service that runs, if one does."""
        if self._server is not None:
            await self._server.kill()
            self._server.clean_up()

    def is_empty(self):
        """Return whether it is known that no supervisor runs."""
        return self._told["ended"].done()

    async def told(self, kind):
        """Return what was said, or raise if the supervisor ended and never said it."""
        told, ended = self._told[kind], self._told["ended"]
        await asyncio.wait([told, ended, self._reading], return_when=asyncio.FIRST_COMPLETED)
        if self._reading.done():
            raise ConnectionError(f"the nursery ended with status {await self._process.wait()}")
        if not told.done():
            raise ConnectionError(f"the server ended with status {ended.result() if ended.done() else None}")
        return told.result()

    async def _read(self):
        async for line in self._process.stdout:
            kind, value = json.loads(line)
            self._told[kind].set_result(value)


def _python_path():
    return os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])


class RunningServer:
    """A supervisor and its processes; ``pid`` is the supervisor."""

    def __init__(self, nursery, pid, store):
        self.pid, self._nursery, self._store = pid, nursery, store

    async def url(self):
        """Return where it listens, once it does."""
        return await self._nursery.told("listening")

    def folder(self):
        """Return the folder of its sockets and shared memory."""
        return Path(self._store.with_name(self._store.name + "-run").read_text().strip())

    def processes(self):
        """Return the processes, as the supervisor knows them; a pid of 0 is one that is being restarted."""
        return json.loads((self.folder() / "processes.json").read_bytes())

    def pids(self, role):
        return {one["number"]: one["pid"] for one in self.processes() if one["role"] == role}

    def socket(self, role):
        return self.folder() / {"log": LOG_SOCKET, "learner": LEARNER_SOCKET}[role]

    async def digest(self, loop):
        """Return the SHA-256 of a loop's models, with all that is logged learned."""
        return await self.ask_learner("digest", loop)

    async def ask_learner(self, what, loop=""):
        return await LearnerClient(self.socket("learner")).ask(what, loop)

    def signal(self, number):
        with suppress(ProcessLookupError):  # it has ended this moment
            os.kill(self.pid, number)

    async def ended(self):
        """Return the supervisor's exit status, once it has ended."""
        return await self._nursery.told("ended")

    async def kill(self):
        """End all its processes this very moment, as a power cut would."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return await self.ended()

    def clean_up(self):
        """Remove what the next service on the store would."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder(), ignore_errors=True)

    def errors(self):
        return self._store.with_name(self._store.name + "-errors").read_text()


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

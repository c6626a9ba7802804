"""Services in processes of their own that may be killed, and a lock that another process holds."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

from forked import Forked

from service.learn.control import LearnerClient
from service.roles.config import LEARNER_SOCKET, LOG_SOCKET

SCRIPT = Path(__file__).with_name("faulty_service.py")
ROLES = ("ranker", "log", "learner", "supervisor")


class RunningServer:
    """A supervisor, whose ``pid`` this has, and its processes, in a process group of their own."""

    def __init__(self, store, **options):
        self._store = Path(store)
        words = [sys.executable, str(SCRIPT), json.dumps({"store": str(store), **options})]
        with open(f"{store}-errors", "ab") as errors:
            self._process = Forked(words, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        self.pid = self._process.pid
        self._said = asyncio.ensure_future(asyncio.to_thread(self._process.stdout.readline))
        self._ended = asyncio.ensure_future(self._wait())

    async def _wait(self):
        with self._process.stdout:
            status = await asyncio.to_thread(self._process.wait)
            await self._said
        return status

    async def url(self):
        """Return where it listens, once it does."""
        if said := await asyncio.shield(self._said):
            return said.strip()
        raise ConnectionError(f"the server ended with status {await self.ended()}")

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
        return await asyncio.shield(self._ended)

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

"""``fedres serve`` as processes: where it listens, which they are, which of them has a connection."""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import httpx
from forked import FEDRES, Forked

DEADLINE = 120.0  # seconds, generous: until something happens that must


class Serving:
    """A service that was started by ``serving``."""

    def __init__(self, process, store, url=None):
        self.process, self.store, self.url = process, store, url
        self.said = []  # lines, up to the one with the address

    def client(self, **options):
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, **options)

    def ask(self, path, method="GET", **options):
        """Return a reply on a connection of its own, which waits or is tried again where a ranker is just killed."""

        def asked():
            with contextlib.suppress(httpx.TransportError), self.client() as client:
                return client.request(method, path, **options)

        return until(asked)

    def processes(self):
        return {(one["role"], one["number"]): one for one in self.ask("/v1/status").json()["processes"]}

    def pid(self, role, number=0):
        return self.processes()[role, number]["pid"]

    def run_folder(self):
        return Path(Path(f"{self.store}-run").read_text().strip())


@contextlib.contextmanager
def serving(folder, *words, wait=True, command=(FEDRES,)):
    """Start a service on the store in ``folder``, and end it with all its processes."""
    store = Path(folder) / "store.db"
    line = [*command, "serve", "--port", "0", "--store", f"sqlite:///{store}", *words]
    errors = Path(folder) / "stderr"
    with open(errors, "ab") as log, Forked(line, stdout=subprocess.PIPE, stderr=log) as process:
        running = Serving(process, store)
        try:
            if wait:
                running.url = wait_for_url(running, errors)
            yield running
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(DEADLINE)
            finally:
                process.kill()


def wait_for_url(running, errors):
    """Return where a service is, once it says so."""
    for line in running.process.stdout:
        running.said.append(line)
        if found := re.search(r"page +(https?://\S+)/", line):
            return found[1]
    raise AssertionError(errors.read_text())


def until(found, deadline=DEADLINE):
    """Return the first result of ``found`` that is true."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        if result := found():
            return result
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def has_ended(pid):
    """Return whether a process is gone; one that nobody has waited for yet is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def owner(pids, port):
    """Return which of the processes has the server's end of the connection from our ``port``, None if none yet."""
    wanted = {row[9] for row in _connections() if row[3] == "01" and int(row[2].rpartition(":")[2], 16) == port}
    return next((pid for pid in pids if _sockets(pid) & wanted), None)


def listening_port(pid):
    """Return a port at which a process listens, None if there is none yet."""
    inodes = _sockets(pid)
    ports = [int(row[1].rpartition(":")[2], 16) for row in _connections() if row[3] == "0A" and row[9] in inodes]
    return ports[0] if ports else None


def _connections():
    return [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]


def _sockets(pid):
    """Return the inodes of a process's sockets."""
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    return found

"""``fedres serve`` as processes: on a store of its own (``served``, ``serving``), or machines that share a database."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
from forked import FEDRES, Forked
from waiting import LIMIT, until

from service.learn.control import LearnerAnswer, LearnerQuestion
from service.log.client import framed, receive_frame

ADDRESS = re.compile(r"dashboard +(https?://\S+)/")  # in the line that says where a service is
IMPATIENT = (  # fedres that waits 0.1 s for a lock instead of 5, and 0.1 s between two snapshots instead of 10
    sys.executable,
    "-c",
    """
from functools import partial
from service.__main__ import main
from service.log import sqlite
from service.roles import learner
sqlite.sqlite_file = partial(sqlite.sqlite_file, busy_seconds=0.1)
learner.Learner = partial(learner.Learner, snapshot_seconds=0.1)
main()
""",
)


class Serving:
    """A service that was started by ``serving``."""

    def __init__(self, process, store, url=None):
        self.process, self.store, self.url = process, store, url
        self.said = []  # lines, up to the one with the address

    def client(self, **options):
        return httpx.Client(base_url=self.url, timeout=LIMIT, trust_env=False, **options)

    def ask(self, path, method="GET", **options):
        """Return a reply on a connection of its own, which waits or is tried again where a ranker is just killed."""

        def reply():
            with contextlib.suppress(httpx.TransportError), self.client() as client:
                return client.request(method, path, **options)

        return until(reply)

    def processes(self):
        return {(one["role"], one["number"]): one for one in self.ask("/v1/status").json()["processes"]}

    def pid(self, role, number=0):
        """Return the process of a role as the supervisor knows it, 0 while it is being started again."""
        processes = json.loads((self.run_folder() / "processes.json").read_bytes())
        return next(one["pid"] for one in processes if (one["role"], one["number"]) == (role, number))

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
                process.wait(LIMIT)
            finally:
                process.kill()


def wait_for_url(running, errors):
    """Return where a service is, once it says so."""
    for line in running.process.stdout:
        running.said.append(line)
        if address := ADDRESS.search(line):
            return address[1]
    raise AssertionError(errors.read_text())


@contextlib.contextmanager
def served(command, folder, *, popen=Forked, end=signal.SIGTERM):
    """Run a command that serves, in a folder; yield its address, and the lines that follow it. It must end well."""
    with popen([*command, "--port", "0"], stdout=subprocess.PIPE, cwd=folder) as process:
        try:
            yield next(address[1] for line in process.stdout if (address := ADDRESS.search(line))), process.stdout
        finally:
            process.send_signal(end)
            process.stdout.read()
    assert process.returncode == 0


def has_ended(pid):
    """Return whether a process is gone; one that nobody has waited for yet is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def owner(pids, port):
    """Return which of the processes has the server's end of the connection from our ``port``, None if none yet."""
    inodes = {row[9] for row in _connections() if row[3] == "01" and int(row[2].rpartition(":")[2], 16) == port}
    return next((pid for pid in pids if _sockets(pid) & inodes), None)


def listening_port(pid):
    """Return a port at which a process listens, None if there is none yet."""
    inodes = _sockets(pid)
    ports = [int(row[1].rpartition(":")[2], 16) for row in _connections() if row[3] == "0A" and row[9] in inodes]
    return ports[0] if ports else None


def _connections():
    return [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]


def _sockets(pid):
    """Return the inodes of a process's sockets."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    return inodes


# Machines that share a database


class MachineProcess:
    """A machine; it has another port whenever it is started again, for somebody may have taken the one before."""

    def __init__(self, folder, database, *options):
        self.folder, self.database, self.options = Path(folder), database, options
        self.folder.mkdir(exist_ok=True)
        self.port, self.process = 0, None
        self.http = httpx.Client(trust_env=False, timeout=LIMIT)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self, wait=True):
        command = [FEDRES, "serve", "--store", self.database, "--folder", self.folder, "--port", "0"]
        with open(self.folder / "stderr", "ab") as errors:
            self.process = Forked(
                [*command, *self.options], stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        if wait:
            self.wait_until_started()
        return self

    def wait_until_started(self):
        for line in self.process.stdout:
            if match := re.search(r"dashboard +http://[\d.]+:(\d+)/", line):
                self.port = int(match[1])
                return
        raise AssertionError(f"no start: {(self.folder / 'stderr').read_text()[-2000:]}")

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(LIMIT)
            self.process.stdout.close()
        return self.process.returncode

    def kill(self):
        """End all processes of the machine at once, as a power cut does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.port = 0  # at which nobody listens

    def close(self):
        """End it, and remove what the next start would."""
        self.kill()
        self.http.close()
        for note in self.folder.glob("*-run"):
            shutil.rmtree(note.read_text().strip(), ignore_errors=True)

    def ask(self, method, path, **options):
        return self.http.request(method, self.url + path, **options)

    def status(self):
        reply = self.ask("GET", "/v1/status")
        if reply.status_code != 200:
            raise ConnectionError(reply.text)
        return reply.json()

    def pids(self, role):
        return [one["pid"] for one in self.status()["processes"] if one["role"] == role and one["pid"]]

    def kill_role(self, role):
        for pid in self.pids(role):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def is_ready(self):
        return self.ask("GET", "/readyz").status_code == 200

    def digest(self, loop="default"):
        """Return the digest of a loop's models, with all that is in the log learned."""
        [note] = self.folder.glob("*-run")
        with socket.socket(socket.AF_UNIX) as learner:
            learner.settimeout(LIMIT)
            learner.connect(str(Path(note.read_text().strip()) / "learner.sock"))
            learner.sendall(framed(LearnerQuestion("digest", loop)))
            answer = msgspec.msgpack.decode(receive_frame(learner.recv), type=LearnerAnswer)
        assert answer.error is None, answer.error
        return answer.body


@contextlib.contextmanager
def running(*machines):
    """Lend machines that are started together, and stopped whatever happens."""
    try:
        for machine in machines:
            machine.start(wait=False)
        for machine in machines:
            machine.wait_until_started()
        yield machines
    finally:
        for machine in machines:
            if machine.process is not None:
                machine.close()

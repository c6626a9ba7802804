"""The processes that the service benchmark measures: the real ``fedres serve``, and a bare ASGI application.

CPU time and memory come from ``/proc``, so those are measured on Linux only.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
from load_generator import catalogue

from service.http.keys import Keys
from service.http.request import Limits
from service.http.server import HttpServer, bind

COMMAND = (sys.executable, "-u", "-P", "-c", "from service.cli import app; app()")
PAGE = re.compile(r"^\s*dashboard\s+http://127\.0\.0\.1:(\d+)/\s*$", re.MULTILINE)
COMMITS = re.compile(r"^fedres_log_commit_seconds_(count|sum) (\S+)$", re.MULTILINE)
START_SECONDS = 180.0  # the first start compiles
STOP_SECONDS = 60.0
CATCH_UP_SECONDS = 120.0  # then the learner is reported as not having caught up
POLL_SECONDS = 0.02

BARE_BODY = b'{"event_id":"0123456789abcdefghijkl"}'

_spawn = multiprocessing.get_context("spawn")


class Target:
    """A server under test: a port, and processes by role."""

    def __init__(self, port: int, pid: int, keys: Sequence[str] = ()) -> None:
        self.port, self.pid, self.keys = port, pid, keys

    def roles(self) -> dict[int, str]:
        """Return the role of every process, by its id."""
        return {self.pid: "bare"}

    def lag_records(self) -> int:
        """Return how many records the learner is behind."""
        return 0

    def commits(self) -> tuple[float, float]:
        """Return how many commits the log has made, and the seconds that they took."""
        return 0.0, 0.0


class Service(Target):
    """A running ``fedres serve``."""

    def __init__(self, port: int, pid: int, keys: Sequence[str] = ()) -> None:
        super().__init__(port, pid, keys)
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Return the status and the body of a response."""
        headers = {"Content-Type": "application/json"}
        if self.keys:
            headers["Authorization"] = f"Bearer {self.keys[0]}"
        content = None if body is None else json.dumps(body)
        try:
            self._http.request(method, path, content, headers)
            response = self._http.getresponse()
            return response.status, response.read()
        except (ConnectionError, http.client.HTTPException):  # kept alive for too long
            self._http.close()
            self._http.request(method, path, content, headers)
            response = self._http.getresponse()
            return response.status, response.read()

    def close(self) -> None:
        """Close the connection that the benchmark uses; the service goes on."""
        self._http.close()

    def status(self) -> dict[str, Any]:
        """Return ``GET /v1/status``."""
        status, body = self.request("GET", "/v1/status")
        if status != 200:
            raise OSError(f"GET /v1/status responded {status}: {body[:300].decode(errors='replace')}")
        content: dict[str, Any] = json.loads(body)
        return content

    def register_actions(self) -> None:
        """Put the load generator's actions into the catalogue."""
        status, body = self.request("PUT", "/v1/actions", {"put": catalogue()})
        if status >= 300:
            raise OSError(f"PUT /v1/actions responded {status}: {body[:300].decode(errors='replace')}")

    def roles(self) -> dict[int, str]:
        return roles_of(self.pid, process_tree(self.pid), self.status())

    def lag_records(self) -> int:
        return lag_records(self.status())

    def commits(self) -> tuple[float, float]:
        _, text = self.request("GET", "/metrics")
        commits = dict(COMMITS.findall(text.decode()))
        return float(commits["count"]), float(commits["sum"])

    def wait_until_ready(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        """Return once ``/readyz`` responds with 200."""
        while True:
            try:
                if self.request("GET", "/readyz")[0] == 200:
                    return
            except OSError:
                pass
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError("fedres serve did not become ready")
            time.sleep(POLL_SECONDS)


def lag_records(status: Mapping[str, Any]) -> int:
    """Return the records that the learner is behind, summed over loops."""
    return sum(int(loop["learner_lag_records"]) for loop in status["loops"].values())


def roles_of(root: int, tree: Sequence[int], status: Mapping[str, Any]) -> dict[int, str]:
    """Return the role of each process of a service, as its status says."""
    listed = {int(process["pid"]): str(process["role"]) for process in status["processes"]}
    return {pid: listed.get(pid, "supervisor" if pid == root else "other") for pid in tree}


@contextmanager
def service(folder: Path, *, rankers: int = 1, n_keys: int = 1) -> Iterator[Service]:
    """Run ``fedres serve`` on ``bench.db`` in ``folder``, keys made and actions registered; end it with SIGTERM."""
    folder.mkdir(parents=True, exist_ok=True)
    store, output = folder.resolve() / "bench.db", folder / "output"
    keys = [Keys(store).add("admin") for _ in range(n_keys)]
    arguments = ["serve", "--port", "0", "--store", f"sqlite:///{store}"]
    command = [*COMMAND, *arguments, "--rankers", str(rankers)]
    with output.open("wb") as file:  # in a folder without packages, since `python -c` imports from where it is started
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        running = Service(_printed_port(process, output, deadline), process.pid, keys)
        running.wait_until_ready(process, deadline)
        running.register_actions()
        yield running
        running.close()
    finally:
        _stop(process)


def _printed_port(process: subprocess.Popen[bytes], output: Path, deadline: float) -> int:
    while True:
        text = output.read_text(errors="replace")
        if match := PAGE.search(text):
            return int(match[1])
        if process.poll() is not None or time.monotonic() > deadline:
            raise OSError(f"fedres serve did not start: {text[-1_000:]}")
        time.sleep(POLL_SECONDS)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Read the body and respond: the least that an application can do on uvicorn."""
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BARE_BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BARE_BODY})


def _run_bare(parent: Connection) -> None:
    async def serve() -> None:
        server = HttpServer(bare, sock, Limits())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.stop)
        parent.send(sock.getsockname()[1])
        await server.serve()

    with bind("127.0.0.1", 0) as sock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


@contextmanager
def bare_server() -> Iterator[Target]:
    """Run the bare ASGI application in a process of its own, on the uvicorn that the service uses."""
    here, there = _spawn.Pipe()
    process = _spawn.Process(target=_run_bare, args=(there,))
    process.start()
    there.close()
    assert process.pid is not None
    try:
        yield Target(here.recv(), process.pid)
    finally:
        process.terminate()
        process.join()


def process_tree(root: int) -> list[int]:
    """Return a process and all its descendants, parents first."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        if fields := _stat(int(path.parent.name)):
            children[int(fields[1])].append(int(path.parent.name))
    tree = [root]
    for pid in tree:  # grows meanwhile
        tree += sorted(children[pid])
    return tree


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the command's name: state, parent and so on; none if it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(roles: Mapping[int, str]) -> dict[str, float]:
    """Return the CPU time that processes have used, by role; user and system."""
    used: defaultdict[str, float] = defaultdict(float)
    for pid, role in roles.items():
        if fields := _stat(pid):
            used[role] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return dict(used)


def memory_mb(roles: Mapping[int, str]) -> dict[str, float]:
    """Return the memory of processes in MB, by role: the proportional set size where known, else the resident set."""
    used: defaultdict[str, float] = defaultdict(float)
    for pid, role in roles.items():
        if memory := memory_kb(pid):
            used[role] += memory.get("Pss", memory.get("Rss", 0)) / 1024
    return dict(used)


def open_files(roles: Mapping[int, str]) -> int:
    """Return how many files and sockets processes have open."""
    n_open = 0
    for pid in roles:
        with suppress(OSError):  # it ended
            n_open += len(os.listdir(f"/proc/{pid}/fd"))
    return n_open


def file_mb(store: Path) -> dict[str, float]:
    """Return the size of a store's files in MB: the log, the snapshot of models, and the write-ahead logs of both."""
    parts = {"log": ("",), "models": ("-models",), "wal": ("-wal", "-models-wal")}
    return {part: sum(_size(Path(f"{store}{suffix}")) for suffix in suffixes) / 1e6 for part, suffixes in parts.items()}


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


def memory_kb(pid: int) -> dict[str, int]:
    """Return ``Rss`` and, where the kernel offers it, ``Pss`` of a process in KB; nothing if it ended."""
    for name, pattern in (("smaps_rollup", r"^(Rss|Pss):\s+(\d+) kB"), ("status", r"^Vm(RSS):\s+(\d+) kB")):
        try:
            text = Path(f"/proc/{pid}/{name}").read_text()
        except OSError:
            continue
        if pairs := re.findall(pattern, text, re.MULTILINE):
            return {key.capitalize(): int(value) for key, value in pairs}
    return {}

"""The supervisor: starts one log writer, one learner and the rankers, restarts those that die, stops all on a signal.

Children are forked once all code is imported and compiled, so a restart takes milliseconds. Each watches a pipe that
ends with the supervisor, and ends with it. Listening sockets belong to the supervisor: connections wait while a ranker
is restarted.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import math
import mmap
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from ctypes import c_double
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from fedres.lease import Lease
from service import logs
from service.health import ADDRESS, RUN_NOTE
from service.http.server import bind, shown
from service.log.files import make_private
from service.roles.config import BEAT_SECONDS, METRICS, METRICS_FOLDER, PUBLISHED, Beat, Config
from service.roles.starting import compiling, new_progress, serve_starting

BACK_OFF = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0)  # seconds before a restart, by short lives before
KILLED_BACK_OFF = 1.0  # at most, if a signal ended the process: the next start may succeed
SHORT = 5.0  # seconds that a process must live for its restarts to be forgotten
DRAIN_SECONDS = 30.0  # limit for a process to end
KILL_SECONDS = 5.0  # limit for a process to end after SIGKILL
PRIVATE = 0o077  # umask: what the service stores is for its user alone
SILENCE = {"ranker": 60.0, "learner": 300.0, "log": 300.0}  # seconds without a sign of life, by role: then it hangs
PAUSED_SECONDS = 10.0  # between two checks: the supervisor itself was stopped

Say = Callable[[str], None]

log = logging.getLogger("fedres.service")


@dataclass(slots=True)
class Child:
    """A process to be kept alive."""

    role: str
    number: int
    run: Callable[[int, Beat], None]  # in the child, with the end of the pipe that it watches, and ``beat``
    keeps: tuple[int | socket.socket, ...] = ()  # files that no other child may hold
    silence: float = math.inf  # seconds without a sign of life after which it is killed and started again
    pid: int = 0
    started: float = 0.0
    restarts: int = 0
    start_at: float = 0.0  # monotonic; when it is to be started again
    recent: int = 0  # restarts shortly before
    killed: bool = False  # for its silence
    last_beat: c_double = field(default_factory=lambda: c_double.from_buffer(mmap.mmap(-1, 8)))  # monotonic; shared

    def __post_init__(self) -> None:
        self.beat()

    def beat(self) -> None:
        """Give a sign of life; the supervisor sees it in memory that both share."""
        self.last_beat.value = time.monotonic()


class Supervisor:
    """Keeps children alive."""

    def __init__(self, folder: Path, children: list[Child]) -> None:
        self.folder, self.children = folder, children
        self._read, self._write = os.pipe()
        self._wake, waking = socket.socketpair()
        waking.setblocking(False)
        self._waking = waking
        self._stopped_by = ""  # a signal
        self._started = time.time()
        self._looked = time.monotonic()  # the last check for signs of life
        signal.set_wakeup_fd(waking.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _stop(self, number: int, *_: object) -> None:
        self._stopped_by = signal.Signals(number).name

    def start_all(self) -> None:
        for child in self.children:
            self._start(child)
        self._tell()

    def run(self, ready: Callable[[], bool], when_ready: Callable[[], None]) -> None:
        """Restart children that die until a signal arrives; call ``when_ready`` once, when ``ready``."""
        waiting = True
        while not self._stopped_by:
            due = [child.start_at for child in self.children if not child.pid]
            seconds = min([BEAT_SECONDS, *(max(0.0, at - time.monotonic()) for at in due)])
            self._wait(min(seconds, 0.02) if waiting else seconds)
            self._reap()
            self.end_silent()
            for child in self.children:
                if not child.pid and time.monotonic() >= child.start_at:
                    child.restarts += 1
                    self._start(child)
                    self._tell()
            if waiting and ready():
                waiting = False
                when_ready()

    def end_silent(self) -> None:
        """Kill children without a sign of life, such as one that hangs in compiled code: no signal handler runs there.

        If the supervisor itself was stopped, as in a paused container, it waits that time once more.
        """
        late, self._looked = time.monotonic() - self._looked > PAUSED_SECONDS, time.monotonic()
        for child in self.children:
            seconds = time.monotonic() - child.last_beat.value
            if late:
                child.beat()
            elif child.pid and not child.killed and seconds > child.silence:
                child.killed = True
                log.error("%s %d has given no sign of life for %.0f s; it is killed", child.role, child.number, seconds)
                os.kill(child.pid, signal.SIGKILL)

    def stop_all(self) -> None:
        """End the rankers, so that accepted requests are stored, then the learner, which saves, then the log writer."""
        began = time.monotonic()
        log.info(
            "stopping%s: requests under way are answered first", f" by {self._stopped_by}" * bool(self._stopped_by)
        )
        for role in ("demo", "ranker", "learner", "log"):
            ending = [child for child in self.children if child.role == role and child.pid]
            for child in ending:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGTERM)
            self._wait_for(ending, DRAIN_SECONDS)
            for child in ending:
                if child.pid:
                    log.error("%s %d is killed: it did not end within %g s", role, child.number, DRAIN_SECONDS)
                    os.kill(child.pid, signal.SIGKILL)
            self._wait_for(ending, KILL_SECONDS)
        log.info("stopped after %.1f s", time.monotonic() - began)

    def close(self) -> None:
        """Close the wake-up sockets, and the pipe that children watch."""
        signal.set_wakeup_fd(-1)
        for file in (self._wake, self._waking):
            file.close()
        for end in (self._read, self._write):
            os.close(end)

    def _wait_for(self, ending: list[Child], seconds: float) -> None:
        """Wait until processes have ended, at most so long: one that waits for a dead disk cannot even be killed."""
        deadline = time.monotonic() + seconds
        while any(child.pid for child in ending) and time.monotonic() < deadline:
            self._wait(0.05)
            self._reap()

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(InterruptedError):
            if select.select([self._wake], [], [], seconds)[0]:
                self._wake.recv(4096)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for child in self.children:
                if child.pid == pid:
                    self._ended(child, status)

    def _ended(self, child: Child, status: int) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(child.pid)  # type: ignore[no-untyped-call]
        lived = time.time() - child.started
        child.recent = 0 if lived > SHORT else child.recent + 1
        child.pid, child.start_at = 0, time.monotonic() + back_off(child.recent, status)
        if not self._stopped_by:
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
            log.warning("%s %d ended with %s after %.1f s; it is restarted", child.role, child.number, how, lived)
            self._tell()

    def _start(self, child: Child) -> None:
        child.started, child.killed = time.time(), False
        child.beat()
        sys.stdout.flush()
        sys.stderr.flush()
        child.pid = os.fork()
        if child.pid:
            return
        code = 1
        try:
            self._become(child)
            code = 0
        except KeyboardInterrupt:
            pass
        except BaseException:
            log.exception("%s %d failed", child.role, child.number)
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _become(self, child: Child) -> None:
        """Set up the forked child: its own signals, and no open files of the supervisor or of other children."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        logs.set_role(f"{child.role}-{child.number}")
        os.close(self._write)
        self._wake.close()
        self._waking.close()
        for other in self.children:
            if other is not child:
                for file in other.keeps:
                    file.close() if isinstance(file, socket.socket) else os.close(file)
        child.run(self._read, child.beat)

    def _tell(self) -> None:
        """Write the list of processes, for ``/v1/status``."""
        from service.admin.status import Process, write_processes

        processes = [Process("supervisor", 0, os.getpid(), self._started, 0)]
        for child in self.children:
            processes.append(Process(child.role, child.number, child.pid, child.started, child.restarts))
        write_processes(self.folder, processes)


def back_off(n_short: int, status: int) -> float:
    """Return how many seconds to wait before a restart, after this many short lives in a row."""
    seconds = BACK_OFF[min(n_short, len(BACK_OFF) - 1)]
    return min(seconds, KILLED_BACK_OFF) if os.WIFSIGNALED(status) else seconds


def serve(config: Config, *, demo: bool = False, say: Say = print, welcome: Callable[[str], str] = str) -> None:
    """Serve until SIGTERM or SIGINT; then drain, save and return."""
    os.umask(PRIVATE)
    for path in {config.store.path, config.store.path.resolve()}:
        make_private(path)
    lease = Lease(config.store.path)
    lease.acquire()
    with contextlib.ExitStack() as undo:
        undo.callback(lease.release)
        undo.callback(_remove_without_store, lease, config)
        signal.signal(signal.SIGTERM, lambda *_: _end_start(undo))
        with bind(config.host, config.port):
            pass  # fails if another service shares the port: the system would distribute requests over both
        first = undo.enter_context(bind(config.host, config.port, shared=config.rankers > 1))
        url = f"{'https' if config.tls else 'http'}://{shown(first)}"
        config = replace(config, run=undo.enter_context(_run_folder(config)))
        (config.run / ADDRESS).write_text(f"{url}\n")
        os.environ[METRICS_FOLDER] = str(config.run / METRICS)
        progress = new_progress()
        with serve_starting(config, first, progress):
            with compiling(say, progress):
                prepare(config)
            from service.roles.warm_up import compiling_rest, load_rest

            is_complete = not progress.value and load_rest(config.run)
        if not is_complete:
            undo.enter_context(compiling_rest(config.run))
        sockets = [first]
        for _ in range(config.rankers - 1):  # not earlier: their connections would not be accepted
            sockets.append(undo.enter_context(bind(config.host, first.getsockname()[1], shared=True)))
        supervisor = Supervisor(config.run, _children(config, sockets, os.dup(lease.file), url, demo, undo))
        supervisor.start_all()
        try:
            supervisor.run(lambda: _is_ready(config), lambda: say(welcome(url)))
        finally:
            supervisor.stop_all()
            supervisor.close()


def _end_start(undo: contextlib.ExitStack) -> NoReturn:
    """End a starting service and clean up, without an exception, which a module being imported could swallow."""
    log.info("stopping by SIGTERM while starting")
    undo.close()
    sys.stdout.flush()
    os._exit(0)


def _remove_without_store(lease: Lease, config: Config) -> None:
    """Remove the lease of a start that failed before the store existed."""
    if not config.store.is_shared and not config.store.path.exists():
        lease.remove()


def prepare(config: Config) -> None:
    """Import and compile all that children need; create the store if missing, and the file for published models."""
    from service.http.keys import check_keys, open_keys
    from service.learn.loss_check import check_losses
    from service.log.opening import open_log
    from service.log.records import LOOP, Record, encode
    from service.log.sqlite_schema import version_note
    from service.models.published import make_current
    from service.roles import learner, ranker, writer
    from service.roles.warm_up import models_in, warm_up_for
    from service.settings import DEFAULT_LOOP, DEFAULT_MODEL, Settings, of_new_loop

    _ = (learner, ranker, writer)
    make_current(config.run)
    for lost in check_losses(config.store, accept=config.accept_loss):
        log.warning("accepted: %s", lost)
    opened = open_log(config.store, verify=True)
    if config.store.is_sqlite:
        log.info("%s", version_note())
    try:
        check_keys(opened, open_keys(config.store))
        followed = config.loops is None or DEFAULT_LOOP in config.loops
        if followed and DEFAULT_LOOP not in opened.heads():
            opened.append([[Record(DEFAULT_LOOP, LOOP, "loop after 0", body=encode(of_new_loop(Settings())))]])
        models = models_in(opened) | {DEFAULT_MODEL}
    finally:
        opened.close()
    warm_up_for(models, config.run)


def _children(
    config: Config, sockets: list[socket.socket], lease: int, url: str, demo: bool, undo: contextlib.ExitStack
) -> list[Child]:
    from service.roles import learner, ranker, writer

    log_listener = undo.enter_context(_listener(config.log_socket))
    learner_listener = undo.enter_context(_listener(config.learner_socket))
    undo.callback(os.close, lease)
    write, learn = partial(writer.run, config, log_listener), partial(learner.run, config, learner_listener)
    children = [
        Child("log", 0, write, (lease, log_listener), SILENCE["log"]),
        Child("learner", 0, learn, (learner_listener,), SILENCE["learner"]),
    ]
    for number, sock in enumerate(sockets):
        children.append(Child("ranker", number, partial(ranker.run, config, sock), (sock,), SILENCE["ranker"]))
    if demo:
        from service.demo import run as run_demo

        children.append(Child("demo", 0, lambda parent, _: run_demo(url, parent)))
    return children


def _listener(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(128)
    return sock


def _is_ready(config: Config) -> bool:
    from service.models.published import CURRENT

    return int.from_bytes((config.run / CURRENT).read_bytes(), "little") > 0


@contextlib.contextmanager
def _run_folder(config: Config) -> Iterator[Path]:
    """Yield a folder for sockets, metrics and shared memory; remove one left behind by a power cut or a kill."""
    note = config.store.beside(RUN_NOTE)
    if note.exists():
        left = Path(note.read_text().strip())
        if left.name.startswith("fedres-"):
            shutil.rmtree(left, ignore_errors=True)
    _remove_published(config)
    folder = Path(tempfile.mkdtemp(prefix="fedres-", dir=_room_for_models(config.store.path.resolve())))
    try:
        note.write_text(f"{folder}\n")
        (folder / METRICS).mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _remove_published(config)
        note.unlink(missing_ok=True)


def _remove_published(config: Config) -> None:
    """Remove models that were published outside the folder for lack of room."""
    path = config.store.beside(PUBLISHED)
    for left in path.parent.glob(f"{glob.escape(path.name)}-*"):
        left.unlink(missing_ok=True)


def _room_for_models(store: Path) -> Path:
    """Return a folder for shared memory: the system's own if it has room, else beside the store."""
    shm = Path("/dev/shm")
    with contextlib.suppress(OSError):
        room = os.statvfs(shm)
        if os.access(shm, os.W_OK) and room.f_bavail * room.f_frsize > 1 << 30:
            return shm
    return store.parent

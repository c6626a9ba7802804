"""Worker processes for long work on the log, at the lowest priority, so that no decision waits for it.

Threads would share one interpreter lock with the thread that decides. A process starts with the first request, caches
the records it has read, and ends with its ranker, or after a while without requests. It also ends when it takes too
much memory, and when a call does not return in time; the next call starts another one.

``ProcessPoolExecutor`` has no method before Python 3.14 to end a worker that hangs, and serves first come first served.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import resource
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable
from functools import cache
from io import FileIO
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from service import metrics
from service.errors import ApiError
from service.log.client import framed_bytes, read_frame, receive_frame
from service.log.opening import Store, open_log
from service.log.protocol import Log, StoreUnavailable, unavailable
from service.log.records import DamagedRecord

# A call may wait this long for its turn, and take this long.
SECONDS = 120.0
JOB_SECONDS = 3_600.0  # the same for an evaluation
IDLE_SECONDS = 300.0  # after which the process ends
MOST_MEMORY = 1 << 30  # bytes of a process, which ends after a call if it has more
REST = 9.0  # times as long as a report took, before the next one of the loop: a tenth of a core at most
PARENT_SECONDS = 1.0  # between two looks at whether the parent lives
GARBAGE_OBJECTS = 50_000  # between two garbage collections, as each looks at what is cached

T = TypeVar("T")


class Worker:
    """The log and the cached results that functions work with."""

    def __init__(self, log: Callable[[], Log], rest: float = 0.0) -> None:
        self._log = log
        self.rest = rest  # times as long as a report took, before the next one of the loop
        self._kept: dict[object, tuple[object, Any]] = {}

    @property
    def log(self) -> Log:
        return self._log()

    def kept(self, make: Callable[..., T], *arguments: Any) -> T:
        """Return the result of ``make`` with these arguments, from the cache if it was called before."""
        entry = self._kept.get(make)
        if entry is None or entry[0] != arguments:
            self._kept[make] = entry = arguments, make(*arguments)
        return cast(T, entry[1])


class LogWorker(Protocol):
    """Calls functions of modules with a worker and more arguments, for one of the loops."""

    async def call(self, loop: str, function: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T: ...
    def close(self) -> None: ...


class FairTurns:
    """One call at a time. Loops take turns, so that a loop with many calls delays others by one call only."""

    def __init__(self) -> None:
        self._is_taken = False
        self._loop = ""  # whose turn it is
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by loop; the first loop is next

    async def acquire(self, loop: str, seconds: float) -> None:
        """Wait for a turn; raise ``TimeoutError`` after some seconds."""
        if not self._is_taken:
            self._is_taken = True
            self._loop = loop
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(loop, deque()).append(mine)
        try:
            async with asyncio.timeout(seconds):
                await mine
        except BaseException:
            if mine.done() and not mine.cancelled():  # the turn came at the same time
                self.release()
            mine.cancel()
            raise

    def release(self) -> None:
        """Let the next one have its turn."""
        if self._loop in self._waiting:
            self._waiting[self._loop] = self._waiting.pop(self._loop)  # behind the other loops
        while self._waiting:
            self._loop, queue = next(iter(self._waiting.items()))
            first = queue.popleft()
            if not queue:
                del self._waiting[self._loop]
            if not first.done():
                first.set_result(None)
                return
        self._is_taken = False


class WorkerThread:
    """On a thread of this process, for tests and tools."""

    def __init__(self, log: Callable[[], Log]) -> None:
        self._worker = Worker(log)
        self._turns = FairTurns()

    async def call(self, loop: str, function: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
        await self._turns.acquire(loop, SECONDS)
        try:
            return await asyncio.to_thread(function, self._worker, loop, *arguments)
        finally:
            self._turns.release()

    def close(self) -> None:
        pass


class Reply(NamedTuple):
    """The result of a call, or the error that it raised."""

    failed: bool
    result: Any
    memory: int  # bytes of the process


class WorkerProcess:
    """In a process of its own, one call at a time."""

    def __init__(self, store: Store, name: str = "reports") -> None:
        self._store = store
        self._name = name  # in metrics
        self._turns = FairTurns()
        self._process: Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def call(self, loop: str, function: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
        """Return the function's result from the process.

        A call waits for its turn for at most ``seconds``, by default ``SECONDS``. If it then takes longer than that,
        the process is killed, as nothing else ends a call that hangs.
        """
        most = SECONDS if seconds is None else seconds
        message = pickle.dumps((function, (loop, *arguments)))
        try:
            await self._turns.acquire(loop, most)
        except TimeoutError:
            raise ApiError(503, "report_timeout", f"earlier reports took longer than {most:g} s; try again") from None
        exchange = asyncio.ensure_future(self._exchange(loop, message, most))
        exchange.add_done_callback(self._end_turn)
        reply = await asyncio.shield(exchange)  # if the caller leaves, the next turn begins once this reply is read
        if isinstance(reply.result, StoreUnavailable):
            raise unavailable(reply.result)
        if isinstance(reply.result, DamagedRecord):
            raise unavailable(StoreUnavailable("damaged", str(reply.result)))
        if reply.failed:
            raise reply.result
        return reply.result  # type: ignore[no-any-return]

    def _end_turn(self, exchange: asyncio.Future[Reply]) -> None:
        self._turns.release()
        if not exchange.cancelled():
            exchange.exception()  # the caller may have gone away

    async def _exchange(self, loop: str, message: bytes, seconds: float) -> Reply:
        if self._idle is not None:
            self._idle.cancel()
        began = monotonic()
        try:
            async with asyncio.timeout(seconds):
                process = await self._running()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(framed_bytes(message))
                await process.stdin.drain()
                reply: Reply = pickle.loads(await read_frame(process.stdout))
        except TimeoutError:
            await self._end()
            text = f"the report took longer than {seconds:g} s, and its process was ended; try again"
            raise ApiError(503, "report_timeout", text) from None
        except (ConnectionError, asyncio.IncompleteReadError):
            await self._end()
            raise ApiError(503, "report_failed", "the process of reports has ended; try again") from None
        finally:
            metrics.worker_seconds.labels(self._name, loop).inc(monotonic() - began)
        if reply.memory > MOST_MEMORY:
            await self._end()
        else:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.close)
        return reply

    async def _running(self) -> Process:
        """Return the process; start one if there is none."""
        if self._process is None or self._process.returncode is not None:
            self.close()
            self._process = await self._start()
        return self._process

    async def _start(self) -> Process:
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
        words = [sys.executable, "-P", "-c", f"from {__name__} import main; main({os.getpid()})"]
        process = await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, env=environment, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(framed_bytes(pickle.dumps(self._store)))  # not an argument: it may hold a password
        return process

    async def _end(self) -> None:
        """End the process, and wait until it has given its memory back."""
        process = self._process
        self.close()
        if process is not None:
            await process.wait()

    def close(self) -> None:
        """End the process, if there is one."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        process = self._process
        self._process = None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            if process.returncode is None:
                process.kill()


def main(parent: int) -> None:
    """Read requests from standard input; write replies to standard output; end with the parent process."""
    os.nice(19)
    gc.set_threshold(GARBAGE_OBJECTS)
    questions = FileIO(0)
    answers = os.fdopen(os.dup(1), "wb")
    # Text that functions print must not mix with the replies.
    os.dup2(2, 1)
    Thread(target=_end_with, args=(parent,), daemon=True).start()
    store = pickle.loads(receive_frame(questions.read))
    worker = Worker(cache(lambda: open_log(store)), REST)  # opened by the first request, which gets any error
    while True:
        try:
            message = receive_frame(questions.read)
        except EOFError:
            return
        answers.write(framed_bytes(_reply(worker, message)))
        answers.flush()


def _reply(worker: Worker, message: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(message)
        return pickle.dumps(Reply(False, function(worker, *arguments), resident_bytes()))
    except Exception as error:
        return pickle.dumps(Reply(True, error, resident_bytes()))


def resident_bytes() -> int:
    """Return the memory of this process; on systems without ``/proc`` its highest so far."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _end_with(parent: int) -> None:
    """End this process soon after its parent, also in the middle of a call that does not return."""
    while os.getppid() == parent:
        sleep(PARENT_SECONDS)
    os._exit(1)

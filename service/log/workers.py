"""Worker processes for long work on the log, at the lowest priority, so that no decision waits for it.

Threads would share one interpreter lock with the thread that decides. A process starts with the first request, caches
the records it has read, and ends with its ranker, or after a while without requests.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import select
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from functools import cache
from io import FileIO
from typing import Any, Protocol, TypeVar, cast

from service.errors import ApiError
from service.log.client import framed_bytes, read_frame, receive_frame
from service.log.opening import Store, open_log
from service.log.protocol import Log, StoreUnavailable, unavailable
from service.log.records import DamagedRecord

SECONDS = 120.0  # for a reply, including the wait for earlier requests
JOB_SECONDS = 3_600.0  # for an evaluation, including those before it
IDLE_SECONDS = 300.0  # after which the process ends
REST = 9.0  # times as long as a report took, before the next one of the loop: a tenth of a core at most

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
    """Calls functions of modules with a worker and more arguments."""

    async def call(self, function: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T: ...
    def close(self) -> None: ...


class WorkerThread:
    """On a thread of this process, for tests and tools."""

    def __init__(self, log: Callable[[], Log]) -> None:
        self._worker, self._turn = Worker(log), asyncio.Lock()

    async def call(self, function: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
        async with self._turn:
            return await asyncio.to_thread(function, self._worker, *arguments)

    def close(self) -> None:
        pass


class WorkerProcess:
    """In a process of its own, one call at a time."""

    def __init__(self, store: Store) -> None:
        self._store, self._turn = store, asyncio.Lock()
        self._process: Process | None = None

    async def call(self, function: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
        """Return the function's result from the process; wait at most ``seconds``, by default ``SECONDS``."""
        patience = SECONDS if seconds is None else seconds
        message = pickle.dumps((function, arguments))
        try:
            async with asyncio.timeout(patience):
                await self._turn.acquire()
                exchange = asyncio.ensure_future(self._exchange(message))
                exchange.add_done_callback(self._end_turn)
                failed, answer = await asyncio.shield(exchange)  # the next turn begins when this answer is read
        except TimeoutError:  # the process continues, and can reply sooner next time
            text = f"the report, with those asked for before it, took longer than {patience:g} s; try again"
            raise ApiError(503, "report_timeout", text) from None
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            raise ApiError(503, "report_failed", "the process of reports has ended; try again") from None
        if isinstance(answer, StoreUnavailable):
            raise unavailable(answer)
        if isinstance(answer, DamagedRecord):
            raise unavailable(StoreUnavailable("damaged", str(answer)))
        if failed:
            raise answer
        return answer  # type: ignore[no-any-return]

    def _end_turn(self, exchange: asyncio.Future[tuple[bool, Any]]) -> None:
        self._turn.release()
        if not exchange.cancelled():
            exchange.exception()  # the caller may have gone away

    async def _exchange(self, message: bytes) -> tuple[bool, Any]:
        if self._process is None or self._process.returncode is not None:
            self.close()
            self._process = await self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(framed_bytes(message))
        await process.stdin.drain()
        return pickle.loads(await read_frame(process.stdout))  # type: ignore[no-any-return]

    async def _start(self) -> Process:
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
        words = [sys.executable, "-P", "-c", f"from {__name__} import main; main()"]
        process = await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, env=environment, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(framed_bytes(pickle.dumps(self._store)))  # not an argument: it may hold a password
        return process

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            if process.returncode is None:
                process.kill()


def main() -> None:
    """Read requests from standard input; write replies to standard output: whether it failed, and the result."""
    os.nice(19)
    gc.disable()  # nothing here is in cycles, and a collection looks at all events that are remembered
    questions, answers = FileIO(0), sys.stdout.buffer  # the first without a buffer, which select could not see
    store = pickle.loads(receive_frame(questions.read))
    worker = Worker(cache(lambda: open_log(store)), REST)  # opened by the first request, which gets any error
    while select.select([questions], [], [], IDLE_SECONDS)[0]:
        try:
            message = receive_frame(questions.read)
        except EOFError:
            return
        try:
            function, arguments = pickle.loads(message)
            reply = pickle.dumps((False, function(worker, *arguments)))
        except Exception as error:
            reply = pickle.dumps((True, error))
        answers.write(framed_bytes(reply))
        answers.flush()

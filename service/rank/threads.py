"""Threads of a ranker, for work that takes longer than a step of its event loop may: loops take turns.

Work that nobody waits for any more is not begun, or interrupted where it can be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar, cast

from service import metrics
from service.errors import ApiError
from service.logs import serving

GONE_SECONDS = 0.25  # between two looks whether a client has disconnected
INTERRUPT_SECONDS = 0.05  # until work that goes on is interrupted again: it may have been between two statements

A = TypeVar("A")
T = TypeVar("T")
Lend = Callable[[], AbstractAsyncContextManager[A]]  # enters with what the work needs, once it is its turn


@dataclass(frozen=True, eq=False, slots=True)
class _Work:
    """A piece of work, and the future that its caller waits for."""

    loop: str
    lend: Lend[Any]
    function: Callable[[Any], Any]
    interrupt: Callable[[Any], None] | None
    result: asyncio.Future[Any]


class FairThreads:
    """Threads for one kind of work, of which each loop uses some at most."""

    def __init__(self, kind: str, n: int, of_a_loop: int, most_waiting: int) -> None:
        self._kind, self._n, self._of_a_loop, self._most_waiting = kind, n, of_a_loop, most_waiting
        self._threads = ThreadPoolExecutor(n, thread_name_prefix=kind)
        self.running: Counter[str] = Counter()  # by loop
        self._waiting: dict[str, deque[_Work]] = {}  # by loop, the one whose turn is next first
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop keeps no references to tasks
        self._closed = False

    async def call(
        self,
        loop: str,
        lend: Lend[A],
        function: Callable[[A], T],
        *,
        seconds: float | None = None,
        interrupt: Callable[[A], None] | None = None,
    ) -> T:
        """Return the function's result from a thread; wait for it at most some seconds, and while its client is there.

        ``lend`` returns a context that is entered on the event loop before the function begins, and left after its end.
        """
        queue = self._waiting.setdefault(loop, deque())
        if len(queue) >= self._most_waiting or self._closed:
            metrics.ranker_work.labels(loop, self._kind, "refused").inc()
            message = f"loop {loop!r} must have at most {self._most_waiting} requests that wait for a {self._kind}"
            raise ApiError(503, "ranker_busy", f"{message}; try again")
        work = _Work(loop, lend, function, interrupt, asyncio.get_running_loop().create_future())
        queue.append(work)
        self._start_some()
        gone = asyncio.ensure_future(_client_gone())
        try:
            await asyncio.wait([work.result, gone], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if work.result.done():
                return cast(T, work.result.result())
            metrics.ranker_work.labels(loop, self._kind, "given up").inc()
            if gone.done():
                raise ApiError(499, "client_gone", "the client disconnected before the response")
            raise TimeoutError
        finally:
            gone.cancel()
            work.result.cancel()  # without effect if it is done

    def _start_some(self) -> None:
        """Start what may run now, one piece of each loop in turn."""
        for loop in [*self._waiting]:
            queue = self._waiting[loop]
            while queue and queue[0].result.done():  # its caller has gone
                queue.popleft()
            may_run = self.running[loop] < self._of_a_loop and self.running.total() < self._n and not self._closed
            if queue and may_run:
                self._start(queue.popleft())
                self._put_last(loop)
            if not queue:
                del self._waiting[loop]

    def _put_last(self, loop: str) -> None:
        """Let the other loops that wait have their turns before this one."""
        if loop in self._waiting:
            self._waiting[loop] = self._waiting.pop(loop)

    def _start(self, work: _Work) -> None:
        self.running[work.loop] += 1
        task = asyncio.ensure_future(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: _Work) -> None:
        """Do a piece of work, and then what waits for its thread."""
        try:
            async with work.lend() as lent:
                result = await self._on_thread(work, lent)
            if not work.result.done():
                work.result.set_result(result)
        except Exception as error:
            if not work.result.done():
                work.result.set_exception(error)
        finally:
            self.running[work.loop] -= 1
            if not self.running[work.loop]:
                del self.running[work.loop]
            self._put_last(work.loop)
            self._start_some()

    async def _on_thread(self, work: _Work, lent: Any) -> Any:
        """Return the function's result; interrupt it once nobody waits for it."""
        began = perf_counter()
        reading = asyncio.get_running_loop().run_in_executor(self._threads, work.function, lent)
        try:
            await asyncio.wait([reading, work.result], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The caller may close what the thread uses once this ends, so wait for it, also when the event loop ends.
            while not reading.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await self._end(reading, work, lent)
        metrics.ranker_work.labels(work.loop, self._kind, "done").inc()
        metrics.ranker_work_seconds.labels(work.loop, self._kind).inc(perf_counter() - began)
        return reading.result()

    async def _end(self, reading: asyncio.Future[Any], work: _Work, lent: Any) -> None:
        """Interrupt a function where it can be, and wait a little for its end."""
        timeout = None
        if work.interrupt is not None:
            timeout = INTERRUPT_SECONDS
            await asyncio.to_thread(work.interrupt, lent)
        await asyncio.wait([reading], timeout=timeout)

    def close(self) -> None:
        """Begin nothing more; work that runs is interrupted where it can be."""
        self._closed = True
        for queue in self._waiting.values():
            for work in queue:
                work.result.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


async def _client_gone() -> None:
    """Return once the client of the current request has disconnected.

    To wait for a message of the connection would let it read ahead of requests that are answered.
    """
    request = serving.get()
    while request is None or not getattr(request.connection, "disconnected", False):
        await asyncio.sleep(GONE_SECONDS)

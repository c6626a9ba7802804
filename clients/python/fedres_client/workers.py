"""Threads that make blocking calls, so that callers can stop waiting at a deadline.

httpx has timeouts for each read and write, but neither for looking up a name nor for a whole, slow reply.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Job(Generic[T]):
    """A function for a thread; the job is put into ``finished`` at its end."""

    def __init__(self, function: Callable[[], T], finished: SimpleQueue[Job[T]]) -> None:
        self._function = function
        self._finished = finished
        self._result: T | None = None
        self._error: BaseException | None = None
        self.abandoned = False  # if it has not begun, it never does

    def run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error
        self._finished.put(self)

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Workers:
    """At most ``most`` threads, started on demand; they end with the process, or by ``stop``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: SimpleQueue[Job[object] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._n = 0
        self._then: Callable[[], None] | None = None

    def start(self, function: Callable[[], T], finished: SimpleQueue[Job[T]]) -> Job[T]:
        """Run a function in a thread, or as soon as one is free."""
        job = Job(function, finished)
        self._jobs.put(job)  # type: ignore[arg-type]
        if not self._idle.acquire(blocking=False):
            self._start()
        return job

    def stop(self, then: Callable[[], None]) -> None:
        """End the threads after their current calls; the last one calls ``then``. This does not wait for it."""
        with self._lock:
            self._then, running = then, self._n
        for _ in range(running):
            self._jobs.put(None)
        if not running:
            then()

    def _start(self) -> None:
        with self._lock:
            if self._n < self._most and self._then is None:
                self._n += 1
                threading.Thread(target=self._run, name="fedres call", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                self._idle.release()
                job = self._jobs.get()
            if job is None:
                break
            if not job.abandoned:
                job.run()
            del job  # frees the caller's request while waiting for the next job
        with self._lock:
            self._n -= 1
            then = self._then if self._n == 0 else None
        if then is not None:
            then()

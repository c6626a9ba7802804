"""Reports are worked out in a process of their own, at the lowest priority, so that no decision waits for one.

The first question starts it. It remembers what it has read, and ends with its ranker, or after a
while without questions.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Protocol

import msgspec

from service.errors import ApiError, unavailable
from service.log.opening import Store, open_log
from service.log.protocol import Log, StoreUnavailable
from service.log.records import DamagedRecord
from service.ranking.figures import Question, Reporter

SECONDS = 120.0  # that a report may take, its wait for others included
IDLE_SECONDS = 300.0  # after which the process ends
LONGEST_LINE = 1 << 26
REST = 9.0  # times as long as a report took, before the next one of the loop: a tenth of a core at most

encode = msgspec.json.Encoder().encode


class Reports(Protocol):
    """Answers questions about a loop's log with JSON."""

    async def ask(self, question: Question) -> bytes: ...
    def close(self) -> None: ...


class ThreadReports:
    """On a thread of this process, for tests and tools."""

    def __init__(self, open_log: Callable[[], Log]) -> None:
        self._open_log, self._reporter, self._turn = open_log, Reporter(), asyncio.Lock()

    async def ask(self, question: Question) -> bytes:
        async with self._turn:
            return await asyncio.to_thread(lambda: encode(self._reporter.answer(self._open_log(), question)))

    def close(self) -> None:
        pass


class ReportProcess:
    """In a process of its own."""

    def __init__(self, store: Store) -> None:
        self._store, self._turn = store, asyncio.Lock()
        self._process: Process | None = None
        self._owed = 0  # answers on their way

    async def ask(self, question: Question) -> bytes:
        try:
            async with asyncio.timeout(SECONDS), self._turn:
                line = await self._exchange(question)
        except TimeoutError:  # the process goes on, and knows more when it is asked again
            message = f"the report, with those asked for before it, took longer than {SECONDS:g} s; try again"
            raise ApiError(503, "report_timeout", message) from None
        except ConnectionError:
            line = b""
        if not line:
            self.close()
            raise ApiError(503, "report_failed", "the process of reports has ended; try again")
        if line.startswith(b"!"):
            raise unavailable(StoreUnavailable(*msgspec.json.decode(line[1:])))
        return line

    async def _exchange(self, question: Question) -> bytes:
        process = self._process
        if process is None or process.returncode is not None:
            self.close()
            process, self._owed = await self._start(), 0
            self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(encode(question) + b"\n")
        self._owed += 1
        await process.stdin.drain()
        while True:  # answers that came too late are passed over
            line = await process.stdout.readline()
            self._owed -= 1
            if not line or not self._owed:
                return line

    async def _start(self) -> Process:
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
        words = [sys.executable, "-P", "-m", __name__]
        process = await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, limit=LONGEST_LINE, env=environment, start_new_session=True
        )
        assert process.stdin is not None
        store = self._store  # not an argument of the process: it may hold a password
        process.stdin.write(encode((str(store.path), store.database, store.any_architecture)) + b"\n")
        return process

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            if process.returncode is None:
                process.kill()


def main() -> None:
    """Answer the questions that come as lines, each by a line; one that begins with ``!`` says what went wrong."""
    os.nice(19)
    gc.disable()  # nothing here is in cycles, and a collection looks at all events that are remembered
    lines, out = FileIO(0), sys.stdout.buffer  # without a buffer, which select could not see
    path, *database = msgspec.json.decode(lines.readline())
    reporter, log = Reporter(REST), open_log(Store(Path(path), *database))
    while select.select([lines], [], [], IDLE_SECONDS)[0] and (line := lines.readline()):
        try:
            reply = encode(reporter.answer(log, msgspec.json.decode(line, type=Question)))
        except StoreUnavailable as error:
            reply = b"!" + encode((error.code, error.message))
        except DamagedRecord as error:
            reply = b"!" + encode(("damaged", str(error)))
        out.write(reply + b"\n")
        out.flush()


if __name__ == "__main__":
    main()

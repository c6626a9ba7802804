"""Look-ups in the log: on threads, each with a connection of its own, of which a loop has a share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from service.errors import ApiError
from service.log.protocol import Log
from service.rank.threads import FairThreads

# Connections are opened when they are needed.
CONNECTIONS = 4
# Look-ups of one loop use so many at once.
OF_A_LOOP = 2
MOST_WAITING = 100  # look-ups of a loop that wait for a connection
# A look-up may take this long, its wait included.
LOOK_UP_SECONDS = 10.0

T = TypeVar("T")


class LookUps:
    """The connections for look-ups of one ranker."""

    def __init__(self, open_log: Callable[[], Log]) -> None:
        self._open_log = open_log
        self.threads = FairThreads("look-up", CONNECTIONS, OF_A_LOOP, MOST_WAITING)
        self._idle: list[Log] = []
        self._closed = False

    async def call(self, loop: str, function: Callable[[Log], T]) -> T:
        """Return the function's result; a statement that takes too long, or that nobody waits for, is interrupted."""

        def read(lent: list[Log]) -> T:
            if not lent:
                lent.append(self._open_log())
            return function(lent[0])

        try:
            return await self.threads.call(loop, self._lend, read, seconds=LOOK_UP_SECONDS, interrupt=_interrupt)
        except TimeoutError:
            raise ApiError(503, "store_timeout", f"the log could not be read within {LOOK_UP_SECONDS:g} s") from None

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[list[Log]]:
        """Yield an open log, or an empty list for one that the thread opens."""
        lent = [self._idle.pop()] if self._idle else []
        try:
            yield lent
        finally:
            if self._closed:
                for log in lent:
                    log.close()
            else:
                self._idle += lent

    def close(self) -> None:
        """Close all connections, those of look-ups that run once these have ended."""
        self._closed = True
        self.threads.close()
        for log in self._idle:
            log.close()


def _interrupt(lent: list[Log]) -> None:
    for log in lent:
        log.interrupt()

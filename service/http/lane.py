"""Large requests take turns, so that small ones wait for one of them at most, whoever sends how many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from service.errors import ApiError
from service.http.strict import LARGE_BYTES

LONGEST_REST = 0.1  # seconds
MOST_WAITING = 64  # large requests; up to a megabyte of memory each

A = TypeVar("A")
T = TypeVar("T")


class Lane:
    """After a large request, the next one waits for as long as this process has worked meanwhile.

    So they have half of its time at most, that of threads counted. Reading, hashing and logging a megabyte takes tens
    of milliseconds.
    """

    def __init__(self) -> None:
        self._turn, self._n_waiting = asyncio.Lock(), 0

    def in_turn(self, n_bytes: int, function: Callable[[A], Awaitable[T]], argument: A) -> Awaitable[T]:
        """Call a function; if the request has this many bytes, when it is its turn."""
        return function(argument) if n_bytes <= LARGE_BYTES else self._wait_and_call(function, argument)

    async def _wait_and_call(self, function: Callable[[A], Awaitable[T]], argument: A) -> T:
        if self._n_waiting == MOST_WAITING:
            message = f"at most {MOST_WAITING} requests with more than {LARGE_BYTES} bytes may wait for their turn"
            raise ApiError(503, "too_many_large_requests", f"{message}; try again")
        self._n_waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._n_waiting -= 1
        began = time.process_time()
        try:
            return await function(argument)
        finally:
            rest = min(time.process_time() - began, LONGEST_REST)
            asyncio.get_running_loop().call_later(rest, self._turn.release)

"""Those who wait for a record to be durable, and how they are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeAlias

Outcome: TypeAlias = int | Exception


class Waiter(Protocol):
    """What is told on its event loop what came of a record; an ``asyncio.Future`` is one."""

    def get_loop(self) -> asyncio.AbstractEventLoop: ...
    def cancelled(self) -> bool: ...
    def done(self) -> bool: ...
    def set_result(self, seq: int, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


AnyFuture: TypeAlias = Future[int] | Waiter


class Together:
    """Waits for ``n`` records of one commit: ``answer`` is the ``seq`` of the last, or else the first failure.

    It withdraws none of them, whoever stops waiting: a commit is to hold all or none.
    """

    __slots__ = ("_error", "_left", "answer")

    def __init__(self, n: int) -> None:
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._left = n
        self._error: Exception | None = None

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.answer.get_loop()

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return False

    def set_result(self, seq: int, /) -> None:
        self._left -= 1
        if self._left or self.answer.done():  # done: cancelled
            return
        if self._error is None:
            self.answer.set_result(seq)
        else:
            self.answer.set_exception(self._error)

    def set_exception(self, error: Exception, /) -> None:
        self._error = self._error or error
        self.set_result(0)


def starts(future: AnyFuture) -> bool:
    """Return whether the record is still wanted; it cannot be taken back from here on."""
    if isinstance(future, Future):
        return future.set_running_or_notify_cancel()
    return not future.cancelled()


def answer(futures: Sequence[AnyFuture], outcomes: Iterable[Outcome]) -> None:
    """Tell all, each event loop's in one go: at once if this is its thread, else soon."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[AnyFuture, Outcome]]] = {}
    for future, outcome in zip(futures, outcomes, strict=True):
        if isinstance(future, Future):
            _settle([(future, outcome)])
        else:
            by_loop.setdefault(future.get_loop(), []).append((future, outcome))
    here = asyncio._get_running_loop()
    for loop, answers in by_loop.items():
        if loop is here:
            _settle(answers)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, answers)


def _settle(answers: list[tuple[AnyFuture, Outcome]]) -> None:
    for future, outcome in answers:
        if future.done():  # cancelled while its batch was being written
            continue
        try:
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        except Exception:  # of one who waits; the others are to be told
            logging.getLogger(__name__).exception("an answer was lost")

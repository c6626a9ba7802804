"""Those who wait for records to be durable, and how they are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol, TypeAlias

from service.store.log import Record

Outcome: TypeAlias = int | Exception


class Waiter(Protocol):
    """Is told once what came of records that go into one commit, on its event loop, or where that is None anywhere."""

    def get_loop(self) -> asyncio.AbstractEventLoop | None: ...

    def starts(self) -> bool:
        """Return whether the records are still wanted; they cannot be taken back from here on."""

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Take the ``seq`` of each record, or why it has none."""


class Submitted(NamedTuple):
    """Records and who waits for them."""

    records: Sequence[Record]
    waiter: Waiter


class Blocking:
    """A thread that waits for one record."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: Future[int] = Future()

    def get_loop(self) -> None:
        return None

    def starts(self) -> bool:
        return self.answer.set_running_or_notify_cancel()

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        [outcome] = outcomes
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class Awaiting:
    """A task of the running event loop: ``answer`` is the ``seq`` of the last record, or else the first failure."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.answer.get_loop()

    def starts(self) -> bool:
        return not self.answer.cancelled()

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if self.answer.done():  # cancelled while its batch was being written
            return
        if failed:
            self.answer.set_exception(failed[0])
        else:
            self.answer.set_result(outcomes[-1])  # type: ignore[arg-type]  # none of them failed


class Together(Awaiting):
    """The same, but whoever stops waiting withdraws nothing: a commit is to hold all of the records or none."""

    __slots__ = ()

    def starts(self) -> bool:
        return True


Told: TypeAlias = tuple[Waiter, Sequence[Outcome]]


def dealt(submitted: Sequence[Submitted], outcomes: Sequence[Outcome]) -> list[Told]:
    """Return what came of all records, to each waiter its own."""
    if len(submitted) == 1:
        return [(submitted[0].waiter, outcomes)]
    told, first = [], 0
    for records, waiter in submitted:
        told.append((waiter, outcomes[first : first + len(records)]))
        first += len(records)
    return told


def answer(told: Sequence[Told]) -> None:
    """Tell all, each event loop's in one go: at once if this is its thread, else soon."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Told]] = {}
    here = asyncio._get_running_loop()
    for waiter, outcomes in told:
        loop = waiter.get_loop()
        if loop is None or loop is here:
            _settle([(waiter, outcomes)])
        else:
            by_loop.setdefault(loop, []).append((waiter, outcomes))
    for loop, answers in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, answers)


def _settle(told: Sequence[Told]) -> None:
    for waiter, outcomes in told:
        try:
            waiter.settle(outcomes)
        except Exception:  # of one who waits; the others are to be told
            logging.getLogger(__name__).exception("an answer was lost")

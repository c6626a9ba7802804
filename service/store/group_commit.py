"""Group commit: while one batch is being synced the next one gathers, so that many records share one fsync."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from fedres.checks import whole
from service.store.log import Entry, Record
from service.store.opening import StoreUnavailable
from service.store.protocol import EventLog
from service.store.waiting import AnyFuture, Outcome, Together, Waiter, answer, starts


class Commits(Protocol):
    """Makes records durable, and tells ``appended`` of those that are."""

    appended: Callable[[list[Entry]], None] | None

    def append(self, records: Sequence[Record]) -> list[int]:
        """Return the ``seq`` of each once all are durable; waits, on any thread but the event loop's."""

    def submit_async(self, record: Record) -> asyncio.Future[int]:
        """Return the future ``seq`` of the record, for the running event loop."""

    def submit_all(self, entries: Sequence[tuple[Record, Waiter]]) -> None:
        """Hand records over now; their waiters, of the running event loop, are told what came of each."""

    def submit_together(self, records: Sequence[Record]) -> asyncio.Future[int]:
        """Return the future ``seq`` of the last of them, for the running event loop; one transaction holds them all."""

    def erase(self, loop: str, user: str, instead: Sequence[Record], needless: int) -> int:
        """Do what ``Log.erase`` does."""

    def drop_older(self, loop: str, kind: str, users: Sequence[str]) -> None:
        """Do what ``Log.drop_older`` does."""

    def checkpoint(self) -> None:
        """Do what ``Log.checkpoint`` does."""

    def close(self) -> None:
        """Take no more records, and return when all that were taken are answered."""


class GroupCommit:
    """Appends to ``log`` from a thread of its own, at most ``max_batch`` records to a transaction.

    A future answers with the record's ``seq`` once it is durable, with ``Refused`` if that record cannot be stored, and
    with ``StoreUnavailable`` if its batch could not; the next batch tries the store again. Futures are answered in the
    order of submission. A future cancelled before its batch begins takes its record with it.
    """

    def __init__(self, log: EventLog, *, max_batch: int = 1_000, max_waiting: int = 10_000) -> None:
        whole("max_batch", max_batch)
        whole("max_waiting", max_waiting)
        self._log = log
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._waiting: deque[tuple[Record, AnyFuture]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    def submit(self, record: Record) -> Future[int]:
        """Return the future ``seq`` of the record, from any thread."""
        future: Future[int] = Future()
        self._enqueue((record, future))
        return future

    def append(self, records: Sequence[Record]) -> list[int]:
        """Return the ``seq`` of each once all are durable."""
        return [future.result() for future in [self.submit(record) for record in records]]

    def submit_async(self, record: Record) -> asyncio.Future[int]:
        """Return the same for the running event loop, which is woken once per batch and not once per record."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._enqueue((record, future))
        return future

    def submit_all(self, entries: Sequence[tuple[Record, Waiter]]) -> None:
        """Hand records over; their waiters are told what came of each."""
        self._enqueue(*entries)

    def submit_together(self, records: Sequence[Record]) -> asyncio.Future[int]:
        """Return the future ``seq`` of the last of them for the running event loop; one transaction holds them all."""
        together = Together(len(records))
        self._enqueue(*[(record, together) for record in records])
        return together.answer

    @property
    def appended(self) -> Callable[[list[Entry]], None] | None:
        """Who is told what is durable, on this object's thread."""
        return self._log.appended

    @appended.setter
    def appended(self, told: Callable[[list[Entry]], None] | None) -> None:
        self._log.appended = told

    def erase(self, loop: str, user: str, instead: Sequence[Record], needless: int) -> int:
        """Do what ``Log.erase`` does."""
        return self._log.erase(loop, user, instead, needless)

    def drop_older(self, loop: str, kind: str, users: Sequence[str]) -> None:
        """Do what ``Log.drop_older`` does."""
        self._log.drop_older(loop, kind, users)

    def checkpoint(self) -> None:
        """Do what ``Log.checkpoint`` does."""
        self._log.checkpoint()

    def close(self) -> None:
        """Take no more records, and return when all that were taken are answered. The log stays open."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> GroupCommit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enqueue(self, *entries: tuple[Record, AnyFuture]) -> None:
        with self._changed:
            if self._closed:
                raise StoreUnavailable("closed", "the store takes no more records")
            if len(self._waiting) + len(entries) > self._max_waiting:
                raise StoreUnavailable("overloaded", f"{self._max_waiting} records are waiting for the store")
            self._waiting.extend(entries)
            self._changed.notify()

    def _run(self) -> None:
        while batch := self._next_batch():
            started = [(record, future) for record, future in batch if starts(future)]
            if started:
                answer([future for _, future in started], self._commit([record for record, _ in started]))

    def _next_batch(self) -> list[tuple[Record, AnyFuture]]:
        """Return what waits, as soon as anything does; nothing once closed and empty.

        Records with the same waiter, one after the other, stay together.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_batch))]
            while batch and self._waiting and self._waiting[0][1] is batch[-1][1]:
                batch.append(self._waiting.popleft())
            return batch

    def _commit(self, records: list[Record]) -> Sequence[Outcome]:
        try:
            return self._log.append(records)
        except StoreUnavailable as error:
            return [StoreUnavailable(error.code, error.message) for _ in records]  # one each: a raise marks its error
        except Exception as error:  # whatever it is, nobody may wait for ever
            return [StoreUnavailable("failed", repr(error)) for _ in records]

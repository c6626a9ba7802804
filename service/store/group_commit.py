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
from service.store.waiting import Awaiting, Blocking, Outcome, Submitted, Together, Waiter, answer, dealt


class Commits(Protocol):
    """Makes records durable, and tells ``appended`` of those that are."""

    appended: Callable[[list[Entry]], None] | None

    def append(self, records: Sequence[Record]) -> list[int]:
        """Return the ``seq`` of each once all are durable; waits, on any thread but the event loop's."""

    def submit_async(self, record: Record) -> asyncio.Future[int]:
        """Return the future ``seq`` of the record, for the running event loop."""

    def submit_all(self, records: Sequence[Record], waiter: Waiter) -> None:
        """Hand records over now, to one commit; the waiter, of the running event loop, is told what came of each."""

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
    """Appends to ``log`` from a thread of its own; a transaction with ``max_batch`` records takes no more of them.

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
        self._waiting: deque[Submitted] = deque()
        self._n_waiting = 0  # records
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    def submit(self, record: Record) -> Future[int]:
        """Return the future ``seq`` of the record, from any thread."""
        waiter = Blocking()
        self.submit_all([record], waiter)
        return waiter.answer

    def append(self, records: Sequence[Record]) -> list[int]:
        """Return the ``seq`` of each once all are durable."""
        return [future.result() for future in [self.submit(record) for record in records]]

    def submit_async(self, record: Record) -> asyncio.Future[int]:
        """Return the same for the running event loop, which is woken once per batch and not once per record."""
        waiter = Awaiting()
        self.submit_all([record], waiter)
        return waiter.answer

    def submit_all(self, records: Sequence[Record], waiter: Waiter) -> None:
        """Hand records over, to one commit; the waiter is told what came of each."""
        with self._changed:
            if self._closed:
                raise StoreUnavailable("closed", "the store takes no more records")
            if self._n_waiting + len(records) > self._max_waiting:
                raise StoreUnavailable("overloaded", f"{self._max_waiting} records are waiting for the store")
            self._waiting.append(Submitted(records, waiter))
            self._n_waiting += len(records)
            self._changed.notify()

    def submit_together(self, records: Sequence[Record]) -> asyncio.Future[int]:
        """Return the future ``seq`` of the last of them for the running event loop; one transaction holds them all."""
        together = Together()
        self.submit_all(records, together)
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

    def _run(self) -> None:
        while batch := self._next_batch():
            started = [one for one in batch if one.waiter.starts()]
            if started:
                answer(dealt(started, self._commit([record for one in started for record in one.records])))

    def _next_batch(self) -> list[Submitted]:
        """Return what waits, as soon as anything does; nothing once closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            batch, n = [], 0
            while self._waiting and n < self._max_batch:
                batch.append(self._waiting.popleft())
                n += len(batch[-1].records)
            self._n_waiting -= n
            return batch

    def _commit(self, records: list[Record]) -> Sequence[Outcome]:
        try:
            return self._log.append(records)
        except StoreUnavailable as error:
            return [StoreUnavailable(error.code, error.message) for _ in records]  # one each: a raise marks its error
        except Exception as error:  # whatever it is, nobody may wait for ever
            return [StoreUnavailable("failed", repr(error)) for _ in records]

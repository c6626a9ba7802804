"""A database session that reconnects after failures, and the database's clock."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg

from service.log.opening import uptime
from service.log.postgres_rows import register
from service.log.postgres_schema import CHANNEL, Session, opened, unavailable
from service.log.protocol import StoreUnavailable

CANCEL_SECONDS = 2.0  # for a connection that cancels a query
RETRY_SECONDS = 0.25  # after a failure to connect; meanwhile calls fail at once


class SharedSession:
    """One session that threads use in turn; after any failure the next caller gets a new one.

    ``ended`` is called whenever the session ends, which releases all its locks.
    """

    def __init__(
        self,
        address: str,
        *,
        any_architecture: bool = True,
        listen: bool = False,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._address, self._any_architecture, self._listen, self._ended = address, any_architecture, listen, ended
        self._turn = threading.RLock()
        self._db: Session | None = None
        self._closed = False
        self._retry_at, self._failure = 0.0, StoreUnavailable("io", "")

    @contextlib.contextmanager
    def lend(self) -> Iterator[Session]:
        """Yield the session; errors of the database become ``StoreUnavailable``."""
        with self._turn:
            if self._closed:
                raise StoreUnavailable("closed", "the log is closed")
            try:
                yield self._db or self._open()
            except psycopg.Error as error:
                self.end()
                raise unavailable(error) from error
            except BaseException:
                self.end()
                raise

    def rows(self, question: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; if the server was restarted, reconnect once."""
        was_open = self._db is not None
        try:
            return self._query(question, parameters)
        except StoreUnavailable as error:
            if not was_open or error.code != "io":
                raise
        return self._query(question, parameters)

    def _query(self, question: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        with self.lend() as db:
            return db.execute(question, parameters, binary=True).fetchall()

    def interrupt(self) -> None:
        """Cancel the query that another thread waits for, if there is one."""
        db = self._db
        if db is not None:
            with contextlib.suppress(psycopg.Error, StoreUnavailable):  # the session has ended meanwhile
                db.cancel_safe(timeout=CANCEL_SECONDS)

    @property
    def file(self) -> int | None:
        """The connection's socket, None while there is no connection."""
        return None if self._db is None or self._db.closed else self._db.fileno()

    def end(self) -> None:
        """End the session; the next call opens another."""
        with self._turn:
            if self._db is not None:
                self._db.close()
                self._db = None
            self._ended()

    def close(self) -> None:
        """End the session for good."""
        with self._turn:
            self._closed = True
            self.end()

    def _open(self) -> Session:
        if time.monotonic() < self._retry_at:
            raise StoreUnavailable(self._failure.code, self._failure.message)
        try:
            db = opened(self._address, any_architecture=self._any_architecture)
        except psycopg.Error as error:
            self._retry_at, self._failure = time.monotonic() + RETRY_SECONDS, unavailable(error)
            raise
        self._db = db
        register(db)
        if self._listen:
            db.add_notify_handler(lambda _: None)  # else psycopg would keep them
            db.execute(f"LISTEN {CHANNEL}")
        return db


class DatabaseClock:
    """Estimates the database's time between two answers. It is never ahead of the database."""

    def __init__(self) -> None:
        self.offset: int | None = None  # microseconds from our uptime to the database's clock

    def note(self, now: int) -> None:
        """Set the clock by a time just received from the database, which is slightly in the past."""
        self.offset = now - uptime()

    def now(self) -> int:
        assert self.offset is not None
        return uptime() + self.offset

"""The append-only event log: one SQLite table, and what was acknowledged stays there.

A commit is on the disk before ``append`` returns (WAL, every commit synced). Any failure of the disk or SQLite closes
the connection; the next call opens the file anew and reads what is really there. A batch whose commit failed was not
acknowledged and is there as a whole or not at all: a caller who tries again may meet a ``Duplicate``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fedres.checks import whole
from service.store.of_users import ERASE, EVENTS_OF, NEXT, OLDER, OWN, SUPERSEDED
from service.store.opening import Connection, StoreUnavailable, close, opened, quick_check

COLUMNS = "seq, time, loop, kind, event, user, body"
INSERT = f"INSERT INTO log ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
MORE = ", (?, ?, ?, ?, ?, ?, ?)"
AT_ONCE = 100  # rows to a statement
LAST = """SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'log'), 0),
    coalesce((SELECT time FROM log ORDER BY seq DESC LIMIT 1), 0)"""
FIRST_OF = "SELECT seq FROM log WHERE loop = ? AND event = ? AND kind = ?"
CODES = {
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_READONLY: "readonly",
    sqlite3.SQLITE_IOERR: "io",
    sqlite3.SQLITE_CANTOPEN: "io",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "foreign",
}


_TEXT = {str, type(None)}


class Refused(ValueError):  # noqa: N818
    """A record that cannot be stored; the others of its batch are."""


class Duplicate(Refused):
    """A rank, or an upload, whose event the loop already has; ``seq`` is the record that came first."""

    def __init__(self, message: str, seq: int) -> None:
        super().__init__(message)
        self.seq = seq


class Record(NamedTuple):
    """What a caller appends; the store does not look into ``body``."""

    loop: str
    kind: str
    event: str | None
    user: str | None
    body: bytes


class Entry(NamedTuple):
    """A record as the log has it; ``time`` in microseconds since 1970."""

    seq: int
    time: int
    loop: str
    kind: str
    event: str | None
    user: str | None
    body: bytes


def system_clock() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1_000


class Log:
    """The log behind ``connect``, made if it is not there yet.

    Threads may share a ``Log``; they take turns. Who wants to read while others commit opens a second one, but only one
    should write: SQLite before 3.51.3 can lose pages if one connection writes at the moment another checkpoints.
    ``check`` reads the whole file once, to find damage before anything is written to it.
    """

    def __init__(
        self, connect: Callable[[], Connection], *, clock: Callable[[], int] = system_clock, check: bool = False
    ) -> None:
        self._connect = connect
        self.clock = clock
        self.appended: Callable[[list[Entry]], None] | None = None  # told what is durable, on the appending thread
        self.appended_at = 0  # the time of the entries that were appended last
        self._turn = threading.Lock()
        self._db: Connection | None = None
        self._closed = False
        with self._connection() as db:
            if check:
                quick_check(db)

    def append(self, records: Sequence[Record]) -> list[int | Refused]:
        """Return each record's ``seq`` once all are durable, or why that one was refused; all in one transaction."""
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            seq, now = self._next(db)
            outcomes: list[int | Refused] = []
            for start in range(0, len(records), AT_ONCE):
                some, seq = _insert_all(db, seq, now, records[start : start + AT_ONCE])
                outcomes += some
            db.execute("COMMIT")
            self.appended_at = now
        if self.appended is not None:
            numbered = zip(outcomes, records, strict=True)
            self.appended([Entry(at, now, *record) for at, record in numbered if isinstance(at, int)])
        return outcomes

    def erase(self, loop: str, user: str, instead: Sequence[Record] = (), needless: int = 0) -> int:
        """Return how many records were deleted: the user's, and the rewards of the user's events.

        Their bytes are overwritten and the log says that somebody was erased, but not who. Can be repeated.
        ``instead`` are records of one kind, appended in the same transaction, that hold what others still need; older
        ones of that kind and the same users, without an event, go, and so does the record ``needless``.
        """
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            seq, now = self._next(db)
            db.execute(ERASE, (loop, user))
            [(n_erased,)] = db.execute("SELECT changes()")
            if needless:
                db.execute("DELETE FROM log WHERE seq = ?", (needless,))
            for start in range(0, len(instead), AT_ONCE):
                _insert_all(db, seq + start, now, instead[start : start + AT_ONCE])
            if instead:
                db.execute(SUPERSEDED, (loop, instead[0].kind, seq))
            seq += len(instead)
            db.execute(INSERT, (seq, now, loop, "erased", None, None, f'{{"records": {n_erased}}}'))
            db.execute("COMMIT")
            _empty_wal(db)
            return int(n_erased)

    def drop_older(self, loop: str, kind: str, users: Sequence[str]) -> None:
        """Delete the records of a kind, without an event, that newer ones of the same users make needless."""
        with self._connection() as db:
            db.execute(OLDER, (loop, kind, json.dumps(list(users))))

    def checkpoint(self) -> None:
        """Move what was committed to the database file, so that ``erase`` has little left to move."""
        with self._connection() as db:
            list(db.execute("PRAGMA wal_checkpoint(PASSIVE)"))

    def read(self, after: int = 0, limit: int = 1_000, loop: str | None = None) -> list[Entry]:
        """Return at most ``limit`` entries with ``seq > after``, oldest first, of one loop or of all."""
        whole("after", after, least=0)
        whole("limit", limit)
        if loop is None:
            return self._select("seq > ? ORDER BY seq LIMIT ?", after, limit)
        return self._select(f"seq IN ({NEXT}) ORDER BY seq", loop, after, limit)

    def of_event(self, loop: str, event: str) -> list[Entry]:
        """Return all that was logged about an event, oldest first."""
        return self._select("loop = ? AND event = ? ORDER BY seq", loop, event)

    def of_events(self, loop: str, events: Sequence[str]) -> list[Entry]:
        """Return all that was logged about the events, oldest first."""
        return self._select(
            "loop = ? AND event IN (SELECT value FROM json_each(?)) ORDER BY seq", loop, json.dumps(list(events))
        )

    def of_user(self, loop: str, user: str) -> list[Entry]:
        """Return all records that name the user, oldest first."""
        return self._select(f"seq IN ({OWN}) ORDER BY seq", loop, user)

    def events_of(self, loop: str, user: str, kind: str) -> list[str]:
        """Return the events of the user's records of a kind, oldest first."""
        with self._connection() as db:
            return [event for (event,) in db.execute(EVENTS_OF, (loop, user, kind))]

    def last(self) -> int:
        """Return the highest ``seq``, 0 for an empty log."""
        with self._connection() as db:
            [(seq, _)] = db.execute(LAST)
            return int(seq)

    def last_time(self) -> int:
        """Return the time of the last entry, 0 for an empty log."""
        with self._connection() as db:
            [(_, time)] = db.execute(LAST)
            return int(time)

    def close(self) -> None:
        """Close for good; what was acknowledged needs no closing to be safe."""
        with self._turn:
            self._closed = True
            self._drop()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, db: Connection) -> tuple[int, int]:
        """Return the next ``seq`` and the time, which is the last entry's if the clock was set back."""
        [(seq, time)] = db.execute(LAST)
        return seq + 1, max(time, self.clock())

    def _select(self, where: str, *parameters: object) -> list[Entry]:
        with self._connection() as db:
            return [_entry(row) for row in db.execute(f"SELECT {COLUMNS} FROM log WHERE {where}", parameters)]

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        """Lend the connection; whatever goes wrong with it, the next caller gets a new one."""
        with self._turn:
            if self._closed:
                raise StoreUnavailable("closed", "the log is closed")
            try:
                if self._db is None:
                    self._db = opened(self._connect)
                yield self._db
            except sqlite3.Error as error:
                self._drop()
                raise StoreUnavailable(CODES.get(_code(error) & 0xFF, "failed"), str(error)) from error
            except BaseException:
                self._drop()
                raise

    def _drop(self) -> None:
        if self._db is not None:
            close(self._db)
            self._db = None


def _insert_all(db: Connection, seq: int, now: int, records: Sequence[Record]) -> tuple[Sequence[int | Refused], int]:
    """Insert all in one statement, which hands the interpreter over once and not once a record; else one by one.

    Return what came of each, and the next ``seq``.
    """
    values: list[int | str | bytes | None] = []
    try:
        for at, record in enumerate(records, seq):
            values += (at, now, *row_of(record))
        db.execute(_insertion(len(records)), tuple(values))
        return range(seq, seq + len(records)), seq + len(records)
    except (Refused, UnicodeEncodeError):
        pass
    except sqlite3.Error as error:
        if _code(error) not in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_TOOBIG):
            raise
    outcomes: list[int | Refused] = []
    for record in records:
        outcomes.append(_insert(db, seq, now, record))
        seq += outcomes[-1] == seq
    return outcomes, seq


@functools.cache
def _insertion(n_rows: int) -> str:
    return INSERT + MORE * (n_rows - 1)


def _insert(db: Connection, seq: int, now: int, record: Record) -> int | Refused:
    try:
        db.execute(INSERT, (seq, now, *row_of(record)))
        return seq
    except Refused as refused:
        return refused
    except UnicodeEncodeError as error:
        return Refused(f"a record must be valid Unicode: {error}")
    except sqlite3.Error as error:
        if _code(error) == sqlite3.SQLITE_CONSTRAINT_UNIQUE:
            [(first,)] = db.execute(FIRST_OF, (record.loop, record.event, record.kind))
            message = f"event must be new in loop {record.loop!r}, got {record.event!r}, the event of record {first}"
            return Duplicate(message, int(first))
        if _code(error) == sqlite3.SQLITE_TOOBIG:
            return Refused(f"body must be shorter than SQLite's limit, got {len(record.body)} bytes")
        raise


def row_of(record: Record) -> tuple[str, str, str | None, str | None, str | bytes]:
    """Return the record, its body as text where it can be, checked: one caller's mistake must not fail the batch."""
    loop, kind, event, user, body = record
    named = loop and kind and type(loop) is type(kind) is str
    if not (named and type(event) in _TEXT and type(user) in _TEXT and type(body) is bytes):
        _refuse_wrong(record)
    return loop, kind, event, user, _readable(body)


def _refuse_wrong(record: Record) -> None:
    for name, value in (("loop", record.loop), ("kind", record.kind)):
        if not isinstance(value, str) or not value:
            raise Refused(f"{name} must be a string that is not empty, got {value!r}")
    for name, given in (("event", record.event), ("user", record.user)):
        if given is not None and not isinstance(given, str):
            raise Refused(f"{name} must be a string or None, got {given!r}")
    if not isinstance(record.body, bytes):
        raise Refused(f"body must be bytes, got {type(record.body).__name__}")


def _readable(body: bytes) -> str | bytes:
    """Return UTF-8 as text, so that other tools can read it; what is no text stays as it is."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    return body if "\0" in text else text  # many tools end a text at its first NUL


def _entry(row: tuple[Any, ...]) -> Entry:
    seq, time, loop, kind, event, user, body = row
    return Entry(seq, time, loop, kind, event, user, body.encode() if isinstance(body, str) else body)


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's extended result code, 0 for an error that Python made."""
    return getattr(error, "sqlite_errorcode", 0)


def _empty_wal(db: Connection) -> None:
    """Move all pages to the database file, so that none with deleted content is left beside it."""
    [(blocked, _, _)] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if blocked:
        raise StoreUnavailable("busy", "the records are deleted, but a reader holds old pages: erase again")

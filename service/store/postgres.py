"""The event log in PostgreSQL, with the promises of ``Log``.

A commit is on the server's disk before ``append`` returns. The lease is a lock of the session that appends: who loses
the session loses both, so nobody appends without the lease. Any failure ends the session; the next call opens another
and reads what is really there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg

from fedres.checks import not_negative, whole
from fedres.lease import LeaseHeld
from service.store.log import Entry, Record, Refused, system_clock
from service.store.opening import StoreUnavailable
from service.store.postgres_opening import Database, name_of, opened, unavailable
from service.store.postgres_rows import COLUMNS, OF_EVENTS, checked, copy_in, entry_of, insert

LEASE = int.from_bytes(b"fedres\0\1")  # its advisory lock; those are of one database, not of the server
HOLDER = """SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'
    AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32 | objid::bigint) = %s"""
POLL_SECONDS = 0.1
PATIENCE = 1.0  # seconds that a new session waits for the lease of the one it replaces, which may just be ending

LAST = "SELECT seq, time FROM fedres.log ORDER BY seq DESC LIMIT 1"
EVENTS_OF = """SELECT event FROM fedres.log WHERE loop = %s AND "user" = %s AND kind = %s AND event IS NOT NULL
    ORDER BY seq"""
# Records that name no user but one of the user's decisions (rewards), then the user's own.
ERASE = (
    """DELETE FROM fedres.log WHERE loop = %(loop)s AND "user" IS NULL AND event = ANY (ARRAY (
    SELECT event FROM fedres.log
    WHERE loop = %(loop)s AND "user" = %(user)s AND kind = 'rank' AND event IS NOT NULL))""",
    'DELETE FROM fedres.log WHERE loop = %(loop)s AND "user" = %(user)s',
)
# What a user's records of a kind, from position ``seq`` on, make needless.
SUPERSEDED = """DELETE FROM fedres.log WHERE loop = %(loop)s AND kind = %(kind)s AND seq < %(seq)s
    AND "user" IN (SELECT "user" FROM fedres.log WHERE seq >= %(seq)s AND kind = %(kind)s AND "user" IS NOT NULL)"""
# Of each of the users, all records of a kind but the last.
OLDER = """DELETE FROM fedres.log AS older WHERE loop = %(loop)s AND kind = %(kind)s AND "user" = ANY (%(users)s)
    AND seq < (SELECT max(seq) FROM fedres.log AS newer
        WHERE newer.loop = older.loop AND newer."user" = older."user" AND newer.kind = older.kind)"""


class DatabaseHeld(LeaseHeld):
    """Another has the lease on the database ``name``; ``holder`` is what its session says of itself."""

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(Path(name), None)
        self.name, self.holder = name, holder

    def __str__(self) -> str:
        return f"{self.name} must have one holder, and {self.holder} has it"


class PostgresLog:
    """The log in the database at ``address``, made if it is not there yet.

    Threads may share one; they take turns. The first ``append`` or ``erase`` takes the lease and keeps it until the
    log is closed; one that only reads never takes it.
    """

    def __init__(self, address: str, *, clock: Callable[[], int] = system_clock) -> None:
        self._address = address
        self.clock = clock
        self.appended: Callable[[list[Entry]], None] | None = None  # told what is durable, on the appending thread
        self._turn = threading.Lock()
        self._db: Database | None = None
        self._last: tuple[int, int] | None = None  # seq and time of the last record; None without the lease
        self._closed = False
        with self._session():
            pass

    def acquire(self, wait_seconds: float = 0.0) -> None:
        """Hold the lease from here on; raise ``LeaseHeld`` if another has it for ``wait_seconds`` more.

        A server that goes away in the meantime is waited for as well.
        """
        not_negative("wait_seconds", wait_seconds)
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                with self._session() as db:
                    self._leading(db, patience=0.0)
                return
            except (LeaseHeld, StoreUnavailable):
                if time.monotonic() >= deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def check(self) -> None:
        """Raise ``StoreUnavailable`` if nothing can be appended at the moment; a lost lease is taken again if free."""
        with self._writing() as (db, _, _):
            db.execute("SELECT 1")

    def append(self, records: Sequence[Record]) -> list[int | Refused]:
        """Return each record's ``seq`` once all are durable, or why that one was refused; all in one transaction."""
        with self._writing() as (db, seq, now):
            outcomes = insert(db, seq, now, records)
            self._last = seq + sum(isinstance(outcome, int) for outcome in outcomes) - 1, now
        if self.appended is not None:
            numbered = zip(outcomes, records, strict=True)
            self.appended([Entry(at, now, *record) for at, record in numbered if isinstance(at, int)])
        return outcomes

    def erase(self, loop: str, user: str, instead: Sequence[Record] = (), needless: int = 0) -> int:
        """Return how many records were deleted: the user's, and the rewards of the user's events.

        The log says that somebody was erased, but not who. Can be repeated. ``instead`` are records of one kind,
        appended in the same transaction, that hold what others still need; older ones of that kind and the same users
        go, and so does the record ``needless``. When the server overwrites what was deleted is up to the server.
        """
        with self._writing() as (db, seq, now):
            with db.transaction():
                whose = {"loop": loop, "user": _sought(user)}
                n_erased = sum(db.execute(command, whose).rowcount for command in ERASE)
                db.execute("DELETE FROM fedres.log WHERE seq = %s", (needless,))
                told = Record(loop, "erased", None, None, f'{{"records": {n_erased}}}'.encode())
                copy_in(db, seq, now, [checked(record) for record in (*instead, told)])
                if instead:
                    db.execute(SUPERSEDED, {"loop": loop, "kind": instead[0].kind, "seq": seq})
            self._last = seq + len(instead), now
            return n_erased

    def drop_older(self, loop: str, kind: str, users: Sequence[str]) -> None:
        """Delete the records of a kind that newer ones of the same users make needless."""
        with self._writing() as (db, _, _):
            db.execute(OLDER, {"loop": loop, "kind": kind, "users": [*map(_sought, users)]})

    def checkpoint(self) -> None:
        """Do nothing: the server sees to that itself."""

    def read(self, after: int = 0, limit: int = 1_000, loop: str | None = None) -> list[Entry]:
        """Return at most ``limit`` entries with ``seq > after``, oldest first, of one loop or of all."""
        whole("after", after, least=0)
        whole("limit", limit)
        if loop is None:
            return self._select("seq > %s ORDER BY seq LIMIT %s", after, limit)
        return self._select("loop = %s AND seq > %s ORDER BY seq LIMIT %s", _sought(loop), after, limit)

    def of_event(self, loop: str, event: str) -> list[Entry]:
        """Return all that was logged about an event, oldest first."""
        return self._select("loop = %s AND event = %s ORDER BY seq", _sought(loop), _sought(event))

    def of_events(self, loop: str, events: Sequence[str]) -> list[Entry]:
        """Return all that was logged about the events, oldest first."""
        return self._ask(OF_EVENTS, [*map(_sought, events)], _sought(loop))

    def of_user(self, loop: str, user: str) -> list[Entry]:
        """Return all records that name the user, oldest first."""
        return self._select('loop = %s AND "user" = %s ORDER BY seq', _sought(loop), _sought(user))

    def events_of(self, loop: str, user: str, kind: str) -> list[str]:
        """Return the events of the user's records of a kind, oldest first."""
        with self._session() as db:
            return [event for (event,) in db.execute(EVENTS_OF, (_sought(loop), _sought(user), kind))]

    def last(self) -> int:
        """Return the highest ``seq``, 0 for an empty log."""
        with self._session() as db:
            return _last(db)[0]

    def last_time(self) -> int:
        """Return the time of the last record, 0 for an empty log."""
        with self._session() as db:
            return _last(db)[1]

    def close(self) -> None:
        """Close for good, and give the lease back; what was acknowledged needs no closing to be safe."""
        with self._turn:
            self._closed = True
            self._drop()

    def __enter__(self) -> PostgresLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _select(self, where: str, *parameters: object) -> list[Entry]:
        return self._ask(f"SELECT {COLUMNS} FROM fedres.log WHERE {where}", *parameters)

    def _ask(self, question: str, *parameters: object) -> list[Entry]:
        with self._session() as db:
            return [entry_of(row) for row in db.execute(question, parameters, binary=True)]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[Database, int, int]]:
        """Lend a session that has the lease, the next ``seq``, and the time, which is the last entry's or later."""
        with self._session() as db:
            try:
                seq, before = self._leading(db, PATIENCE)
            except LeaseHeld as held:
                raise StoreUnavailable("taken", str(held)) from held
            yield db, seq + 1, max(before, self.clock())

    def _leading(self, db: Database, patience: float) -> tuple[int, int]:
        """Return where the log ends, with the lease held."""
        deadline = time.monotonic() + patience
        while self._last is None:
            [(held,)] = db.execute("SELECT pg_try_advisory_lock(%s)", (LEASE,))
            if held:
                self._last = _last(db)
            elif time.monotonic() >= deadline:
                raise DatabaseHeld(name_of(db), _holder(db))
            else:
                time.sleep(POLL_SECONDS)
        return self._last

    @contextlib.contextmanager
    def _session(self) -> Iterator[Database]:
        """Lend the session; whatever goes wrong with it, the next caller gets a new one."""
        with self._turn:
            if self._closed:
                raise StoreUnavailable("closed", "the log is closed")
            try:
                if self._db is None:
                    self._db = opened(self._address)
                yield self._db
            except LeaseHeld:
                raise  # with the session all is well
            except psycopg.Error as error:
                self._drop()
                raise unavailable(error) from error
            except BaseException:
                self._drop()
                raise

    def _drop(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = self._last = None


def open_logs(address: str, wait_seconds: float) -> tuple[PostgresLog, PostgresLog, PostgresLog]:
    """Return the log that a service writes, once it has the lease, and two more to read it."""
    with contextlib.ExitStack() as undo:
        log = undo.enter_context(PostgresLog(address))
        log.acquire(max(wait_seconds, PATIENCE))
        reader, archive = [undo.enter_context(PostgresLog(address)) for _ in range(2)]
        undo.pop_all()
    return log, reader, archive


def _sought(text: str) -> str | None:
    """Return what to look for: where PostgreSQL cannot store it, None, which nothing equals."""
    return None if "\0" in text else text


def _last(db: Database) -> tuple[int, int]:
    """Return position and time of the last record; it is never erased, for erasing appends one."""
    for seq, at in db.execute(LAST):
        return int(seq), int(at)
    return 0, 0


def _holder(db: Database) -> str:
    found = db.execute(HOLDER, (LEASE,)).fetchone()
    return str(found[0]) if found and found[0] else "another session"

"""Opening the log's SQLite file: what it must be, how it is made, and how an older one is brought up to date."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from fedres.checks import not_negative

SCHEMA_VERSION = 4
APPLICATION_ID = 0x66726573  # "fres", where `file` and other tools look for the kind of a SQLite file

PRAGMAS = (
    # FULL, which syncs every commit, and more: without the directory's sync the journal under which a new file turns to
    # WAL could come back after a power cut, and undo all that was acknowledged since.
    "synchronous=EXTRA",
    "fullfsync=ON",  # on macOS a sync that does not stop at the disk's cache; elsewhere nothing
    "secure_delete=ON",
    "wal_autocheckpoint=16000",  # pages, 64 MB: each checkpoint writes and syncs twice while everybody waits
)

# Finds the records of an event and keeps those of these kinds unique (NULLs are distinct): one index to write, not two.
BY_EVENT = """CREATE UNIQUE INDEX log_by_event ON log (loop, event,
        CASE kind WHEN 'rank' THEN 0 WHEN 'residual' THEN 1 WHEN 'update' THEN 2 WHEN 'join' THEN 3 END)
        WHERE event IS NOT NULL"""
# Finds the records of a loop, and those of a user, stretch by stretch of 256 positions. Users come at random: in an
# index by user alone every record would have a page of its own to write.
STRETCH_BITS = 8
BY_STRETCH = f"CREATE INDEX log_by_stretch ON log (loop, seq >> {STRETCH_BITS}, user)"
# Finds what is known of many users at a time (their models), where asking every stretch for each would take too long.
BY_KIND = "CREATE INDEX log_by_kind ON log (loop, kind, user) WHERE event IS NULL AND user IS NOT NULL"

SCHEMA = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"INSERT INTO meta VALUES ('schema', '{SCHEMA_VERSION}')",
    """CREATE TABLE log (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        time INTEGER NOT NULL, -- microseconds since 1970, never less than in the row before
        loop TEXT NOT NULL,
        kind TEXT NOT NULL,
        event TEXT,
        user TEXT,
        body NOT NULL -- text where it is UTF-8 (JSON is), else a blob
    )""",
    BY_STRETCH,
    BY_KIND,
    BY_EVENT,
)
MIGRATIONS = {  # from a version to the next
    1: ("DROP INDEX log_by_event", BY_EVENT),  # knew ranks alone
    # Had in every rank the features that came with its request: who knows no others, a version before, would take those
    # that are elsewhere for none.
    2: (BY_KIND,),
    3: ("DROP INDEX log_by_loop", "DROP INDEX log_by_user", BY_STRETCH),  # had two indices to write instead of one
}


class StoreUnavailable(Exception):  # noqa: N818
    """Nothing was acknowledged.

    ``code`` is one of busy, readonly, io, full, damaged (the disk, the file or the server), foreign, version (not a
    store of ours), taken (another service has it), overloaded, closed, failed.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class Connection(Protocol):
    """All that the log asks of a connection, which must be in autocommit mode and raise ``sqlite3.Error``."""

    def execute(self, sql: str, parameters: tuple[Any, ...] = ..., /) -> Iterable[Any]: ...
    def close(self) -> None: ...


def sqlite_file(path: str | os.PathLike[str], busy_seconds: float = 5.0) -> Callable[[], Connection]:
    """Return what opens connections to ``path`` that wait ``busy_seconds`` for a lock of another process."""
    not_negative("busy_seconds", busy_seconds)
    return partial(sqlite3.connect, path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)


def opened(connect: Callable[[], Connection]) -> Connection:
    """Return a connection to a log of ours; another file is refused before anything is written to it."""
    db = connect()
    try:
        _prepare(db)
    except BaseException:
        close(db)
        raise
    return db


def close(db: Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        db.close()


def _prepare(db: Connection) -> None:
    for pragma in PRAGMAS:
        list(db.execute(f"PRAGMA {pragma}"))
    fresh = _is_empty(db)
    version = SCHEMA_VERSION if fresh else _check_kind(db)
    [(mode,)] = db.execute("PRAGMA journal_mode=WAL")
    if mode != "wal":
        raise StoreUnavailable("io", f"{_name(db)} must be on a disk that allows WAL mode, got {mode}")
    if fresh:
        _create(db)
    elif version < SCHEMA_VERSION:
        _migrate(db)


def _is_empty(db: Connection) -> bool:
    [(n_objects,)] = db.execute("SELECT count(*) FROM sqlite_master")
    return int(n_objects) == 0


def _create(db: Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    if _is_empty(db):  # else another process was faster
        for statement in SCHEMA:
            db.execute(statement)
    db.execute("COMMIT")
    _check_kind(db)


def _migrate(db: Connection) -> None:
    """Bring an older store to today's version, unless it is damaged."""
    quick_check(db)
    db.execute("BEGIN IMMEDIATE")
    for version in range(_check_kind(db), SCHEMA_VERSION):  # none if another process was faster
        for statement in MIGRATIONS[version]:
            db.execute(statement)
    db.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (str(SCHEMA_VERSION),))
    db.execute("COMMIT")


def _check_kind(db: Connection) -> int:
    """Return the version of a store of ours."""
    [(application,)] = db.execute("PRAGMA application_id")
    if application != APPLICATION_ID:
        raise StoreUnavailable("foreign", f"{_name(db)} must be a store of fedres, got another SQLite database")
    versions = [version for (version,) in db.execute("SELECT value FROM meta WHERE name = 'schema'")]
    if versions not in [[str(known)] for known in (*MIGRATIONS, SCHEMA_VERSION)]:
        got = versions[0] if versions else "none"
        raise StoreUnavailable("version", f"{_name(db)} must have schema version 1 to {SCHEMA_VERSION}, got {got}")
    return int(versions[0])


def quick_check(db: Connection) -> None:
    found = [line for (line,) in db.execute("PRAGMA quick_check(1)")]
    if found != ["ok"]:
        raise StoreUnavailable("damaged", f"{_name(db)} is damaged: {found[0]}")


def _name(db: Connection) -> str:
    (_, _, file), *_ = db.execute("PRAGMA database_list")  # main, then temp if there is one
    return str(file)

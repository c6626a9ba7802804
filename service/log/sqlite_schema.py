"""The log's SQLite file: its schema, and how it is opened. docs/reference/log.md is the reference."""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from fedres.checks import not_negative
from service.log.protocol import StoreUnavailable
from service.log.records import ONCE, RARE

SCHEMA_VERSION = 1
APPLICATION_ID = 0x66726573  # "fres", where `file` and other tools look for the kind of a SQLite file

PRAGMAS = (
    # EXTRA syncs every commit, as FULL does, and the directory too: without that, the journal under which a new file
    # turns to WAL could come back after a power cut and undo what was acknowledged since.
    "synchronous=EXTRA",
    "fullfsync=ON",  # macOS: sync past the disk's cache
    "secure_delete=ON",
    "temp_store=MEMORY",  # else every large commit copies pages to a file in the folder for temporary files
)

SAFE_VERSION = (3, 51, 3)  # of SQLite: earlier ones have https://sqlite.org/wal.html#walresetbug

INCREMENTAL = 2  # how SQLite calls a file that can be shortened step by step, from its making on

_ONCE = " ".join(f"WHEN '{kind}' THEN {number}" for number, kind in enumerate(ONCE))
_NUMBER = f"CASE kind {_ONCE} END"  # of a kind that an event has once
SCHEMA = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"INSERT INTO meta VALUES ('schema', '{SCHEMA_VERSION}'), ('architecture', '{platform.machine()}')",
    """CREATE TABLE head ( -- where each loop's log ends
        loop TEXT PRIMARY KEY,
        last INTEGER NOT NULL, -- position of the last record
        time INTEGER NOT NULL, -- its time
        removed INTEGER NOT NULL -- records that were erased
    ) WITHOUT ROWID""",
    """CREATE TABLE log (
        loop TEXT NOT NULL,
        position INTEGER NOT NULL, -- from 1 in each loop, in the order of commits
        time INTEGER NOT NULL, -- microseconds since 1970, never less than in the record before
        kind TEXT NOT NULL,
        event TEXT,
        user TEXT,
        checksum BLOB NOT NULL, -- 8 bytes for all columns but the body, 8 for the body
        example BLOB, -- what the learner needs, hashed
        body NOT NULL -- text where it is UTF-8 (JSON is), else a blob
    )""",
    "CREATE UNIQUE INDEX log_by_position ON log (loop, position)",
    # Finds the records of an event, and keeps those of some kinds unique (NULLs are distinct).
    f"CREATE UNIQUE INDEX log_by_event ON log (loop, event, {_NUMBER}) WHERE event IS NOT NULL",
    "CREATE INDEX log_by_user ON log (loop, user) WHERE user IS NOT NULL",
    f"CREATE INDEX log_by_kind ON log (loop, kind, position) WHERE kind IN {RARE}",
)


class Connection(Protocol):
    """The connection that the log needs; it must be in autocommit mode and raise ``sqlite3.Error``."""

    def execute(self, sql: str, parameters: tuple[Any, ...] = ..., /) -> Iterable[Any]: ...
    def interrupt(self) -> None: ...
    def close(self) -> None: ...


def is_kind(kind: str) -> str:
    """Return the condition for records of a kind, by the index of events where that has the kind."""
    return f"{_NUMBER} = {ONCE.index(kind)}" if kind in ONCE else f"kind = '{kind}'"


Connect = Callable[[], Connection]


def sqlite_file(path: str | os.PathLike[str], busy_seconds: float = 5.0) -> Connect:
    """Return a function that opens connections to ``path``, which wait ``busy_seconds`` for another process's lock."""
    not_negative("busy_seconds", busy_seconds)
    return partial(sqlite3.connect, path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)


def opened(connect: Connect) -> Connection:
    """Return a connection to our log; a foreign file is refused before anything is written to it."""
    db = connect()
    try:
        _prepare(db)
    except BaseException:
        close(db)
        raise
    return db


def version_note(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> str:
    """Return which SQLite is in use, and what is known about an old one."""
    name = "SQLite " + ".".join(map(str, version))
    if version >= SAFE_VERSION:
        return name
    known = "versions before 3.51.3 may lose pages where one connection checkpoints while another commits"
    return f"{name}: {known}; in this service one connection does both (docs/operate/operations.md)"


def close(db: Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        db.close()


def _prepare(db: Connection) -> None:
    for pragma in PRAGMAS:
        list(db.execute(f"PRAGMA {pragma}"))
    fresh = _is_empty(db)
    if not fresh:
        check_kind(db)
    else:
        list(db.execute("PRAGMA auto_vacuum=INCREMENTAL"))  # before anything is written: pages that are free can go
    [(mode,)] = db.execute("PRAGMA journal_mode=WAL")
    if mode != "wal":
        raise StoreUnavailable("io", f"{name_of(db)} must be on a disk that allows WAL mode, got {mode}")
    if fresh:
        _create(db)


def _is_empty(db: Connection) -> bool:
    [(n_objects,)] = db.execute("SELECT count(*) FROM sqlite_master")
    return int(n_objects) == 0


def _create(db: Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    if _is_empty(db):  # else another process was faster
        for statement in SCHEMA:
            db.execute(statement)
    db.execute("COMMIT")
    check_kind(db)


def check_kind(db: Connection) -> None:
    """Raise ``StoreUnavailable`` unless the database is a log of ours, of this version and architecture."""
    [(application,)] = db.execute("PRAGMA application_id")
    if application != APPLICATION_ID:
        raise StoreUnavailable("foreign", f"{name_of(db)} must be a store of fedres, got another SQLite database")
    meta = dict(db.execute("SELECT name, value FROM meta"))
    if meta.get("schema") != str(SCHEMA_VERSION):
        got = meta.get("schema", "none")
        message = f"{name_of(db)} must have schema version {SCHEMA_VERSION}, got {got}"
        advice = "fedres log export its records, and fedres log import them into a new store"
        raise StoreUnavailable("version", f"{message}: {advice}")
    if "architecture" in meta and meta["architecture"] != platform.machine():
        message = f"{name_of(db)} was made on {meta['architecture']}, and models on {platform.machine()} differ in bits"
        raise StoreUnavailable("foreign", f"{message}: fedres log export and import it")


def quick_check(db: Connection) -> None:
    """Raise ``StoreUnavailable`` if SQLite finds the file damaged."""
    report = [line for (line,) in db.execute("PRAGMA quick_check(1)")]
    if report != ["ok"]:
        raise StoreUnavailable("damaged", f"{name_of(db)} is damaged: {report[0]}")


def name_of(db: Connection) -> str:
    (_, _, file), *_ = db.execute("PRAGMA database_list")  # main, then temp if there is one
    return str(file)

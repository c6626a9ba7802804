"""Snapshots of what was learned, in a SQLite file beside the log: a restart learns only from what came after.

Never the truth: what is damaged or does not belong to the log raises ``DamagedSnapshot``, is thrown away and learned
again. Every row has a checksum over its key too. Pending events are not in it: they are read from the log again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from service.learn.join import Unmatched
from service.log.protocol import StoreUnavailable
from service.log.sqlite_gaps import dirty_pages, overwrite
from service.models.loop_metadata import CatalogueAction, LoopMetadata

FORMAT = 16
TABLES = {"loop", "shared", "personal", "action", "writer"}
PASSING = {  # errors that say nothing about the file
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
}
SCHEMA = f"""
PRAGMA application_id = 0x6672656D;
PRAGMA user_version = {FORMAT};
CREATE TABLE writer (epoch INTEGER NOT NULL);
INSERT INTO writer VALUES (0);
CREATE TABLE loop (created_at INTEGER, name TEXT NOT NULL PRIMARY KEY, checksum INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE shared (name TEXT PRIMARY KEY, checksum INTEGER NOT NULL, model BLOB NOT NULL);
CREATE TABLE personal (loop TEXT NOT NULL, user TEXT NOT NULL, changed INTEGER NOT NULL, checksum INTEGER NOT NULL,
    model BLOB NOT NULL, PRIMARY KEY (loop, user)) WITHOUT ROWID;
CREATE TABLE action (loop TEXT NOT NULL, id TEXT NOT NULL, put INTEGER NOT NULL, checksum INTEGER NOT NULL,
    features BLOB NOT NULL, PRIMARY KEY (loop, id)) WITHOUT ROWID;
"""


class DamagedSnapshot(Exception):  # noqa: N818
    """The file is not what was written, or not of this log."""


class SavedLoop(msgspec.Struct):
    """A loop as it was at a position."""

    metadata: LoopMetadata  # without the catalogue
    position: int
    time: int
    record: int  # checksum of the log's record at ``position``
    pending_from: int  # position of the first record about an event that is not finished, or a little earlier
    n_personal: int
    n_actions: int
    unmatched: list[Unmatched]


PersonalRow = tuple[str, str, int, bytes]  # loop, user, changed, model
ActionRows = dict[str, CatalogueAction | None]  # by id; None: it was retired


class Changes(msgspec.Struct):
    """All that is not in the file yet."""

    loops: dict[str, SavedLoop] = {}
    shared: dict[str, bytes] = {}
    personal: list[PersonalRow] = []
    erased: list[tuple[str, str]] = []  # loop and user
    dropped: list[str] = []  # loops
    actions: dict[str, ActionRows] = {}  # of each loop that changed
    whole: list[str] = []  # loops whose actions above are all that they have


class Snapshots:
    """The file at ``path``, made if it is not there; a damaged one is thrown away unless it must ``exist``."""

    def __init__(self, path: Path, *, exist: bool = False) -> None:
        self.path = path
        self.epoch: int | None = None  # of the writer that this is, None for any
        self.was_damaged = False
        self._n_writes = 0
        try:
            self._connection: sqlite3.Connection | None = _opened(path)
        except (sqlite3.DatabaseError, ValueError) as error:  # no text where a message should be is damage too
            if exist or getattr(error, "sqlite_errorcode", 0) & 0xFF in PASSING:
                raise
            self.discard()
            self.was_damaged = True

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _opened(self.path)
        return self._connection

    def release(self) -> None:
        """Close the file until it is used again: no process may be forked with a connection of SQLite's.

        A child that opened the file too would share what SQLite knows of the parent's locks, but not the locks.
        """
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def discard(self) -> None:
        """Throw the file away and begin an empty one."""
        with contextlib.suppress(sqlite3.Error, AttributeError):
            self.release()
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self._connection = _opened(self.path)
        self.was_damaged = False

    def loops(self) -> list[SavedLoop]:
        """Return the loops as they were saved, after a look at the file as a whole."""
        if self.was_damaged:
            raise DamagedSnapshot("the file was none of this version's snapshots")
        with _damage():
            [(found,)] = self._db.execute("PRAGMA quick_check(1)")
            if found != "ok":
                raise DamagedSnapshot(found)
            rows = self._db.execute("SELECT name, checksum, body FROM loop").fetchall()
            return [msgspec.msgpack.decode(_checked(f"loop {name}", *row), type=SavedLoop) for name, *row in rows]

    def shared(self, loop: str) -> bytes:
        """Return a loop's shared model."""
        with _damage():
            for checksum, model in self._db.execute("SELECT checksum, model FROM shared WHERE name = ?", (loop,)):
                return _checked(f"shared {loop}", checksum, model)
        raise DamagedSnapshot(f"the shared model of loop {loop!r} is missing")

    def personal(self, loop: str, changed_after: int = 0) -> Iterator[tuple[str, int, bytes]]:
        """Yield user, last change and model of a loop, by rising user."""
        rows = "SELECT user, changed, checksum, model FROM personal WHERE loop = ? AND changed > ? ORDER BY user"
        with _damage():
            for user, changed, checksum, model in self._db.execute(rows, (loop, changed_after)):
                yield user, changed, _checked(f"{loop} {user} {changed}", checksum, model)

    def catalogue(self, loop: str) -> dict[str, CatalogueAction]:
        """Return a loop's catalogue."""
        rows = "SELECT id, put, checksum, features FROM action WHERE loop = ?"
        with _damage():
            return {
                name: CatalogueAction(put, _checked(f"{loop} {name} {put}", checksum, features))
                for name, put, checksum, features in self._db.execute(rows, (loop,))
            }

    def users(self, loop: str) -> list[str]:
        with _damage():
            return [user for (user,) in self._db.execute("SELECT user FROM personal WHERE loop = ?", (loop,))]

    def claim(self) -> None:
        """Be the one who writes from here on: a learner that was killed may have left a child that still would."""
        epoch = int.from_bytes(os.urandom(7), "little")
        with _damage():
            self._db.execute("UPDATE writer SET epoch = ?", (epoch,))
        self.epoch = epoch

    def write(self, changes: Changes, *, scrub: bool = False) -> None:
        """Put all changes in, in one transaction; afterwards nothing is left of what was erased."""
        db = self._db
        self._n_writes += 1
        db.execute("BEGIN IMMEDIATE")
        try:
            self._check_epoch()
            _write(db, changes)
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise
        if scrub or changes.erased or changes.dropped:
            [(blocked, _, _)] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if blocked:
                raise sqlite3.OperationalError("a reader holds pages of what was erased")

    def scrub(self) -> Iterator[None]:
        """Overwrite what deleted rows left in unused parts of pages, step by step; nothing is written meanwhile."""
        [(blocked, _, _)] = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        begun, pages = self._n_writes, set[int]()
        file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            for n_slices, found in enumerate(dirty_pages(file)):
                if n_slices:
                    yield
                pages.update(found)
            self.release()
            if blocked or self._n_writes != begun:
                raise StoreUnavailable("busy", "the snapshot was in use while it was cleaned: clean it again")
            overwrite(file, pages)
        finally:
            self.release()  # first: to close the file gives up SQLite's locks
            os.close(file)

    def _check_epoch(self) -> None:
        [(epoch,)] = self._db.execute("SELECT epoch FROM writer")
        if self.epoch is not None and epoch != self.epoch:
            raise sqlite3.OperationalError("another learner has taken over")

    def close(self) -> None:
        self.release()


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
    try:
        # a personal model has up to 8 KB: pages of that size would hold one each
        for pragma in ("page_size=16384", "journal_mode=WAL", "synchronous=NORMAL", "secure_delete=ON"):
            db.execute(f"PRAGMA {pragma}").fetchall()
        if not _tables(db):
            db.executescript(f"BEGIN; {SCHEMA} COMMIT;")
        [(version,)] = db.execute("PRAGMA user_version")
        if version != FORMAT or _tables(db) != TABLES:
            raise sqlite3.DatabaseError("another format")
    except BaseException:
        db.close()
        raise
    return db


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _write(db: sqlite3.Connection, changes: Changes) -> None:
    for loop in changes.dropped:
        for table, column in (("loop", "name"), ("shared", "name"), ("personal", "loop"), ("action", "loop")):
            db.execute(f"DELETE FROM {table} WHERE {column} = ?", (loop,))
    db.executemany("DELETE FROM personal WHERE loop = ? AND user = ?", changes.erased)
    for loop, model in changes.shared.items():
        db.execute("REPLACE INTO shared VALUES (?, ?, ?)", (loop, _checksum(f"shared {loop}", model), model))
    db.executemany("REPLACE INTO personal VALUES (?, ?, ?, ?, ?)", _personal_rows(changes.personal))
    db.executemany("DELETE FROM action WHERE loop = ?", [(loop,) for loop in changes.whole])
    for loop, actions in changes.actions.items():
        retired = [(loop, name) for name, action in actions.items() if action is None]
        db.executemany("DELETE FROM action WHERE loop = ? AND id = ?", retired)
        db.executemany("REPLACE INTO action VALUES (?, ?, ?, ?, ?)", _action_rows(loop, actions))
    for loop, saved in changes.loops.items():
        [(saved.n_personal,)] = db.execute("SELECT count(*) FROM personal WHERE loop = ?", (loop,))
        body = msgspec.msgpack.encode(saved)
        row = (saved.metadata.created_at, loop, _checksum(f"loop {loop}", body), body)
        db.execute("REPLACE INTO loop VALUES (?, ?, ?, ?)", row)


def _personal_rows(rows: Sequence[PersonalRow]) -> Iterable[tuple[Any, ...]]:
    for loop, user, changed, model in rows:
        yield loop, user, changed, _checksum(f"{loop} {user} {changed}", model), model


def _action_rows(loop: str, actions: ActionRows) -> Iterable[tuple[Any, ...]]:
    for name, action in actions.items():
        if action is not None:
            checksum = _checksum(f"{loop} {name} {action.put}", action.features)
            yield loop, name, action.put, checksum, action.features


def _checksum(key: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(key.encode()))


def _checked(key: str, checksum: int, body: bytes) -> bytes:
    if not isinstance(body, bytes) or checksum != _checksum(key, body):
        raise DamagedSnapshot(f"the row {key!r} does not match its checksum")
    return body


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except (sqlite3.DatabaseError, msgspec.MsgspecError, ValueError) as error:
        raise DamagedSnapshot(str(error)) from error


def snapshot_damage(path: Path) -> list[str]:
    """Return what is damaged in the snapshot at ``path``, which is only read; it may be in use.

    One of another version's format is not damaged: the service learns it again when it is started.
    """
    found: list[str] = []
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10.0)) as db:
            db.execute("BEGIN")
            if db.execute("PRAGMA user_version").fetchall() != [(FORMAT,)]:
                return []
            found += [line for (line,) in db.execute("PRAGMA integrity_check") if line != "ok"]
            _check_rows(db, found)
    except (sqlite3.DatabaseError, msgspec.MsgspecError, ValueError, TypeError) as error:
        found.append(str(error))
    return found


def _check_rows(db: sqlite3.Connection, found: list[str]) -> None:
    n_rows = Counter[tuple[str, str]]()
    rows = [
        ("shared {}", "name, checksum, model", "shared"),
        ("{} {} {}", "loop, user, changed, checksum, model", "personal"),
        ("{} {} {}", "loop, id, put, checksum, features", "action"),
    ]
    for key, columns, table in rows:
        for *names, checksum, model in db.execute(f"SELECT {columns} FROM {table}"):
            n_rows[table, names[0]] += 1
            _note_row(found, key.format(*names), checksum, model)
    for name, checksum, body in db.execute("SELECT name, checksum, body FROM loop"):
        if _note_row(found, f"loop {name}", checksum, body):
            saved = msgspec.msgpack.decode(body, type=SavedLoop)
            counts = [("personal", saved.n_personal, "personal models"), ("action", saved.n_actions, "actions")]
            for table, n_wanted, what in counts:
                if n_wanted != n_rows[table, name]:
                    found.append(f"{n_rows[table, name]} of {n_wanted} {what} of loop {name!r} are there")


def _note_row(found: list[str], key: str, checksum: int, body: bytes) -> bool:
    try:
        _checked(key, checksum, body)
    except DamagedSnapshot as damage:
        found.append(str(damage))
        return False
    return True

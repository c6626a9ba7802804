"""Derived data in a SQLite file beside the log: models, events on their way, and the position they are of.

Never the truth: what is damaged or does not belong to the log raises ``Damaged``, is thrown away and made anew from the
log. Every row is sealed with a checksum over its key too.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fedres.scoring.model import PersonalModel
from service.engine.heads import LoopHead
from service.engine.joining import Slot
from service.engine.pages import Pages, Written

FORMAT = 3
YIELD_EVERY = 8  # models, about half a millisecond of work
SCHEMA = f"""
PRAGMA application_id = 0x6672656D;
PRAGMA user_version = {FORMAT};
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), seal INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE shared (loop INTEGER PRIMARY KEY, seal INTEGER NOT NULL, model BLOB NOT NULL);
CREATE TABLE personal (loop INTEGER NOT NULL, user TEXT NOT NULL, seal INTEGER NOT NULL, based INTEGER NOT NULL,
    model BLOB NOT NULL);
CREATE UNIQUE INDEX personal_by_user ON personal (loop, user);
CREATE INDEX personal_without_base ON personal (loop) WHERE based = 0;
CREATE TABLE page (loop INTEGER NOT NULL, n INTEGER NOT NULL, seal INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (loop, n)) WITHOUT ROWID;
CREATE TABLE dead (loop INTEGER NOT NULL, n INTEGER NOT NULL, seal INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (loop, n)) WITHOUT ROWID;
"""
PUT_PERSONAL = """INSERT INTO personal (loop, user, seal, based, model) VALUES (?, ?, ?, 0, ?)
    ON CONFLICT (loop, user) DO UPDATE SET seal = excluded.seal, based = 0, model = excluded.model"""

NONE = Written()
Key = tuple[int, str]  # a loop's first position, and a user


class Damaged(Exception):  # noqa: N818
    """The file is not what was written, or not of this log."""


class LoopPart(msgspec.Struct):
    head: LoopHead
    unmatched: list[msgspec.Raw]  # a list[Unmatched] each, encoded a few at a time
    n_slots: int


class State(msgspec.Struct):
    """The root of a snapshot: what the rest must match."""

    position: int
    time: int
    mark: int  # checksum of the log's record at ``position``
    n_personal: int
    loops: list[msgspec.Raw]  # a LoopPart each


@dataclass(slots=True)
class Changes:
    """All that is not yet in the file."""

    state: State
    shared: dict[int, bytes] = field(default_factory=dict)
    personal: dict[Key, PersonalModel] = field(default_factory=dict)
    pages: dict[int, Written] = field(default_factory=dict)  # events, by loop
    dropped: list[int] = field(default_factory=list)  # loops
    erased: list[Key] = field(default_factory=list)
    based: list[int] = field(default_factory=list)  # loops whose personal models, as in the file, are all in the log

    def after(self, earlier: Changes) -> Changes:
        """Return these changes with earlier ones that could not be written."""
        return Changes(
            self.state,
            {**earlier.shared, **self.shared},
            {**earlier.personal, **self.personal},
            {**earlier.pages, **{loop: part.after(earlier.pages.get(loop, NONE)) for loop, part in self.pages.items()}},
            [*earlier.dropped, *self.dropped],
            [*earlier.erased, *self.erased],
            [*earlier.based, *self.based],
        )


class Snapshots:
    """The file at ``path``: one thread writes, any thread reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reading, self._writing = threading.RLock(), threading.RLock()
        self._open()

    def _open(self) -> None:
        try:
            self._writer = _connect(self.path)
            self._prepare()
            self._reader = _connect(self.path)
        except (sqlite3.DatabaseError, ValueError):  # not text where a message should be is damage too
            self.discard()

    def _prepare(self) -> None:
        [(n_objects,)] = self._writer.execute("SELECT count(*) FROM sqlite_master")
        if n_objects == 0:
            self._writer.executescript(f"BEGIN; {SCHEMA} COMMIT;")
        [(version,)] = self._writer.execute("PRAGMA user_version")
        if version != FORMAT:
            raise sqlite3.DatabaseError("another format")

    def discard(self) -> None:
        """Throw the file away and begin an empty one."""
        with self._reading, self._writing:
            self._close()
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            self._writer = _connect(self.path)
            self._prepare()
            self._reader = _connect(self.path)

    def load(self) -> State | None:
        """Return the root, None for an empty file, after a look at every row."""
        with self._read() as db:
            rows = db.execute("SELECT seal, body FROM state").fetchall()
            if not rows:
                return None
            [(seal, body)] = rows
            _check("state", seal, body)
            state = msgspec.msgpack.decode(body, type=State)
            self._check_all(db, state)
            return state

    def _check_all(self, db: sqlite3.Connection, state: State) -> None:
        [(found,)] = db.execute("PRAGMA quick_check(1)")
        if found != "ok":
            raise Damaged(found)
        [(n_rows,)] = db.execute("SELECT count(*) FROM personal NOT INDEXED")
        n_found = 0
        # By the index, which lookups use too: its keys and the table's rows are checked together.
        for loop, user, seal, model in db.execute(
            "SELECT loop, user, seal, model FROM personal INDEXED BY personal_by_user WHERE loop >= 0"
        ):
            _check(f"{loop} {user}", seal, model)
            n_found += 1
        if not n_found == n_rows == state.n_personal:
            raise Damaged(f"{n_found} of {state.n_personal} personal models are there")

    def shared(self, loop: int) -> bytes:
        """Return a loop's shared model."""
        with self._read() as db:
            for seal, model in db.execute("SELECT seal, model FROM shared WHERE loop = ?", (loop,)).fetchall():
                _check(f"shared {loop}", seal, model)
                return bytes(model)
        raise Damaged(f"the shared model of loop {loop} is missing")

    def slots(self, loop: int, n_slots: int) -> tuple[dict[str, Slot], Pages]:
        """Return a loop's events, and the pages they are in."""
        pages, n_found = Pages(), 0
        found: dict[str, Slot] = {}
        with self._read() as db:
            dead = dict(_checked(db, "dead", loop))
            for n, body in _checked(db, "page", loop):
                living = pages.load(n, body, dead.pop(n, b""))
                n_found += len(living)
                found.update(living)
        if dead or not n_found == len(found) == n_slots:
            raise Damaged(f"{len(found)} of {n_slots} events are there")
        return found, pages

    def personal(self, key: Key) -> PersonalModel | None:
        """Return a user's model, None where there is none."""
        with self._read() as db:
            rows = db.execute("SELECT seal, model FROM personal WHERE loop = ? AND user = ?", key).fetchall()
        for seal, model in rows:
            _check(f"{key[0]} {key[1]}", seal, model)
            return PersonalModel.from_bytes(model)
        return None

    def all_personal(self, loop: int, *, without_base: bool = False) -> Iterator[tuple[str, bytes]]:
        """Yield the personal models of a loop by rising user, or only those that the log has no base of."""
        where = "based = 0 AND loop = ?" if without_base else "loop = ?"
        with self._read() as db:
            rows = db.execute(f"SELECT user, seal, model FROM personal WHERE {where} ORDER BY user", (loop,))
            for user, seal, model in rows:
                _check(f"{loop} {user}", seal, model)
                yield user, model

    def some_without_base(self, loop: int, after: int, limit: int) -> list[tuple[int, str, bytes]]:
        """Return row, user and model of personal models that the log has no base of, by rising row."""
        where = "based = 0 AND loop = ? AND rowid > ? ORDER BY rowid LIMIT ?"
        with self._read() as db:
            rows = db.execute(f"SELECT rowid, user, seal, model FROM personal WHERE {where}", (loop, after, limit))
            found = rows.fetchall()
        for _, user, seal, model in found:
            _check(f"{loop} {user}", seal, model)
        return [(row, user, model) for row, user, _, model in found]

    def n_without_base(self, loop: int) -> int:
        """Return how many personal models of a loop the log has no base of."""
        with self._read() as db:
            [(n,)] = db.execute("SELECT count(*) FROM personal WHERE based = 0 AND loop = ?", (loop,))
            return int(n)

    def note_based(self, loop: int, users: Iterable[str]) -> None:
        """Take note that the log has a base of users' models as they are in the file."""
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            rows = ((loop, user) for user in users)
            self._writer.executemany("UPDATE personal SET based = 1 WHERE loop = ? AND user = ?", rows)
            self._writer.execute("COMMIT")

    def write(self, changes: Changes, pause: Callable[[], None] = lambda: None) -> None:
        """Put all changes in, in one transaction; afterwards nothing is left of what was erased.

        ``pause`` is called between two pages of events.
        """
        with self._writing:
            db = self._writer
            db.execute("BEGIN IMMEDIATE")
            try:
                _write(db, changes, pause)
                db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
            if changes.erased or changes.dropped:
                with self._reading:  # no reader may hold old pages
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        with self._reading, self._writing:
            self._close()

    def _close(self) -> None:
        for name in ("_reader", "_writer"):
            with contextlib.suppress(sqlite3.Error, AttributeError):
                getattr(self, name).close()

    @contextlib.contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._reading:
            try:
                yield self._reader
            except (sqlite3.DatabaseError, msgspec.MsgspecError, ValueError) as error:
                raise Damaged(str(error)) from error


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
    try:
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "secure_delete=ON"):
            db.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        db.close()
        raise
    return db


def _write(db: sqlite3.Connection, changes: Changes, pause: Callable[[], None]) -> None:
    db.executemany("DELETE FROM personal WHERE loop = ? AND user = ?", changes.erased)
    for loop in changes.based:
        db.execute("UPDATE personal SET based = 1 WHERE loop = ? AND based = 0", (loop,))
    for loop, shared in changes.shared.items():
        _write_shared(db, loop, shared)
    db.executemany(PUT_PERSONAL, _sealed_personal(changes.personal))
    for loop, written in changes.pages.items():
        _write_pages(db, loop, written, pause)
    for loop in changes.dropped:  # last: they may be in what could not be written before
        for table in ("shared", "personal", "page", "dead"):
            db.execute(f"DELETE FROM {table} WHERE loop = ?", (loop,))
    [(changes.state.n_personal,)] = db.execute("SELECT count(*) FROM personal")
    body = msgspec.msgpack.encode(changes.state)
    db.execute("REPLACE INTO state VALUES (1, ?, ?)", (_seal("state", body), body))


def _write_shared(db: sqlite3.Connection, loop: int, model: bytes) -> None:
    """Write a shared model, which can be large, while others have the interpreter."""
    row = (loop, _seal(f"shared {loop}", model), len(model))
    db.execute("REPLACE INTO shared VALUES (?, ?, zeroblob(?))", row)
    with db.blobopen("shared", "model", loop) as blob:
        blob.write(model)


def _write_pages(db: sqlite3.Connection, loop: int, written: Written, pause: Callable[[], None]) -> None:
    for table, rows in (("page", written.bodies), ("dead", written.dead)):
        db.executemany(f"DELETE FROM {table} WHERE loop = ? AND n = ?", ((loop, n) for n in written.gone))
        for n, body in rows.items():
            db.execute(f"REPLACE INTO {table} VALUES (?, ?, ?, ?)", (loop, n, _seal(f"{table} {loop} {n}", body), body))
            if table == "page":
                pause()


def _checked(db: sqlite3.Connection, table: str, loop: int) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of a loop's pages, or of their dead places."""
    for n, seal, body in db.execute(f"SELECT n, seal, body FROM {table} WHERE loop = ? ORDER BY n", (loop,)):
        _check(f"{table} {loop} {n}", seal, body)
        yield n, body


def _sealed_personal(models: dict[Key, PersonalModel]) -> Iterable[tuple[Any, ...]]:
    for k, ((loop, user), personal) in enumerate(models.items()):
        if k % YIELD_EVERY == 0:
            time.sleep(0)  # lets the event loop have the interpreter
        model = personal.to_bytes()
        yield loop, user, _seal(f"{loop} {user}", model), model


def _seal(key: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(key.encode()))


def _check(key: str, seal: int, body: bytes) -> None:
    if not isinstance(body, bytes) or seal != _seal(key, body):
        raise Damaged(f"the row {key!r} does not match its checksum")

"""Snapshots of all models, in a SQLite file beside the log: a restart learns only the records after them.

The log is authoritative: a snapshot that is damaged or of another log raises ``DamagedSnapshot``, is discarded and
learned again. Row checksums cover the keys too. Pending events are not in it: they are read from the log again.
``Snapshots`` is the file; ``Saver`` writes it without stopping, by a forked child while its parent goes on learning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from service.learn.join import UncountedReward
from service.learn.loop_state import LoopState
from service.log.files import with_companions
from service.log.protocol import StoreUnavailable
from service.log.sqlite_gaps import dirty_pages, overwrite
from service.models.loop_metadata import CatalogueAction, LoopMetadata
from service.models.personal import PersonalModels

FORMAT = 21
TABLES = {"loop", "shared", "personal", "action", "writer"}
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
ROWS_AT_ONCE = 500  # personal models
NOT_RESTORED = -1  # the position of no loop
FAILED = "a snapshot could not be written, and the next one tries again: %s"
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


log = logging.getLogger(__name__)


class DamagedSnapshot(Exception):  # noqa: N818
    """The file is damaged or belongs to another log."""


class SavedLoop(msgspec.Struct):
    """A loop as it was at a position."""

    metadata: LoopMetadata  # without the catalogue
    position: int
    time: int
    record: int  # checksum of the log's record at ``position``
    pending_from: int  # position of the first record about an event that is not finished, or a little earlier
    n_personal: int
    n_actions: int
    unmatched: list[UncountedReward]


PersonalRow = tuple[str, str, int, bytes]  # loop, user, changed, model
ActionRows = dict[str, CatalogueAction | None]  # by id; None: it was retired


@dataclass
class Changes:
    """Changes that are not in the file yet: copies, so that learning can continue."""

    loops: dict[str, SavedLoop] = field(default_factory=dict)
    shared: dict[str, bytes] = field(default_factory=dict)
    personal: Iterable[PersonalRow] = ()
    erased: list[tuple[str, str]] = field(default_factory=list)  # loop and user
    dropped: list[str] = field(default_factory=list)  # loops
    actions: dict[str, ActionRows] = field(default_factory=dict)  # of each loop that changed
    whole: list[str] = field(default_factory=list)  # loops whose actions above are all that they have
    unsaved: set[tuple[str, str]] = field(default_factory=set)  # users of whom ``personal`` has the models


class Snapshots:
    """The file at ``path``, created if missing; a damaged one is discarded unless it must ``exist``."""

    def __init__(self, path: Path, *, exist: bool = False, connection: sqlite3.Connection | None = None) -> None:
        self.path = path
        self.epoch: int | None = None  # of the writer that this is, None for any
        self.was_damaged = False
        self._n_writes = 0
        self._connection = connection
        try:
            self._connection = connection or _opened(path)
        except (sqlite3.DatabaseError, ValueError) as error:  # invalid text instead of a message is damage too
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
        """Close the file until it is used again: no process may fork while it has an open SQLite connection.

        A child that opened the file too would share SQLite's list of the parent's locks, but not the locks.
        """
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def discard(self) -> None:
        """Delete the file and begin an empty one."""
        with contextlib.suppress(sqlite3.Error):
            self.release()
        for file in with_companions(self.path):
            file.unlink(missing_ok=True)
        self._connection = _opened(self.path)
        self.was_damaged = False

    def loops(self, check: str = "quick_check(1)") -> list[SavedLoop]:
        """Return the saved loops, after a check of the whole file."""
        if self.was_damaged:
            raise DamagedSnapshot("the file was none of this version's snapshots")
        with _damage():
            wrong = [line for (line,) in self._db.execute(f"PRAGMA {check}") if line != "ok"]
            if wrong:
                raise DamagedSnapshot("; ".join(wrong))
            rows = self._db.execute("SELECT name, checksum, body FROM loop").fetchall()
            return [msgspec.msgpack.decode(_checked(f"loop {name}", *row), type=SavedLoop) for name, *row in rows]

    def shared(self, loop: str) -> bytes:
        """Return a loop's shared model."""
        with _damage():
            for checksum, model in self._db.execute("SELECT checksum, model FROM shared WHERE name = ?", (loop,)):
                return _checked(f"shared {loop}", checksum, model)
        raise DamagedSnapshot(f"the shared model of loop {loop!r} is missing")

    def personal(
        self, loop: str, *, changed_after: int = 0, n_users: int | None = None
    ) -> Iterator[tuple[str, int, bytes]]:
        """Yield user, last change and model of a loop, by rising user; there must be ``n_users`` of them."""
        n = 0
        for user, changed, checksum, model in self._personal_rows(loop, changed_after):
            n += 1
            yield user, changed, _checked(f"{loop} {user} {changed}", checksum, model)
        if n_users not in (None, n):
            raise DamagedSnapshot(f"{n} of {n_users} personal models of loop {loop!r} are there")

    def _personal_rows(self, loop: str, changed_after: int) -> Iterator[tuple[str, int, int, bytes]]:
        """Yield rows, read some at a time: the caller may use or release the file in between."""
        rows = f"""SELECT user, changed, checksum, model FROM personal
            WHERE loop = ? AND changed > ? AND user > ? ORDER BY user LIMIT {ROWS_AT_ONCE}"""
        last = ""
        while True:
            with _damage():
                some = self._db.execute(rows, (loop, changed_after, last)).fetchall()
            yield from some
            if len(some) < ROWS_AT_ONCE:
                return
            last = some[-1][0]

    def catalogue(self, loop: str, n_actions: int | None = None) -> dict[str, CatalogueAction]:
        """Return a loop's catalogue; there must be ``n_actions``."""
        rows = "SELECT id, put, checksum, features FROM action WHERE loop = ?"
        with _damage():
            catalogue = {
                name: CatalogueAction(put, _checked(f"{loop} {name} {put}", checksum, features))
                for name, put, checksum, features in self._db.execute(rows, (loop,))
            }
        if n_actions not in (None, len(catalogue)):
            raise DamagedSnapshot(f"{len(catalogue)} of {n_actions} actions of loop {loop!r} are there")
        return catalogue

    def users(self, loop: str) -> list[str]:
        with _damage():
            return [user for (user,) in self._db.execute("SELECT user FROM personal WHERE loop = ?", (loop,))]

    def claim(self) -> None:
        """Become the only writer: a learner that was killed may have left a child that would still write."""
        epoch = int.from_bytes(os.urandom(7), "little")
        with _damage():
            self._db.execute("UPDATE writer SET epoch = ?", (epoch,))
        self.epoch = epoch

    def write(self, changes: Changes, *, scrub: bool = False) -> None:
        """Write all changes in one transaction; erased data are gone afterwards."""
        db = self._db
        self._n_writes += 1
        db.execute("BEGIN IMMEDIATE")
        try:
            [(epoch,)] = db.execute("SELECT epoch FROM writer")
            if self.epoch not in (None, epoch):
                raise sqlite3.OperationalError("another learner has taken over")
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
        """Overwrite leftovers of deleted rows in unused parts of pages, step by step; nothing is written meanwhile."""
        [(blocked, _, _)] = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        begun, file = self._n_writes, os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            pages = yield from dirty_pages(file)
            self.release()
            if blocked or self._n_writes != begun:
                raise StoreUnavailable("busy", "the snapshot was in use while it was cleaned: clean it again")
            overwrite(file, pages)
        finally:
            self.release()  # first: to close the file gives up SQLite's locks
            os.close(file)

    close = release


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
    for loop, user, changed, model in changes.personal:
        checksum = _checksum(f"{loop} {user} {changed}", model)
        db.execute("REPLACE INTO personal VALUES (?, ?, ?, ?, ?)", (loop, user, changed, checksum, model))
    db.executemany("DELETE FROM action WHERE loop = ?", [(loop,) for loop in changes.whole])
    for loop, actions in changes.actions.items():
        for name, action in actions.items():
            if action is None:
                db.execute("DELETE FROM action WHERE loop = ? AND id = ?", (loop, name))
                continue
            checksum = _checksum(f"{loop} {name} {action.put}", action.features)
            db.execute(
                "REPLACE INTO action VALUES (?, ?, ?, ?, ?)", (loop, name, action.put, checksum, action.features)
            )
    for loop, saved in changes.loops.items():
        [(saved.n_personal,)] = db.execute("SELECT count(*) FROM personal WHERE loop = ?", (loop,))
        body = msgspec.msgpack.encode(saved)
        row = (saved.metadata.created_at, loop, _checksum(f"loop {loop}", body), body)
        db.execute("REPLACE INTO loop VALUES (?, ?, ?, ?)", row)


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
    """Return the damage in the snapshot at ``path``, which is only read and may be in use.

    A snapshot in another version's format is not damaged: the service learns it again when it starts.
    """
    damages: list[str] = []
    try:
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10.0, isolation_level=None)
        with contextlib.closing(Snapshots(path, connection=db)) as snapshots:
            db.execute("BEGIN")
            if db.execute("PRAGMA user_version").fetchall() != [(FORMAT,)]:
                return []
            for saved in snapshots.loops("integrity_check"):
                damages += _damages_of(saved, snapshots)
    except (DamagedSnapshot, sqlite3.DatabaseError) as damage:
        damages.append(str(damage))
    return damages


def _damages_of(saved: SavedLoop, snapshots: Snapshots) -> Iterator[str]:
    name = saved.metadata.name
    for read in (
        lambda: snapshots.shared(name),
        lambda: [*snapshots.personal(name, n_users=saved.n_personal)],
        lambda: snapshots.catalogue(name, saved.n_actions),
    ):
        try:
            read()
        except DamagedSnapshot as damage:
            yield str(damage)


class Saver:
    """Tracks the changes since the snapshot. With ``fork``, child processes write; ``flush`` always writes at once."""

    def __init__(self, snapshots: Snapshots, personal: PersonalModels, seconds: float, *, fork: bool) -> None:
        self._snapshots, self._personal, self._seconds, self._fork = snapshots, personal, seconds, fork
        self._due = time.monotonic() + seconds
        self._saved: dict[str, int] = {}  # position of each loop in the file
        self._versions: dict[str, int] = {}  # version of the shared model in the file
        self._has_actions: set[str] = set()  # loops of whose actions the file lacks only ``unsaved_actions``
        self._dropped: list[str] = []
        self._erased: list[tuple[str, str]] = []  # loop and user
        self.n_written = 0  # snapshots so far
        self._child: tuple[int, Changes] | None = None  # the process that writes, and what

    def note_saved(self, state: LoopState) -> None:
        self._saved[state.metadata.name], self._versions[state.metadata.name] = state.position, state.metadata.version
        self._has_actions.add(state.metadata.name)

    def note_there(self, loop: str) -> None:
        """Note that the file has a loop, which is not restored yet."""
        self._saved[loop] = NOT_RESTORED

    def has(self, loop: str) -> bool:
        """Return whether the file has a loop that it is to keep."""
        return loop in self._saved

    def drop(self, loop: str) -> None:
        """Forget a loop that was deleted."""
        self._saved.pop(loop, None)
        self._versions.pop(loop, None)
        self._has_actions.discard(loop)
        self._dropped.append(loop)

    def erase(self, loop: str, user: str) -> None:
        """Remove a user from the next snapshot."""
        self._erased.append((loop, user))

    def finish(self) -> None:
        """Wait for the snapshot that is being written."""
        self._reap(0)

    @property
    def is_unclean(self) -> bool:
        """Whether the file may hold erased or deleted data."""
        return bool(self._erased or self._dropped)

    def save_if_due(self, loops: Mapping[str, LoopState]) -> None:
        self._reap(os.WNOHANG)
        if time.monotonic() < self._due or self._child is not None:
            return
        self._due = time.monotonic() + self._seconds
        if not self._fork:
            self.flush(loops)
            return
        changes = self._gather(loops)
        self._snapshots.release()
        pid = os.fork()
        if pid == 0:
            _write_and_exit(self._snapshots, changes)
        self._child = (pid, changes)

    def flush(self, loops: Mapping[str, LoopState], *, scrub: bool = False) -> None:
        """Bring the file up to date; with ``scrub``, overwrite all leftovers of deleted rows in it."""
        self._reap(0)
        changes = self._gather(loops)
        try:
            self._snapshots.write(changes, scrub=scrub)
        except sqlite3.Error as error:
            self._give_back(changes)
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE:
                raise  # ends the learner; the next one rebuilds
            raise StoreUnavailable("snapshot", f"the snapshot cannot be written: {error}") from error
        except BaseException:
            self._give_back(changes)
            raise
        self._written(changes)

    def _reap(self, options: int) -> None:
        if self._child is None:
            return
        pid, changes = self._child
        with contextlib.suppress(InterruptedError):
            ended, status = os.waitpid(pid, options)
            if ended:
                self._child = None
                if status == 0:
                    self._written(changes)
                else:
                    if os.WIFSIGNALED(status):  # else the child has logged the reason
                        log.warning(FAILED, f"the process that wrote it ended with signal {os.WTERMSIG(status)}")
                    self._give_back(changes)

    def _gather(self, loops: Mapping[str, LoopState]) -> Changes:
        personal = self._personal
        midway = {state.metadata.id for state in loops.values() if state.is_midway}  # they keep what the file has
        loops = {name: state for name, state in loops.items() if not state.is_midway}
        names = {state.metadata.id: name for name, state in loops.items()}
        later = {(loop, user) for loop, user in personal.unsaved if loop in midway} if midway else set()
        changes = Changes(erased=self._erased, dropped=self._dropped, unsaved=personal.unsaved - later)
        self._dropped, self._erased, personal.unsaved = [], [], later
        for name, state in loops.items():
            if self._saved.get(name) != state.position:
                changes.loops[name] = _saved_loop(state)
                catalogue, unsaved = state.metadata.catalogue, state.unsaved_actions
                if name not in self._has_actions:
                    changes.whole.append(name)
                    unsaved = set(catalogue)
                changes.actions[name] = {action: catalogue.get(action) for action in unsaved}
                state.unsaved_actions = set()
                if self._versions.get(name) != state.metadata.version:
                    changes.shared[name] = state.shared.to_bytes()
        blocks = [
            (names[loop], user, loops[names[loop]].kind, data)
            for loop, user in changes.unsaved
            if loop in names and (data := personal.data(loop, user)) is not None
        ]
        changes.personal = (
            (name, user, changed, model.to_bytes())
            for name, user, kind, data in blocks
            for changed, model in [kind.read_personal(data)]
        )
        return changes

    def _written(self, changes: Changes) -> None:
        self.n_written += 1
        for name, saved in changes.loops.items():
            self._saved[name] = saved.position
            self._has_actions.add(name)
        for name in changes.shared:
            self._versions[name] = changes.loops[name].metadata.version

    def _give_back(self, changes: Changes) -> None:
        self._dropped = [*changes.dropped, *self._dropped]
        self._erased = [*changes.erased, *self._erased]
        self._personal.unsaved |= changes.unsaved
        self._has_actions -= changes.loops.keys()


def _saved_loop(state: LoopState) -> SavedLoop:
    bare = msgspec.structs.replace(state.metadata, catalogue={})
    return SavedLoop(
        msgspec.msgpack.decode(msgspec.msgpack.encode(bare), type=LoopMetadata),  # a copy
        state.position,
        state.time,
        state.record_checksum,
        state.pending_from(),
        n_personal=0,
        n_actions=len(state.metadata.catalogue),
        unmatched=list(state.join.unmatched),
    )


def _write_and_exit(snapshots: Snapshots, changes: Changes) -> None:
    """Write in a forked child, on a connection of its own; closing that empties the write-ahead log."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        with contextlib.closing(Snapshots(snapshots.path, exist=True)) as own:
            own.epoch = snapshots.epoch
            own.write(changes)
        code = 0
    except Exception as error:
        log.warning(FAILED, error)
    finally:
        os._exit(code)

"""The log in one SQLite file.

A commit is on the disk before ``append`` returns (WAL, every commit synced). Any failure of the disk or of SQLite
closes the connection; the next call reopens the file and reads its actual state. A batch whose commit failed was not
acknowledged and is stored as a whole or not at all: a caller who tries again may get a ``Duplicate``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedres.checks import whole
from service.log.checking import check_group, checked, duplicate, readable
from service.log.protocol import NO_EPOCHS, NO_LIMIT, Group, Head, Outcome, Pruning, Refused, StoreUnavailable
from service.log.records import (
    ABOUT,
    ACTIVATE,
    BASE,
    ERASE,
    ERASED,
    OLD,
    ONCE,
    RANK,
    RARE,
    REWARD,
    DamagedRecord,
    Entry,
    Record,
    check,
    checksum,
)
from service.log.sqlite_gaps import dirty_pages, overwrite, page_size, pages_in_wal
from service.log.sqlite_schema import (
    INCREMENTAL,
    Connect,
    Connection,
    close,
    is_kind,
    name_of,
    opened,
    quick_check,
    sqlite_file,
)
from service.times import system_clock

if TYPE_CHECKING:
    from service.log.opening import Store

T = TypeVar("T")
Row = tuple[Any, ...]  # the values of COLUMNS

COLUMNS = "loop, position, time, kind, event, user, checksum, example, body"
INSERT = f"INSERT INTO log ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
MORE_ROWS = ", (?, ?, ?, ?, ?, ?, ?, ?, ?)"
# SQLite keeps what a prepared statement was last given, and sqlite3 keeps 128 statements. So statements insert 1, 2,
# 4, … or 64 rows, and a large row goes alone: with a statement for each number of rows, the writer's memory grew by
# 5,050 rows.
ROWS_PER_STATEMENT = 64
LARGE_ROW = 16_384  # bytes
FOUND_TOGETHER = 100
NO_RECORDS = Head(0, 0, 0)
NAMES = "loop, position, time, kind, event, user, checksum, example"
BODIES = "CAST(body AS BLOB)"
OTHER_BODIES = f"CASE WHEN example IS NULL THEN {BODIES} END"  # bodies without an example
SET_HEAD = "REPLACE INTO head (loop, last, time, removed) VALUES (?, ?, ?, ?)"
FIRST_OF = "SELECT position FROM log WHERE loop = ? AND event = ? AND kind = ?"
# Rows are stored in the order of their positions, and the index on users ends with the row.
OF_USER = """INDEXED BY log_by_user WHERE loop = ? AND user = ? AND rowid > coalesce((
    SELECT rowid FROM log INDEXED BY log_by_position WHERE loop = ? AND position <= ?
    ORDER BY position DESC LIMIT 1), 0) ORDER BY rowid LIMIT ?"""
# The user's own records, and the rewards and activations of the user's decisions.
ERASE_USER = f"""DELETE FROM log WHERE rowid IN (
    SELECT rowid FROM log WHERE loop = ?1 AND user = ?2
    UNION SELECT about.rowid FROM log AS rank JOIN log AS about ON about.loop = rank.loop AND about.event = rank.event
    WHERE rank.loop = ?1 AND rank.user = ?2 AND rank.kind = '{RANK}' AND about.kind IN ('{REWARD}', '{ACTIVATE}'))"""
# Some of the user's own records, and some rewards and activations of their decisions.
SOME_OF_USER = f"""SELECT rowid FROM log INDEXED BY log_by_user
    WHERE loop = ?1 AND user = ?2 AND kind <> '{ERASE}' ORDER BY rowid LIMIT ?3"""
SOME_ABOUT = f"""SELECT about.rowid FROM log AS rank JOIN log AS about INDEXED BY log_by_event
    ON about.loop = rank.loop AND about.event = rank.event
    WHERE rank.rowid IN ({SOME_OF_USER}) AND rank.kind = '{RANK}' AND about.kind IN {ABOUT} LIMIT ?3"""
DELETE_ROWS = "DELETE FROM log WHERE rowid IN (SELECT value FROM json_each(?))"
EXISTING = "SELECT DISTINCT event FROM log INDEXED BY log_by_event WHERE loop = ? AND event IN ({})"
IS_RARE = f"kind IN {RARE}"  # SQLite uses the index log_by_kind only for queries with the same condition
REPLACED_BASES = f"""DELETE FROM log WHERE rowid IN (
    SELECT base FROM (
        SELECT rowid AS base, position, max(position) OVER (PARTITION BY user) AS newest
        FROM log INDEXED BY log_by_kind WHERE loop = ?1 AND kind = '{BASE}' AND {IS_RARE})
    WHERE position < newest)"""
# Of the records from behind ?2 to ?3: events decided up to the cut ?4, with their rewards in front of ?5.
LAST_OF_SOME = (
    "SELECT position FROM log WHERE loop = ? AND position > ? AND position <= ? ORDER BY position LIMIT 1 OFFSET ?"
)
PRUNE_EVENTS = f"""DELETE FROM log WHERE rowid IN (
    SELECT rowid FROM log AS old INDEXED BY log_by_position WHERE loop = ?1 AND position > ?2 AND position <= ?3 AND (
        kind IN {OLD} OR (kind = '{ERASE}' AND user IS NULL) OR (kind IN {ABOUT} AND NOT EXISTS (
            SELECT 1 FROM log AS decided INDEXED BY log_by_event WHERE decided.loop = ?1
            AND decided.event = old.event AND decided.kind = '{RANK}' AND decided.position > ?4)))
    UNION SELECT about.rowid FROM log AS old INDEXED BY log_by_position
        JOIN log AS about INDEXED BY log_by_event ON about.loop = ?1 AND about.event = old.event
    WHERE old.loop = ?1 AND old.position > ?2 AND old.position <= ?3 AND old.kind = '{RANK}'
        AND about.kind IN {ABOUT} AND about.position < ?5)"""
LAST_OF_BASES = f"""SELECT position FROM log INDEXED BY log_by_kind WHERE loop = ? AND kind = '{BASE}' AND {IS_RARE}
    AND position > ? AND position < ? ORDER BY position LIMIT 1 OFFSET ?"""
# Of the base records from behind ?2 to ?3: those with a newer one in front of ?4.
PRUNE_BASES = f"""DELETE FROM log WHERE rowid IN (
    SELECT rowid FROM log AS old INDEXED BY log_by_kind
    WHERE loop = ?1 AND kind = '{BASE}' AND {IS_RARE} AND position > ?2 AND position <= ?3 AND CASE WHEN user IS NULL
        THEN EXISTS (SELECT 1 FROM log AS newer INDEXED BY log_by_kind
            WHERE newer.loop = ?1 AND newer.kind = '{BASE}' AND newer.{IS_RARE}
            AND newer.user IS NULL AND newer.position > old.position AND newer.position < ?4)
        ELSE EXISTS (SELECT 1 FROM log AS newer INDEXED BY log_by_user WHERE newer.loop = ?1 AND newer.user = old.user
            AND newer.kind = '{BASE}' AND newer.position > old.position AND newer.position < ?4) END)"""
ERASED_AT_ONCE = 500  # records of a user, and as many about the user's events
PRUNED_AT_ONCE = 500  # records that one call of ``prune`` looks at
BASES_AT_ONCE = 50  # base records; for each it looks at all records of a user
PAGES_AT_ONCE = 100  # pages that one call moves to the front of the file
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


def open_store(store: Store, *, verify: bool, listen: bool) -> SqliteLog:
    """Return the log in a store's file; ``listen`` has no effect, as all writers are on this machine."""
    return SqliteLog(sqlite_file(store.path), verify=verify)


class SqliteLog:
    """The log behind ``connect``, created if missing.

    Threads may share one; they take turns. To read while others commit, open a second one. ``verify``
    reads the whole file once, to find damage before anything is written to it.
    """

    def __init__(self, connect: Connect, *, clock: Callable[[], int] = system_clock, verify: bool = False) -> None:
        self._connect, self.clock = connect, clock
        self._turn = threading.Lock()
        self._db: Connection | None = None
        self._closed = False
        self._file: int | None = None
        with self._connection() as db:
            if verify:
                quick_check(db)

    def append(self, groups: Sequence[Group], epochs: Mapping[str, int] = NO_EPOCHS) -> list[Outcome]:
        """Return the position of each group's first record once all are durable, or why that group was refused."""
        loops = {str(record.loop) for group in groups for record in group}
        with self._connection() as db, self._transaction(db, loops) as batch:
            return batch.insert(groups)

    def note(self, name: str) -> str | None:
        with self._connection() as db:
            return next((str(value) for (value,) in db.execute("SELECT value FROM meta WHERE name = ?", (name,))), None)

    def set_note(self, name: str, value: str) -> None:
        with self._connection() as db:
            db.execute("REPLACE INTO meta VALUES (?, ?)", (name, value))

    def heads(self) -> dict[str, Head]:
        with self._connection() as db:
            return _heads(db)

    def read(self, loop: str, after: int = 0, limit: int = 1_000, *, bodies: bool = True) -> list[Entry]:
        whole("after", after, least=0)
        whole("limit", limit)
        return self._select(
            BODIES if bodies else OTHER_BODIES,
            "WHERE loop = ? AND position > ? ORDER BY position LIMIT ?",
            loop,
            after,
            limit,
        )

    def find(self, loop: str, events: Sequence[str], kind: str | None = None) -> list[Entry]:
        entries = list[Entry]()
        names = list(dict.fromkeys(events))
        for piece in (names[k : k + FOUND_TOGETHER] for k in range(0, len(names), FOUND_TOGETHER)):
            rows = f"INDEXED BY log_by_event WHERE loop = ? AND event IN ({','.join('?' * len(piece))})"
            if kind is None:
                entries += self._select(BODIES, rows, loop, *piece)
            else:
                entries += self._select(BODIES, f"{rows} AND {is_kind(kind)}", loop, *piece)
        return sorted(entries, key=lambda entry: entry.position)

    def newest_of(self, loop: str, user: str, limit: int, read: Callable[[Entry], T | None]) -> list[T]:
        rows = f"INDEXED BY log_by_user WHERE loop = ? AND user = ? AND kind = '{RANK}' ORDER BY rowid DESC LIMIT ?"
        with self._connection() as db:
            return _read_until(db, f"SELECT {NAMES}, {BODIES} FROM log {rows}", (loop, user, limit), read)

    def rewards_of(self, loop: str, event: str, limit: int) -> list[Entry]:
        rows = f"INDEXED BY log_by_event WHERE loop = ? AND event = ? AND kind = '{REWARD}' LIMIT ?"
        return self._select(OTHER_BODIES, rows, loop, event, limit)

    def interrupt(self) -> None:
        db = self._db
        if db is not None:
            with contextlib.suppress(sqlite3.Error):  # closed meanwhile
                db.interrupt()

    def of_user(self, loop: str, user: str, after: int = 0, limit: int = 1_000) -> list[Entry]:
        return self._select(BODIES, OF_USER, loop, user, loop, after, limit)

    def of_kind(self, loop: str, kind: str, after: int = 0, limit: int = NO_LIMIT) -> list[Entry]:
        rows = f"WHERE loop = ? AND kind = '{kind}' AND {IS_RARE} AND position > ? ORDER BY position LIMIT ?"
        return self._select(BODIES, rows, loop, after, limit)

    def erase(self, loop: str, user: str, body: Callable[[int], bytes], epoch: int | None = None) -> int:
        with self._connection() as db:
            with self._transaction(db, {loop}) as batch:
                n_erased = batch.delete(loop, ERASE_USER, (loop, user))
                batch.delete(loop, REPLACED_BASES, (loop,))
                batch.insert([[Record(loop, ERASED, body=body(n_erased))]])
            _empty_wal(db)
            return n_erased

    def erase_some(self, loop: str, user: str, epoch: int | None = None) -> bool:
        with self._connection() as db:
            named = (loop, user, ERASED_AT_ONCE)
            own = [rowid for (rowid,) in db.execute(SOME_OF_USER, named)]
            about = [rowid for (rowid,) in db.execute(SOME_ABOUT, named)]
            if len(own) + len(about) < ERASED_AT_ONCE:
                return False
            doomed = about if len(about) == ERASED_AT_ONCE else [*about, *own]
            with self._transaction(db, {loop}) as batch:
                batch.delete(loop, DELETE_ROWS, (str(doomed),))
            return True

    def existing(self, loop: str, events: Collection[str]) -> set[str]:
        names, there = list(events), set[str]()
        with self._connection() as db:
            for some in (names[k : k + FOUND_TOGETHER] for k in range(0, len(names), FOUND_TOGETHER)):
                there |= {event for (event,) in db.execute(EXISTING.format(",".join("?" * len(some))), (loop, *some))}
        return there

    def prune(self, loop: str, old: Pruning, after: int = 0, epoch: int | None = None) -> int | None:
        """Delete some; ``after`` counts positions up to the cut, then those of base records, then frees pages."""
        with self._connection() as db:
            if after >= old.cut + old.done:
                return _give_pages_back(db, after)
            with self._transaction(db, {loop}) as batch:
                if after < old.cut:
                    [last] = _first(db, LAST_OF_SOME, (loop, after, old.cut, PRUNED_AT_ONCE - 1)) or [old.cut]
                    batch.delete(loop, PRUNE_EVENTS, (loop, after, last, old.cut, old.begun))
                    return int(last)
                start = after - old.cut
                [last] = _first(db, LAST_OF_BASES, (loop, start, old.done, BASES_AT_ONCE - 1)) or [old.done]
                batch.delete(loop, PRUNE_BASES, (loop, start, last, old.done))
                return int(old.cut + last)

    def size(self) -> int:
        with self._connection() as db:
            [(n_pages,)], [(page,)] = db.execute("PRAGMA page_count"), db.execute("PRAGMA page_size")
            wal = Path(f"{name_of(db)}-wal")
        return int(n_pages) * int(page) + (wal.stat().st_size if wal.exists() else 0)

    def scrub(self) -> Iterator[None]:
        """Overwrite leftovers of deleted records in unused parts of pages; appends may come between two steps.

        From the first step on, all pages that change are in the write-ahead log, so nothing is missed at the end.
        """
        with self._connection() as db:
            begun, path = db, Path(name_of(db))
            list(db.execute("PRAGMA wal_autocheckpoint=0"))
            _empty_wal(db)
        if not path.is_file():
            return  # a disk of SQLite's own kind, which no other file call can reach
        if self._file is None:  # for as long as this log is open: to close it would give up SQLite's locks
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        file = self._file
        dirty = yield from dirty_pages(file)
        with self._connection() as db:
            if db is not begun:
                raise StoreUnavailable("busy", "the store was opened anew while it was cleaned: clean it again")
            dirty |= pages_in_wal(path, page_size(file))
            _empty_wal(db)
            self._drop()
            overwrite(file, dirty)

    def drop(self, loop: str, position: int) -> None:
        with self._connection() as db, self._transaction(db, {loop}) as batch:
            batch.delete(loop, "DELETE FROM log WHERE loop = ? AND position = ?", (loop, position))

    def now(self) -> int:
        return self.clock()

    def hold(self, loop: str) -> int | None:
        return 0  # a file has one machine

    def notifications(self) -> int | None:
        return None

    def close(self) -> None:
        with self._turn:
            self._closed = True
            self._drop()
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __enter__(self) -> SqliteLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _select(self, body: str, rows: str, *parameters: object) -> list[Entry]:
        with self._connection() as db:
            try:
                selected = list(db.execute(f"SELECT {NAMES}, {body} FROM log {rows}", parameters))
            except sqlite3.OperationalError as error:
                if "decode" in str(error):  # a text that is no UTF-8
                    _raise_damaged(db, rows, parameters)
                raise
        return [entry_of(row, with_body=body is BODIES) for row in selected]

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        """Yield the connection; after any failure the next caller gets a new one."""
        with self._turn:
            if self._closed:
                raise StoreUnavailable("closed", "the log is closed")
            try:
                if self._db is None:
                    self._db = opened(self._connect)
                yield self._db
            except sqlite3.Error as error:
                self._drop()
                code = CODES.get(_code(error) & 0xFF, "failed")
                hint = "; another process holds a lock on the store's files" if code == "busy" else ""
                raise StoreUnavailable(code, f"{error}{hint}") from error
            except BaseException:
                self._drop()
                raise

    @contextlib.contextmanager
    def _transaction(self, db: Connection, loops: set[str]) -> Iterator[_Batch]:
        """Yield a batch that changes these loops, and commit; ``_connection`` undoes a failed one."""
        db.execute("BEGIN IMMEDIATE")
        batch = _Batch(db, self.clock, loops)
        yield batch
        batch.update_heads()
        db.execute("COMMIT")

    def _drop(self) -> None:
        if self._db is not None:
            close(self._db)
            self._db = None


class _Batch:
    """One transaction: numbers records, and notes the new end of each loop's log."""

    def __init__(self, db: Connection, clock: Callable[[], int], loops: set[str]) -> None:
        self._db = db
        self._heads = _heads(db, loops)
        self._time = max([clock(), *(head.time for head in self._heads.values())])
        self._changed: set[str] = set()

    def insert(self, groups: Sequence[Group]) -> list[Outcome]:
        """Insert many groups by one statement; if that fails, insert them one by one."""
        outcomes: list[Outcome] = []
        some: list[Group] = []
        n_rows = 0
        for group in groups:
            if some and n_rows + len(group) > ROWS_PER_STATEMENT:
                outcomes += self._insert_some(some)
                some, n_rows = [], 0
            some.append(group)
            n_rows += len(group)
        return outcomes + self._insert_some(some) if some else outcomes

    def _insert_some(self, groups: Sequence[Group]) -> list[Outcome]:
        before = dict(self._heads)
        runs: list[Sequence[Row]] = []
        try:
            outcomes, rows = self._rows(groups)
            runs = [*_runs(rows)]
            if len(runs) > 1:
                self._db.execute("SAVEPOINT runs")
            for run in runs:
                values = [value for row in run for value in row]
                self._db.execute(_insertion(len(run)), tuple(values))
            if len(runs) > 1:
                self._db.execute("RELEASE runs")
            return outcomes
        except (Refused, UnicodeEncodeError, sqlite3.Error) as error:
            if isinstance(error, sqlite3.Error) and not _is_refusal(error):
                raise
            if len(runs) > 1:
                self._db.execute("ROLLBACK TO runs")
                self._db.execute("RELEASE runs")
            self._heads = before
            if len(groups) == 1:
                return [self._refused(groups[0], error)]
        return [outcome for group in groups for outcome in self._insert_some([group])]

    def _rows(self, groups: Sequence[Group]) -> tuple[list[Outcome], list[Row]]:
        """Return the position of each group's first record, and a row for each record."""
        outcomes: list[Outcome] = []
        rows: list[Row] = []
        for group in groups:
            check_group(group)
            outcomes.append(self._heads.get(group[0].loop, NO_RECORDS).last + 1)
            rows += [self._row(record) for record in group]
        return outcomes, rows

    def _refused(self, group: Group, error: Exception) -> Refused:
        if isinstance(error, Refused):
            return error
        if isinstance(error, UnicodeEncodeError):
            return Refused(f"a record must be valid Unicode: {error}")
        if _code(error) == sqlite3.SQLITE_TOOBIG:
            longest = max(len(record.body) for record in group)
            return Refused(f"body must be shorter than SQLite's limit, got {longest} bytes")
        for record in group:
            if record.kind not in ONCE:
                continue
            for (first,) in list(self._db.execute(FIRST_OF, (record.loop, record.event, record.kind))):
                return duplicate(record, int(first))
        return duplicate(group[-1], 0)  # of a record of the same group

    def _row(self, record: Record) -> Row:
        loop, kind, event, user, example, body = checked(record)
        head, time = self._heads.get(loop, NO_RECORDS), self._time
        position = head.last + 1
        self._heads[loop] = Head(position, time, head.removed)
        self._changed.add(loop)
        digest = checksum(Entry(loop, position, time, kind, event, user, example, body))
        return loop, position, time, kind, event, user, digest, example, readable(body)

    def delete(self, loop: str, statement: str, parameters: tuple[object, ...]) -> int:
        """Delete records of a loop; return how many."""
        if loop not in self._heads:
            raise Refused(f"loop must be one that the log has, got {loop!r}")
        self._db.execute(statement, parameters)
        [(n,)] = self._db.execute("SELECT changes()")
        head = self._heads[loop]
        self._heads[loop] = head._replace(removed=head.removed + int(n))
        self._changed.add(loop)
        return int(n)

    def update_heads(self) -> None:
        for loop in self._changed & self._heads.keys():
            self._db.execute(SET_HEAD, (loop, *self._heads[loop]))


def _heads(db: Connection, loops: set[str] | None = None) -> dict[str, Head]:
    """Return where the logs of these loops end, or of all."""
    if loops is None:
        rows = db.execute("SELECT loop, last, time, removed FROM head")
    else:
        heads_of = f"SELECT loop, last, time, removed FROM head WHERE loop IN ({', '.join('?' * len(loops))})"
        rows = db.execute(heads_of, tuple(loops))
    return {loop: Head(last, time, removed) for loop, last, time, removed in rows}


def _read_until(
    db: Connection, query: str, parameters: tuple[object, ...], read: Callable[[Entry], T | None]
) -> list[T]:
    """Return what ``read`` makes of the rows, until it returns None: SQLite makes a row when it is needed."""
    results: list[T] = []
    for row in db.execute(query, parameters):
        result = read(entry_of(row, with_body=True))
        if result is None:
            break
        results.append(result)
    return results


def _runs(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield the rows of one statement after another: a large row, or a power of two of small ones."""
    first = 0
    while first < len(rows):
        following = rows[first : first + ROWS_PER_STATEMENT]
        n_small = next((k for k, row in enumerate(following) if _n_bytes(row) > LARGE_ROW), len(following))
        n_rows = 1 << max(n_small, 1).bit_length() - 1
        yield following[:n_rows]
        first += n_rows


def _n_bytes(row: Row) -> int:
    """Return the size of a row, nearly: of its example and its body."""
    *_, example, body = row
    return len(example or b"") + len(body)


@functools.cache
def _insertion(n_rows: int) -> str:
    return INSERT + MORE_ROWS * (n_rows - 1)


def entry_of(row: tuple[Any, ...], *, with_body: bool) -> Entry:
    """Return a row as an entry, checked; without a body if it was not read."""
    loop, position, time, kind, event, user, digest, example, body = row
    entry = Entry(loop, position, time, kind, event, user, example, body or b"")
    check(entry, digest, with_body=with_body or body is not None)
    return entry


def _raise_damaged(db: Connection, rows: str, parameters: tuple[object, ...]) -> None:
    """Raise ``DamagedRecord`` for the first row whose texts cannot be read."""
    texts = "CAST(loop AS BLOB), position, CAST(kind AS BLOB), CAST(event AS BLOB), CAST(user AS BLOB)"
    for loop, position, *others in db.execute(f"SELECT {texts} FROM log {rows}", parameters):
        try:
            for text in (loop, *others):
                text and text.decode()
        except UnicodeDecodeError:
            raise DamagedRecord(loop.decode(errors="replace"), position) from None


def _is_refusal(error: sqlite3.Error) -> bool:
    """Return whether one record is to blame, and not the store."""
    return _code(error) in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_TOOBIG)


def _first(db: Connection, query: str, parameters: tuple[Any, ...]) -> tuple[Any, ...] | None:
    return next(iter(list(db.execute(query, parameters))), None)


def _give_pages_back(db: Connection, after: int) -> int | None:
    """Shorten the file by some of its free pages; return None once it has none, or is of the kind that keeps them."""
    [(kind,)], [(n_free,)] = db.execute("PRAGMA auto_vacuum"), db.execute("PRAGMA freelist_count")
    if kind != INCREMENTAL or not n_free:
        list(db.execute("PRAGMA wal_checkpoint(PASSIVE)"))  # the file is shortened when its pages are moved there
        return None
    db.execute("BEGIN IMMEDIATE")
    for _ in range(min(n_free, PAGES_AT_ONCE)):
        list(db.execute("PRAGMA incremental_vacuum(1)"))  # sqlite3 takes one step of it, which frees one page
    db.execute("COMMIT")
    return after


def _code(error: Exception) -> int:
    """Return SQLite's extended result code, 0 for an error that Python made."""
    return getattr(error, "sqlite_errorcode", 0)


def _empty_wal(db: Connection) -> None:
    """Move all pages to the database file, so that none with deleted content is left beside it."""
    [(blocked, _, _)] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if blocked:
        raise StoreUnavailable("busy", "the records are deleted, but a reader holds old pages: erase again")

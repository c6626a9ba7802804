"""Verifies a log: every record against its checksums, and the file around them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedres.lease import Lease
from fedres.progress import Progress, ignore_progress
from service.log.protocol import Head, Log, StoreUnavailable
from service.log.records import DamagedRecord, Entry, check
from service.log.sqlite import BODIES, NAMES
from service.log.sqlite_schema import SCHEMA, check_kind
from service.log.sqlite_wal import wal_damage

RESTORE = "restore a backup (fedres log restore)"


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged file or record; records have a loop, a position and a kind too."""

    file: str
    message: str
    advice: str
    loop: str | None = None
    position: int | None = None
    kind: str | None = None


@dataclass(slots=True)
class Seen:
    """The number of a loop's records, and its last one."""

    n_records: int = 0
    last: int = 0
    time: int = 0  # of the record at ``last``


@dataclass(slots=True)
class Verification:
    """The result of a verification."""

    findings: list[Finding] = field(default_factory=list)
    n_records: int = 0
    heads: dict[str, Head] = field(default_factory=dict)

    def add(self, file: str, message: str, advice: str = RESTORE, **record: Any) -> None:
        self.findings.append(Finding(file, message, advice, **record))


def check_exists(path: Path) -> None:
    """Raise ``ValueError`` if the store does not exist."""
    if not path.exists():
        raise ValueError(f"no store at {path}; run this where the service was started, or pass --store")


def snapshot_of(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """Return a connection that reads the current state of the store, without writing or blocking writers."""
    check_exists(path)
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=10)
    try:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_master").fetchall()  # begins to read
    except BaseException:
        db.close()
        raise
    return contextlib.closing(db)


def is_in_use(path: Path) -> bool:
    """Return whether a service uses the store; nothing is written, as the disk may be read-only."""
    try:
        file = os.open(Lease(path).path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(file)


def verify_sqlite(path: Path, progress: Progress = ignore_progress) -> Verification:
    """Verify a SQLite store: the file, its write-ahead log, all records, and that none is missing."""
    check_exists(path)
    verification = Verification()
    wal = wal_damage(path, in_use=is_in_use(path))
    if wal is not None:
        keep = f"keep what is in front of the damage (sqlite3 {path} 'PRAGMA wal_checkpoint(TRUNCATE)')"
        verification.add(f"{path}-wal", str(wal), f"{RESTORE}, or {keep}" if wal.certain else "start the service")
    try:
        with snapshot_of(path) as db:
            db.text_factory = lambda data: data.decode(errors="surrogateescape")  # no checksum matches such text
            check_kind(db)
            _check_file(db, str(path), verification)
            heads = db.execute("SELECT loop, last, time, removed FROM head")
            verification.heads = {loop: Head(*head) for loop, *head in heads}
            seen = _check_records(db, str(path), verification, progress)
            _check_heads(str(path), verification, seen)
    except StoreUnavailable as error:
        verification.add(str(path), error.message)
    except (sqlite3.Error, TypeError, ValueError) as error:
        verification.add(str(path), f"the file cannot be read: {error}")
    return verification


def _check_file(db: sqlite3.Connection, file: str, verification: Verification) -> None:
    made = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")}
    if made != {sql for sql in SCHEMA if sql.startswith("CREATE")}:
        verification.add(file, "the tables or indices are not those of this version")
    try:
        for (line,) in db.execute("PRAGMA integrity_check"):
            if line != "ok":
                verification.add(file, f"SQLite finds the file damaged: {line}")
    except sqlite3.Error as error:  # continue, to name the readable records
        verification.add(file, f"SQLite finds the file damaged: {error}")


def _check_records(
    db: sqlite3.Connection, file: str, verification: Verification, progress: Progress
) -> dict[str, Seen]:
    """Check all records in order; if a page cannot be read, also from the last one backwards."""
    total = sum(head.last - head.removed for head in verification.heads.values())
    seen: dict[str, Seen] = {}
    reached = 0
    for direction in ("", "DESC"):
        rows = f"SELECT rowid, {NAMES}, {BODIES} FROM log WHERE rowid > ? ORDER BY rowid {direction}"
        try:
            for rowid, *row in db.execute(rows, (reached,)):
                _check_row(row, file, verification, seen)
                reached = rowid if not direction else reached
                if verification.n_records % 1_000 == 0:
                    progress(verification.n_records, total)
            break
        except sqlite3.Error as error:
            verification.add(file, f"records cannot be read: {error}")
    progress(verification.n_records, total)
    return seen


def _check_row(row: list[Any], file: str, verification: Verification, seen: dict[str, Seen]) -> None:
    loop, position, time, kind, event, user, checksum, example, body = row
    verification.n_records += 1
    loop_seen = seen.setdefault(loop, Seen())
    loop_seen.n_records += 1
    try:
        check(Entry(loop, position, time, kind, event, user, example, body), checksum, with_body=True)
    except DamagedRecord:
        _add_record(verification, file, loop, position, kind)
        return
    if position > loop_seen.last:
        loop_seen.last, loop_seen.time = position, time


def _add_record(verification: Verification, file: str, loop: str, position: int, kind: str | None) -> None:
    advice = f"{RESTORE}, or give the record up (fedres log drop {loop} {position})"
    message = f"record {position} of loop {loop!r} does not match its checksum"
    verification.add(file, message, advice, loop=loop, position=position, kind=kind)


def _check_heads(file: str, verification: Verification, seen: dict[str, Seen]) -> None:
    for loop in sorted({*seen, *verification.heads}):
        head, there = verification.heads.get(loop, Head(0, 0, 0)), seen.get(loop, Seen())
        expected = head.last - head.removed
        if there.n_records != expected:
            verification.add(file, f"loop {loop!r} must have {expected} records, and has {there.n_records}", loop=loop)
        elif not _ends_at(there, head) and not any(finding.loop == loop for finding in verification.findings):
            verification.add(file, f"the head of loop {loop!r} does not match its last record", loop=loop)


def _ends_at(there: Seen, head: Head) -> bool:
    if there.last < head.last:  # the last records were dropped
        return there.time <= head.time
    return (there.last, there.time) == (head.last, head.time)


def verify_log(log: Log, name: str, progress: Progress = ignore_progress) -> Verification:
    """Check the records of any log through its own calls."""
    verification = Verification(heads=log.heads())
    total = sum(head.last - head.removed for head in verification.heads.values())
    for loop, head in verification.heads.items():
        n_damaged = len(verification.findings)
        n_before = verification.n_records
        for entry in _readable(log, loop, head.last):
            verification.n_records += 1
            if isinstance(entry, DamagedRecord):
                _add_record(verification, name, entry.loop, entry.position, None)
            if verification.n_records % 1_000 == 0:
                progress(verification.n_records, total)
        n_records, expected = verification.n_records - n_before, head.last - head.removed
        is_whole = len(verification.findings) == n_damaged and log.heads()[loop].removed == head.removed
        if is_whole and n_records != expected:
            verification.add(name, f"loop {loop!r} must have {expected} records, and has {n_records}", loop=loop)
    return verification


def _readable(log: Log, loop: str, last: int) -> Iterator[Entry | DamagedRecord]:
    after, limit = 0, 1_000
    while after < last:
        try:
            entries = log.read(loop, after, limit)
        except DamagedRecord as damage:
            if limit > 1:  # one by one, to the damaged record
                limit = 1
                continue
            yield damage
            after, limit = max(after + 1, damage.position), 1_000
            continue
        if not entries:
            return
        yield from (entry for entry in entries if entry.position <= last)
        after = entries[-1].position

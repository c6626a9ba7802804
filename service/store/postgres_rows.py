"""Records as PostgreSQL stores them, and putting many of them in at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

from service.store.log import Duplicate, Entry, Record, Refused, row_of
from service.store.postgres_opening import Database

LONGEST_KEY = 2_500  # bytes; an index takes 2,704 with all that belongs to an entry
LONGEST_BODY = 250_000_000  # bytes; a value takes a gigabyte, and so does a message

COLUMNS = 'seq, time, loop, kind, event, "user", body, raw'
TYPES = ("int8", "int8", "text", "text", "text", "text", "text", "bytea")
COPY = f"COPY fedres.log ({COLUMNS}) FROM STDIN (FORMAT BINARY)"
UPLOADS = ("rank", "residual", "update", "join")  # of which an event has one each
# OFFSET 0 makes the planner ask for one event after the other: without samples it would take the whole log for fewer.
KNOWN = """SELECT given.*, seq FROM unnest(%b::text[], %b::text[], %b::text[]) AS given (loop, kind, event)
    CROSS JOIN LATERAL (SELECT seq FROM fedres.log
    WHERE log.loop = given.loop AND log.event = given.event AND log.kind = given.kind OFFSET 0) AS found"""
OF_EVENTS = f"""SELECT found.* FROM (SELECT DISTINCT unnest(%b::text[]) AS event) AS given
    CROSS JOIN LATERAL (SELECT {COLUMNS} FROM fedres.log
    WHERE log.loop = %s AND log.event = given.event OFFSET 0) AS found ORDER BY seq"""

Key = tuple[str, str, str]  # loop, kind and event of an upload


class Row(NamedTuple):
    """A record as it is stored: its body as text that other tools can read, or raw."""

    loop: str
    kind: str
    event: str | None
    user: str | None
    body: str | None
    raw: bytes | None


def checked(record: Record) -> Row:
    """Return the record as PostgreSQL stores it; one caller's mistake must not fail the batch."""
    if isinstance(record.body, bytes) and len(record.body) > LONGEST_BODY:
        raise Refused(f"body must have at most {LONGEST_BODY} bytes, got {len(record.body)}")
    loop, kind, event, user, body = row_of(record)
    for name, value in (("loop", loop), ("kind", kind), ("event", event), ("user", user)):
        if value is not None and "\0" in value:
            raise Refused(f"{name} must have no NUL, which PostgreSQL cannot store, got {value!r}")
    for name, value in (("event", event), ("user", user)):
        size = len(loop.encode()) + len((value or "").encode()) + len(kind.encode())
        if size > LONGEST_KEY:
            raise Refused(f"{name} with loop and kind must take at most {LONGEST_KEY} bytes, got {size}")
    return (
        Row(loop, kind, event, user, body, None) if isinstance(body, str) else Row(loop, kind, event, user, None, body)
    )


def entry_of(row: tuple[Any, ...]) -> Entry:
    """Return a record as callers know it, from a row of all ``COLUMNS``."""
    seq, time, loop, kind, event, user, body, raw = row
    return Entry(seq, time, loop, kind, event, user, raw if body is None else body.encode())


def insert(db: Database, seq: int, now: int, records: Sequence[Record]) -> list[int | Refused]:
    """Insert all by one command; only where that meets a duplicate, ask which they are and insert the others."""
    rows = [_row_or_refused(record) for record in records]
    try:
        return _insert(db, seq, now, rows)
    except psycopg.errors.UniqueViolation as error:
        if error.diag.constraint_name != "log_by_event":
            raise
    return _insert(db, seq, now, _without_known(db, seq, rows))


def copy_in(db: Database, seq: int, now: int, rows: Sequence[Row]) -> None:
    """Insert rows from position ``seq`` on: by COPY, a few microseconds each."""
    if not rows:
        return
    with db.cursor() as cursor, cursor.copy(COPY) as copy:
        copy.set_types(TYPES)
        for at, row in enumerate(rows, seq):
            copy.write_row((at, now, *row))


def _insert(db: Database, seq: int, now: int, rows: Sequence[Row | Refused]) -> list[int | Refused]:
    new = [row for row in rows if isinstance(row, Row)]
    copy_in(db, seq, now, new)
    numbers = iter(range(seq, seq + len(new)))
    return [row if isinstance(row, Refused) else next(numbers) for row in rows]


def _row_or_refused(record: Record) -> Row | Refused:
    try:
        return checked(record)
    except Refused as refused:
        return refused
    except UnicodeEncodeError as error:
        return Refused(f"a record must be valid Unicode: {error}")


def _without_known(db: Database, seq: int, rows: Sequence[Row | Refused]) -> list[Row | Refused]:
    """Return the rows, refused where an upload is in the log already or in a row before."""
    first = _known(db, [key for row in rows if (key := _key(row)) is not None])
    outcomes: list[Row | Refused] = []
    for row in rows:
        key = _key(row)
        if key is not None and key in first:
            row = _duplicate(key, first[key])
        elif key is not None:
            first[key] = seq
        seq += isinstance(row, Row)
        outcomes.append(row)
    return outcomes


def _known(db: Database, keys: Sequence[Key]) -> dict[Key, int]:
    columns = [list(column) for column in zip(*keys, strict=True)]
    return {(loop, kind, event): int(seq) for loop, kind, event, seq in db.execute(KNOWN, columns)}


def _key(row: Row | Refused) -> Key | None:
    """Return what may be in the log once, None for what may be there often."""
    if isinstance(row, Refused) or row.event is None or row.kind not in UPLOADS:
        return None
    return row.loop, row.kind, row.event


def _duplicate(key: Key, first: int) -> Duplicate:
    loop, _, event = key
    return Duplicate(f"event must be new in loop {loop!r}, got {event!r}, the event of record {first}", first)

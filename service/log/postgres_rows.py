"""Records as PostgreSQL stores them, and the arrays in which a batch of them travels."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from service.log.checking import check_group, checked, duplicate, readable
from service.log.protocol import Group, Outcome, Refused
from service.log.records import ONCE, Entry, Record, checksum

LONGEST_KEY = 2_500  # bytes; an index entry takes at most 2,704
LONGEST_BODY = 250_000_000  # bytes; a value takes at most a gigabyte, and so does a message

Key = tuple[str, str, str]  # loop, kind and event of a record that must be unique


class LockedHead(NamedTuple):
    """Where a loop's log ends, and which machine may erase there."""

    last: int
    time: int
    epoch: int


class Array(NamedTuple):
    """A column of a batch, each cell as PostgreSQL's binary format has it."""

    cells: Sequence[bytes | None]


class BigInts(Array):
    pass


class Texts(Array):
    pass


class Byteas(Array):
    pass


def _dumper(array: int, element: int) -> type[Dumper]:
    class ArrayDumper(Dumper):
        """psycopg's own dumpers look at each cell's type; these columns have one."""

        format = Format.BINARY
        oid = array

        def dump(self, obj: Array) -> bytearray:
            data = bytearray(struct.pack("!iiIii", 1, 1, element, len(obj.cells), 1))
            for cell in obj.cells:
                if cell is None:
                    data += b"\xff\xff\xff\xff"
                else:
                    data += len(cell).to_bytes(4)
                    data += cell
            return data

    return ArrayDumper


def register(db: psycopg.Connection[Any]) -> None:
    """Let a session take these arrays as parameters."""
    for kind, array, element in ((BigInts, 1016, 20), (Texts, 1009, 25), (Byteas, 1001, 17)):
        db.adapters.register_dumper(kind, _dumper(array, element))


def big_ints(numbers: Sequence[int | None]) -> BigInts:
    return BigInts([None if number is None else number.to_bytes(8, signed=True) for number in numbers])


def texts(strings: Sequence[str | None]) -> Texts:
    return Texts([None if string is None else string.encode() for string in strings])


def refusal_of(group: Group) -> Refused | None:
    """Return why a group cannot be stored, None if it can: an invalid group must not fail the batch."""
    try:
        check_group(group)
        for record in group:
            _check(record)
    except Refused as refused:
        return refused
    except UnicodeEncodeError as error:
        return Refused(f"a record must be valid Unicode: {error}")
    return None


def _check(record: Record) -> None:
    loop, kind, event, user, _, body = checked(record)
    if len(body) > LONGEST_BODY:
        raise Refused(f"body must have at most {LONGEST_BODY} bytes, got {len(body)}")
    for name, value in (("loop", loop), ("kind", kind), ("event", event), ("user", user)):
        if value is None:
            continue
        size = len(loop.encode()) + len(value.encode()) + len(kind)
        if size > LONGEST_KEY:
            raise Refused(f"{name} with loop and kind must take at most {LONGEST_KEY} bytes, got {size}")


def keys_of(group: Group) -> list[Key]:
    """Return the keys of a group's records that must be unique in the log."""
    return [(loop, kind, event) for loop, kind, event, *_ in group if event is not None and kind in ONCE]


class NumberedRecords:
    """Groups of records that can be stored, numbered behind ``heads``.

    ``first`` are the positions of existing records that must be unique. Without it, duplicates are unknown here, and
    the unique index detects them.
    """

    def __init__(
        self, groups: Sequence[Group], heads: Mapping[str, LockedHead], now: int, first: dict[Key, int] | None = None
    ) -> None:
        self.heads = dict(heads)
        self.times = {loop: max(now, head.time) for loop, head in heads.items()}
        self.entries: list[Entry] = []
        self._last = {loop: head.last for loop, head in heads.items()}
        self._first = first
        self.outcomes: list[Outcome] = [self._add(group) for group in groups]

    def _add(self, group: Group) -> Outcome:
        repeated = self._duplicate(group)
        if repeated is not None:
            return repeated
        loop = group[0].loop
        first = position = self._last[loop] + 1
        for record in group:
            self.entries.append(Entry(loop, position, self.times[loop], *record[1:]))
            position += 1
        self._last[loop] = position - 1
        return first

    def _duplicate(self, group: Group) -> Refused | None:
        if self._first is None:
            return None
        new: dict[Key, int] = {}
        position = self._last[group[0].loop]
        for record in group:
            position += 1
            for key in keys_of([record]):
                if key in self._first or key in new:
                    return duplicate(record, self._first.get(key, 0))
                new[key] = position
        self._first.update(new)
        return None

    def parameters(self, epochs: Mapping[str, int], tell: bool) -> tuple[Any, ...]:
        """Return the arguments of the function ``fedres.append``."""
        loops = sorted(loop for loop in self.heads if self._last[loop] > self.heads[loop].last)
        loop, position, time, kind, event, user, example, bodies = zip(*self.entries, strict=True)
        stored = [readable(body) for body in bodies]
        return (
            texts(loops),
            big_ints([self.heads[loop].last for loop in loops]),
            big_ints([self.times[loop] for loop in loops]),
            big_ints([self._last[loop] - self.heads[loop].last for loop in loops]),
            big_ints([epochs.get(loop) for loop in loops]),
            texts(loop),
            big_ints(position),
            big_ints(time),
            texts(kind),
            texts(event),
            texts(user),
            Byteas([checksum(entry) for entry in self.entries]),
            Byteas(example),
            Texts([bytes(raw) if isinstance(text, str) else None for text, raw in zip(stored, bodies, strict=True)]),
            Byteas([raw if isinstance(raw, bytes) else None for raw in stored]),
            tell,
        )

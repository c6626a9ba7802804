"""What is wrong with one loop stops that loop only.

A loop that cannot learn from a record stands still in front of it: its models of before decide, it is named with the
record and a way out, and all other loops go on. Failures of the store and of the machine concern all loops and pass.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from service.learn.snapshots import DamagedSnapshot
from service.log.protocol import Log, StoreUnavailable
from service.log.records import DELETED, RANK, DamagedRecord, Entry

if TYPE_CHECKING:
    from service.learn.loop_state import LoopState

MACHINE = (StoreUnavailable, DamagedSnapshot, sqlite3.Error, OSError, MemoryError)  # errors that are of no single loop

GONE = "gone"  # stands for the kind of a record that is not there any more


class UnlearnableRecord(Exception):  # noqa: N818
    """A record that its loop cannot learn from. The loop stands still; ``at`` is the record that showed it."""

    def __init__(self, entry: Entry, error: Exception, at: int | None = None, model_replaced_at: int = 0) -> None:
        super().__init__(entry.loop, entry.position, str(error))
        self.loop, self.position, self.kind, self.event = entry.loop, entry.position, entry.kind, entry.event
        self.at, self.model_replaced_at = entry.position if at is None else at, model_replaced_at
        self.reason = f"{type(error).__name__}: {error}"

    def __str__(self) -> str:
        event = "" if self.event is None else f", event {self.event!r}"
        model = (
            f", or record {self.model_replaced_at}, which is the model it learns with,"
            if self.model_replaced_at
            else ""
        )
        return (
            f"record {self.position} of loop {self.loop!r} ({self.kind}{event}) cannot be learned from: {self.reason}. "
            f"The loop stands still, with the models that it had learned before; other loops go on. Give the "
            f"record{model} up (fedres log drop {self.loop} {self.position} --force), or delete the loop"
        )


Trouble = DamagedRecord | UnlearnableRecord


@contextlib.contextmanager
def blaming(log: Log, entries: Sequence[Entry], state: LoopState | None = None) -> Iterator[None]:
    """Name the record in what goes wrong: the decision that is settled or learned from, else the one that is read."""
    try:
        yield
    except (*MACHINE, DamagedRecord, UnlearnableRecord):
        raise
    except Exception as error:
        if state is None:
            raise UnlearnableRecord(entries[0], error) from error
        at = next((entry for entry in entries if entry.position == state.position), entries[0])
        event = state.join.current
        about = [] if event is None else log.find(at.loop, [event])
        blamed = next((entry for entry in about if entry.kind == RANK), at)
        raise UnlearnableRecord(blamed, error, at.position, state.metadata.model_replaced_at) from error


def is_in_the_way(log: Log, trouble: Trouble) -> bool:
    """Return whether the record that a loop stands still for is still there, and as it was."""
    if isinstance(trouble, UnlearnableRecord):
        named = [position for position in (trouble.position, trouble.model_replaced_at) if position]
        return all(entry_at(log, trouble.loop, position).kind != GONE for position in named)
    try:
        log.read(trouble.loop, trouble.position - 1, 1)
    except DamagedRecord as damage:
        return damage.position == trouble.position
    return False


def deleted_at(log: Log, trouble: Trouble) -> int:
    """Return where a loop that stands still was deleted last, 0 if it was not."""
    with contextlib.suppress(DamagedRecord):
        return max([0, *(entry.position for entry in log.of_kind(trouble.loop, DELETED))])
    return 0


def entry_at(log: Log, name: str, position: int) -> Entry:
    """Return the record at a position, or one of the kind ``GONE``."""
    with contextlib.suppress(DamagedRecord):
        for entry in log.read(name, position - 1, 1, bodies=False):
            if entry.position == position:
                return entry
    return Entry(name, position, 0, GONE, None, None, None, b"")

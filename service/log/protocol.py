"""The interface of all logs, for any database. A new backend is one file that passes the contract test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from service.errors import ApiError
from service.log.records import DELETED, LOOP, Entry, Record


class StoreUnavailable(Exception):  # noqa: N818
    """Nothing was acknowledged.

    ``code`` is one of busy, readonly, io, full, damaged (the disk, the file or the server), foreign, version (not a
    store of ours), gone, timeout (the log's process), fenced (another machine holds the loop), overloaded, closed,
    failed.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


def unavailable(error: StoreUnavailable) -> ApiError:
    """Return the refusal of a request that could not be stored: nothing was acknowledged."""
    return ApiError(503, f"store_{error.code}", f"the store is unavailable: {error}")


class Refused(ValueError):  # noqa: N818
    """A group of records that cannot be stored; other groups are."""


class Duplicate(Refused):
    """The loop already has a record of this kind for the event.

    ``position`` is that of the first record, 0 if it is in the same group.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class Head(NamedTuple):
    """Where a loop's log ends."""

    last: int  # position
    time: int  # of the last record
    removed: int  # records that were erased: last − removed exist


class Pruning(msgspec.Struct, frozen=True):
    """Old events to delete: all that were decided up to a position, with all records about them."""

    cut: int = 0  # position
    begun: int = 0  # of the record that made learners forget these events; later rewards are not for them
    done: int = 0  # of the record that names the base from which models are learned again, 0 if there is none yet
    before: int = 0  # remaining events are at least as new, except those that were pending; microseconds since 1970
    token: str = ""


NO_EPOCHS: Mapping[str, int] = {}
NO_LIMIT = 1 << 62

T = TypeVar("T")

Group = Sequence[Record]  # records of one loop that are stored together or not at all
Outcome = int | Refused  # the position of a group's first record, or why it was refused


class Log(Protocol):
    """A totally ordered log for each loop: synced before acknowledgement, idempotent by event, with checksums."""

    def append(self, groups: Sequence[Group], epochs: Mapping[str, int] = NO_EPOCHS) -> list[Outcome]:
        """Return the outcome of each group, once all accepted groups are durable.

        ``epochs`` are those under which the caller holds loops: if another machine has become the holder of a loop,
        nothing is stored and ``StoreUnavailable`` is raised.
        """

    def note(self, name: str) -> str | None:
        """Return the note of the store with a name, None if there is none."""

    def set_note(self, name: str, value: str) -> None:
        """Store a note about the store, outside all records; return once it is synced."""

    def heads(self) -> dict[str, Head]:
        """Return where each loop's log ends."""

    def read(self, loop: str, after: int = 0, limit: int = 1_000, *, bodies: bool = True) -> list[Entry]:
        """Return at most ``limit`` entries behind ``after``, oldest first, each checked.

        Without ``bodies``, bodies are left out of records with an example.
        """

    def find(self, loop: str, events: Sequence[str], kind: str | None = None) -> list[Entry]:
        """Return all records about the events, or those of one kind, oldest first.

        Decisions are looked up without reading the other records of their events.
        """

    def newest_of(self, loop: str, user: str, limit: int, read: Callable[[Entry], T | None]) -> list[T]:
        """Return what ``read`` makes of at most ``limit`` decisions of a user, the newest first, until it returns None.

        Few records are in memory at once.
        """

    def rewards_of(self, loop: str, event: str, limit: int) -> list[Entry]:
        """Return at most ``limit`` rewards of an event, in any order, without bodies where there is an example."""

    def interrupt(self) -> None:
        """Let a statement that reads the log on another thread fail with ``StoreUnavailable``, if there is one."""

    def of_user(self, loop: str, user: str, after: int = 0, limit: int = 1_000) -> list[Entry]:
        """Return at most ``limit`` records of a user behind ``after``, oldest first; the log is not scanned."""

    def of_kind(self, loop: str, kind: str, after: int = 0, limit: int = NO_LIMIT) -> list[Entry]:
        """Return at most ``limit`` records of a rare kind (erase, base, loop) behind ``after``, oldest first."""

    def erase(self, loop: str, user: str, body: Callable[[int], bytes], epoch: int | None = None) -> int:
        """Delete the user's records and the rewards of the user's events; append ``erased``; return the number deleted.

        The record does not name the user. Older base records that newer ones replace are deleted too.
        An ``epoch`` is checked as in ``append``.
        """

    def erase_some(self, loop: str, user: str, epoch: int | None = None) -> bool:
        """Delete some records that ``erase`` would delete, in one short transaction; return False if few are left.

        The user's ``erase`` records stay, so learners go on ignoring the user. Call it until it returns False, then
        ``erase``.
        """

    def existing(self, loop: str, events: Collection[str]) -> set[str]:
        """Return those of the events about which there is any record."""

    def prune(self, loop: str, old: Pruning, after: int = 0, epoch: int | None = None) -> int | None:
        """Delete some records of old events; return the next ``after``, None once all is done.

        A decision goes together with its rewards. Rewards whose event was decided behind the cut stay, and so does
        all other records: settings, catalogue, notes, the newest base of each user. The last calls give the space
        back. Each call is one short transaction, may be repeated, and leaves a valid log. An ``epoch`` is checked as
        in ``append``.
        """

    def size(self) -> int:
        """Return how many bytes the log takes on the disk, indices and free space inside included."""

    def scrub(self) -> Iterator[None]:
        """Overwrite deleted records in all files of this machine, step by step; other calls may come between."""

    def drop(self, loop: str, position: int) -> None:
        """Drop a damaged record for good."""

    def now(self) -> int:
        """Return the least time that a record appended now would have."""

    def hold(self, loop: str) -> int | None:
        """Make this machine the loop's holder; return its epoch, None while another machine is the holder."""

    def notifications(self) -> int | None:
        """Return a file that becomes readable when records are appended, None if callers have to poll."""

    def close(self) -> None:
        """Close for good; acknowledged records are safe without it."""


def live_loop(log: Log, loop: str) -> Entry | None:
    """Return the record that created a loop, None if the loop does not exist or was deleted."""
    made, deleted = log.of_kind(loop, LOOP), log.of_kind(loop, DELETED)
    return made[-1] if made and not (deleted and deleted[-1].position > made[-1].position) else None

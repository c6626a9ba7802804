"""What every log can do, in whatever database it is. A new backend is one file that passes the contract test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from service.log.records import Entry, Record


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


class Refused(ValueError):  # noqa: N818
    """A group of records that cannot be stored; other groups are."""


class Duplicate(Refused):
    """The loop already has a record of this kind for the event.

    ``position`` is the record that came first, 0 where that is in the same group.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class Head(NamedTuple):
    """Where a loop's log ends."""

    last: int  # position
    time: int  # of the last record
    removed: int  # records that were erased: last − removed are there


class Pruning(NamedTuple):
    """Old events that are to go: all that were decided up to a position, and what is logged about them."""

    cut: int  # position
    begun: int  # of the record that told learners to forget these events; later rewards are not about them
    done: int  # of the record that names the base from which models are learned again


NO_EPOCHS: Mapping[str, int] = {}

Group = Sequence[Record]  # records of one loop that are stored together or not at all
Outcome = int | Refused  # the position of a group's first record, or why it was refused


class Log(Protocol):
    """A totally ordered log for each loop: synced before acknowledgement, idempotent by event, with checksums."""

    def append(self, groups: Sequence[Group], epochs: Mapping[str, int] = NO_EPOCHS) -> list[Outcome]:
        """Return what came of each group, once all that were taken are durable.

        ``epochs`` are those under which the caller holds loops: if another machine has become the holder of one,
        nothing is stored, and ``StoreUnavailable`` says so.
        """

    def note(self, name: str) -> str | None:
        """Return what is noted about the store under a name, None where nothing is."""

    def set_note(self, name: str, value: str) -> None:
        """Note something about the store that is no record; return once it is synced."""

    def heads(self) -> dict[str, Head]:
        """Return where each loop's log ends."""

    def read(self, loop: str, after: int = 0, limit: int = 1_000, *, bodies: bool = True) -> list[Entry]:
        """Return at most ``limit`` entries behind ``after``, oldest first, each checked.

        Without ``bodies``, those are left out where an example says it all.
        """

    def find(self, loop: str, events: Sequence[str]) -> list[Entry]:
        """Return all that was logged about the events, oldest first."""

    def newest_of(self, loop: str, user: str, limit: int) -> list[Entry]:
        """Return at most ``limit`` records of a user, the newest first."""

    def of_kind(self, loop: str, kind: str) -> list[Entry]:
        """Return the records of a rare kind (erase, erased, loop), oldest first."""

    def bases(self, loop: str, before: int) -> Iterator[Entry]:
        """Yield the base records in front of a position, oldest first."""

    def erase(self, loop: str, user: str, body: Callable[[int], bytes], epoch: int | None = None) -> int:
        """Delete the user's records and the rewards of the user's events; append ``erased``; return how many went.

        The record says that somebody was erased, not who. Older base records that newer ones replace go too.
        An ``epoch`` is checked as in ``append``.
        """

    def prune(self, loop: str, old: Pruning, after: int = 0, epoch: int | None = None) -> int | None:
        """Delete some records of old events; return what to pass as ``after`` to go on, None once all is done.

        A decision goes together with its rewards. Rewards whose event was decided behind the cut stay, and so does
        whatever is no event: settings, catalogue, notes, the newest base of each user. The last calls give the space
        back. Each call is one short transaction, may be repeated, and leaves a good log. An ``epoch`` is checked as
        in ``append``.
        """

    def size(self) -> int:
        """Return how many bytes the log takes on the disk, indices and free space inside included."""

    def scrub(self) -> Iterator[None]:
        """Leave nothing of deleted records in any file of this machine, step by step; other calls may come between."""

    def drop(self, loop: str, position: int) -> None:
        """Give a damaged record up."""

    def now(self) -> int:
        """Return the time that a record appended now would have, at least."""

    def hold(self, loop: str) -> int | None:
        """Return the epoch under which this machine may do what only one may, None while another machine does it."""

    def notifications(self) -> int | None:
        """Return a file that can be read once something was appended, None where callers have to poll."""

    def close(self) -> None:
        """Close for good; what was acknowledged needs no closing to be safe."""

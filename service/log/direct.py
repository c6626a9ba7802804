"""What the learner asks of the log writer, done in its own process where there is none, and what tools ask of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.log.protocol import NO_EPOCHS, Group, Log, Outcome, Pruning
from service.log.records import DELETED, ERASE, LOOP, Entry, ErasedBody, decode_erase, encode

PRUNED = "pruned {}"  # the note of the last pruning of a loop that is done, by where it began


class DirectWriter:
    """Writes to a log that no other process of the machine writes to."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def append(self, groups: Sequence[Group], epochs: Mapping[str, int] = NO_EPOCHS) -> list[Outcome]:
        return self._log.append(groups, epochs)

    def erase(self, loop: str, user: str, base: int, token: str, epoch: int | None = None) -> int:
        return erase(self._log, loop, user, base, token, epoch)

    def prune(self, loop: str, old: Pruning, after: int, epoch: int | None = None) -> int | None:
        return prune(self._log, loop, old, after, epoch)

    def scrub(self, ticket: int) -> bool:
        return not [*self._log.scrub()]


def erase(log: Log, loop: str, user: str, base: int, token: str, epoch: int | None) -> int:
    """Erase a user; return how many records went."""
    erasures = [entry for entry in log.of_kind(loop, ERASE) if entry.user == user]
    others = [other for entry in erasures if (other := decode_erase(entry.body).token) != token]
    return log.erase(loop, user, lambda n: encode(ErasedBody(n, base, token, others)), epoch)


def prune(log: Log, loop: str, old: Pruning, after: int, epoch: int | None) -> int | None:
    """Prune a little, and note when that is done: a restart need not look again."""
    following = log.prune(loop, old, after, epoch)
    if following is None:
        log.set_note(PRUNED.format(loop), str(old.begun))
    return following


def live_loop(log: Log, loop: str) -> Entry | None:
    """Return the record that made a loop, None where there is no such loop, or it was deleted."""
    made, deleted = log.of_kind(loop, LOOP), log.of_kind(loop, DELETED)
    return made[-1] if made and not (deleted and deleted[-1].position > made[-1].position) else None


def is_pruned(log: Log, loop: str, begun: int) -> bool:
    """Return whether the pruning that began at a position is done."""
    return log.note(PRUNED.format(loop)) == str(begun)

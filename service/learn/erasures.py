"""Erasing a user, without stopping anything.

The ``erase`` record makes every learner forget the user and ignore all later records of the user. One
machine, the holder, then logs the models of all others as they are (they cannot be learned again without the user's
records) and deletes the user's records; the ``erased`` record says that this is done. Ranking and rewards go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from service.learn.follower import Follower
from service.learn.loop_state import LoopState
from service.log.records import BASE, Record
from service.models.loop_metadata import Base, PersonalBase

CHUNK = 500  # models in one transaction

_pack = msgspec.msgpack.Encoder().encode


class Erasures:
    """The erasures under way on this machine. ``step`` does a small part of the work."""

    def __init__(self) -> None:
        self.cleaned: set[str] = set()  # tokens of erasures after which no file has anything of the user
        self._cleaning: Iterator[None] | None = None  # the rest of the cleaning under way

    @property
    def is_cleaning(self) -> bool:
        """Whether files are being cleaned, which relies on all changes being in the write-ahead log."""
        return self._cleaning is not None

    def step(self, follower: Follower) -> None:
        """Complete the erasures of loops that this machine holds, and clean its files after complete ones."""
        if self._cleaning is None:
            for state in list(follower.loops.values()):
                for user, token in list(state.metadata.erasing.items()):
                    with follower.alone(state.metadata.name):
                        epoch = follower.epoch_to_end(state.metadata.name)
                        if epoch is not None and follower.has_read(state, epoch) and user in state.metadata.erasing:
                            _erase(follower, state, user, token, epoch)
        _forget_in_snapshot(follower)
        tokens = {token for state in follower.loops.values() for token in state.metadata.erased}
        cleaning, self._cleaning = self._cleaning, None
        if cleaning is None and _may_clean(follower) and not tokens <= self.cleaned:
            cleaning = self._clean_files(follower, tokens)
        if cleaning is not None and next(cleaning, "done") != "done":  # else restart it if it failed
            self._cleaning = cleaning

    def _clean_files(self, follower: Follower, tokens: set[str]) -> Iterator[None]:
        """Remove all data of erased users from this machine's files; only then publish an erasure as complete.

        The snapshot may hold them or their names. The log no longer has such records, but copies in unused parts of
        its pages. Finding those takes a second per gigabyte, so the log's writer does it in small steps.
        """
        follower.saver.flush(follower.loops, scrub=True)
        ticket = int.from_bytes(os.urandom(6), "little")
        log_is_clean = follower.writer.scrub(ticket)
        yield from follower.snapshots.scrub()
        while not log_is_clean:
            yield
            log_is_clean = follower.writer.scrub(ticket)
        self.cleaned = tokens
        for state in follower.loops.values():
            state.published = None  # to be published again


def _may_clean(follower: Follower) -> bool:
    """Return whether all loops can be saved: what the file has of one that cannot may be from before an erasure."""
    return all(not state.is_midway for state in follower.loops.values() if state.metadata.erased)


def _forget_in_snapshot(follower: Follower) -> None:
    """Take users who are being erased out of the snapshot, and loops that were deleted."""
    for state in follower.loops.values():
        if state.is_midway:
            continue  # the file keeps what it has of it
        for user in state.forgotten:
            follower.saver.erase(state.metadata.name, user)
        state.forgotten.clear()
    if follower.saver.is_unclean:
        follower.saver.flush(follower.loops, scrub=True)


def _erase(follower: Follower, state: LoopState, user: str, token: str, epoch: int) -> None:
    _forget_in_snapshot(follower)
    follower.saver.flush(follower.loops)  # the models of all others are in the snapshot after this
    log_base(follower, state, epoch)
    follower.writer.erase(state.metadata.name, user, state.position, token, epoch)
    follower.wrote(state.metadata.name)
    while follower.turn(state.metadata.name):
        pass
    _forget_in_snapshot(follower)  # the previous snapshot may also end with a record that was deleted


def log_base(follower: Follower, state: LoopState, epoch: int) -> None:
    """Log the models that have changed since the last base, and the shared one; refuse what could not be read again."""
    name, metadata, shared_model = state.metadata.name, state.metadata, state.shared.to_bytes()
    state.kind.from_bytes(metadata.settings, shared_model)
    records = []
    for user, changed, model in follower.snapshots.personal(name, changed_after=metadata.base):
        follower.beat()
        state.kind.personal_data(changed, model)
        records.append(Record(name, BASE, user=user, body=_pack(PersonalBase(changed, model))))
        if len(records) == CHUNK:
            follower.writer.append([records], {name: epoch})
            records = []
    shared = Base(shared_model, metadata.version, metadata.statistics, metadata.clients, metadata.guard, state.time)
    records.append(Record(name, BASE, body=_pack(shared)))
    follower.writer.append([records], {name: epoch})

"""Erasing a user, without stopping anything.

The ``erase`` record makes every learner forget the user and ignore all later records of the user. One
machine, the holder, then logs the models of all others as they are (they cannot be learned again without the user's
records) and deletes the user's records, some at a time; the ``erased`` record says that this is done. Erasures that
wait at the same time share the models that are logged. Ranking, rewards and learning go on. A deleted loop has no
models: there, only records are deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from service.learn.follower import SLICE_SECONDS, Follower
from service.learn.loop_state import REMEMBERED_ERASURES, LoopState
from service.log.records import BASE, Record
from service.models.loop_metadata import Base, PersonalBase

CHUNK = 500  # models in one transaction
MOST_TOGETHER = REMEMBERED_ERASURES // 10  # erasures that share a base; they are published before the next begin

_pack = msgspec.msgpack.Encoder().encode


class Batch(NamedTuple):
    """Erasures of users of one loop that share a base, so its models are logged once."""

    loop: str
    id: str | None  # of the loop while it lives; None if it is deleted, and there is no base
    epoch: int
    base: int
    waiting: list[tuple[str, str]]  # users that are not erased yet, with the token of each


class Erasures:
    """The erasures under way on this machine. ``step`` does a small part of the work."""

    def __init__(self) -> None:
        self.cleaned: set[str] = set()  # tokens of erasures after which no file has anything of the user
        self._batch: Batch | None = None
        self._cleaning: Iterator[None] | None = None  # the rest of the cleaning under way

    @property
    def is_cleaning(self) -> bool:
        """Whether files are being cleaned, which relies on all changes being in the write-ahead log."""
        return self._cleaning is not None

    @property
    def is_busy(self) -> bool:
        """Whether erasures are under way that rely on the newest base."""
        return self._cleaning is not None or self._batch is not None

    def step(self, follower: Follower) -> bool:
        """Complete the erasures of loops that this machine holds, and clean its files after complete ones.

        Return whether there is more to do at once.
        """
        _forget_in_snapshot(follower)
        if self._cleaning is None and self._batch is None and self._tokens(follower) <= self.cleaned:
            self._batch = _next_batch(follower)
        if self._batch is not None:
            name = self._batch.loop
            self._erase_some(follower, self._batch)
            if self._batch is not None:
                return True
            follower.turn(name)
            _forget_in_snapshot(follower)  # the previous snapshot may end with a record that was deleted
        cleaning, self._cleaning = self._cleaning, None
        if cleaning is None and _may_clean(follower) and not self._tokens(follower) <= self.cleaned:
            cleaning = self._clean_files(follower, self._tokens(follower))
        if cleaning is not None and next(cleaning, "done") != "done":  # else restart it if it failed
            self._cleaning = cleaning
        return False

    def _tokens(self, follower: Follower) -> set[str]:
        """Return the tokens of all erasures that are complete in the log, as far as they are remembered."""
        return {
            *follower.orphans_erased,
            *(token for state in follower.loops.values() for token in state.metadata.erased),
        }

    def _erase_some(self, follower: Follower, batch: Batch) -> None:
        """Erase users for a slice of time; those with very many records take several."""
        until = follower.clock() + SLICE_SECONDS
        self._batch = None  # begins again with another base if this fails
        state = follower.loops.get(batch.loop)
        follower.wrote(batch.loop)
        if batch.id is not None and (state is None or state.metadata.id != batch.id):
            return
        while batch.waiting:
            user, token = batch.waiting[0]
            follower.beat()
            with follower.alone(batch.loop):
                if follower.writer.erase(batch.loop, user, batch.base, token, batch.epoch) is not None:
                    del batch.waiting[0]
                    if batch.id is None:
                        follower.note_orphans_erased(batch.loop, [token])
            if batch.loop in follower.halted:
                return
            if follower.clock() >= until and batch.waiting:
                self._batch = batch
                return

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


def _next_batch(follower: Follower) -> Batch | None:
    """Begin to erase users of one loop, of those that have waited longest: log the models of all others."""
    for name, state in list(follower.loops.items()):
        if not state.metadata.erasing:
            continue
        with follower.alone(name):
            epoch = follower.epoch_to_end(name)
            if epoch is not None and follower.has_read(state, epoch):
                _forget_in_snapshot(follower)
                follower.saver.flush(follower.loops)  # the models of all others are in the snapshot after this
                log_base(follower, state, epoch)
                waiting = list(state.metadata.erasing.items())[:MOST_TOGETHER]
                return Batch(name, state.metadata.id, epoch, state.position, waiting)
    for name, erasures in follower.orphans.items():
        epoch = follower.hold(name) if erasures and name not in follower.loops else None
        if epoch is not None:
            return Batch(name, None, epoch, 0, list(erasures.items())[:MOST_TOGETHER])
    return None


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

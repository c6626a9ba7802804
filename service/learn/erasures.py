"""Erasing a user, without stopping anything.

The ``erase`` record tells every learner to forget the user and to ignore whatever comes of the user from there on. One
machine, the holder, then logs the models of all others as they are (they cannot be learned again without the user's
records) and deletes the user's records; the ``erased`` record says that this is done. Ranking and rewards go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from service.log.records import BASE, Record
from service.models.loop_metadata import Base, PersonalBase

if TYPE_CHECKING:
    from service.learn.learner import Learner
    from service.learn.loop_state import LoopState

CHUNK = 500  # models in one transaction

_pack = msgspec.msgpack.Encoder().encode


class Cleaning:
    """What is under way to clean the files after erasures: the snapshot's here, those of the log by their writer."""

    def __init__(self, tokens: set[str], snapshot: Iterator[None]) -> None:
        self.tokens = tokens
        self._snapshot: Iterator[None] | None = snapshot
        self._ticket = int.from_bytes(os.urandom(6), "little")
        self._log_is_clean = False

    def go_on(self, learner: Learner) -> bool:
        """Clean for a moment; return whether all is done."""
        self._log_is_clean = self._log_is_clean or learner.writer.scrub(self._ticket)
        if self._snapshot is not None and next(self._snapshot, _DONE) is _DONE:
            self._snapshot = None
        return self._log_is_clean and self._snapshot is None


_DONE = object()


class Erasures:
    """What is under way on this machine. ``step`` does a little of it."""

    def __init__(self) -> None:
        self.cleaned: set[str] = set()  # tokens of erasures after which no file has anything of the user
        self._cleaning: Cleaning | None = None

    @property
    def is_cleaning(self) -> bool:
        """Whether files are being cleaned, which relies on all changes being in the write-ahead log."""
        return self._cleaning is not None

    def step(self, learner: Learner) -> None:
        """Complete the erasures of loops that this machine holds, and clean its files after complete ones."""
        if self._cleaning is None:
            for state in list(learner.loops.values()):
                for user, token in list(state.metadata.erasing.items()):
                    with learner.alone(state.metadata.name):
                        epoch = learner.epoch_to_end(state.metadata.name)
                        if epoch is not None and learner.catch_up(state) and user in state.metadata.erasing:
                            _erase(learner, state, user, token, epoch)
        self._clean_files(learner)

    def _clean_files(self, learner: Learner) -> None:
        """Leave nothing of erased users in this machine's files; only then is an erasure published as complete.

        The snapshot may have them, or name them. The log has no such records any more, but copies in unused parts of
        its pages. To find those takes a second for each gigabyte, so it is done a moment at a time.
        """
        _forget_in_snapshot(learner)
        tokens = {token for state in learner.loops.values() for token in state.metadata.erased}
        if self._cleaning is None and not tokens <= self.cleaned:
            learner.saver.flush(learner.loops, scrub=True)
            self._cleaning = Cleaning(tokens, learner.snapshots.scrub())
        if self._cleaning is None:
            return
        try:
            done = self._cleaning.go_on(learner)
        except BaseException:
            self._cleaning = None  # to be begun again
            raise
        if done:
            self.cleaned, self._cleaning = self._cleaning.tokens, None
            learner.publish_again()


def _forget_in_snapshot(learner: Learner) -> None:
    """Take users who are being erased out of the snapshot, and loops that were deleted."""
    for state in learner.loops.values():
        for user in state.forgotten:
            learner.saver.erase(state.metadata.name, user)
        state.forgotten.clear()
    if learner.saver.is_unclean:
        learner.saver.flush(learner.loops, scrub=True)


def _erase(learner: Learner, state: LoopState, user: str, token: str, epoch: int) -> None:
    _forget_in_snapshot(learner)
    learner.saver.flush(learner.loops)  # the models of all others are in the snapshot after this
    log_base(learner, state, epoch)
    learner.writer.erase(state.metadata.name, user, state.position, token, epoch)
    while learner.step_log():
        pass
    _forget_in_snapshot(learner)  # the snapshot before may also end with a record that is gone


def log_base(learner: Learner, state: LoopState, epoch: int) -> None:
    """Log the models that have changed since the last base, and the shared one; refuse what could not be read again."""
    name, metadata, shared_model = state.metadata.name, state.metadata, state.shared.to_bytes()
    state.kind.from_bytes(metadata.settings, shared_model)
    records = []
    for user, changed, model in learner.snapshots.personal(name, changed_after=metadata.base):
        learner.beat()
        state.kind.personal_data(changed, model)
        records.append(Record(name, BASE, user=user, body=_pack(PersonalBase(changed, model))))
        if len(records) == CHUNK:
            learner.writer.append([records], {name: epoch})
            records = []
    shared = Base(shared_model, metadata.version, metadata.statistics, metadata.clients, metadata.guard, state.time)
    records.append(Record(name, BASE, body=_pack(shared)))
    learner.writer.append([records], {name: epoch})

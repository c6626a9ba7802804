"""Erasing a user, without stopping anything.

The ``erase`` record tells every learner to forget the user and to ignore whatever comes of the user from there on. One
machine, the holder, then logs the models of all others as they are (they cannot be learned again without the user's
records) and deletes the user's records; the ``erased`` record says that this is done. Ranking and rewards go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from service.learn.heads import Base, PersonalBase
from service.log.records import BASE, Record

if TYPE_CHECKING:
    from service.learn.learner import Learner
    from service.learn.loop_state import LoopState

CHUNK = 500  # models in one transaction

_pack = msgspec.msgpack.Encoder().encode


def complete_erasures(learner: Learner) -> None:
    """Complete the erasures of loops that this machine holds."""
    for state in list(learner.loops.values()):
        for user, token in list(state.head.erasing.items()):
            epoch = learner.epoch_to_end(state.head.name)
            if epoch is not None and _caught_up(learner, state, user):
                _erase(learner, state, user, token, epoch)


def _caught_up(learner: Learner, state: LoopState, user: str) -> bool:
    """Read all that the last holder has done, who can do nothing more; return whether the user is left to erase."""
    while learner.step_log():
        pass
    return learner.loops.get(state.head.name) is state and user in state.head.erasing


def clean_files(learner: Learner) -> None:
    """Leave nothing of erased users in this machine's files; only then is an erasure published as complete.

    The snapshot may have them, or name them. The log has no such records any more, but pages with them are left beside
    it if its writer was killed before they were overwritten.
    """
    for state in learner.loops.values():
        for user in state.forgotten:
            learner.saver.erase(state.head.name, user)
        state.forgotten.clear()
    tokens = {token for state in learner.loops.values() for token in state.head.erased}
    if learner.saver.is_unclean or not tokens <= learner.cleaned:
        learner.saver.flush(learner.loops, scrub=True)
        learner.writer.scrub()
        learner.cleaned = tokens
        learner.publish_again()


def _erase(learner: Learner, state: LoopState, user: str, token: str, epoch: int) -> None:
    clean_files(learner)
    learner.saver.flush(learner.loops)  # the models of all others are in the snapshot after this
    _log_base(learner, state, epoch)
    learner.writer.erase(state.head.name, user, state.position, token, epoch)
    while learner.step_log():
        pass
    clean_files(learner)  # the snapshot before may also end with a record that is gone


def _log_base(learner: Learner, state: LoopState, epoch: int) -> None:
    """Log the models that have changed since the last base, and the shared one."""
    name, head = state.head.name, state.head
    records = []
    for user, changed, model in learner.snapshots.personal(name, changed_after=head.base):
        records.append(Record(name, BASE, user=user, body=_pack(PersonalBase(changed, model))))
        if len(records) == CHUNK:
            learner.writer.append([records], {name: epoch})
            records = []
    shared = Base(state.models.shared.to_bytes(), head.version, head.statistics, head.clients, head.guard, state.time)
    records.append(Record(name, BASE, body=_pack(shared)))
    learner.writer.append([records], {name: epoch})

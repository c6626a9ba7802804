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
        if state.head.name in learner.broken:
            continue
        for user, token in list(state.head.erasing.items()):
            learner.saver.erase(state.head.name, user)
            if learner.holds(state.head.name):
                _erase(learner, state, user, token)


def _erase(learner: Learner, state: LoopState, user: str, token: str) -> None:
    learner.saver.flush(learner.loops)  # nothing of the user is in the snapshot after this; all others are
    _log_base(learner, state)
    learner.writer.erase(state.head.name, user, state.position, token)
    while learner.step_log():
        pass
    learner.saver.flush(learner.loops)  # the snapshot before may end with a record that is gone


def _log_base(learner: Learner, state: LoopState) -> None:
    """Log the models that have changed since the last base, and the shared one."""
    name, head = state.head.name, state.head
    records = []
    for user, changed, model in learner.snapshots.personal(name, changed_after=head.base):
        records.append(Record(name, BASE, user=user, body=_pack(PersonalBase(changed, model))))
        if len(records) == CHUNK:
            learner.writer.append([records])
            records = []
    shared = Base(state.shared.to_bytes(), head.version, head.statistics, head.clients, head.guard, state.time)
    records.append(Record(name, BASE, body=_pack(shared)))
    learner.writer.append([records])

"""How a loop begins when the learner starts: from its snapshot, the base of an erasure, or its first record."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from service.learn.isolation import MACHINE, UnlearnableRecord, blaming
from service.learn.loop_state import LoopState, new_loop, record_checksum
from service.learn.snapshots import DamagedSnapshot, SavedLoop, Snapshots
from service.log.protocol import Head, Log
from service.log.records import DELETED, ERASE, ERASED, LOOP, RANK, DamagedRecord, Entry, ErasedBody, decode_erased
from service.models.loop_metadata import Base, PersonalBase
from service.models.table import model_kind

if TYPE_CHECKING:
    from service.learn.learner import Learner

BATCH = 2_000  # records that are read together


def restore_or_rebuild(learner: Learner, name: str, head: Head, saved: SavedLoop | None) -> None:
    if saved is not None:
        try:
            restore(learner, name, head, saved)
            return
        except DamagedSnapshot as damage:
            logging.getLogger(__name__).warning("loop %r is learned from the log again: %s", name, damage)
            learner.rebuilt += 1
            learner.personal.remove(saved.metadata.id, known_users(learner.snapshots, name))
            learner.saver.drop(name)
    rebuild(learner, name)


def take_or_step_back(learner: Learner, name: str, entries: list[Entry]) -> None:
    """Take a batch. If that fails, put the loop in front of the record that it cannot learn from, and name that.

    Learning goes by batches, in place, so the loop begins again from its snapshot, twice: to find the record, and to
    stop in front of it. If nothing fails this time, it goes on.
    """
    try:
        learner.take_batch(name, entries)
        return
    except (*MACHINE, UnlearnableRecord):
        raise
    except Exception:
        logging.getLogger(__name__).exception("loop %r fails, and goes back to what it had learned before", name)
    trouble = _first_trouble(learner, name, learner.positions.get(name, 0))
    if trouble is not None:
        _begin_again(learner, name, trouble.at - 1)
        raise trouble


def _first_trouble(learner: Learner, name: str, good: int) -> UnlearnableRecord | None:
    _begin_again(learner, name, good)
    if name in learner.loops:
        learner.loops[name].careful = True
    try:
        while entries := learner.log.read(name, learner.positions.get(name, 0), 1, bodies=False):
            learner.beat()
            with blaming(learner.log, entries, learner.loops.get(name)):
                learner.take_batch(name, entries)
    except UnlearnableRecord as trouble:
        return trouble
    finally:
        if name in learner.loops:
            learner.loops[name].careful = False
    return None


def _begin_again(learner: Learner, name: str, last: int) -> None:
    """Begin a loop again, and learn up to a position from which it has learned before."""
    learner.forget(name)
    learner.saver.finish()
    saved = (
        [loop for loop in learner.snapshots.loops() if loop.metadata.name == name] if learner.saver.has(name) else []
    )
    restore_or_rebuild(learner, name, learner.log.heads()[name], saved[0] if saved else None)
    try:
        while name in learner.loops and learner.positions[name] < last:
            entries = learner.log.read(name, learner.positions[name], BATCH, bodies=False)
            entries = [entry for entry in entries if entry.position <= last]
            if not entries:
                return
            learner.beat()
            learner.take_batch(name, entries)
    except MACHINE:
        raise
    except Exception:
        learner.forget(name)  # it is in no state to be published
        raise


def known_users(snapshots: Snapshots, name: str) -> list[str]:
    try:
        return snapshots.users(name)
    except DamagedSnapshot:
        return []


def restore(learner: Learner, name: str, head: Head, saved: SavedLoop) -> None:
    """Take a loop from the snapshot; join its pending events again, without learning."""
    try:
        at = learner.log.read(name, saved.position - 1, 1)
    except DamagedRecord as damage:
        raise DamagedSnapshot("the record that it ends with is damaged") from damage
    if head.last < saved.position or not at or record_checksum(at[0]) != saved.record:
        raise DamagedSnapshot("the snapshot is of another log")
    if any(decode_erased(entry.body).base > saved.position for entry in learner.log.of_kind(name, ERASED)):
        raise DamagedSnapshot("the snapshot is older than an erasure")
    kind = model_kind(saved.metadata.settings)
    try:
        shared = kind.from_bytes(saved.metadata.settings, learner.snapshots.shared(name))
    except ValueError as error:
        raise DamagedSnapshot(str(error)) from error
    n_users = 0
    for user, changed, model in learner.snapshots.personal(name):
        learner.beat()
        learner.personal.put(saved.metadata.id, user, kind.personal_data(changed, model), saved=True)
        n_users += 1
    if n_users != saved.n_personal:
        raise DamagedSnapshot(f"{n_users} of {saved.n_personal} personal models are there")
    saved.metadata.catalogue = learner.snapshots.catalogue(name)
    if len(saved.metadata.catalogue) != saved.n_actions:
        raise DamagedSnapshot(f"{len(saved.metadata.catalogue)} of {saved.n_actions} actions are there")
    state = LoopState(saved.metadata, shared, learner.personal)
    state.learn_from = saved.position + 1
    state.resume_erasures()
    state.position = max(saved.metadata.created_at, saved.pending_from - 1)
    join_again(learner, state, saved.position)
    forget_settled(learner.log, state, saved.position)
    state.join.unmatched.clear()
    state.join.unmatched.extend(saved.unmatched)
    state.position, state.time, state.record_checksum = saved.position, saved.time, saved.record
    learner.loops[name], learner.positions[name] = state, saved.position
    learner.saver.note_saved(state)


def forget_settled(log: Log, state: LoopState, last: int) -> None:
    """Forget rewards that look as if they came early, because the decision they belong to was not read, or is deleted.

    A reward that came after a pruning had begun is not about a decision that goes with it.
    """
    metadata, early = state.metadata, set(state.join.early())
    if not early:
        return
    with contextlib.suppress(DamagedRecord):
        there, settled = set(), set()
        for entry in log.find(metadata.name, sorted(early)):
            if metadata.created_at < entry.position <= last and entry.event in early:
                there.add(entry.event)
                is_old = entry.position <= metadata.pruned.cut
                if entry.kind == RANK and not (is_old and state.join.events[entry.event].first > metadata.pruned.begun):
                    settled.add(entry.event)
        state.join.forget(settled | (early - there))


def take(log: Log, state: LoopState, entries: Sequence[Entry]) -> None:
    """Move a loop on. Where a pruning begins, all learners must forget the same events: the log tells which are old."""
    start = 0
    for k, entry in enumerate(entries):
        if entry.kind == ERASE and entry.user is None:
            state.take(entries[start : k + 1])
            forget_settled(log, state, entry.position)
            start = k + 1
    state.take(entries[start:])


def join_again(learner: Learner, state: LoopState, last: int) -> None:
    """Join a loop's records up to a position whose models are known; stand still where one is damaged."""
    while state.position < last:
        learner.beat()
        try:
            entries = learner.log.read(state.metadata.name, state.position, BATCH, bodies=False)
        except DamagedRecord as damage:
            if damage.position <= last:
                learner.halt(state.metadata.name, damage)
                return
            entries = in_front_of(learner.log, damage, state.position)
        with blaming(learner.log, entries, state):
            take(learner.log, state, [entry for entry in entries if entry.position <= last])
        if not entries or entries[-1].position >= last:
            return


def rebuild(learner: Learner, name: str) -> None:
    """Begin with the record that made the loop, or with the base of its last erasure or pruning."""
    old = last_pruning(learner.log, name)
    try:
        _rebuild(learner, name, old)
        while (now := last_pruning(learner.log, name)) != old:  # what was read meanwhile may have had gaps
            if name in learner.loops:
                learner.remove_personal(learner.loops[name])
            old = now
            _rebuild(learner, name, old)
    except Exception:
        learner.forget(name)  # without its first records or its base it is not served
        raise


def last_pruning(log: Log, name: str) -> ErasedBody | None:
    """Return the newest pruning whose events are being deleted."""
    return next(
        (body for entry in reversed(log.of_kind(name, ERASED)) if (body := decode_erased(entry.body)).cut), None
    )


def _rebuild(learner: Learner, name: str, old: ErasedBody | None) -> None:
    made = learner.log.of_kind(name, LOOP)
    deleted = learner.log.of_kind(name, DELETED)
    if not made or (deleted and deleted[-1].position > made[-1].position):
        learner.positions[name] = deleted[-1].position if deleted else 0
        return
    state = begin(learner, made[-1])
    state.pruned_to = 0 if old is None else old.cut
    erased = [entry for entry in learner.log.of_kind(name, ERASED) if entry.position > state.metadata.created_at]
    if erased:
        with blaming(learner.log, erased[-1:]):
            base = decode_erased(erased[-1].body).base
        state.learn_from = base + 1
        join_again(learner, state, base)
        forget_settled(learner.log, state, base)
        install(learner, state, erased[-1], base)
        state.metadata.base = base  # also if its shared model was given up
        learner.positions[name] = base


def begin(learner: Learner, made: Entry) -> LoopState:
    with blaming(learner.log, [made]):
        state = learner.loops[made.loop] = new_loop(made, learner.personal)
    learner.positions[made.loop] = made.position
    return state


def install(learner: Learner, state: LoopState, erased: Entry, base: int) -> None:
    """Put in the models as they were at the base of an erasure."""
    metadata = state.metadata
    for entry in learner.log.bases(metadata.name, erased.position):
        if entry.position > metadata.created_at:
            with blaming(learner.log, [entry]):
                _install_base(learner, state, entry, base)
    for user in metadata.erasing:  # older bases may still have them
        state.forget_models(user)


def _install_base(learner: Learner, state: LoopState, entry: Entry, base: int) -> None:
    learner.beat()
    metadata = state.metadata
    if entry.user is not None:
        own = msgspec.msgpack.decode(entry.body, type=PersonalBase)
        learner.personal.put(metadata.id, entry.user, state.kind.personal_data(own.changed, own.model))
        return
    known = msgspec.msgpack.decode(entry.body, type=Base)
    state.shared = state.kind.from_bytes(metadata.settings, known.shared)
    state.begin_at(base, known.time)
    metadata.version, metadata.statistics, metadata.base = known.version, known.statistics, base
    metadata.clients, metadata.guard = known.clients, known.guard


def in_front_of(log: Log, damage: DamagedRecord, position: int) -> list[Entry]:
    """Return the records from behind a position up to a damaged one."""
    entries: list[Entry] = []
    with contextlib.suppress(DamagedRecord):  # that is the next where the records between the two were erased
        while position < damage.position - 1:
            entries += log.read(damage.loop, position, 1, bodies=False)
            position = entries[-1].position
    return entries

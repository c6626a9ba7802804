"""Users' models in shared memory: the learner learns from batches there, rankers read them.

The data of a block: slots and features held (two 32-bit numbers), the position of the last event learned from, then
the table of keys, the weights and the sums of squared gradients, as in ``fedres.scoring.model.PersonalModel``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.decisions import kalman_state
from fedres.decisions.residual_kalman import ResidualKalman
from fedres.local_learners.adagrad import kernel
from fedres.scoring.batch import Events, Shared, fill_model, learn_batch, model_in, slots_for, workspace_for
from fedres.scoring.model import PersonalModel
from service.models.kalman_personal import MARK, PersonalKalman, data_words, learn_in_memory
from service.models.memory import (
    HEAD,
    NOT_FOUND,
    MemoryReader,
    MemoryWriter,
    TornRead,
    begin_change,
    end_change,
    find_block,
    personal_key,
)

DATA = HEAD + 2  # words of a block before the table

Personal = PersonalModel | PersonalKalman


@kernel
def words_for(n_slots: int) -> int:
    """Return how many words of data a model takes."""
    return 2 + (3 * n_slots + 2 + 1) // 2


@kernel
def _find_all(words: Array, keys: Array, offsets: Array, counts: Array, n_slots: Array) -> None:
    for u in range(offsets.size):
        offsets[u] = find_block(words, keys[u, 0], keys[u, 1])
        if offsets[u] >= 0:
            n_slots[u] = np.int64(words[offsets[u] + HEAD] & np.uint64(0xFFFFFFFF))
            counts[u] = np.int64(words[offsets[u] + HEAD] >> np.uint64(32))


@kernel
def views(words: Array, data: int, n_slots: int) -> Any:
    """Return the table, the weights and the sums that lie at word ``data``."""
    keys, numbers, at = words.view(np.uint32), words.view(np.float32), 2 * data
    middle = at + n_slots
    last = middle + n_slots + 1
    return keys[at:middle], numbers[middle:last], numbers[last : last + n_slots + 1]


@kernel
def _load_all(words: Array, offsets: Array, n_slots: Array, workspace: Any) -> None:
    for u in range(offsets.size):
        if n_slots[u] > 0:
            table, weights, squares = model_in(workspace, u)
            fill_model(table, weights, squares, views(words, offsets[u] + DATA, n_slots[u]))


@kernel
def _store_all(words: Array, offsets: Array, keys: Array, workspace: Any, n_slots: Array, changed: Array) -> None:
    for u in range(offsets.size):
        offset = offsets[u]
        begin_change(words, offset)
        words[offset + 1], words[offset + 2] = np.uint64(keys[u, 0]), np.uint64(keys[u, 1])
        words[offset + 4] = np.uint64(8 * words_for(n_slots[u]))
        words[offset + HEAD] = np.uint64(n_slots[u]) | np.uint64(workspace.counts[u]) << np.uint64(32)
        words[offset + HEAD + 1] = np.uint64(changed[u])
        table, weights, squares = views(words, offset + DATA, n_slots[u])
        model = model_in(workspace, u)
        if model[0].size == n_slots[u]:
            table[:], weights[:], squares[:] = model
        else:
            table[:], weights[:], squares[:] = 0, 0, 0
            fill_model(table, weights, squares, model)
        end_change(words, offset)


@kernel
def _compact(counts: Array) -> Array:
    slots = np.empty(counts.size, np.int64)
    for u in range(counts.size):
        slots[u] = slots_for(counts[u])
    return slots


class PersonalModels:
    """The models of all users, as the learner has them. ``unsaved`` are those that the snapshot does not have yet."""

    def __init__(self, memory: MemoryWriter) -> None:
        self._memory = memory
        self.unsaved: set[tuple[str, str]] = set()
        self.n_users: Counter[str] = Counter()  # by loop

    def learn(
        self,
        loop: str,
        users: Sequence[str],
        changed: Array,
        events: Events,
        shared: Shared,
        crosses: bool,
        rate: float,
    ) -> None:
        """Learn from events of ``users``, which last learn at the positions ``changed``; publish their models."""
        memory, n = self._memory, len(users)
        keys = keys_of(loop, users)
        offsets, counts, n_slots = np.empty(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
        _find_all(memory.words, keys, offsets, counts, n_slots)
        workspace = workspace_for(events, crosses, counts, n_slots)
        _load_all(memory.words, offsets, n_slots, workspace)
        learn_batch(events, shared, workspace, crosses, rate)
        slots = _compact(workspace.counts)
        self.n_users[loop] += int(np.count_nonzero(offsets == NOT_FOUND))
        grown = np.flatnonzero((slots > n_slots) | (offsets == NOT_FOUND)).tolist()
        for u in grown:
            offsets[u] = memory.room_for((int(keys[u, 0]), int(keys[u, 1])), words_for(int(slots[u])))
        _store_all(memory.words, offsets, keys, workspace, slots, changed)
        for u in grown:
            memory.show((int(keys[u, 0]), int(keys[u, 1])), int(offsets[u]))
        self.unsaved.update((loop, user) for user in users)

    def learn_kalman(
        self,
        loop: str,
        users: Sequence[str],
        changed: Array,
        events: kalman_state.Events,
        model: ResidualKalman,
        model_replaced_at: int,
    ) -> Array:
        """Do so with ``residual-kalman``, which has been the shared model since the position ``installed``.

        Return the error of each event before it was learned, and the length of its inputs; 0 for those of the start.
        """
        held, n_new, left = learn_in_memory(
            self._memory, keys_of(loop, users), changed, events, model, model_replaced_at
        )
        self.n_users[loop] += n_new
        self.unsaved.update((loop, users[u]) for u in held.tolist())
        return left

    def get(self, loop: str, user: str) -> PersonalModel | None:
        found = self.entry(loop, user)
        return found[1] if found is not None and isinstance(found[1], PersonalModel) else None

    def entry(self, loop: str, user: str) -> tuple[int, Personal] | None:
        """Return the position of the last event that the user's model learned from, and the model."""
        data = self.data(loop, user)
        return None if data is None else read_model(np.frombuffer(data, np.uint64).copy())

    def data(self, loop: str, user: str) -> bytes | None:
        """Return the data of a user's block."""
        offset = self._memory.find(personal_key(loop, user))
        if offset < 0:
            return None
        size = int(self._memory.words[offset + 4]) // 8
        return bytes(self._memory.words[offset + HEAD : offset + HEAD + size].tobytes())

    def put(self, loop: str, user: str, changed: int, model: Personal, *, saved: bool = False) -> None:
        """Publish a model; ``saved`` says that the snapshot has it."""
        key = personal_key(loop, user)
        self.n_users[loop] += self._memory.find(key) < 0
        self._memory.write(key, written_model(changed, model))
        if not saved:
            self.unsaved.add((loop, user))

    def remove(self, loop: str, users: Iterable[str]) -> None:
        """Leave nothing of users' models."""
        for user in users:
            self.n_users[loop] -= self._memory.free(personal_key(loop, user))
            self.unsaved.discard((loop, user))


def keys_of(loop: str, users: Sequence[str]) -> Array:
    """Return the keys of users' blocks, one in a row."""
    return np.array([personal_key(loop, user) for user in users], np.int64).reshape(len(users), 2)


def personal_from_bytes(state: bytes) -> Personal:
    """Return the model that ``to_bytes`` of either kind wrote."""
    return PersonalKalman.from_bytes(state) if state[:4] == MARK else PersonalModel.from_bytes(state)


def read_model(data: Array) -> tuple[int, Personal]:
    """Return the position of the last event learned from, and the model, from a block's data."""
    head, changed = int(data[0]), int(data[1])
    if head & 0xFFFFFFFF == 0:
        return changed, PersonalKalman(data[2:].view(np.uint32)[: head >> 32].copy())
    table, weights, squares = views(data, 2, head & 0xFFFFFFFF)
    return changed, PersonalModel.of_arrays(table, weights, squares, head >> 32)


def written_model(changed: int, model: Personal) -> bytes:
    if isinstance(model, PersonalKalman):
        data = np.zeros(data_words(model.words.size), np.uint64)
        data[0], data[1] = model.words.size << 32, changed
        data[2:].view(np.uint32)[: model.words.size] = model.words
        return data.tobytes()
    table, weights, squares = model.arrays
    data = np.zeros(words_for(table.size), np.uint64)
    data[0], data[1] = table.size | len(model) << 32, changed
    for into, array in zip(views(data, 2, table.size), (table, weights, squares), strict=True):
        into[:] = array
    return data.tobytes()


def read_entry(memory: MemoryReader, loop: str, user: str) -> tuple[int, Personal] | None:
    """Return a user's model as published, and the position of the last event it learned from.

    None where there is none or it is half written.
    """
    try:
        data = memory.read(personal_key(loop, user))
    except TornRead:
        return None
    return None if data is None else read_model(np.frombuffer(data, np.uint64).copy())

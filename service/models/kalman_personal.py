"""Users' models of ``residual-kalman`` in shared memory: the learner learns from batches there, rankers read them.

The data of a block: 0 and how many words of 32 bits the model has (two 32-bit numbers), the position of the last event
learned from, then the words, as in ``fedres.decisions.kalman_state``.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.decisions.constants import BIAS_WORDS, OWN_BYTES
from fedres.decisions.constants import HEAD as OWN_HEAD
from fedres.decisions.kalman_own import (
    BIAS_KEY,
    BIAS_NUMBERS,
    BIASES,
    CLOCK,
    COUNT,
    SLOT_FIELD,
    SLOT_KEY,
    weights_of,
)
from fedres.decisions.kalman_state import OWN, Events, Shared, slot_words
from fedres.decisions.residual_kalman import Owns, ResidualKalman
from fedres.local_learners.adagrad import kernel
from fedres.scoring.sealing import sealed, unsealed
from service.models.memory import HEAD, MemoryWriter, begin_change, end_change, find_block

DATA = 2  # words of a block's data before the model
MARK = b"FRK4"
MOST_WORDS = OWN_BYTES // 4
ROOM = DATA + MOST_WORDS // 2  # words of data at most

_HEADER = struct.Struct("<4s")


class PersonalKalman:
    """A user's model: the words that ``residual-kalman`` keeps."""

    def __init__(self, words: Array) -> None:
        if not OWN_HEAD < words.size <= MOST_WORDS:
            raise ValueError(f"a personal model must have {OWN_HEAD + 1} to {MOST_WORDS} words, got {words.size}")
        self.words: Array = words

    def described(self, shared: Shared) -> dict[str, Any]:
        """Return how many events it has learned; for each feature b and h of its bias, and weights of directions."""
        k = shared.bases.shape[2]
        blocks, biases = {}, {}
        for slot in range(int(self.words[COUNT])):
            head = self.words[OWN_HEAD + slot * slot_words(k) :]
            tau = float(np.exp(shared.log_tau[head[SLOT_FIELD], OWN]))
            blocks[str(head[SLOT_KEY])] = weights_of(self.words, slot, k, tau).tolist()
        for bias in range(int(self.words[BIASES])):
            words = self.words[self.words.size - BIAS_WORDS * (bias + 1) :][:BIAS_WORDS]
            biases[str(words[BIAS_KEY])] = words[BIAS_NUMBERS:].view(np.float32).tolist()
        return {"events": int(self.words[CLOCK]), "biases": biases, "blocks": blocks}

    def to_bytes(self) -> bytes:
        return sealed(_HEADER.pack(MARK), [self.words.astype("<u4", copy=False).tobytes()])

    @classmethod
    def from_bytes(cls, state: bytes) -> PersonalKalman:
        """Return the model that ``to_bytes`` wrote."""
        _, body = unsealed(state, MARK, _HEADER)
        return cls(np.frombuffer(body, "<u4").astype(np.uint32))


@kernel
def data_words(size: int) -> int:
    """Return how many words of data a model of ``size`` words of 32 bits takes."""
    return DATA + (size + 1) // 2


@kernel
def size_in(data: Array, model_replaced_at: int) -> Any:
    """Return how many words the model in a block's data has, 0 if it belongs to another shared model."""
    return np.int64(data[0] >> np.uint64(32)) if np.int64(data[1]) >= model_replaced_at else 0


@kernel
def _load_all(words: Array, keys: Array, model_replaced_at: int, offsets: Array) -> Any:
    """Fill in where the models are; return their words one after the other, and how many each has."""
    sizes = np.zeros(offsets.size, np.int64)
    for u in range(offsets.size):
        offsets[u] = find_block(words, keys[u, 0], keys[u, 1])
        if offsets[u] >= 0:
            sizes[u] = size_in(words[offsets[u] + HEAD :], model_replaced_at)
    owns, first, source = np.empty(sizes.sum(), np.uint32), 0, words.view(np.uint32)
    for u in range(offsets.size):
        begin = 2 * (offsets[u] + HEAD + DATA)
        owns[first : first + sizes[u]] = source[begin : begin + sizes[u]]
        first += sizes[u]
    return owns, sizes


@kernel
def _store_all(words: Array, offsets: Array, keys: Array, owns: Array, sizes: Array, changed: Array) -> None:
    into, first = words.view(np.uint32), 0
    for u in range(offsets.size):
        offset, size = offsets[u], sizes[u]
        if size:
            begin_change(words, offset)
            words[offset + 1], words[offset + 2] = np.uint64(keys[u, 0]), np.uint64(keys[u, 1])
            words[offset + 4] = np.uint64(8 * data_words(size))
            words[offset + HEAD] = np.uint64(size) << np.uint64(32)
            words[offset + HEAD + 1] = np.uint64(changed[u])
            begin = 2 * (offset + HEAD + DATA)
            words[offset + HEAD + data_words(size) - 1] = np.uint64(0)
            into[begin : begin + size] = owns[first : first + size]
            end_change(words, offset)
        first += size


def learn_in_memory(
    memory: MemoryWriter, keys: Array, changed: Array, events: Events, model: ResidualKalman, model_replaced_at: int
) -> tuple[Array, int, Array]:
    """Learn from events of the users with these keys, who last learn at the positions ``changed``.

    Return which of them have a model now, as those of the start do not, for how many it is their first, and of each
    event the error before it was learned and the length of its inputs.
    """
    offsets, left = np.empty(len(keys), np.int64), np.zeros((events.users.size, 2))
    learned = model.learn_packed(events, Owns(*_load_all(memory.words, keys, model_replaced_at, offsets)), None, left)
    held = np.flatnonzero(learned.sizes)
    n_new = int(np.count_nonzero(offsets[held] < 0))
    moved = []
    for u in held.tolist():
        needed = data_words(int(learned.sizes[u]))
        if offsets[u] < 0 or int(memory.words[offsets[u] + 3]) < needed:
            offsets[u] = memory.allocate(needed)
            moved.append(u)
    _store_all(memory.words, offsets, keys, learned.words, learned.sizes, changed)
    for u in moved:
        memory.show((int(keys[u, 0]), int(keys[u, 1])), int(offsets[u]))
    return held, n_new, left

"""Users' models in shared memory, whatever the model: one block for each user of a loop.

The data of a block begin with a word of the model and the position of the last event that it learned from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fedres.checks import Array
from service.models.memory import HEAD, MemoryReader, MemoryWriter, TornRead, personal_key


class PersonalModels:
    """The learner's models of all users. ``unsaved`` are those that are not in the snapshot yet."""

    def __init__(self, memory: MemoryWriter) -> None:
        self.memory = memory
        self.unsaved: set[tuple[str, str]] = set()
        self.n_users: Counter[str] = Counter()  # by loop

    def note_learned(self, loop: str, users: Iterable[str], n_new: int) -> None:
        """Record that models of users were written, ``n_new`` of them for the first time."""
        self.n_users[loop] += n_new
        self.unsaved.update((loop, user) for user in users)

    def data(self, loop: str, user: str) -> Array | None:
        """Return a copy of the data of a user's block."""
        offset = self.memory.find(personal_key(loop, user))
        if offset < 0:
            return None
        size = int(self.memory.words[offset + 4]) // 8
        return np.array(self.memory.words[offset + HEAD : offset + HEAD + size])

    def put(self, loop: str, user: str, data: bytes, *, saved: bool = False) -> None:
        """Publish the data of a user's block; ``saved`` means that the snapshot has it."""
        key = personal_key(loop, user)
        self.n_users[loop] += self.memory.find(key) < 0
        self.memory.write(key, data)
        if not saved:
            self.unsaved.add((loop, user))

    def remove(self, loop: str, users: Iterable[str]) -> None:
        """Remove users' models."""
        for user in users:
            self.n_users[loop] -= self.memory.free(personal_key(loop, user))
            self.unsaved.discard((loop, user))


def keys_of(loop: str, users: Sequence[str]) -> Array:
    """Return the keys of users' blocks, one in a row."""
    return np.array([personal_key(loop, user) for user in users], np.int64).reshape(len(users), 2)


def read_data(memory: MemoryReader, loop: str, user: str) -> Array | None:
    """Return the published data of a user's block, None if it does not exist or is half written."""
    try:
        data = memory.read(personal_key(loop, user))
    except TornRead:
        return None
    return None if data is None else np.frombuffer(data, np.uint64).copy()


def has_data(memory: MemoryReader, loop: str, user: str) -> bool:
    """Return whether a user may have a block."""
    try:
        return memory.read(personal_key(loop, user)) is not None
    except TornRead:
        return True

"""A memory of what was used last, within a bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Remembers what was kept or looked for last, as long as there is ``room``; ``size`` says how much one takes.

    What is among the ``newer`` need not be moved when it is found. Once they fill half of the room they are the older
    ones, and those that were are forgotten.
    """

    def __init__(self, room: int, size: Callable[[Key, Value], int]) -> None:
        self.newer: dict[Key, Value] = {}
        self._older: dict[Key, Value] = {}
        self._half, self._left, self._size = room // 2, room // 2, size

    def get(self, key: Key) -> Value | None:
        value = self.newer.get(key)
        if value is None:
            value = self._older.get(key)
            if value is not None:
                self.keep(key, value)
        return value

    def keep(self, key: Key, value: Value) -> None:
        if key not in self.newer:
            self._left -= self._size(key, value)
        self.newer[key] = value
        if self._left < 0:
            self._older, self.newer, self._left = self.newer, {}, self._half

    def drop(self, gone: Callable[[Key, Value], bool]) -> None:
        """Forget all that are gone."""
        for some in (self.newer, self._older):
            for key in [key for key, value in some.items() if gone(key, value)]:
                del some[key]

"""Signs of life: a process notes the time in memory that it shares with its supervisor, which reads it."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable

BEAT_SECONDS = 1.0  # between two signs of life of a process that has nothing to do

Beat = Callable[[], None]

_TIME = struct.Struct("<d")


class Heartbeat:
    """When a process was last at work; made before the fork."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _TIME.size)
        self.beat()

    def beat(self) -> None:
        _TIME.pack_into(self._memory, 0, time.monotonic())

    def silence(self) -> float:
        """Return for how many seconds there was no sign of life."""
        return time.monotonic() - float(_TIME.unpack_from(self._memory)[0])

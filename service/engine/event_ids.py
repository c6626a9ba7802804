"""Event ids: the time in milliseconds and 84 random bits, in 22 characters that need no quoting in a URL.

Ids of one time begin alike and so have one place in the store's index, which random ones would write to everywhere.
"""

from __future__ import annotations

import base64
import os
import time
from functools import lru_cache

_BATCH = 512  # ids; asking the system lets another thread run each time, which costs more than the numbers

_random: list[str] = []  # 14 characters each


def new_event_id() -> str:
    """Return an id that nobody had before."""
    try:
        chance = _random.pop()
    except IndexError:
        chance, *more = _drawn()
        _random.extend(more)
    return _beginning(time.time_ns() // 1_000_000) + chance


@lru_cache(maxsize=1)
def _beginning(milliseconds: int) -> str:
    return base64.urlsafe_b64encode(milliseconds.to_bytes(6, "big")).decode()


def _drawn() -> list[str]:
    text = base64.urlsafe_b64encode(os.urandom(12 * _BATCH)).decode()
    return [text[at : at + 14] for at in range(0, len(text), 16)]


def _forget() -> None:
    """Let a forked child draw numbers of its own."""
    _random.clear()


os.register_at_fork(after_in_child=_forget)

"""Event ids: the time in milliseconds and 84 random bits, in 22 characters that need no quoting in a URL.

Ids of one time share a prefix and so are adjacent in the store's index; random ids would spread writes over it.
"""

from __future__ import annotations

import base64
import os
import time

LONGEST_ID = 200  # characters of an id: of an event, a user, an action, a loop

_BATCH = 512  # ids; asking the system lets another thread run each time, which costs more than the numbers

_random: list[str] = []  # 14 characters each


def new_event_ids(n: int) -> list[str]:
    """Return ``n`` new ids."""
    now = base64.urlsafe_b64encode((time.time_ns() // 1_000_000).to_bytes(6, "big")).decode()
    while True:
        try:
            return [now + _random.pop() for _ in range(n)]  # ``pop`` is atomic: no two threads get the same one
        except IndexError:
            _random.extend(_drawn(max(n, _BATCH)))


def new_event_id() -> str:
    return new_event_ids(1)[0]


def _drawn(n: int) -> list[str]:
    text = base64.urlsafe_b64encode(os.urandom(12 * n)).decode()
    return [text[at : at + 14] for at in range(0, len(text), 16)]


def _forget() -> None:
    """Drop random numbers drawn before a fork, so that the child draws its own."""
    _random.clear()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forget)

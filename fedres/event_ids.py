"""Event ids: the time in milliseconds and 84 random bits, in 22 characters that need no quoting in a URL.

Ids of one time begin alike and so have one place in the store's index, which random ones would write to everywhere.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Sequence

import numpy as np

LONGEST_ID = 200  # characters of an id: of an event, a user, an action, a loop

_SHA = hashlib.sha256()  # to copy: a new one takes longer

_BATCH = 512  # ids; asking the system lets another thread run each time, which costs more than the numbers

_random: list[str] = []  # 14 characters each


def new_event_ids(n: int) -> list[str]:
    """Return ids that nobody had before."""
    now = base64.urlsafe_b64encode((time.time_ns() // 1_000_000).to_bytes(6, "big")).decode()
    while True:
        try:
            return [now + _random.pop() for _ in range(n)]  # no two threads are given one
        except IndexError:
            _random.extend(_drawn(max(n, _BATCH)))


def new_event_id() -> str:
    return new_event_ids(1)[0]


def _drawn(n: int) -> list[str]:
    text = base64.urlsafe_b64encode(os.urandom(12 * n)).decode()
    return [text[at : at + 14] for at in range(0, len(text), 16)]


def _forget() -> None:
    """Let a forked child draw numbers of its own."""
    _random.clear()


def draw(event_id: str) -> float:
    """Return the event's uniform number in [0, 1): the first 53 bits of the SHA-256 of its id in UTF-8.

    >>> draw("a")
    0.7914827144317304
    """
    return (int.from_bytes(hashlib.sha256(event_id.encode()).digest()[:8], "big") >> 11) * 2.0**-53


def draws(event_ids: Sequence[str]) -> list[float]:
    """Return what ``draw`` does for each."""
    digests = []
    for event_id in event_ids:
        sha = _SHA.copy()
        sha.update(event_id.encode())
        digests.append(sha.digest())
    drawn: list[float] = ((np.frombuffer(b"".join(digests), ">u8")[::4] >> 11) * 2.0**-53).tolist()
    return drawn


os.register_at_fork(after_in_child=_forget)

"""Event ids: the time in milliseconds and 80 random bits, in 22 characters that need no quoting in a URL.

Ids of one time begin alike and so have one place in the store's index, which random ones would write to everywhere.
"""

from __future__ import annotations

import binascii
import os
import time

_BATCH = 512  # asking the system lets another thread run each time, which costs more than the numbers

_FOR_URLS = bytes.maketrans(b"+/", b"-_")

_random: list[bytes] = []


def new_event_id() -> str:
    """Return an id that nobody had before."""
    try:
        chance = _random.pop()
    except IndexError:
        drawn = os.urandom(10 * _BATCH)
        _random.extend([drawn[at : at + 10] for at in range(10, len(drawn), 10)])
        chance = drawn[:10]
    bits = (time.time_ns() // 1_000_000).to_bytes(6, "big") + chance
    return binascii.b2a_base64(bits).translate(_FOR_URLS)[:22].decode()


def _forget() -> None:
    """Let a forked child draw numbers of its own."""
    _random.clear()


os.register_at_fork(after_in_child=_forget)

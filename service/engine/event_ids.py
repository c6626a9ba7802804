"""Event ids: the time in milliseconds and 80 random bits, in 22 characters that need no quoting in a URL.

Ids of one time begin alike and so have one place in the store's index, which random ones would write to everywhere.
"""

from __future__ import annotations

import binascii
import os
import time

_BATCH = 512  # asking the system lets another thread run each time, which costs more than the numbers

_random = b""


def new_event_id() -> str:
    """Return an id that nobody had before."""
    global _random
    if len(_random) < 10:
        _random = os.urandom(10 * _BATCH)
    bits = (time.time_ns() // 1_000_000).to_bytes(6, "big") + _random[:10]
    _random = _random[10:]
    return binascii.b2a_base64(bits, newline=False).decode().replace("+", "-").replace("/", "_")[:22]


def _forget() -> None:
    """Let a forked child draw numbers of its own."""
    global _random
    _random = b""


os.register_at_fork(after_in_child=_forget)

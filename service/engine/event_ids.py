"""Event ids: 128 random bits in 22 characters that need no quoting in a URL."""

from __future__ import annotations

import binascii
import os

_BATCH = 512  # asking the system lets another thread run each time, which costs more than the numbers

_random = b""


def new_event_id() -> str:
    """Return an id that nobody had before."""
    global _random
    if len(_random) < 16:
        _random = os.urandom(16 * _BATCH)
    bits, _random = _random[:16], _random[16:]
    return binascii.b2a_base64(bits, newline=False).decode().replace("+", "-").replace("/", "_")[:22]


def _forget() -> None:
    """Let a forked child draw numbers of its own."""
    global _random
    _random = b""


os.register_at_fork(after_in_child=_forget)

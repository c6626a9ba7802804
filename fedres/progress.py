"""How far a long computation is: a function that callers pass."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]  # how much is done, and of how much


def ignore_progress(done: int, total: int) -> None:
    """Report nothing."""

"""What one request may ask for, and how many requests a key may make."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedres import checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Everything the HTTP side refuses by size; the limits of features are the engine's."""

    body_bytes: int = 1_000_000  # of a request, before and after decompression
    model_bytes: int = 64_000_000  # of an uploaded model
    update_bytes: int = 8_000_000  # of a request with updates: 100 of 2^14 + 1 numbers in 32 bits, and some room
    actions: int = 500  # in one rank call, and ids that it excludes
    batch: int = 100  # rank calls in one batch
    slots: int = 20  # of a page in one call
    slot_actions: int = 2_000  # slots times actions of a call: each slot is stored with all actions
    residuals: int = 500  # of a device in one request
    updates: int = 100  # the same
    connections: int = 2_000  # of one ranker at once
    requests_per_second: float = 10_000.0  # of one key; twice that many at once after a pause
    # From a connection's or a request's first byte to its last, and for any part of a reply to be taken.
    request_seconds: float = 15.0

    def __post_init__(self) -> None:
        sizes = (
            "body_bytes",
            "model_bytes",
            "update_bytes",
            "actions",
            "batch",
            "slots",
            "slot_actions",
            "residuals",
            "updates",
        )
        for name in (*sizes, "connections"):
            checks.whole(name, getattr(self, name))
        checks.positive("requests_per_second", self.requests_per_second)
        checks.positive("request_seconds", self.request_seconds)


class Buckets:
    """A token bucket for each key: ``rate`` tokens a second flow in, up to two seconds' worth, a request takes one."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        checks.positive("rate", rate)
        self._rate, self._size, self._clock = rate, max(1.0, 2 * rate), clock
        self._levels: dict[str, tuple[float, float]] = {}  # tokens, and when there were that many

    def take(self, key: str) -> float:
        """Return 0 if the key may go on, and else in how many seconds it may."""
        now = self._clock()
        level = self._level(key, now)
        if level < 1:
            return (1 - level) / self._rate
        self._levels[key] = (level - 1, now)
        return 0.0

    def _level(self, key: str, now: float) -> float:
        level, since = self._levels.get(key, (self._size, now))
        return min(self._size, level + (now - since) * self._rate)

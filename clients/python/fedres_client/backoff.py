"""How long to wait after failures: exponential back-off with full jitter."""

from __future__ import annotations

import random

FIRST = 0.5  # seconds: the longest wait after one failure
LONGEST = 300.0


class Backoff:
    """Waits that are drawn evenly from 0 up to a bound that doubles with each failure in a row.

    >>> backoff = Backoff(random.Random(0))
    >>> backoff.failed() < 0.5, backoff.failed() < 1.0, backoff.failed(retry_after=7.0) >= 7.0
    (True, True, True)
    """

    def __init__(self, rng: random.Random | None = None, *, first: float = FIRST, longest: float = LONGEST) -> None:
        self._rng = rng or random.Random()
        # Both are seconds.
        self._first = first
        self._longest = longest
        self.failures = 0  # in a row

    def failed(self, retry_after: float = 0.0) -> float:
        """Count a failure; return the seconds to wait, at least the ``retry_after`` of the service."""
        bound = min(self._longest, self._first * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return max(retry_after, self._rng.uniform(0.0, bound))

    def worked(self) -> None:
        """Start again with short waits."""
        self.failures = 0

"""Whether the service decides, and what each call may do about it: by a clock, without input and output."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

import msgspec

log = logging.getLogger("fedres.client")

CHEAP_SECONDS = 0.1  # of a failed try while the service is away: the next call may try at once
REST = 9.0  # times as long as a more expensive one, no call tries
LONGEST_REST = 5.0  # seconds
REPEATS = 0.1  # of calls, that may be repeated beside their first try
MOST_REPEATS = 10.0  # saved up for a moment of many


class Attempt(msgspec.Struct, frozen=True):
    """How a call may be tried."""

    is_probe: bool  # of a service that is away: once, while no other call tries


class Availability:
    """Follows the calls of a client.

    The service is away after a failure, unless another call had an answer since the failed one began. While it is
    away, one call at a time is tried, and all others fall back at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.reason: str | None = None  # why the service is away
        self._worked_at = -math.inf
        self._is_probing = False
        self._probe_at = -math.inf  # when the next call may try
        self._repeats = 1.0

    @property
    def away(self) -> bool:
        return self.reason is not None

    def begin(self) -> Attempt | None:
        """Return how a call may be tried; None if it must not be."""
        if self.reason is None:
            self._repeats = min(MOST_REPEATS, self._repeats + REPEATS)
            return TRY
        with self._lock:
            if self._is_probing or self._clock() < self._probe_at:
                return None
            self._is_probing = True
        return PROBE

    def end(self, attempt: Attempt, began: float) -> None:
        """Let the next call try again, after a rest if this one took long."""
        if attempt.is_probe:
            took = self._clock() - began
            with self._lock:
                self._is_probing = False
                self._probe_at = self._clock() + (0.0 if took < CHEAP_SECONDS else min(REST * took, LONGEST_REST))

    def may_repeat(self) -> bool:
        """Return whether a call may be sent a second time beside its first try, and count that."""
        with self._lock:
            if self._repeats < 1.0:
                return False
            self._repeats -= 1.0
            return True

    def worked(self) -> None:
        self._worked_at = self._clock()
        if self.reason is not None:
            log.info("the service decides again")
            self.reason = None

    def failed(self, began: float, reason: str) -> None:
        """Note that a call that began then was not answered."""
        if self._worked_at >= began:
            return
        if self.reason is None:
            log.warning("the service does not decide: %s", reason)
            self.reason = reason


TRY = Attempt(is_probe=False)
PROBE = Attempt(is_probe=True)

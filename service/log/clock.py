"""The clock that events wait by: nobody can set it while the service runs, and it never begins before the log's end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from service.log.sqlite import system_clock

_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps

Clock = Callable[[], int]  # microseconds


def uptime() -> int:
    """Return microseconds by a clock that nobody sets."""
    return time.clock_gettime_ns(_UPTIME) // 1_000


@dataclass(frozen=True, slots=True)
class Shifted:
    """``clock``, and ``by`` microseconds more."""

    clock: Clock
    by: int

    def __call__(self) -> int:
        return self.clock() + self.by


def steady_clock(wall: Clock = system_clock) -> Clock:
    """Return microseconds since 1970 as ``wall`` has them now; that it is set afterwards changes nothing."""
    return Shifted(uptime, wall() - uptime())


def continued(clock: Clock, last: int) -> Clock:
    """Return the clock, put forward to the time ``last`` if it is behind: what waits for it then waits no longer."""
    return Shifted(clock, max(0, last - clock()))

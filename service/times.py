"""Times: microseconds since 1970 in the log, ISO 8601 in replies."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

HOUR, DAY = 3_600_000_000, 86_400_000_000  # microseconds
LARGEST = 1e15  # seconds


def system_clock() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1_000


def iso_time(microseconds: float, timespec: str = "seconds") -> str:
    """Return a time in ISO 8601."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec=timespec)


def seconds_of(value: Any) -> float:
    """Return a received time in seconds since 1970: a number, or text such as 2026-12-24T18:00Z."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST:
        return float(value)
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError):
        rule = "must be seconds since 1970 or a time such as 2026-12-24T18:00:00Z"
        raise ValueError(f"{rule}, got {str(value)[:100]!r}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

"""Times of the log are microseconds since 1970; outside they are shown in ISO 8601."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

HOUR, DAY = 3_600_000_000, 86_400_000_000  # microseconds
LARGEST = 1e15  # seconds


def iso_time(microseconds: float, timespec: str = "seconds") -> str:
    """Return a time as it is shown."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec=timespec)


def seconds_of(value: Any) -> float:
    """Return a time that somebody sent, in seconds since 1970: a number, or text such as 2026-12-24T18:00Z."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST:
        return float(value)
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError):
        rule = "must be seconds since 1970 or a time such as 2026-12-24T18:00:00Z"
        raise ValueError(f"{rule}, got {str(value)[:100]!r}") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()

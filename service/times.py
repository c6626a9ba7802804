"""Times of the log are microseconds since 1970; outside they are shown in ISO 8601."""

from __future__ import annotations

from datetime import UTC, datetime

HOUR, DAY = 3_600_000_000, 86_400_000_000  # microseconds


def iso_time(microseconds: float, timespec: str = "seconds") -> str:
    """Return a time as it is shown."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec=timespec)

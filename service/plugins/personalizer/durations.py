"""ISO 8601 durations and times, as in Azure's configuration."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from service.plugins.personalizer.errors import Refusal

T = TypeVar("T")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE, _CLOCK = ("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in units) for units in ("YMWD", "HMS"))
_DURATION = re.compile(f"P{_DATE}(?:T{_CLOCK})?")
_TIME_SPAN = re.compile(r"(?:(\d+)\.)?(\d+):(\d\d):(\d\d(?:\.\d+)?)")  # days, hours, minutes, seconds
_SECONDS = (365 * 86_400, 30 * 86_400, 7 * 86_400, 86_400, 3_600, 60, 1)


def read_duration(text: str) -> float:
    """Return seconds; a month counts 30 days, a year 365. The examples of v1.0 write durations as .NET does.

    >>> read_duration("PT10M"), read_duration("P1DT0.5S"), read_duration("00:10:00"), read_duration("2.00:00:00")
    (600.0, 86400.5, 600.0, 172800.0)
    """
    as_time = _TIME_SPAN.fullmatch(text)
    if as_time is not None:
        return sum(float(number) * unit for number, unit in zip(as_time.groups(), _SECONDS[3:], strict=True) if number)
    match = _DURATION.fullmatch(text)
    if match is None or text.endswith(("P", "T")):
        raise ValueError(f"a duration must be like PT10M or P2D, got {text[:40]!r}")
    return sum(float(number) * unit for number, unit in zip(match.groups(), _SECONDS, strict=True) if number)


def iso_duration(text: str) -> str:
    """Return a duration in ISO 8601; one in that format stays as it is.

    >>> iso_duration("00:05:00"), iso_duration("PT60M")
    ('PT5M', 'PT60M')
    """
    return text if text.startswith("P") else show_duration(read_duration(text))


def show_duration(seconds: float) -> str:
    """Return the shortest form without years, months and weeks.

    >>> show_duration(600.0), show_duration(90_000.0), show_duration(0.5)
    ('PT10M', 'P1DT1H', 'PT0.5S')
    """
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    clock = [f"{hours:.0f}H" * bool(hours), f"{minutes:.0f}M" * bool(minutes), f"{round(rest, 6):g}S" * bool(rest)]
    shown = f"{days:.0f}D" * bool(days) + ("T" + "".join(clock)) * any(clock)
    return f"P{shown or 'T0S'}"


def read_time(text: str) -> datetime:
    """Return a time with its zone, UTC by default; a date is its first moment."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"a time must be like 2026-01-31T12:00:00Z, got {text[:40]!r}") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        show_time(microseconds(moment))
    except OverflowError:
        raise ValueError(f"a time must be in the years 1 to 9999 in UTC, got {text[:40]!r}") from None
    return moment


def show_time(microseconds: int) -> str:
    """Return a time since 1970 as Azure shows it."""
    moment = EPOCH + timedelta(microseconds=microseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def read_as(read: Callable[[str], T], name: str, text: str, code: str) -> T:
    """Return the value of a field; refuse an invalid one with a code of Azure's."""
    try:
        return read(text)
    except ValueError as error:
        raise Refusal(code, f"{name}: {error}", name) from None

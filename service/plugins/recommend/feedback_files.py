"""Feedback from files: JSON lines, CSV and Parquet, such as ratings with the columns ``user,item,rating,time``."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bandits.evaluation.logs import read_objects
from bandits.evaluation.sources import is_table, open_source
from fedres.progress import Progress, ignore_progress
from service.plugins.recommend.item_files import checked_id, plain_value, value_of
from service.times import seconds_of

BATCH = 500  # events of one call
ITEMS = ("item", "action")  # default names of the column with the action
REWARDS = ("reward", "rating")

Line = tuple[int, dict[str, Any]]  # its number and its fields


class FeedbackColumns(NamedTuple):
    """The names of columns; None stands for the usual ones."""

    item: str | None = None
    reward: str | None = None
    user: str = "user"
    time: str = "time"
    event_id: str = "event_id"
    context: tuple[str, ...] = ()  # its features


class Skipped:
    """Lines that are not imported, counted by their reason."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, int] = {}  # line with that reason

    def add(self, reason: str, at: int) -> None:
        self.counts[reason] += 1
        self.first.setdefault(reason, at)


def read_feedback(
    path: Path,
    columns: FeedbackColumns,
    reward_range: tuple[float, float],
    scale: tuple[float, float] | None,
    skipped: Skipped,
    progress: Progress = ignore_progress,
) -> Iterator[Line]:
    """Yield the line number of each event and the event; ``scale`` is mapped to the reward range of the loop.

    An event without an id gets one from the file's name, the line number and its content: a repeated import stores
    nothing twice.
    """
    rows, is_text = _rows(path, columns, progress)
    for at, row in rows:
        try:
            item, name = _named(row, columns.item, ITEMS), _named(row, columns.reward, REWARDS)
            reward = _reward(name, row[name], reward_range, scale)
            event = {"action": _action(item, row[item]), "reward": reward, **_optional(row, columns, is_text)}
        except ValueError as error:
            skipped.add(str(error), at)
            continue
        content = msgspec.json.encode([path.name, at, row], order="deterministic", enc_hook=str)
        event.setdefault("event_id", f"import-{hashlib.blake2b(content, digest_size=12).hexdigest()}")
        yield at, event


def _rows(path: Path, columns: FeedbackColumns, progress: Progress) -> tuple[Iterator[Line], bool]:
    """Return the rows of a file with their lines, and whether their cells are texts."""
    if not is_table(path):
        return read_objects(path, progress), False
    source = open_source(path)
    for name in (columns.item or ITEMS, columns.reward or REWARDS, *columns.context):
        names = (name,) if isinstance(name, str) else name
        if not set(names) & {*source.names}:
            got = ", ".join(source.names)
            raise ValueError(f"{path} must have a column {' or '.join(map(repr, names))}, has {got}")
    rows = source.rows(source.names, progress)
    return ((at, dict(zip(source.names, cells, strict=True))) for at, cells in rows), source.is_text


def _optional(row: Mapping[str, Any], columns: FeedbackColumns, is_text: bool) -> dict[str, Any]:
    """Return the optional fields of an event: all but its action and its reward."""
    named = {"user": columns.user, "event_id": columns.event_id}
    event: dict[str, Any] = {
        field: checked_id(name, row[name]) for field, name in named.items() if row.get(name) is not None
    }
    time = row.get(columns.time)
    if time is not None:
        event["time"] = _time(columns.time, value_of(time) if isinstance(time, str) else time)
    context = {name: row[name] for name in columns.context if row.get(name) is not None}
    if is_text:
        context = {name: value_of(cell) for name, cell in context.items()}
    elif isinstance(row.get("context"), dict):
        context = {**row["context"], **context}
    return {**event, "context": plain_value(context)} if context else event


def _action(name: str, value: Any) -> Any:
    """Return the id of an action, or an action with features."""
    if not isinstance(value, dict):
        return checked_id(name, value)
    if not isinstance(value.get("id"), str):
        raise ValueError(f"{name} must have an id")
    return plain_value(value)


def _named(row: Mapping[str, Any], name: str | None, usual: Sequence[str]) -> str:
    """Return the name of a column that is not empty in a row."""
    names = usual if name is None else (name,)
    column = next((each for each in names if row.get(each) is not None), None)
    if column is None:
        raise ValueError(f"{next((each for each in names if each in row), names[0])} must not be empty")
    return column


def _reward(name: str, cell: Any, reward_range: tuple[float, float], scale: tuple[float, float] | None) -> float:
    number = value_of(cell) if isinstance(cell, str) else cell
    if isinstance(number, Decimal):
        number = float(number)
    if not isinstance(number, (int, float)):
        raise ValueError(f"{name} must be a number")
    low, high = reward_range if scale is None else scale
    if not low <= number <= high:
        advice = "; --scale stretches other numbers over the loop's reward_range" if scale is None else ""
        raise ValueError(f"{name} must be in [{low:g}, {high:g}]{advice}")
    if scale is None:
        return number
    first, last = reward_range
    return first + (number - low) / (high - low) * (last - first)


def _time(name: str, value: Any) -> float:
    try:
        return seconds_of(value.isoformat() if hasattr(value, "isoformat") else value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be seconds since 1970 or a time such as 2026-12-24T18:00:00Z") from None

"""Logged decisions in a table: which column is what, and rows as the objects of a JSON lines log.

Every refusal names the table, the row, the column, the rule, the value, and what to do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from bandits.evaluation.sources import Source
from fedres.progress import Progress, ignore_progress

OBVIOUS = {  # names that are taken where none is given
    "action": ("action", "shown", "arm", "chosen"),
    "reward": ("reward", "click", "clicked"),
    "probability": ("probability", "propensity", "pscore", "prob"),
    "probabilities": ("probabilities",),
    "actions": ("actions",),
    "user": ("user", "user_id"),
    "time": ("time", "timestamp"),
    "event_id": ("event_id",),
}
NEEDED = {"action": "the action taken", "reward": "the reward", "probability": "the probability it was taken with"}
MOST_NAMED = 12  # ids or columns in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The column of each thing; None where the table has none, or where an obvious name is to be looked for."""

    action: str | None = None  # taken
    reward: str | None = None
    probability: str | None = None  # with which the action was taken
    user: str | None = None
    context: Sequence[str] = ()  # features
    actions: str | Sequence[str] | None = None  # ids that could be taken, or the column that lists them
    probabilities: str | None = None  # of all actions, in their order
    time: str | None = None  # by which rows are sorted
    event_id: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.context, str):
            object.__setattr__(self, "context", (self.context,))

    @property
    def given(self) -> list[str]:
        """The words that were said."""
        return [field.name for field in fields(self) if getattr(self, field.name) not in (None, ())]

    @property
    def used(self) -> set[str]:
        """The columns that are read."""
        return {*self.context, *[name for word in OBVIOUS if isinstance(name := getattr(self, word), str)]}

    def within(self, source: Source) -> Columns:
        """Return these with obvious names looked up in a table; a name that it lacks is an error."""
        columns: dict[str, Any] = {}
        for word, obvious in OBVIOUS.items():
            name = getattr(self, word)
            if word == "actions" and isinstance(name, str) and name not in source.names and "," in name:
                name = columns[word] = tuple([part.strip() for part in name.split(",")])
            if not isinstance(name, str | None):
                continue
            if name is None:
                taken = {*self.context, *[getattr(self, other) for other in OBVIOUS if other != "actions"]}
                name = next((one for one in obvious if one in source.names and one not in taken), None)
            if name is None and word in NEEDED:
                raise ValueError(
                    f"{word} must name the column of {source.name} with {NEEDED[word]}, one of {_shown(source.names)}"
                )
            columns[word] = None if name is None else _column(word, name, source)
        for name in self.context:
            _column("context", name, source)
            for word in ("action", "reward", "probability", "probabilities"):
                if name == columns[word]:
                    raise ValueError(f"context must be known before the decision, got {name!r}, the column of {word}")
        return replace(self, **columns)

    def __str__(self) -> str:
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        said = [
            f"{word}={_shown(value) if isinstance(value, list | tuple) else value}"
            for word, value in named.items()
            if value not in (None, ())
        ]
        return ", ".join(said)


class TableDecisions:
    """The decisions of a table, as objects of a JSON lines log.

    Without ``actions``, they are those that the table has in its column of actions.
    """

    def __init__(self, source: Source, columns: Columns) -> None:
        self.source, self._columns = source, columns.within(source)
        ids, is_number, self._is_sorted = _survey(source, self._columns)
        self._reader = _Reader(self._columns, ids, is_number)
        self._prefix = f"{Path(source.name).name} {source.unit}"

    def rows(self, progress: Progress = ignore_progress) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield rows by their numbers, in the order of time."""
        rows, names = self.source.rows(self._reader.names, progress), self._reader.names
        if self._is_sorted:
            return rows
        time = names.index(str(self._columns.time))
        return iter(sorted(rows, key=lambda row: seconds(row[1][time])))

    def event_id(self, number: int, cells: Sequence[Any]) -> str:
        """Return the id of the decision in a row, by the number of the row if no column has it."""
        return self._reader.event_id(cells) or f"{self._prefix} {number}"

    def record(self, number: int, cells: Sequence[Any]) -> dict[str, Any]:
        """Return the decision of a row; a ``ValueError`` names the column, and not the row."""
        return {"event_id": self.event_id(number, cells), **self._reader.record(cells)}


def _survey(source: Source, columns: Columns) -> tuple[tuple[str, ...], frozenset[str], bool]:
    """Return the ids of all actions, which columns of the context are numbers, and whether rows are sorted by time."""
    listed = columns.actions is not None
    ids = {} if isinstance(columns.actions, str | None) else dict.fromkeys(map(_id, columns.actions))
    context = list(columns.context) if source.is_text else []
    is_number, is_sorted, before = set(context), True, -math.inf
    if not (context or columns.time or not listed):
        return tuple(ids), frozenset(), True
    names = [str(columns.action), *([columns.time] if columns.time else []), *context]
    first = len(names) - len(context)
    for number, cells in source.rows(names, ignore_progress):
        if not listed and cells[0] is not None:
            ids.setdefault(_id(cells[0]))
        if columns.time:
            try:
                now = seconds(cells[1])
            except ValueError as error:
                where = f"{source.name}, {source.unit} {number}"
                raise ValueError(f"{where}: column {columns.time!r}: {error}") from None
            is_sorted, before = is_sorted and before <= now, now
        if is_number:
            is_number -= {name for name, cell in zip(context, cells[first:], strict=True) if not _is_number(cell)}
    return tuple(sorted(ids) if not listed else ids), frozenset(is_number), is_sorted


class _Reader:
    """Makes objects of rows."""

    def __init__(self, columns: Columns, ids: Sequence[str], is_number: frozenset[str]) -> None:
        single = {word: getattr(columns, word) for word in OBVIOUS}
        self._words = {word: name for word, name in single.items() if isinstance(name, str)}
        self._context, self._is_number = list(columns.context), is_number
        self._ids, self._id_set = list(ids), set(ids)
        self._actions = [{"id": name} for name in ids]
        self.names = [*self._words.values(), *self._context]

    def event_id(self, cells: Sequence[Any]) -> str | None:
        cell = cells[list(self._words).index("event_id")] if "event_id" in self._words else None
        return None if is_missing(cell) else _id(cell)

    def record(self, cells: Sequence[Any]) -> dict[str, Any]:
        cell = dict(zip(self._words, cells, strict=False))
        record: dict[str, Any] = {"context": self._features(cells[len(self._words) :])}
        record["actions"], ids, allowed = self._actions, self._ids, self._id_set
        if "actions" in cell:
            ids = [_id(one) for one in self._list("actions", cell["actions"])]
            record["actions"], allowed = [{"id": one} for one in ids], set(ids)
        record["action"] = self._taken(cell["action"], ids, allowed)
        record["probability"] = self._probability(cell["probability"])
        record["reward"] = None if is_missing(cell["reward"]) else self._number("reward", cell["reward"])
        if "probabilities" in cell:
            entries = self._list("probabilities", cell["probabilities"])
            record["probabilities"] = [self._number("probabilities", entry) for entry in entries]
        if not is_missing(cell.get("user")):
            record["user"] = _id(cell["user"])
        if "time" in cell:
            record["time"] = cell["time"].isoformat() if isinstance(cell["time"], date) else cell["time"]
        return record

    def _taken(self, cell: Any, ids: Sequence[str], allowed: set[str]) -> str:
        if is_missing(cell):
            raise ValueError(f"{self._called('action')} must name the action taken, is empty: drop the row")
        name = _id(cell)
        if name not in allowed:
            raise ValueError(
                f"{self._called('action')} must be one of the actions {_shown(ids)}, got {name!r}:"
                " add it to actions, or drop the row"
            )
        return name

    def _probability(self, cell: Any) -> float:
        called = self._called("probability")
        if is_missing(cell):
            raise ValueError(f"{called} must be in (0, 1], is empty: drop the row if it is not known")
        value = self._number("probability", cell)
        if not 0 < value <= 1:
            advice = "percentages must be divided by 100" if 1 < value <= 100 else "drop the row if it is not known"
            raise ValueError(f"{called} must be in (0, 1], got {value:g}: {advice}")
        return value

    def _number(self, word: str, cell: Any) -> float:
        value = _number(cell)
        if value is None:
            raise ValueError(f"{self._called(word)} must be a finite number, got {cell!r}")
        return value

    def _list(self, word: str, cell: Any) -> list[Any]:
        entries = cell.tolist() if hasattr(cell, "tolist") else cell
        if isinstance(cell, str):
            entries = _split(cell)
        if not isinstance(entries, list | tuple) or not entries:
            raise ValueError(f"{self._called(word)} must be a list, as JSON or separated by | or commas, got {cell!r}")
        return list(entries)

    def _features(self, cells: Sequence[Any]) -> dict[str, Any]:
        features = {}
        for name, cell in zip(self._context, cells, strict=True):
            if not is_missing(cell):
                features[name] = float(cell) if name in self._is_number else _feature(name, cell)
        return features

    def _called(self, word: str) -> str:
        name = self._words[word]
        return word if name == word else f"{word} (column {name!r})"


def seconds(time: Any) -> float:
    """Return what times are compared by: a number as it is, dates and texts in ISO 8601 as seconds (UTC if naive)."""
    value = _number(time)
    if value is not None:
        return value
    try:
        if isinstance(time, date) and not isinstance(time, datetime):
            time = time.isoformat()
        moment = datetime.fromisoformat(time) if isinstance(time, str) else time
        return float((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"time must be a number or a date in ISO 8601 (2026-03-14 15:09:26), got {time!r}") from None


def is_missing(cell: Any) -> bool:
    """Return whether a cell holds nothing: None, NaN, or what pandas has for that."""
    return (
        cell is None or (isinstance(cell, float) and math.isnan(cell)) or type(cell).__name__ in ("NAType", "NaTType")
    )


def _number(cell: Any) -> float | None:
    """Return a finite number, from a text too; None for anything else."""
    if isinstance(cell, str) and cell.strip().lower() in ("true", "false"):
        return float(cell.strip().lower() == "true")
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _is_number(cell: Any) -> bool:
    if cell is None:
        return True
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _feature(name: str, cell: Any) -> Any:
    """Return a cell as JSON has it."""
    value = cell.tolist() if hasattr(cell, "tolist") else cell
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, date):
        raise ValueError(
            f"context (column {name!r}) must have numbers or texts, got the date {value}:"
            " make columns of what matters, such as hour and weekday"
        )
    return value if isinstance(value, str | bool | int | float | dict | list) else str(value)


def _id(cell: Any) -> str:
    """Return an id as text; whole numbers, which pandas makes fractions where cells are empty, without a point."""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return str(cell)


def _split(text: str) -> list[Any]:
    if text.lstrip().startswith("["):
        try:
            entries: list[Any] = json.loads(text)
        except ValueError:
            return []
        return entries
    return [part.strip() for part in text.split("|" if "|" in text else ",")]


def _column(word: str, name: str, source: Source) -> str:
    if name not in source.names:
        ids = ", or ids separated by commas" if word == "actions" else ""
        raise ValueError(f"{word} must be a column of {source.name}, one of {_shown(source.names)}{ids}, got {name!r}")
    return name


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(str, names[:MOST_NAMED])) + more

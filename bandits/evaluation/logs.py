"""Logged decisions, read one at a time: our JSON lines, Vowpal Wabbit's dsjson, or a table (``columns``).

One JSON object a line: ``event_id``, ``time``, ``user``, ``context``, ``actions`` (each ``{"id", "features"}``),
``action`` (the id taken), ``probability`` (of taking it), ``model_version``, ``reward`` (a number or null), ``status``
and, where known, ``probabilities`` of all actions. Other keys are ignored. Lines with ``candidates`` are passed over:
those are recommended items, and the log does not have the probabilities of the others. So are those with the status
``feedback``, which have none at all. A file whose first line carries VW's label keys is read as dsjson: the reward is
minus the cost, an action's id is its ``_tag`` or else its position from 1.

Every refusal names the file, the line, the rule and the value.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from bandits.evaluation.columns import Columns, TableDecisions
from bandits.evaluation.sources import TABLE_ENDINGS, Source, is_table, open_source
from bandits.evaluation.values import (
    action_features,
    as_object,
    distribution,
    flatten,
    logged_probability,
    nonempty_list,
    number,
    text,
)
from fedres.progress import Progress, ignore_progress

NO_COLUMNS = Columns()
LINES = 1_000  # between two looks at how far a file is read
DSJSON_KEYS = {"_label_cost", "_label_probability", "_label_Action", "_labelIndex"}


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One decision: its context, the actions, the chosen one with its probability, the reward."""

    event_id: str
    context: dict[str, float]  # x, flat
    actions: tuple[str, ...]  # ids
    features: tuple[dict[str, float], ...]  # of each action, flat
    chosen: int  # position of the action taken
    probability: float  # p(a given x) of that action
    reward: float | None  # r; None where none came
    probabilities: tuple[float, ...] | None = None  # p(. given x), where the log has them
    time: str | float | None = None
    user: str | None = None
    model_version: str | int | None = None
    status: str | None = None


def read_events(log: Any, columns: Columns = NO_COLUMNS, progress: Progress = ignore_progress) -> Iterator[LoggedEvent]:
    """Yield the events of a log, plain or ``.gz``, in its order; blank lines are passed over.

    ``columns`` are those of a table: a CSV or Parquet file, or a DataFrame.
    """
    if is_table(log):
        yield from _table_events(open_source(log), columns, progress)
        return
    if not isinstance(log, str | Path):
        raise ValueError(f"log must be a path, a DataFrame or a mapping of columns, got {type(log).__name__}")
    if columns.given:
        endings = ", ".join(TABLE_ENDINGS)
        raise ValueError(f"{columns.given[0]} must come with a DataFrame or a file that ends in {endings}, got {log}")
    yield from _line_events(log, progress)


def _table_events(source: Source, columns: Columns, progress: Progress) -> Iterator[LoggedEvent]:
    decisions = TableDecisions(source, columns)
    for row, cells in decisions.rows(progress):
        try:
            yield from_record(decisions.record(row, cells))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{source.name}, {source.unit} {row}: {error}") from None


def _line_events(path: str | Path, progress: Progress) -> Iterator[LoggedEvent]:
    parse: Callable[[dict[str, Any]], LoggedEvent] | None = None
    for line, record in read_objects(path, progress):
        if not is_decision(record):
            continue
        try:
            if parse is None:
                parse = _from_dsjson if DSJSON_KEYS & record.keys() else from_record
            yield parse(record)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path}, line {line}: {error}") from None


def is_decision(record: dict[str, Any]) -> bool:
    """Return whether an object has a decision with all its actions: no recommended item, and no feedback."""
    return record.get("candidates") is None and record.get("status") != "feedback"


def read_objects(path: str | Path, progress: Progress = ignore_progress) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, JSON object) for every line that is not blank."""
    decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
    for at, line in read_lines(path, progress):
        try:
            yield at, as_object("the line", decode(line.decode()))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {at}: {error}") from None


def read_lines(path: str | Path, progress: Progress = ignore_progress) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line) for every line that is not blank, plain or ``.gz``."""
    at = 0
    try:
        with open(path, "rb") as file, _plain(path, file) as lines:
            size = os.fstat(file.fileno()).st_size
            for at, line in enumerate(lines, 1):
                if at % LINES == 0:
                    progress(min(file.tell(), size), size)
                if not line.isspace():
                    yield at, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}, line {at + 1}: the gzip data is broken: {error}") from None


def _plain(path: str | Path, file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.open(file)) if str(path).endswith(".gz") else file


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"numbers must be finite, got {constant}")


def from_record(record: dict[str, Any]) -> LoggedEvent:
    """Return the event of an object of our JSON lines."""
    actions = nonempty_list("actions", record.get("actions"))
    ids = _different([_action_id(action) for action in actions])
    taken = record.get("action")
    if taken not in ids:
        raise ValueError(f"action must be one of {', '.join(ids)}, got {taken!r}")
    return LoggedEvent(
        event_id=text("event_id", record.get("event_id")),
        context=flatten("context", record.get("context")),
        actions=ids,
        features=tuple([action_features("features", action.get("features")) for action in actions]),
        chosen=ids.index(taken),
        probability=logged_probability("probability", record.get("probability")),
        reward=_reward("reward", record.get("reward")),
        probabilities=_maybe_probabilities("probabilities", record.get("probabilities"), len(ids)),
        time=record.get("time"),
        user=record.get("user"),
        model_version=record.get("model_version"),
        status=record.get("status"),
    )


def _from_dsjson(record: dict[str, Any]) -> LoggedEvent:
    context = as_object("c", record.get("c"))
    actions = [as_object("_multi", action) for action in nonempty_list("_multi", context.get("_multi"))]
    chosen = _position("_label_Action", record.get("_label_Action"), len(actions))
    cost = None if record.get("_skipLearn") else _reward("_label_cost", record.get("_label_cost"))
    return LoggedEvent(
        event_id=text("EventId", record.get("EventId", "")),
        context=flatten("c", context),
        actions=_different([str(action.get("_tag", i)) for i, action in enumerate(actions, 1)]),
        features=tuple([action_features("_multi", action) for action in actions]),
        chosen=chosen,
        probability=logged_probability("_label_probability", record.get("_label_probability")),
        reward=None if cost is None else -cost,
        probabilities=dsjson_probabilities(record.get("p"), record.get("a"), len(actions)),
        time=record.get("Timestamp"),
        model_version=as_object("VWState", record.get("VWState") or {}).get("m"),
    )


def dsjson_probabilities(values: object, order: object, n_actions: int) -> tuple[float, ...] | None:
    """Return ``p`` in the order of the actions: it is written in the order of ``a``, positions from 1."""
    p = _maybe_probabilities("p", values, n_actions)
    if p is None or order is None:
        return p
    positions = [_position("a", position, n_actions) for position in nonempty_list("a", order)]
    if sorted(positions) != list(range(n_actions)):
        raise ValueError(f"a must name each of {n_actions} actions once, got {order}")
    by_position = dict(zip(positions, p, strict=True))
    return tuple([by_position[i] for i in range(n_actions)])


def _maybe_probabilities(name: str, value: object, n_actions: int) -> tuple[float, ...] | None:
    return None if value is None else distribution(name, value, n_actions)


def _reward(name: str, value: object) -> float | None:
    return None if value is None else number(name, value)


def _different(ids: list[str]) -> tuple[str, ...]:
    if len(set(ids)) < len(ids):
        raise ValueError(f"actions must have different ids, got {', '.join(ids)}")
    return tuple(ids)


def _action_id(action: object) -> str:
    name = action.get("id") if type(action) is dict else None
    if type(name) is not str:
        raise ValueError(f"actions must be objects with a string id, got {action!r}")
    return name


def _position(name: str, value: object, n_actions: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= n_actions:
        raise ValueError(f"{name} must be in 1..{n_actions}, got {value!r}")
    return value - 1

"""Files of decisions that were made elsewhere, for an import: JSON lines, dsjson, and tables with named columns.

JSON lines have the format of ``GET /v1/events`` and ``fedres evaluate``. A decision without a reward is stored but not
learned. Recommended items and feedback keep their kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bandits.evaluation.columns import Columns, TableDecisions, seconds
from bandits.evaluation.logs import DSJSON_KEYS, from_record, read_lines
from bandits.evaluation.sources import TABLE_ENDINGS, open_source
from fedres.progress import Progress
from service.admin.exporting import FEEDBACK
from service.log.records import Place
from service.plugins.personalizer.configuration import azure_settings
from service.plugins.tools.dsjson import Logged, event_ids, read_line
from service.rank.requests import RankRequest
from service.settings import Settings

EXPORT, DSJSON, LINES, TABLE = "export", "dsjson", "lines", "table"
EXPORTED_COLUMNS = {"loop", "position", "checksum", "body_binary"}  # of an exported log in Parquet

_encode = msgspec.json.Encoder().encode
_request = msgspec.json.Decoder(RankRequest).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


def kind_of(path: Path) -> str:
    """Return the kind of a file by its ending, its columns or its first line; an exported log by default."""
    name = path.name.lower()
    if name.endswith((".dsjson", ".dsjson.gz")):
        return DSJSON
    if name.endswith(TABLE_ENDINGS):
        exported = name.endswith(".parquet") and EXPORTED_COLUMNS.issubset(open_source(path).names)
        return EXPORT if exported else TABLE
    try:
        keys = _object(next((line for _, line in read_lines(path)), b"{}")).keys()
    except (ValueError, msgspec.MsgspecError):
        return EXPORT
    if DSJSON_KEYS & keys:
        return DSJSON
    return LINES if {"action", "actions"} <= keys else EXPORT


class DecisionFile(NamedTuple):
    """A file of decisions, read a row at a time: a line of a text, or a row of a table."""

    rows: Callable[[Progress], Iterator[tuple[int, Any]]]  # with their numbers
    ids: Callable[[int, Any], list[str]]  # of the decisions of a row
    read: Callable[[int, Any], list[Logged]]
    unit: str = "line"  # the name of a row in messages
    settings: Settings = Settings()  # of a loop that is made for them
    reward: str = "reward"  # the name of the reward in messages


def decision_file(path: Path, kind: str, columns: Columns) -> DecisionFile:
    """Return the reader for the decisions of a file."""
    if kind == TABLE:
        decisions = TableDecisions(open_source(path), columns)
        return DecisionFile(
            decisions.rows,
            lambda number, cells: [decisions.event_id(number, cells)],
            lambda number, cells: [logged(decisions.record(number, cells))],
            decisions.source.unit,
        )
    rows = partial(read_lines, path)
    if kind == DSJSON:
        settings, reward = azure_settings(), "-_label_cost"
        return DecisionFile(
            rows, lambda _, line: event_ids(line), lambda _, line: read_line(line), "line", settings, reward
        )
    return DecisionFile(
        rows, lambda _, line: [str(_object(line).get("event_id", ""))], lambda _, line: [logged(_object(line))]
    )


def logged(record: dict[str, Any]) -> Logged:
    """Return the decision of an object; refuse one that evaluation or a rank call would refuse."""
    is_feedback = record.get("status") == FEEDBACK
    if is_feedback and record.get("reward") is None:
        raise ValueError("reward must be a number where the status is feedback, got None")
    event = from_record({**record, "probability": 1.0} if is_feedback else record)
    request = {
        "event_id": event.event_id,
        "user": event.user,
        "context": _features(record.get("context")),
        "actions": [
            {"id": action["id"], "features": _features(action.get("features"))} for action in record["actions"]
        ],
        "defer": event.reward is None,
    }
    rest = (1 - event.probability) / max(len(event.actions) - 1, 1)
    even = [event.probability if k == event.chosen else rest for k in range(len(event.actions))]
    happened = record.get("happened")
    time = event.time if happened is None else happened
    if is_feedback and time is not None:
        time = seconds(time)
    page = None if is_feedback else _page(record, len(event.actions))
    return Logged(
        _request(_encode(request)),
        event.chosen,
        [] if is_feedback else list(event.probabilities or even),
        event.reward,
        None if time is None else str(time),
        page,
        is_feedback,
    )


def _page(record: dict[str, Any], n_actions: int) -> Place | None:
    """Return the place of a recommended item, None for another decision."""
    place, candidates = record.get("place"), record.get("candidates")
    if candidates is None:
        return None
    if n_actions != 1 or type(place) is not int or type(candidates) is not int or not (place > 0 and candidates > 0):
        got = f"{n_actions} actions, place {place!r} and candidates {candidates!r}"
        raise ValueError(f"a recommended item must be the only action, in a place among candidates, got {got}")
    return Place(place, candidates)


def _features(value: Any) -> Any:
    """Return features as an object; numbers of a plain array get the same names as in evaluation."""
    return {f"[{k}]": number for k, number in enumerate(value)} if isinstance(value, list) else value or {}

"""Files of decisions that were made elsewhere, for an import: JSON lines, and tables with named columns.

The lines are what ``GET /v1/events`` writes and ``fedres evaluate`` reads. A decision without a reward is stored, and
is not learned from. Recommended items and feedback stay what they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bandits.evaluation.columns import Columns, Decisions, seconds
from bandits.evaluation.logs import DSJSON_KEYS, from_record, read_lines
from bandits.evaluation.sources import TABLE_ENDINGS, Progress, open_source
from service.admin.exporting import FEEDBACK
from service.log.records import Place
from service.plugins.tools.dsjson import Logged
from service.rank.requests import RankRequest
from service.settings import Settings

EXPORT, DSJSON, LINES, TABLE = "export", "dsjson", "lines", "table"
EXPORTED_COLUMNS = {"loop", "position", "checksum", "body_binary"}  # of an exported log in Parquet

_encode = msgspec.json.Encoder().encode
_request = msgspec.json.Decoder(RankRequest).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


def kind_of(path: Path) -> str:
    """Return what a file holds, by its ending, its columns or its first line; an exported log if nothing else."""
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


class JsonLines:
    """One JSON object a line."""

    unit, settings, reward = "line", Settings(), "reward"

    def __init__(self, path: Path) -> None:
        self._path = path

    def rows(self, progress: Progress) -> Iterator[tuple[int, bytes]]:
        return read_lines(self._path, progress)

    def ids(self, number: int, line: bytes) -> list[str]:
        return [str(_object(line).get("event_id", ""))]

    def read(self, number: int, line: bytes) -> list[Logged]:
        return [logged(_object(line))]


class TableRows:
    """A CSV or Parquet file."""

    settings, reward = Settings(), "reward"

    def __init__(self, path: Path, columns: Columns) -> None:
        self._decisions = Decisions(open_source(path), columns)
        self.unit = self._decisions.source.unit

    def rows(self, progress: Progress) -> Iterator[tuple[int, Sequence[Any]]]:
        return self._decisions.rows(progress)

    def ids(self, number: int, cells: Sequence[Any]) -> list[str]:
        return [self._decisions.event_id(number, cells)]

    def read(self, number: int, cells: Sequence[Any]) -> list[Logged]:
        return [logged(self._decisions.record(number, cells))]


def logged(record: dict[str, Any]) -> Logged:
    """Return the decision of an object; one that evaluation or a request for a decision would refuse is refused."""
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
    """Return features as an object; the numbers of a plain array are called as evaluation calls them."""
    return {f"[{k}]": number for k, number in enumerate(value)} if isinstance(value, list) else value or {}

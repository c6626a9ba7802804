"""Items from files: JSON lines, CSV and Parquet, in batches of the size of one call."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from bandits.evaluation.logs import read_objects
from bandits.evaluation.sources import is_table, open_source
from fedres.progress import Progress, ignore_progress
from service.item_attributes import read_meaning

BATCH_ITEMS, BATCH_BYTES = 2_000, 500_000  # of one call; its body may have 1,000,000 bytes

NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

Item = tuple[str, dict[str, Any]]  # its id and its features


def read_items(
    path: Path, id_column: str = "id", lists: Mapping[str, str] | None = None, progress: Progress = ignore_progress
) -> Iterator[Item]:
    """Yield the items of a file. ``lists`` maps columns with several values to their separator.

    A line of JSON is ``{"id", "features"}``, or the features including the id. In a CSV file, cells that parse as
    numbers are numbers, ``true`` and ``false`` are booleans, and empty cells are left out. So are cells such
    as ``nan``, which pandas writes for a missing value: a number that is not a number could not be a feature anyway.
    """
    lists = lists or {}
    if is_table(path):
        yield from _rows(path, id_column, lists, progress)
        return
    for at, line in read_objects(path, progress):
        fields = dict(line)
        name = fields.pop(id_column, None)
        features = fields["features"] if set(fields) == {"features"} else fields
        if name is None or not isinstance(features, dict):
            raise ValueError(f"{path}, line {at}: an item must have {id_column!r} and features, got {str(line)[:100]}")
        yield _item(f"{path}, line {at}", id_column, name, _split(features, lists))


def _rows(path: Path, id_column: str, lists: Mapping[str, str], progress: Progress) -> Iterator[Item]:
    source = open_source(path)
    for column in (id_column, *lists):
        if column not in source.names:
            raise ValueError(f"{path} must have a column {column!r}, has {', '.join(source.names)}")
    names = [name for name in source.names if name != id_column]
    for at, (name, *cells) in source.rows([id_column, *names], progress):
        if name is None:
            raise ValueError(f"{path}, {source.unit} {at}: {id_column} must not be empty")
        features = {key: cell for key, cell in zip(names, cells, strict=True) if cell is not None}
        if source.is_text:
            features = {key: cell if key in lists else value_of(cell) for key, cell in features.items()}
        yield _item(f"{path}, {source.unit} {at}", id_column, name, _split(features, lists))


def _split(features: dict[str, Any], lists: Mapping[str, str]) -> dict[str, Any]:
    """Return features in which columns with several values are arrays."""
    return {
        name: [word for word in value.split(lists[name]) if word] if name in lists and isinstance(value, str) else value
        for name, value in features.items()
    }


def _item(at: str, id_column: str, name: Any, features: dict[str, Any]) -> Item:
    """Return an item; refuse one whose id is no id, or with an invalid special attribute."""
    try:
        plain = plain_value(features)
        read_meaning(plain)
        return str(checked_id(id_column, name)), plain
    except ValueError as error:
        raise ValueError(f"{at}: {error}") from None


def checked_id(column: str, value: Any) -> str | float:
    """Return an id; numbers are ids too."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{column} must be text or a number")
    return value


def plain_value(value: Any) -> Any:
    """Return a value of a file as JSON has it: times as ISO 8601, durations in seconds."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain_value(each) for each in value]
    if isinstance(value, dict):
        return {str(name): plain_value(each) for name, each in value.items()}
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return float(value)
    raise ValueError(f"features must be text, numbers, times, lists or objects, got {type(value).__name__}")


def value_of(cell: str) -> Any:
    """Return the value of a cell in a text file.

    Only what JSON and spreadsheets write as a number is one: 00123 and 1_000 are codes, which stay text.
    """
    if cell in ("true", "false", "True", "False"):
        return cell in ("true", "True")
    if not NUMBER.fullmatch(cell.strip()):
        return cell
    number = float(cell)
    return number if math.isfinite(number) else cell


def batches(items: Iterator[Item]) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield items by id, as many as fit into one call; if an id is repeated, the last one counts."""
    batch: dict[str, dict[str, Any]] = {}
    n_bytes = 0
    for name, features in items:
        size = len(name) + len(msgspec.json.encode(features)) + 30
        if batch and (len(batch) >= BATCH_ITEMS or n_bytes + size > BATCH_BYTES):
            yield batch
            batch, n_bytes = {}, 0
        batch[name] = features
        n_bytes += size
    if batch:
        yield batch

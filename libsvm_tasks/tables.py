"""Tables with named columns, from a CSV file or in memory, as datasets."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from fedres.checks import Array
from libsvm_tasks.data import Data

MOST_VALUES = 1000  # distinct texts of a column; more are names or prose, not a category
FEWEST_REPEATS = 2  # whole numbers that come up this often on average are classes


def read_csv(name: str, file: BinaryIO, label: str | None, *, delimiter: str = ",") -> Data:
    """Return the dataset of a CSV file with a header; see ``from_columns``. A ``ValueError`` starts with the line."""
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        lines = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            header, *rows = _checked(lines)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"line {lines.line_num + 1}: {error}") from None
    if len(set(header)) < len(header):
        raise ValueError(f"columns must have different names, got {', '.join(header)}")
    if not rows:
        raise ValueError("must have a header and rows, has no rows")
    return from_columns(name, dict(zip(header, zip(*rows, strict=True), strict=True)), label)


def _checked(lines: Any) -> Iterator[list[str]]:
    header = next(lines, None)
    if not header:
        raise ValueError("must have a header and rows, has none")
    yield header
    for row in lines:
        if row and len(row) != len(header):
            raise ValueError(f"line {lines.line_num}: must have {len(header)} cells, has {len(row)}")
        if row:
            yield row


def from_columns(name: str, columns: Mapping[str, Iterable[Any]], label: str | None) -> Data:
    """Return a dataset from columns by name, the one called ``label`` apart: a mapping of lists, or a DataFrame.

    A column of numbers is scaled to [0, 1] by its least and its largest; a column of texts becomes a 0/1 feature for
    each of its values. Labels are classes if they are texts, booleans, or whole numbers of which each comes up twice
    on average; else they are values to regress.
    """
    cells = {str(column): list(values) for column, values in columns.items()}
    if label not in cells:
        got = "none was given" if label is None else f"got {label!r}"
        raise ValueError(f"label must name one of the columns {', '.join(cells)}; {got}")
    labels = cells.pop(label)
    if not cells:
        raise ValueError(f"there must be a column beside the label {label!r}")
    features = np.hstack([_features(column, values) for column, values in cells.items()])
    numbers = _numbers(label, labels)
    if numbers is not None and not _classes(numbers):
        return Data(name, features, numbers)
    shown = np.array(labels if numbers is None else numbers.astype(np.int64))
    classes, place = np.unique(shown.astype(str) if numbers is None else shown, return_inverse=True)
    return Data(name, features, place, classes)


def _features(name: str, values: list[Any]) -> Array:
    """Return one column scaled to [0, 1], or one for each text."""
    numbers = _numbers(name, values)
    if numbers is not None:
        span = np.ptp(numbers)
        scaled: Array = (numbers - numbers.min()) / (span if span > 0 else 1.0)
        return scaled[:, None]
    texts, place = np.unique([str(value) for value in values], return_inverse=True)
    if len(texts) > MOST_VALUES:
        raise ValueError(f"column {name!r} must have at most {MOST_VALUES} different texts, has {len(texts)}")
    return np.eye(len(texts))[place]


def _numbers(name: str, values: list[Any]) -> Array | None:
    """Return a column as numbers, None if it has a text."""
    numbers = []
    for row, value in enumerate(values, 1):
        if value is None or (isinstance(value, str) and not value.strip()):
            raise ValueError(f"column {name!r} must have no empty cell, row {row} is one: drop or fill it first")
        try:
            number = float(value)
        except (TypeError, ValueError):
            return None
        if not math.isfinite(number):
            raise ValueError(f"column {name!r} must have finite numbers, row {row} has {value!r}")
        numbers.append(number)
    return np.array(numbers)


def _classes(numbers: Array) -> bool:
    whole = bool(np.all((numbers == np.rint(numbers)) & (np.abs(numbers) <= 2**53)))
    return whole and len(np.unique(numbers)) <= max(2, len(numbers) / FEWEST_REPEATS)

"""A ranker's prepared items of a loop's catalogue: features in rows, attributes in columns.

A changed item gets a new row, and its old row is dead; once most rows are dead, the others move together. So the cost
of a change is in proportion to its size, and decisions need no lookups.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.decisions.kalman_rows import Rows, fill_inputs, fill_pair_means, number_features
from fedres.decisions.kalman_state import Shared
from fedres.key_tables import LONGEST, MOST_PROBES, new_table, slots_in
from fedres.scoring.features import Hashed, Named, Preparer
from service.item_attributes import read_meaning
from service.log.records import CatalogueReference
from service.models.catalogue import CatalogueCopy
from service.models.loop_metadata import CatalogueAction

STEP = 500  # items added at once, which takes some milliseconds, and the bytes of their features
STEP_BYTES = 30_000
MOST_NAMES = 1_000  # of attributes, by which filters can choose; those of a catalogue that come first
LARGEST = sys.float_info.max
SPARE_ROWS = 1_000  # dead rows allowed in addition to the number of items

_decode = msgspec.json.Decoder().decode


class Column:
    """The values of one attribute: texts and truth values by number, numbers as they are; an item may have several."""

    def __init__(self) -> None:
        # Rows that were processed.
        self.n_rows = 0
        self.words: dict[str | bool, int] = {}
        self.word_rows, self.codes = array("i"), array("i")
        self.number_rows, self.numbers = array("i"), array("d")

    def add(self, row: int, value: Any) -> None:
        if isinstance(value, str | bool):
            self.word_rows.append(row)
            self.codes.append(self.words.setdefault(value, len(self.words)))
        elif isinstance(value, int | float):
            self.number_rows.append(row)
            self.numbers.append(min(max(value, -LARGEST), LARGEST))  # JSON's integers may exceed any float

    def move(self, places: Array) -> None:
        """Move rows to other places; those with place −1 are dropped."""
        self.n_rows = int((places[: self.n_rows] >= 0).sum())
        self.word_rows, kept = _moved(self.word_rows, places)
        self.codes = array("i", np.array(self.codes, np.int32)[kept].tobytes())
        self.number_rows, kept = _moved(self.number_rows, places)
        self.numbers = array("d", np.array(self.numbers, np.float64)[kept].tobytes())


def _moved(rows: array[int], places: Array) -> tuple[array[int], Array]:
    """Return the new places of rows, without the dropped ones, and which of them remain."""
    moved = places[np.array(rows, np.int32)]
    kept = moved >= 0
    return array("i", moved[kept].astype(np.int32).tobytes()), kept


class Growing:
    """A NumPy array with room at its end."""

    def __init__(self, dtype: Any) -> None:
        self._all: Array = np.zeros(64, dtype)
        self.size = 0

    @property
    def used(self) -> Array:
        return self._all[: self.size]

    def extend(self, values: Array) -> None:
        self.reserve(values.size)
        self._all[self.size : self.size + values.size] = values
        self.size += values.size

    def reserve(self, n: int) -> Array:
        """Return the array with room for ``n`` more."""
        if self.size + n > self._all.size:
            grown = np.zeros(2 * (self.size + n), self._all.dtype)
            grown[: self.size] = self.used
            self._all = grown
        return self._all


class Items:
    """All items of one catalogue that were added so far."""

    def __init__(self, catalogue: CatalogueCopy, preparer: Preparer) -> None:
        self.catalogue, self._preparer = catalogue, preparer
        self._changed: dict[str, None] = dict.fromkeys(catalogue.actions)
        catalogue.listeners.append(self._note)
        self.version = 0  # of the rows
        self.names: dict[str, None] = {}  # of attributes
        self._clear()

    def _clear(self) -> None:
        self.ids: list[str] = []  # of each row, also of those that are dead
        self.rows: dict[str, int] = {}  # by id
        self.references: list[CatalogueReference] = []  # of each row, as logged
        self._features: list[bytes] = []  # of each row, as JSON
        self.alive, self.available = Growing(np.bool_), Growing(np.bool_)
        self.expires, self.boosts = Growing(np.float64), Growing(np.float64)
        self.columns: dict[str, Column] = {}  # of the attributes that filters have asked for
        self._ends = Growing(np.int64)
        self._ends.extend(np.zeros(1, np.int64))
        self._hashes, self._values, self._fields = Growing(np.uint32), Growing(np.float32), Growing(np.uint32)
        self._numbers, self._inputs = Growing(np.int32), Growing(np.float64)
        self._keys, self._key_fields, self._id_keys = Growing(np.uint32), Growing(np.uint32), Growing(np.uint32)
        self._table: Array = new_table(512)
        self._scales: Array | None = None  # by which the inputs are
        self._pair_means = Growing(np.float64)
        self._paired_by: Shared | None = None  # whose weights these are by

    def _note(self, name: str) -> None:
        self._changed[name] = None

    @property
    def is_behind(self) -> bool:
        return bool(self._changed)

    def take_some(self) -> None:
        """Add some of the changed items."""
        names: list[str] = []
        n_bytes = 0
        for name in islice(self._changed, STEP):
            action = self.catalogue.actions.get(name)
            n_bytes += 0 if action is None else len(action.features)
            if names and n_bytes > STEP_BYTES:
                break
            names.append(name)
        for name in names:
            del self._changed[name]
            row = self.rows.pop(name, None)
            if row is not None:
                self.alive.used[row] = False
        there = [(name, self.catalogue.actions[name]) for name in names if name in self.catalogue.actions]
        hashed = self._preparer.hash_all([Named("", name, action.features) for name, action in there])
        good = [
            (name, action, row) for (name, action), row in zip(there, hashed, strict=True) if isinstance(row, Hashed)
        ]
        self.version += 1
        self._add(good)
        if len(self.ids) > 2 * len(self.rows) + SPARE_ROWS:
            self._move_together()

    def _add(self, items: Sequence[tuple[str, CatalogueAction, Hashed]]) -> None:
        if not items:
            return
        meanings = []
        for name, action, _ in items:
            features = _decode(action.features) if action.features else {}
            for attribute, _ in attributes(features) if len(self.names) < MOST_NAMES else ():
                if len(self.names) < MOST_NAMES:
                    self.names[attribute] = None
            self.rows[name] = len(self.ids)
            self.ids.append(name)
            self.references.append(CatalogueReference(name, action.put))
            self._features.append(action.features)
            meanings.append(read_meaning(features, strict=False))
        available, expires, boosts = zip(*meanings, strict=True)
        self.alive.extend(np.ones(len(items), np.bool_))
        self.available.extend(np.array(available, np.bool_))
        self.expires.extend(np.array(expires, np.float64))
        self.boosts.extend(np.array(boosts, np.float64))
        rows = [_side_by_side(row) for _, _, row in items]
        hashes = np.frombuffer(b"".join([row.hashes for row in rows]), np.uint32)
        values = np.frombuffer(b"".join([row.values for row in rows]), np.float32)
        fields = np.frombuffer(b"".join([row.fields for row in rows]), np.uint32)
        self._ends.extend(self._hashes.size + np.cumsum([row.size for row in rows], dtype=np.int64))
        for column, new in ((self._hashes, hashes), (self._values, values), (self._fields, fields)):
            column.extend(new)

    def _number(self) -> None:
        """Assign numbers to the features of new rows."""
        new = slice(self._numbers.size, self._hashes.size)
        hashes, fields = self._hashes.used[new], self._fields.used[new]
        n = self._keys.size
        keys, key_fields = self._keys.reserve(hashes.size), self._key_fields.reserve(hashes.size)
        if 2 * (n + hashes.size) > slots_in(self._table) or self._table[LONGEST] > MOST_PROBES:
            self._table = new_table(2 * (n + hashes.size))
            old, old_fields = self._keys.used.copy(), self._key_fields.used.copy()
            number_features(self._table, keys, key_fields, 0, old, old_fields, np.empty(n, np.int32))
        numbers = np.empty(hashes.size, np.int32)
        self._keys.size = self._key_fields.size = number_features(
            self._table, keys, key_fields, n, hashes, fields, numbers
        )
        self._numbers.extend(numbers)

    def make_columns(self, names: Iterable[str]) -> None:
        """Make the columns of these attributes, or bring them up to date."""
        columns = {name: self.columns.setdefault(name, Column()) for name in names if name in self.names}
        first = min([column.n_rows for column in columns.values()], default=self.n_rows)
        for row in range(first, self.n_rows):
            features = self._features[row]
            for name, value in attributes(_decode(features) if features else {}):
                column = columns.get(name)
                if column is not None and row >= column.n_rows:
                    column.add(row, value)
        for column in columns.values():
            column.n_rows = self.n_rows

    def _move_together(self) -> None:
        """Leave out the rows that are dead."""
        kept = np.flatnonzero(self.alive.used)
        places = np.full(len(self.ids), -1, np.int32)
        places[kept] = np.arange(kept.size)
        ends, columns = self._ends.used, self.columns
        entries = np.repeat(self.alive.used, np.diff(ends))
        sizes = np.diff(ends)[kept]
        places_kept = kept.tolist()
        ids = [self.ids[row] for row in places_kept]
        references = [self.references[row] for row in places_kept]
        json = [self._features[row] for row in places_kept]
        flags = [column.used[kept] for column in (self.alive, self.available, self.expires, self.boosts)]
        features = [column.used[entries] for column in (self._hashes, self._values, self._fields)]
        self._clear()
        self.ids, self.references, self._features = ids, references, json
        self.rows = {name: row for row, name in enumerate(ids)}
        for column, values in zip((self.alive, self.available, self.expires, self.boosts), flags, strict=True):
            column.extend(values)
        for column, values in zip((self._hashes, self._values, self._fields), features, strict=True):
            column.extend(values)
        self._ends.extend(np.cumsum(sizes, dtype=np.int64))
        for name, attribute in columns.items():
            attribute.move(places)
            if attribute.word_rows or attribute.number_rows:
                self.columns[name] = attribute

    # For decisions

    @property
    def n_rows(self) -> int:
        return len(self.ids)

    def features(self) -> tuple[Array, Array, Array]:
        """Return hashes, values and where each row ends, the first of them where the first row begins."""
        return self._hashes.used, self._values.used, self._ends.used

    def distinct_features(self) -> tuple[Array, Array, Array]:
        """Return which of the distinct features is at each place, their hashes, and the hashes of their JSON keys."""
        self._number()
        return self._numbers.used, self._keys.used, self._key_fields.used

    def numbered(self, shared: Shared) -> Rows:
        """Return the rows for ``residual-kalman``. Scales of numbers seldom change, but weights of pairs always do."""
        scales = np.concatenate([shared.scale_keys.astype(np.float64), shared.scale_stats.ravel()])
        self._number()
        first = self._inputs.size
        if self._scales is None or not np.array_equal(scales, self._scales):
            self._scales, first = scales, 0
        new = slice(first, self._hashes.size)
        self._inputs.size = first
        inputs = self._inputs.reserve(self._hashes.size - first)
        fill_inputs(shared, self._hashes.used[new], self._values.used[new], self._fields.used[new], inputs[new])
        self._inputs.size = self._hashes.size
        if self._paired_by is not shared:
            self._paired_by, self._pair_means.size = shared, 0
        first = self._pair_means.size
        self._pair_means.extend(np.zeros(self.n_rows - first))
        columns = (self._ends, self._numbers, self._inputs, self._keys, self._key_fields, self._pair_means)
        rows = Rows(*[column.used for column in columns])
        if first < self.n_rows:
            fill_pair_means(shared, rows, first)
        return rows

    @property
    def keys(self) -> Array:
        """The hash of each item's id, its first feature."""
        self._id_keys.extend(self._hashes.used[self._ends.used[self._id_keys.size : -1]])
        return self._id_keys.used

    def features_of(self, row: int) -> Hashed:
        """Return the hashed features of an item."""
        first, last = self._ends.used[row : row + 2].tolist()
        columns = (self._hashes, self._values, self._fields)
        return Hashed(last - first, *[column.used[first:last].tobytes() for column in columns])

    def showable(self, now: float) -> Array:
        """Return which rows are of items that may be shown."""
        return self.alive.used & self.available.used & (self.expires.used > now)


def attributes(features: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an item: those in objects have names with a point, those in arrays come several times."""
    for name, value in features.items() if isinstance(features, dict) else ():
        if isinstance(value, dict):
            yield from attributes(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            yield from ((prefix + name, each) for each in value)
        else:
            yield prefix + name, value


def _side_by_side(row: Hashed) -> Hashed:
    """Return a row with features that come several times next to each other."""
    hashes = [row.hashes[k : k + 4] for k in range(0, len(row.hashes), 4)]
    if len(set(hashes)) == len(hashes):
        return row
    first: dict[bytes, int] = {}  # the place where each comes first
    for k, each in enumerate(hashes):
        first.setdefault(each, k)
    order = sorted(range(len(hashes)), key=lambda k: first[hashes[k]])

    def ordered(column: bytes) -> bytes:
        return b"".join([column[4 * k : 4 * k + 4] for k in order])

    return Hashed(row.size, ordered(row.hashes), ordered(row.values), ordered(row.fields))


def shown(values: Iterable[Any], most: int = 10) -> str:
    """Return some of the values, for a message."""
    some = [str(value) for value in values]
    return ", ".join(some[:most]) + (f" and {len(some) - most} more" if len(some) > most else "")

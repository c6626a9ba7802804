"""Tables with named columns, read a few rows at a time: CSV, Parquet, a DataFrame, or a mapping of columns."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedres.progress import Progress

TABLE_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
CHUNK = 10_000  # rows
EMPTY = frozenset({"", "nan", "NaN", "null", "NULL", "None"})  # cells of a text file that hold nothing


class Source(Protocol):
    """A table that can be read again from its beginning."""

    name: str  # as errors call it
    names: list[str]  # of its columns
    is_text: bool  # cells are texts, whatever they mean
    unit: str  # unit of row numbers: lines of a text from 1, rows from 0

    def rows(self, names: Sequence[str], progress: Progress) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield the number of a row and its cells of these columns; None where a cell is empty."""


def is_table(log: object) -> bool:
    """Return whether a log is a table, by its ending or its type."""
    if isinstance(log, str | Path):
        return str(log).lower().endswith(TABLE_ENDINGS)
    return isinstance(log, Mapping) or hasattr(log, "columns")


def open_source(log: Any) -> Source:
    """Return the table of a path, or of a DataFrame (pandas, polars, pyarrow) or another mapping of columns."""
    if not isinstance(log, str | Path):
        return Frame(log)
    return Parquet(Path(log)) if str(log).lower().endswith(".parquet") else Csv(Path(log))


class Csv:
    """A CSV file with a header, separated by tabs if its name says .tsv."""

    is_text: bool = True
    unit: str = "line"

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path), path
        self._delimiter = "\t" if ".tsv" in path.name.lower() else ","
        with open(path, "rb") as file, self._text(file) as text:
            self.names: list[str] = next(csv.reader(text, delimiter=self._delimiter), [])
        if not self.names:
            raise ValueError(f"{path} must have a header with the names of its columns, is empty")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"{path} must have columns with different names, got {', '.join(self.names)}")

    def rows(self, names: Sequence[str], progress: Progress) -> Iterator[tuple[int, tuple[Any, ...]]]:
        places, n, size = [self.names.index(name) for name in names], len(self.names), self._path.stat().st_size
        with open(self._path, "rb") as file, self._text(file) as text:
            lines = csv.reader(text, delimiter=self._delimiter, strict=True)
            try:
                next(lines)
                for count, cells in enumerate(lines):
                    if count % CHUNK == 0:
                        progress(min(file.tell(), size), size)
                    if len(cells) == n:
                        row = tuple([None if (cell := cells[k]) in EMPTY else cell for k in places])
                        yield lines.line_num, row
                    elif cells:
                        raise ValueError(f"must have {n} cells, as the header has, got {len(cells)}")
            except (csv.Error, ValueError, EOFError, OSError) as error:
                raise ValueError(f"{self.name}, line {lines.line_num}: {error}") from None
        progress(size, size)

    def _text(self, file: Any) -> io.TextIOWrapper:
        raw = gzip.GzipFile(fileobj=file) if self.name.lower().endswith(".gz") else file
        return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


class Parquet:
    """A Parquet file, through pyarrow."""

    is_text: bool = False
    unit: str = "row"

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ModuleNotFoundError:
            raise ValueError(f"{path} needs pyarrow to be read: pip install 'fedres[parquet]'") from None
        self.name = str(path)
        try:
            self._file = pyarrow.parquet.ParquetFile(path)
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{path} must be a Parquet file: {error}") from None
        self.names: list[str] = list(self._file.schema_arrow.names)

    def rows(self, names: Sequence[str], progress: Progress) -> Iterator[tuple[int, tuple[Any, ...]]]:
        total, before = self._file.metadata.num_rows, 0
        for batch in self._file.iter_batches(CHUNK, columns=list(names)):
            columns = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in names]
            yield from enumerate(zip(*columns, strict=True), before)
            before += batch.num_rows
            progress(before, total)


class Frame:
    """A DataFrame of pandas or polars, a table of pyarrow, or a mapping from names to columns."""

    name: str = "the table"
    is_text: bool = False
    unit: str = "row"

    def __init__(self, frame: Any) -> None:
        names = frame if isinstance(frame, Mapping) else getattr(frame, "column_names", None) or frame.columns
        self._columns = {str(name): frame[name] for name in names}
        self.names = list(self._columns)
        sizes = {name: len(column) for name, column in self._columns.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"columns must be of one length, got {sizes}")
        self._size = next(iter(sizes.values()), 0)

    def rows(self, names: Sequence[str], progress: Progress) -> Iterator[tuple[int, tuple[Any, ...]]]:
        for start in range(0, self._size, CHUNK):
            columns = [_cells(self._columns[name], start) for name in names]
            yield from enumerate(zip(*columns, strict=True), start)
            progress(min(start + CHUNK, self._size), self._size)


def _cells(column: Any, start: int) -> list[Any]:
    """Return a part of a column as values of Python."""
    part = (column.iloc if hasattr(column, "iloc") else column)[start : start + CHUNK]
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(part, method):
            return list(getattr(part, method)())
    return list(part)

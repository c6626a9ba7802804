"""Reads a dataset: ``digits``, a name of the catalogue, any LIBSVM/svmlight file, or a CSV file."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from fedres.checks import Array
from libsvm_tasks.catalogue import CATALOGUE, DatasetEntry
from libsvm_tasks.data import Data
from libsvm_tasks.tables import read_csv

TABLES = {".csv": ",", ".tsv": "\t"}
SUFFIXES = ("", ".bz2", ".xz", ".gz")
LARGEST = 2 * 2**30  # bytes of a dense array
MOST_CLASSES = 1000  # more distinct whole labels than this are values, not classes
LAST_INDEX = 2**31 - 1  # scikit-learn keeps an index in 32 bits


def load(dataset: str, label: str | None = None) -> Data:
    """Return ``digits`` (pixels divided by 16: in [0, 1]), a dataset of the catalogue, or the file at a path.

    A file that ends in .csv or .tsv has a header, and ``label`` names the column to predict (``tables.from_columns``
    treats the others). Any other is an svmlight file, which has its labels in front.

    A name of the catalogue is looked up in the folder ``FEDRES_DATA``, then in ``cache_folder()``, as NAME.svm or NAME,
    plain or with .bz2, .xz or .gz. A name goes before a file called the same: write ``./letter`` for the file.

    A file given by path is 0-based where index 0 occurs, else 1-based. It is for classification if its labels are whole
    numbers and two values at most occur, or at most ``MOST_CLASSES`` that have two rows each on average; else for
    regression.
    """
    path = Path(dataset).expanduser()
    delimiter = None if dataset in CATALOGUE else _delimiter(path)
    if label is not None and delimiter is None:
        raise ValueError(f"label must come with a .csv or .tsv file, got {label!r} for {dataset}")
    if dataset == "digits":
        return _digits()
    if dataset in CATALOGUE:
        stored = find(dataset)
        if stored is None:
            raise ValueError(_not_found(CATALOGUE[dataset]))
        return read(stored, CATALOGUE[dataset])
    if not path.is_file():
        raise ValueError(
            f"dataset must be one of {', '.join(sorted(CATALOGUE))}, or a path to an svmlight or CSV file; got "
            f"{dataset!r}, and {path.absolute()} is {'a folder' if path.is_dir() else 'no file'}"
        )
    if delimiter is not None:
        return _table(path, label, delimiter)
    with _readable(path), _open(path) as file:
        if file.read(1) == b"{":
            raise ValueError(
                f"{path}: holds JSON lines, such as a log of decisions, which `fedres evaluate {path}` takes;"
                " this takes a table with a class or a number to predict, as svmlight or CSV"
            )
    return read(path)


def _delimiter(path: Path) -> str | None:
    name = path.with_suffix("") if path.suffix.lower() in SUFFIXES[1:] else path
    return TABLES.get(name.suffix.lower())


def _table(path: Path, label: str | None, delimiter: str) -> Data:
    with _readable(path), _open(path) as file:
        try:
            return read_csv(path.name, file, label, delimiter=delimiter)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def cache_folder() -> Path:
    """Return the folder of this user where fetched datasets are kept: $XDG_CACHE_HOME/fedres or ~/.cache/fedres."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedres"


def journal_file(setup: object, schemes: object) -> Path:
    """Return the file with the finished results of a run, which an interrupted one resumes from."""
    name = hashlib.sha256(repr((setup, schemes)).encode()).hexdigest()[:16]
    return cache_folder() / "unfinished" / f"{name}.jsonl"


def find(name: str) -> Path | None:
    """Return the first file that holds this dataset of the catalogue, or None."""
    places = (folder / f"{stem}{end}" for folder in _folders() for stem in (f"{name}.svm", name) for end in SUFFIXES)
    return next((place for place in places if place.is_file()), None)


def find_real(name: str) -> Path | None:
    """Return the file of this name in the folder ``real`` below ``FEDRES_DATA``, plain or compressed, or None."""
    folder = os.environ.get("FEDRES_DATA")
    places = [Path(folder).expanduser() / "real" / f"{name}{end}" for end in SUFFIXES] if folder else []
    return next((place for place in places if place.is_file()), None)


def real_lines(name: str, encoding: str = "utf-8") -> list[str]:
    """Return the lines of such a file that are not empty."""
    path = find_real(name)
    if path is None:
        raise ValueError(absent(name))
    with _readable(path), _open(path) as file:
        return [line for line in file.read().decode(encoding).split("\n") if line.strip()]


def absent(name: str) -> str | None:
    """Return why there is no dataset, or no real file, of this name; None where there is one."""
    if name in CATALOGUE:
        return None if name == "digits" or find(name) else _not_found(CATALOGUE[name])
    if find_real(name):
        return None
    folder = os.environ.get("FEDRES_DATA")
    looked = f"in {Path(folder).expanduser() / 'real'}" if folder else "because FEDRES_DATA is not set"
    return f"{name} was not found, plain or with .bz2, .xz or .gz, {looked}"


def read(path: Path, entry: DatasetEntry | None = None) -> Data:
    """Return what a file holds, dense; where ``entry`` is given with its number of features, 1-based, and its task.

    A ``ValueError`` starts with the path, and for a bad line has its number.
    """
    from sklearn.datasets import load_svmlight_file  # two seconds, which digits need not

    n_features = None if entry is None else entry.features
    with _readable(path):
        try:
            with _open(path) as file:
                sparse, label = load_svmlight_file(
                    file, n_features=n_features, zero_based="auto" if entry is None else False
                )
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path}: {_first_fault(path, entry) or error}") from None
        if not (sparse.nnz and np.isfinite(sparse.data).all() and _labels_fit(label, entry)):
            raise ValueError(f"{path}: {_first_fault(path, entry)}")
    features = _dense(path, sparse)
    if entry is None:
        return _with_labels(path.name, features, label, classification=_looks_like_classes(label))
    return _with_labels(entry.name, features, label, classification=entry.task == "classification")


def _digits() -> Data:
    """Read the file that scikit-learn's own ``load_digits`` reads: the import of that takes two seconds."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("scikit-learn is not installed: pip install 'fedres[bench]'", name="sklearn")
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return _with_labels("digits", rows[:, :-1] / 16, rows[:, -1].astype(int), classification=True)


def _folders() -> list[Path]:
    folder = os.environ.get("FEDRES_DATA")
    return [*([Path(folder).expanduser()] if folder else []), cache_folder()]


def _not_found(entry: DatasetEntry) -> str:
    *folders, cache = map(str, _folders())
    looked = f"in {folders[0]} (FEDRES_DATA) or {cache}" if folders else f"in {cache} (FEDRES_DATA is not set)"
    remedy = entry.recipe or f"`fedres datasets fetch {entry.name}` downloads it"
    return f"{entry.name} was not found: no {entry.name}.svm, plain or with .bz2, .xz or .gz, {looked}; {remedy}"


def _open(path: Path) -> BinaryIO:
    openers: dict[str, Any] = {".bz2": bz2.open, ".xz": lzma.open, ".gz": gzip.open}
    return cast(BinaryIO, openers.get(path.suffix.lower(), open)(path, "rb"))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _dense(path: Path, sparse: Any) -> Array:
    rows, columns = sparse.shape
    if rows * columns * 8 > LARGEST:
        raise ValueError(
            f"{path}: {rows:,} rows of {columns:,} features would take {rows * columns * 8 / 2**30:,.1f} GiB as a "
            f"dense array, more than {LARGEST / 2**30:g} GiB"
        )
    return cast(Array, sparse.toarray())


def _with_labels(name: str, features: Array, label: Array, *, classification: bool) -> Data:
    if not classification:
        return Data(name, features, label)
    classes, place = np.unique(label.astype(np.int64), return_inverse=True)
    return Data(name, features, place, classes)


def _looks_like_classes(label: Array) -> bool:
    n_values = len(np.unique(label))
    return _whole(label) and n_values <= max(2, min(MOST_CLASSES, len(label) / 2))


def _whole(label: Array) -> bool:
    return bool(np.all((label == np.rint(label)) & (np.abs(label) <= 2**53)))


def _labels_fit(label: Array, entry: DatasetEntry | None) -> bool:
    return bool(np.isfinite(label).all()) and (entry is None or entry.task == "regression" or _whole(label))


def _first_fault(path: Path, entry: DatasetEntry | None) -> str | None:
    """Return where a file breaks the format and how, or None. Much slower than a reader: for files known to be bad."""
    n_rows = n_pairs = 0
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            tokens = line.split(b"#", 1)[0].split()
            try:
                _check_row(tokens, entry)
            except ValueError as fault:
                return f"line {number}: {fault}"
            n_rows, n_pairs = n_rows + bool(tokens), n_pairs + len(tokens[1:])
    return "has no rows" if not n_rows else None if n_pairs else "has no features"


def _check_row(tokens: list[bytes], entry: DatasetEntry | None) -> None:
    if not tokens:
        return
    label = _number("label", tokens[0])
    if entry is not None and entry.task == "classification" and not _whole(np.array(label)):
        raise ValueError(f"label must be a whole number, got {_shown(tokens[0])}")
    first, last = (0, LAST_INDEX) if entry is None else (1, entry.features)
    previous = None
    for token in tokens[2:] if tokens[1:] and tokens[1].startswith(b"qid:") else tokens[1:]:
        previous = _check_pair(token, first, last, previous)


def _check_pair(token: bytes, first: int, last: int, previous: int | None) -> int:
    index_text, colon, value = token.partition(b":")
    try:
        index = int(index_text)
    except ValueError:
        raise ValueError(f"a feature must be index:value, got {_shown(token)}") from None
    if not colon:
        raise ValueError(f"a feature must be index:value, got {_shown(token)}")
    if not first <= index <= last:
        raise ValueError(f"index must be from {first} to {last}, got {index}")
    if previous is not None and index <= previous:
        raise ValueError(f"indices must ascend, got {index} after {previous}")
    _number(f"value of feature {index}", value)
    return index


def _number(name: str, text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {_shown(text)}") from None
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {_shown(text)}")
    return value


def _shown(token: bytes) -> str:
    text = token.decode(errors="replace")
    return repr(text if len(text) <= 40 else text[:37] + "...")


def available(name: str) -> bool:
    """Return whether ``load`` would find this dataset of the catalogue here."""
    return name == "digits" or find(name) is not None

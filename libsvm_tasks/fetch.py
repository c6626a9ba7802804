"""Downloads the LIBSVM collection's copy of a dataset: the only code here that touches the network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

from fedres.checks import one_of
from libsvm_tasks.catalogue import CATALOGUE, DatasetEntry
from libsvm_tasks.data import Data
from libsvm_tasks.load import SUFFIXES, cache_folder, read

BLOCK = 2**16  # bytes between two calls of ``progress``
PATIENCE = 30.0  # seconds without an answer

Progress = Callable[[int, int | None], None]  # bytes so far; bytes in all, None where the server does not say


def fetch(name: str, folder: str | Path | None = None, *, progress: Progress | None = None) -> Path:
    """Download a dataset into ``folder`` (else the user's cache folder), check its shape, and return the file.

    The file appears under its name whole and checked, or not at all; an earlier one stays until then.
    """
    one_of("dataset", name, CATALOGUE)
    entry, folder = CATALOGUE[name], cache_folder() if folder is None else Path(folder).expanduser()
    if entry.url is None:
        raise ValueError(_no_address(entry, folder))
    target = folder / f"{name}.svm{_compression(entry.url)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{name}-", dir=folder) as beside:
            path = Path(beside) / target.name
            _download(entry.urls, path, progress)
            _verify(path, entry)
            os.replace(path, target)
    except _NetworkError as error:
        raise ValueError(_by_hand(entry, target, error)) from error
    except OSError as error:
        raise ValueError(f"{target} cannot be written: {error.strerror or error}") from error
    return target


class _NetworkError(Exception):
    """Apart from ``OSError``, so that a full disk is not called a bad network."""


def _by_hand(entry: DatasetEntry, target: Path, reason: _NetworkError) -> str:
    return (
        f"{entry.name} could not be downloaded: {reason}; where there is no network, put "
        f"{' and after it '.join(entry.urls)} by hand in one file, {target}"
    )


def _no_address(entry: DatasetEntry, folder: Path) -> str:
    if not entry.recipe:
        return f"{entry.name} ships inside scikit-learn: there is nothing to fetch"
    return (
        f"{entry.name} ({entry.origin}) is not in the LIBSVM collection; {entry.recipe}; "
        f"and put it at {folder / entry.name}.svm, plain or with .bz2, .xz or .gz"
    )


def _compression(url: str) -> str:
    end = Path(url).suffix
    return end if end in SUFFIXES else ""


def _download(urls: tuple[str, ...], path: Path, progress: Progress | None) -> None:
    """Write the parts of a dataset one after the other: compressed streams may be joined just as text may."""
    sizes = [_size(url) for url in urls]
    stated = [size for size in sizes if size is not None]
    total = sum(stated) if len(stated) == len(urls) else None
    with path.open("wb") as file:
        for url in urls:
            for block in _blocks(url):
                file.write(block)
                if progress is not None:
                    progress(file.tell(), total)
        file.flush()
        os.fsync(file.fileno())


def _blocks(url: str) -> Iterator[bytes]:
    received = 0
    with _network(), urlopen(url, timeout=PATIENCE) as response:
        while block := response.read(BLOCK):
            received += len(block)
            yield block
        promised = _length(response)
        if promised is not None and received != promised:
            raise ConnectionError(f"the connection ended after {received:,} of {promised:,} bytes")


def _size(url: str) -> int | None:
    with _network(), urlopen(Request(url, method="HEAD"), timeout=PATIENCE) as response:
        return _length(response)


def _length(response: Any) -> int | None:
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


@contextmanager
def _network() -> Iterator[None]:
    try:
        yield
    except HTTPError as error:
        error.close()
        raise _NetworkError(f"{error.url} answered {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise _NetworkError(getattr(error, "reason", error)) from error


def _verify(path: Path, entry: DatasetEntry) -> None:
    wrong = f"what came from {' and '.join(entry.urls)} is not the {entry.name} of the catalogue"
    try:
        data = read(path, entry)
    except ValueError as error:
        raise ValueError(f"{wrong}: {str(error).removeprefix(f'{path}: ')}") from None
    expected = (entry.rows, entry.features - entry.empty_features, entry.classes)
    for what, n, expected_n in zip(("rows", "features", "classes"), _shape(data), expected, strict=True):
        if n != expected_n:
            raise ValueError(f"{wrong}: it has {n:,} {what}, not {expected_n:,}")


def _shape(data: Data) -> tuple[int, int, int]:
    """Return the numbers of rows, of columns up to the last that is not empty, and of classes."""
    used = np.flatnonzero(data.features.any(axis=0))
    return len(data.features), int(used.max(initial=-1)) + 1, data.n_classes

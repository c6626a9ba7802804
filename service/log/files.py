"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Lend a name to write to; if all goes well, what is there is synced and takes the place of ``path``."""
    part = path.with_name(f".{path.name}.part")
    _remove(part)
    try:
        yield part
        sync(part)
        os.replace(part, path)
        sync(path.parent)
    finally:
        _remove(part)


def sync(path: Path) -> None:
    """Have the disk keep a file, or the names in a folder."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def with_companions(path: Path) -> list[Path]:
    """Return a SQLite file and what SQLite may put beside it."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


def _remove(part: Path) -> None:
    for file in with_companions(part):
        file.unlink(missing_ok=True)

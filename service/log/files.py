"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("fedres.service")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; on success, sync that file and rename it to ``path``."""
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
    """Sync a file, or the names in a folder, to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def with_companions(path: Path) -> list[Path]:
    """Return a SQLite file and the files that SQLite may put beside it."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


LOG_SOCKET = "log.sock"
OWN_SUFFIXES = ("-lease", "-keys", "-keys-lease", "-audit", "-audit.1", "-audit-refused", "-run")


def make_private(store: Path) -> None:
    """Let only their owner read and write the files of a store; files of somebody else stay as they are."""
    others = [store.with_name(store.name + suffix) for suffix in OWN_SUFFIXES]
    for file in (*with_companions(store), *with_companions(store.with_name(f"{store.name}-models")), *others):
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mode & 0o077:
                try:
                    file.chmod(0o600)
                except OSError as error:
                    log.warning("%s can be read by other users: %s", file, error)


def _remove(part: Path) -> None:
    for file in with_companions(part):
        file.unlink(missing_ok=True)

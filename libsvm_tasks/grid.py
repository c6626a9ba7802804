"""Many independent pieces of work: in parallel, with progress, and resumable after an interruption.

Pieces run through joblib, so that ``joblib.parallel_config("ray")`` or ``"dask"`` sends the same pieces to a cluster.
Every finished result is a line of the journal at once; a piece whose result is there is not run again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO, TypeVar

from joblib import Parallel, delayed

Item = TypeVar("Item")
Progress = Callable[[int, int], None]  # pieces done, pieces in all


def run(
    work: Callable[[Item], Any],
    items: Sequence[Item],
    *,
    jobs: int | None = None,
    journal: Path | None = None,
    progress: Progress | None = None,
) -> list[Any]:
    """Return ``work(item)`` for every item, in order, whatever the number of jobs.

    Items are told apart by their ``repr``, results must be JSON. ``jobs`` None leaves the number to joblib's settings.
    """
    keys = [_key(work, item) for item in items]
    done = {} if journal is None else read_journal(journal)
    missing = {key: item for key, item in zip(keys, items, strict=True) if key not in done}
    _tell(progress, len(keys) - len(missing), len(keys))
    if missing:
        with _Lines(journal) as lines:
            pieces = (delayed(_piece)(work, key, item) for key, item in missing.items())
            for key, result in Parallel(n_jobs=jobs, return_as="generator_unordered")(pieces):
                done[key] = result
                lines.write({"key": key, "result": result})
                _tell(progress, sum(key in done for key in keys), len(keys))
    return [done[key] for key in keys]


def read_journal(path: Path) -> dict[str, Any]:
    """Return the finished results; a line that an interruption cut short is as if it were not there."""
    done = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
                done[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue
    return done


def _key(work: Callable[[Item], Any], item: Item) -> str:
    """Return what names a piece of work: its function, its item and this release."""
    name = f"{version('fedres')} {work.__module__}.{work.__qualname__} {item!r}"
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _piece(work: Callable[[Item], Any], key: str, item: Item) -> tuple[str, Any]:
    return key, work(item)


def finished(work: Callable[[Item], Any], items: Sequence[Item], journal: Path) -> bool:
    """Return whether the journal has the results of all items."""
    done = read_journal(journal)
    return all(_key(work, item) in done for item in items)


def _tell(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)


class _Lines:
    """Appends JSON lines to a file, each on disk before the next; to nowhere without a path."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.file: TextIO | None = None

    def __enter__(self) -> _Lines:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
            self.file = self.path.open("a", encoding="utf-8")
            if torn:
                self.file.write("\n")
        return self

    def write(self, entry: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.write(json.dumps(entry) + "\n")
            self.file.flush()

    def __exit__(self, *error: object) -> None:
        if self.file is not None:
            self.file.close()

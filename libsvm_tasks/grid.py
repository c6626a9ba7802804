"""Many independent pieces of work: in parallel, with progress, and resumable after an interruption.

Pieces run through joblib on this machine, or inside of ``cluster`` on the machines of Ray or Dask.
Every finished result is a line of the journal at once; a piece whose result is there is not run again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO, TypeVar

from joblib import Parallel, delayed, parallel_config

from fedres import checks

Item = TypeVar("Item")
Progress = Callable[[int, int], None]  # pieces done, pieces in all


_on_ray: ContextVar[bool] = ContextVar("on_ray", default=False)
BACKENDS = ("loky", "ray", "dask")


@contextmanager
def cluster(backend: str = "loky", address: str | None = None, jobs: int = 1) -> Iterator[None]:
    """Run the grids inside of it on processes of this machine (loky), on Ray or on Dask; results do not depend on it.

    With an ``address``, the pieces go to a running cluster, whose machines need this version of fedres and the data.
    Without one, ``jobs`` workers are started here.
    """
    checks.one_of("backend", backend, BACKENDS)
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    if backend == "loky":
        if address is not None:
            raise ValueError(f"address must come with the backend ray or dask, got {address!r}")
        yield
        return
    if backend == "ray":
        with _ray(address, jobs):
            yield
    else:
        with _dask(address, jobs), parallel_config("dask", n_jobs=jobs):
            yield


@contextmanager
def _ray(address: str | None, jobs: int) -> Iterator[None]:
    import ray

    options = {"num_cpus": jobs, "include_dashboard": False} if address is None else {"address": address}
    ray.init(log_to_driver=False, **options)
    token = _on_ray.set(True)
    try:
        yield
    finally:
        _on_ray.reset(token)
        ray.shutdown()


@contextmanager
def _dask(address: str | None, jobs: int) -> Iterator[None]:
    from distributed import Client, LocalCluster

    if address is not None:
        with Client(address):
            yield
        return
    with LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None) as local, Client(local):
        yield


def run(
    work: Callable[[Item], Any],
    items: Sequence[Item],
    *,
    jobs: int | None = None,
    journal: Path | None = None,
    progress: Progress | None = None,
) -> list[Any]:
    """Return ``work(item)`` for every item, in order, whatever the number of jobs.

    Items differ by their ``repr``, results must be JSON. ``jobs`` None leaves the number to joblib's settings.
    """
    keys = [_key(work, item) for item in items]
    done = {} if journal is None else read_journal(journal)
    missing = {key: item for key, item in zip(keys, items, strict=True) if key not in done}
    _tell(progress, len(keys) - len(missing), len(keys))
    if missing:
        with _Lines(journal) as lines:
            for key, result in _through_ray(work, missing) if _on_ray.get() else _through_joblib(work, missing, jobs):
                done[key] = result
                lines.write({"key": key, "result": result})
                _tell(progress, sum(key in done for key in keys), len(keys))
    return [done[key] for key in keys]


def _through_joblib(work: Callable[[Item], Any], items: dict[str, Item], jobs: int | None) -> Iterator[tuple[str, Any]]:
    pieces = (delayed(_piece)(work, key, item) for key, item in items.items())
    yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(pieces)


def _through_ray(work: Callable[[Item], Any], items: dict[str, Item]) -> Iterator[tuple[str, Any]]:
    """Yield results as they come, which Ray's backend of joblib cannot."""
    import ray

    remote = ray.remote(_piece)
    waiting = [remote.remote(work, key, item) for key, item in items.items()]
    while waiting:
        done, waiting = ray.wait(waiting)
        yield ray.get(done[0])


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

"""How many records a second each log makes durable: SQLite beside PostgreSQL, taking turns in one run.

``python benchmarks/log_commits.py postgresql://USER:PASSWORD@HOST/DATABASE`` in a database that may be filled.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedres.event_ids import new_event_id
from service.store import EventLog, Log, Record, sqlite_file
from service.store.postgres import PostgresLog

BODY = b'{"context": {"hour": 7}, "actions": [' + b'{"id": "tea", "features": {"hot": true}}, ' * 92 + b"]}"  # 4 KB
BATCHES = (1, 64, 500)  # records to a commit


def commit(log: EventLog, n_records: int) -> tuple[float, float]:
    """Return seconds on the clock, and of this thread's processor time, of one commit."""
    users = itertools.cycle(f"user {k}" for k in range(1_000))
    records = [Record("shop", "rank", new_event_id(), next(users), BODY) for _ in range(n_records)]
    began, worked = time.perf_counter(), time.thread_time()
    log.append(records)
    return time.perf_counter() - began, time.thread_time() - worked


def measure(logs: dict[str, EventLog], n_records: int, n_commits: int) -> dict[str, list[tuple[float, float]]]:
    """Return what each of ``n_commits`` took, by log; the logs take turns."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in logs}
    for _ in range(n_commits):
        for name, log in logs.items():
            taken[name].append(commit(log, n_records))
    return taken


def table(logs: dict[str, EventLog], n_commits: int) -> Table:
    """Return a row for each log and size of a commit."""
    shown = Table("log", "records a commit", "commit, p50", "commit, p99", "records a second", "own CPU a record")
    for n_records in BATCHES:
        for name, taken in measure(logs, n_records, n_commits).items():
            seconds, worked = zip(*taken, strict=True)
            p50, p99 = _quantile(seconds, 50), _quantile(seconds, 99)
            rate, own = n_records * n_commits / sum(seconds), sum(worked) / (n_records * n_commits)
            cells = (f"{1e3 * p50:.1f} ms", f"{1e3 * p99:.1f} ms", f"{rate:,.0f}", f"{1e6 * own:.0f} µs")
            shown.add_row(name, str(n_records), *cells)
    return shown


def _quantile(values: tuple[float, ...], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="of a database in PostgreSQL")
    parser.add_argument("--commits", type=int, default=300, help="of each size")
    parser.add_argument("--folder", type=Path, help="for the SQLite file, unless it is a temporary one")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        Log(sqlite_file(Path(folder, "log.db"))) as sqlite,
        PostgresLog(options.address) as postgres,
    ):
        Console(width=120).print(table({"SQLite": sqlite, "PostgreSQL": postgres}, options.commits))


if __name__ == "__main__":
    main()

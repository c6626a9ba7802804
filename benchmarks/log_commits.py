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

from fedres_client.event_ids import new_event_id
from service.log.postgres import PostgresLog
from service.log.protocol import Log
from service.log.records import RANK, Record
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file

ACTION = b'{"id": "tea", "features": {"hot": true}}, '
BODIES = {"400 B": 9, "4 KB": 98}  # how many actions make a body of that size
EXAMPLE = bytes(200)
BATCHES = (1, 24, 500)  # records in a commit


def commit(log: Log, n_records: int, body: bytes) -> tuple[float, float]:
    """Return the wall time and this thread's CPU time of one commit, in seconds."""
    users = itertools.cycle(f"user {k}" for k in range(1_000))
    groups = [[Record("shop", RANK, new_event_id(), next(users), EXAMPLE, body)] for _ in range(n_records)]
    began, worked = time.perf_counter(), time.thread_time()
    log.append(groups)
    return time.perf_counter() - began, time.thread_time() - worked


def measure(logs: dict[str, Log], n_records: int, body: bytes, n_commits: int) -> dict[str, list[tuple[float, float]]]:
    """Return what each of ``n_commits`` took, by log; the logs take turns."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in logs}
    for _ in range(n_commits):
        for name, log in logs.items():
            taken[name].append(commit(log, n_records, body))
    return taken


def table(logs: dict[str, Log], n_commits: int) -> Table:
    """Return a row for each log, size of a body and size of a commit."""
    shown = Table("log", "body", "records a commit", "p50", "p99", "records a second", "own CPU a record")
    for size, n_actions in BODIES.items():
        body = b'{"context": {"hour": 7}, "actions": [' + ACTION * n_actions + b"]}"
        for n_records in BATCHES:
            for name, taken in measure(logs, n_records, body, n_commits).items():
                seconds, worked = zip(*taken, strict=True)
                p50, p99 = _quantile(seconds, 50), _quantile(seconds, 99)
                rate, own = n_records * n_commits / sum(seconds), sum(worked) / (n_records * n_commits)
                cells = (f"{1e3 * p50:.1f} ms", f"{1e3 * p99:.1f} ms", f"{rate:,.0f}", f"{1e6 * own:.0f} µs")
                shown.add_row(name, size, str(n_records), *cells)
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
        SqliteLog(sqlite_file(Path(folder, "log.db"))) as sqlite,
        PostgresLog(options.address) as postgres,
    ):
        Console(width=120).print(table({"SQLite": sqlite, "PostgreSQL": postgres}, options.commits))


if __name__ == "__main__":
    main()

"""What it costs to overwrite copies of deleted records in a log: ``python benchmarks/erasing.py --records 60000``."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from service.log.records import Record
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file

BATCH = 1_000


def fill(log: SqliteLog, n_records: int, seed: int) -> None:
    """Append decisions of 2,000 users with random event ids and two sizes of bodies."""
    rng = random.Random(seed)
    for start in range(0, n_records, BATCH):
        records = []
        for _ in range(min(BATCH, n_records - start)):
            body = rng.randbytes(rng.choice([300, 900])).hex().encode()
            user = f"user-{rng.randrange(2_000)}"
            records.append([Record("shop", "rank", f"{rng.getrandbits(64):x}", user, rng.randbytes(250), body)])
        log.append(records)


def measure(n_records: int, seed: int = 0) -> dict[str, float]:
    """Return the size of a log, and the CPU time that cleaning it after an erasure takes: in all, and in one step."""
    with tempfile.TemporaryDirectory(prefix="fedres-") as folder:
        path = Path(folder) / "log.db"
        with SqliteLog(sqlite_file(path)) as log:
            fill(log, n_records, seed)
            log.erase("shop", "user-7", lambda n_erased: b"{}")
            size, steps, ended = path.stat().st_size, [], False
            cleaning = log.scrub()
            while not ended:
                began = time.process_time()
                ended = next(cleaning, True) is True
                steps.append(time.process_time() - began)
    return {
        "megabytes": round(size / 1e6, 1),
        "seconds": round(sum(steps), 3),
        "seconds per gigabyte": round(sum(steps) / size * 1e9, 2),
        "longest step in milliseconds": round(1e3 * max(steps), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=60_000)
    for name, value in measure(parser.parse_args().records).items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()

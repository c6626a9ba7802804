"""``fedres bench service --soak``: hours of load below the limit, to see whether anything grows.

The limit is the throughput of a closed loop, with the learner's catch-up counted as part of the time. The soak then
sends rank and reward pairs at a share of that limit on a fixed schedule and takes a sample every ten seconds.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from service_load import CONNECTIONS, SUSTAINED, WARM_UP, Progress, Row, load_for, measure_load, per_request, windows
from service_processes import cpu_seconds, file_mb, memory_mb, open_files, service

SHARE = 0.7
SAMPLE_SECONDS = 10.0
LIMIT_SECONDS = 12.0
FEWEST_SAMPLES = 6  # a shorter soak samples more often

# Growth from the first third to the last third that still counts as flat: a factor, and an allowance for small values.
TOLERANCES: dict[str, tuple[float, float]] = {
    "memory_mb": (1.02, 2.0),
    "open_files": (1.0, 10.0),
    "wal_mb": (1.5, 8.0),
    "models_mb": (1.5, 8.0),
    "log_bytes_per_request": (1.2, 100.0),
    "lag_records": (1.5, 1_000.0),
    "p99": (1.5, 1.0),
}


def soak(
    seconds: float,
    *,
    share: float = SHARE,
    rankers: int = 1,
    limit_seconds: float = LIMIT_SECONDS,
    n_connections: int = CONNECTIONS,
    n_keys: int = 1,
    progress: Progress | None = None,
) -> Row:
    """Return the limit, the samples, and whether memory, files, learner lag and p99 are flat."""
    with (
        tempfile.TemporaryDirectory(prefix="fedres-bench-") as folder,
        service(Path(folder) / "soak", rankers=rankers, n_keys=n_keys) as target,
    ):
        load = load_for(target, SUSTAINED, limit_seconds, n_connections)
        limit = measure_load(target, load, min(WARM_UP, limit_seconds))
        if limit["per_second_with_catch_up"] is None:
            raise OSError("the learner did not catch up after the closed loop, so there is no sustained limit")
        per_second = share * limit["per_second_with_catch_up"]
        window = min(SAMPLE_SECONDS, seconds / FEWEST_SAMPLES)
        load = load._replace(seconds=seconds, pairs_per_second=per_second / 2, window=window)
        samples: list[Row] = []
        roles = target.roles()
        cpu = cpu_seconds(roles)
        store, n_requests = Path(folder) / "soak" / "bench.db", 0
        log_mb = file_mb(store)["log"]

        for measured in windows(load):
            if measured.last:
                samples[-1]["failures"] += measured.failures.total()
                samples[-1]["first_failure"] = samples[-1]["first_failure"] or measured.first_failure
                continue
            before, cpu = cpu, cpu_seconds(roles)
            row = measured.summary()
            row |= {"at": (len(samples) + 1) * window, "lag_records": target.lag_records()}
            row |= {"memory": memory_mb(roles), "cpu": per_request(before, cpu, max(1, row["requests"]))}
            row |= {"memory_mb": sum(row["memory"].values()), "open_files": open_files(roles), "files": file_mb(store)}
            n_requests += row["requests"]
            row |= {f"{part}_mb": row["files"][part] for part in ("wal", "models")}
            row["log_bytes_per_request"] = (row["files"]["log"] - log_mb) * 1e6 / max(1, n_requests)
            samples.append(row)
            if progress is not None:
                progress(round(row["at"]), round(seconds))
    return {"rankers": rankers, "share": share, "limit": limit, "scheduled_per_second": per_second, **judge(samples)}


def judge(samples: Sequence[Row]) -> Row:
    """Return the samples with the medians of their first and last third, and whether each quantity is flat."""
    third = max(1, len(samples) // 3)
    verdict = {}
    for name, (factor, allowance) in TOLERANCES.items():
        first, last = (_median(part, name) for part in (samples[:third], samples[-third:]))
        flat = first is not None and last is not None and last <= first * factor + allowance
        hours = (samples[-third]["at"] - samples[0]["at"]) / 3_600
        per_hour = (last - first) / hours if first is not None and last is not None and hours else None
        verdict[name] = {"first": first, "last": last, "per_hour": per_hour, "flat": flat}
    return {
        "flat": verdict,
        "failures": sum(row["failures"] for row in samples),
        "first_failure": next((row["first_failure"] for row in samples if row["first_failure"]), None),
        "samples": list(samples),
    }


def _median(samples: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [row[name] for row in samples if row[name] is not None]
    return statistics.median(values) if values else None


def table(result: Row) -> Group:
    """Return the samples, a dozen of them if there are more, and the verdict."""
    return Group(_samples_table(result), _verdict_table(result))


def _samples_table(result: Row) -> Table:
    samples = result["samples"]
    table = Table(
        title=f"Soak at {result['share']:.0%} of {result['limit']['per_second_with_catch_up']:,.0f} requests/s, "
        f"open loop, {result['rankers']} ranker(s)"
    )
    roles = list(samples[0]["memory"])
    headings = ("seconds", "requests/s", "p50 ms", "p99 ms", "lag records", *(f"{role} MB" for role in roles))
    files = list(samples[0]["files"])
    for heading in (*headings, *(f"{part} file MB" for part in files), "CPU µs", "failures"):
        table.add_column(heading, justify="right")
    for row in samples[:: max(1, len(samples) // 12)]:
        latency = [_shown(row[name], ".1f") for name in ("p50", "p99")]
        memory = [_shown(row["memory"].get(role), ",.0f") for role in roles]
        cells = [f"{row['at']:.0f}", f"{row['per_second']:,.0f}", *latency, f"{row['lag_records']:,}", *memory]
        cells += [f"{row['files'][part]:,.1f}" for part in files]
        table.add_row(*cells, f"{sum(row['cpu'].values()):.0f}", str(row["failures"]))
    return table


def _verdict_table(result: Row) -> Table:
    failed = f"FAILURES: {result['failures']}; the first: {result['first_failure']}" if result["failures"] else None
    table = Table(title="First third against last third (medians)", caption=failed)
    table.add_column("")
    for heading in ("first", "last", "growth per hour", "flat"):
        table.add_column(heading, justify="right")
    names = {
        "memory_mb": "memory, MB",
        "open_files": "open files and sockets",
        "wal_mb": "write-ahead logs, MB",
        "models_mb": "snapshot of models, MB",
        "log_bytes_per_request": "log, bytes per request",
        "lag_records": "learner lag, records",
        "p99": "p99, ms",
    }
    for name, trend in result["flat"].items():
        values = [_shown(trend[part], ",.1f") for part in ("first", "last", "per_hour")]
        table.add_row(names[name], *values, "yes" if trend["flat"] else "NO")
    return table


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"

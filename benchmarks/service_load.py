"""``fedres bench service``: throughput and latency of rank and reward under load, as ratios to a bare ASGI application.

Servers take turns within each round, so that a ratio compares two runs made within a minute or two; the figures are
medians over rounds. Under *sustained* load every event is rewarded, so the learner works as hard as it ever will. A
*burst* is ranks only. The bare application gets the requests of the sustained load by id: the smallest bodies, hence
the strictest comparison. Service, bare application and load generator are processes of their own.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import service_processes
from load_generator import Load, Window, generate
from rich.console import Group
from rich.table import Table
from service_processes import Target, bare_server, cpu_seconds, memory_mb, service

ROUNDS = 3
SECONDS = 12.0
WARM_UP = 2.0
CONNECTIONS = 64
RATE_LIMITED = " (the limit of a key's rate: use --keys)"

Row = dict[str, Any]
Progress = Callable[[int, int], None]

_spawn = multiprocessing.get_context("spawn")


class Workload(NamedTuple):
    """What the clients of a service do."""

    name: str
    inline: bool
    rewards: bool


BARE = Workload("bare ASGI", inline=False, rewards=True)
SUSTAINED = Workload("sustained by id", inline=False, rewards=True)
WORKLOADS = (
    SUSTAINED,
    Workload("sustained inline 4 KB", inline=True, rewards=True),
    Workload("burst of ranks by id", inline=False, rewards=False),
)


def windows(load: Load) -> Generator[Window, None, None]:
    """Run the load generator in a process of its own and yield its windows: one or more, then the requests drained."""
    here, there = _spawn.Pipe(duplex=False)
    process = _spawn.Process(target=_generate, args=(load, there))
    process.start()
    there.close()
    try:
        last = False
        while not last:
            window: Window = here.recv()
            last = window.last
            yield window
    except EOFError:
        raise OSError("the load generator ended early") from None
    finally:
        here.close()
        process.join()


def _generate(load: Load, parent: Connection) -> None:
    generate(load, parent.send)


def catch_up(target: Target) -> bool:
    """Wait until the learner has caught up; return whether it has."""
    deadline = time.monotonic() + service_processes.CATCH_UP_SECONDS
    while target.lag_records():
        if time.monotonic() > deadline:
            return False
        time.sleep(service_processes.POLL_SECONDS)
    return True


def measure_load(target: Target, load: Load, warm_up: float = WARM_UP) -> Row:
    """Return what the server did under a load: the generator's summary, learner lag, CPU and memory by role."""
    for _ in windows(load._replace(seconds=warm_up)):
        pass
    catch_up(target)
    roles = target.roles()
    memory, cpu, commits = memory_mb(roles), cpu_seconds(roles), target.commits()
    with closing(windows(load)) as measured:
        window = next(measured)
        stopped, lag = time.monotonic(), target.lag_records()
        window.add_drained(next(measured))
        at_stop = cpu_seconds(roles)
        seconds = time.monotonic() - stopped if catch_up(target) else None
        caught_up = cpu_seconds(roles)
    row = window.summary()
    ours = sum(at_stop.values()) - sum(cpu.values()) + window.cpu_seconds
    n = max(1, row["requests"] + row["drained"])
    return {
        **row,
        "commit_ms": _mean_commit_ms(commits, target.commits()),
        "lag_records": lag,
        "catch_up_seconds": seconds,
        "per_second_with_catch_up": None if seconds is None else n / (row["seconds"] + seconds),
        "cpu": per_request(cpu, at_stop, n),
        "cpu_catch_up": per_request(at_stop, caught_up, n),
        "other_cpu": max(0.0, window.machine_cpu_seconds - ours) / window.seconds,
        "memory_before": memory,
        "memory_after": memory_mb(roles),
    }


def _mean_commit_ms(before: tuple[float, float], after: tuple[float, float]) -> float | None:
    n, seconds = after[0] - before[0], after[1] - before[1]
    return 1e3 * seconds / n if n else None


def per_request(before: Mapping[str, float], after: Mapping[str, float], n: int) -> dict[str, float]:
    """Return the CPU time between two readings in microseconds per request, by role."""
    return {role: (seconds - before.get(role, 0.0)) / n * 1e6 for role, seconds in after.items()}


def load_for(target: Target, workload: Workload, seconds: float, n_connections: int = CONNECTIONS) -> Load:
    """Return the closed-loop load of a workload."""
    return Load(
        port=target.port,
        inline=workload.inline,
        rewards=workload.rewards,
        seconds=seconds,
        n_connections=n_connections,
        keys=target.keys,
    )


def measure(
    *,
    rankers: Sequence[int] = (1,),
    workloads: Sequence[Workload] = WORKLOADS,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    warm_up: float = WARM_UP,
    n_connections: int = CONNECTIONS,
    n_keys: int = 1,
    progress: Progress | None = None,
) -> list[Row]:
    """Return a row for the bare application and one for each workload and number of rankers.

    The service limits the rate of each key. Where that is below its speed, responses with status 429 are counted as
    failures; then connections must share several keys.
    """
    kinds = [(BARE, 0), *((workload, n) for n in rankers for workload in workloads)]
    rows_of: dict[tuple[Workload, int], list[Row]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="fedres-bench-") as folder:
        for turn in range(rounds):
            for k, (workload, n) in enumerate(kinds):
                with _server(Path(folder) / f"{turn}-{k}", n, n_keys) as target:
                    load = load_for(target, workload, seconds, n_connections)
                    rows_of[workload, n].append(measure_load(target, load, warm_up))
                if progress is not None:
                    progress(turn * len(kinds) + k + 1, rounds * len(kinds))
    bare_rows = rows_of[BARE, 0]
    return [{"what": kind.name, "rankers": n, **summarise(rows, bare_rows)} for (kind, n), rows in rows_of.items()]


def _server(folder: Path, rankers: int, n_keys: int) -> AbstractContextManager[Target]:
    return service(folder, rankers=rankers, n_keys=n_keys) if rankers else bare_server()


def summarise(rows: Sequence[Row], bare_rows: Sequence[Row]) -> Row:
    """Return medians over rounds, ratios to the bare application of the same round, and failures of all rounds."""
    first = [row["first_failure"] for row in rows if row["first_failure"]]
    return {
        **{name: _median(row[name] for row in rows) for name, value in rows[0].items() if not isinstance(value, str)},
        "throughput_ratio": ratio(rows, bare_rows, "per_second"),
        "p99_ratio": ratio(rows, bare_rows, "p99"),
        "cpu_ratio": ratio([_total_cpu(row) for row in rows], [_total_cpu(row) for row in bare_rows], "cpu"),
        "failures": sum(row["failures"] for row in rows),
        "failures_by_status": _sum(row["failures_by_status"] for row in rows),
        "first_failure": first[0] if first else None,
        "rounds": list(rows),
    }


def _total_cpu(row: Row) -> Row:
    return {"cpu": sum(row["cpu"].values()) + sum(row["cpu_catch_up"].values())}


def ratio(rows: Sequence[Row], bare_rows: Sequence[Row], name: str) -> float | None:
    """Return the median over rounds of a value divided by that of the bare application; None if it is missing."""
    pairs = [(ours[name], theirs[name]) for ours, theirs in zip(rows, bare_rows, strict=True)]
    values = [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
    return statistics.median(values) if values else None


def _median(values: Iterable[Any]) -> Any:
    """Return the median of numbers, or of each entry of dictionaries; None if any is None."""
    listed = list(values)
    if isinstance(listed[0], dict):
        return {key: _median(value.get(key, 0.0) for value in listed) for key in listed[0]}
    return None if any(value is None for value in listed) else statistics.median(listed)


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for key, value in count.items():
            total[key] = total.get(key, 0) + value
    return total


def table(rows: Sequence[Row]) -> Group:
    """Return the rows as two tables: speed, then CPU and memory by role."""
    return Group(_speed_table(rows), _process_table(rows))


def _speed_table(rows: Sequence[Row]) -> Table:
    n_rounds, seconds = len(rows[0]["rounds"]), rows[0]["seconds"]
    result = Table(
        title=f"Closed loop, {seconds:.0f} s, medians of {n_rounds} rounds; ratios to bare ASGI in the same round",
        caption="\n".join(_failures(rows)) or None,
    )
    result.add_column("", no_wrap=True)
    headings = ("rankers", "requests/s", "with\ncatch-up", "p50 ms", "p99 ms", "rank\np99 ms", "reward\np99 ms")
    for heading in (
        *headings,
        "throughput\nratio",
        "p99\nratio",
        "commit\nms",
        "lag\nrecords",
        "catch-up\nseconds",
        "failures",
    ):
        result.add_column(heading, justify="right")
    for row in rows:
        speed = [_shown(row[name], ",.0f") for name in ("per_second", "per_second_with_catch_up")]
        latency = [_shown(row[name], ".1f") for name in ("p50", "p99", "rank_p99", "reward_p99")]
        ratios = [_shown(row[name], ".2f", "×") for name in ("throughput_ratio", "p99_ratio")]
        log = [
            _shown(row["commit_ms"], ".1f"),
            _shown(row["lag_records"], ",.0f"),
            _shown(row["catch_up_seconds"], ".2f"),
        ]
        result.add_row(row["what"], str(row["rankers"] or ""), *speed, *latency, *ratios, *log, str(row["failures"]))
    return result


def _process_table(rows: Sequence[Row]) -> Table:
    roles = list(dict.fromkeys(role for row in rows for role in row["cpu"]))
    result = Table(
        title="CPU µs per request by role, with the learner's catch-up; memory before and after the load",
        caption="Generator and other processes: CPUs in use. Busy other processes make throughput and latency noisy; "
        "CPU per request suffers less.",
    )
    result.add_column("")
    for heading in ("rankers", *roles, "all roles", "ratio", "generator", "others", "MB before", "MB after"):
        result.add_column(heading, justify="right")
    for row in rows:
        cpu = [row["cpu"][role] + row["cpu_catch_up"].get(role, 0.0) if role in row["cpu"] else None for role in roles]
        memory = [sum(row[name].values()) for name in ("memory_before", "memory_after")]
        cells = [_shown(value, ".0f") for value in (*cpu, _total_cpu(row)["cpu"])] + [
            _shown(row["cpu_ratio"], ".2f", "×")
        ]
        cells += [_shown(row[name], ".2f") for name in ("generator_cpu", "other_cpu")]
        result.add_row(row["what"], str(row["rankers"] or ""), *cells, *(_shown(value, ",.0f") for value in memory))
    return result


def _failures(rows: Sequence[Row]) -> list[str]:
    return [
        f"FAILURES in {row['what']!r} ({row['rankers']} rankers): {row['failures_by_status']}; "
        f"the first: {row['first_failure']}{RATE_LIMITED if '429' in row['failures_by_status'] else ''}"
        for row in rows
        if row["failures"]
    ]


def _shown(value: float | None, form: str, unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"

"""Metrics for Prometheus. Every process counts its own; any ranker returns the sums of the whole machine.

The processes of ``fedres serve`` share a folder for this (``PROMETHEUS_MULTIPROC_DIR``), named before the import.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)

_requests = Counter("fedres_requests", "Requests, by path, method and status.", ["path", "method", "status"])
_seconds = Histogram(
    "fedres_request_seconds", "Time from the head of a request to its response.", ["path"], buckets=BUCKETS
)
_commit_records = Histogram("fedres_log_commit_records", "Records in a commit of the log writer.", buckets=SIZES)
_commit_seconds = Histogram(
    "fedres_log_commit_seconds", "Time of a commit with its sync; every caller waits for one.", buckets=BUCKETS
)
batches = Histogram("fedres_learner_batch_records", "Records in a batch of the learner.", buckets=SIZES)
refusals = Counter("fedres_refused_requests", "Requests rejected because the key sent too many.", ["key"])
refused_changes = Counter("fedres_refused_changes", "Calls of admin routes that were refused.", ["key"])
ranker_work = Counter(
    "fedres_ranker_work",
    "Work of rankers on threads, by loop and kind: done, given up by the caller, or refused as too much waits.",
    ["loop", "kind", "outcome"],
)
ranker_work_seconds = Counter("fedres_ranker_work_seconds", "Time that this work took.", ["loop", "kind"])
snapshots = Counter("fedres_snapshots", "Snapshots written.")
worker_seconds = Counter(
    "fedres_worker_seconds", "Time that a loop's reports, exports and jobs took their processes.", ["worker", "loop"]
)


class _Tally:
    """Requests of one kind counted in this process, and not yet in the memory that all processes share."""

    __slots__ = ("_counter", "_histogram", "buckets", "seconds")

    def __init__(self, path: str, method: str, status: int) -> None:
        self._counter, self._histogram = _requests.labels(path, method, str(status)), _seconds.labels(path)
        self.seconds, self.buckets = 0.0, [0] * (len(BUCKETS) + 1)

    def flush(self) -> None:
        self._counter.inc(sum(self.buckets))
        self._histogram._sum.inc(self.seconds)  # `observe` takes one value at a time
        for bucket, count in zip(self._histogram._buckets, self.buckets, strict=True):
            if count:
                bucket.inc(count)
        self.seconds, self.buckets = 0.0, [0] * len(self.buckets)


def count_commit(n_records: int, seconds: float) -> None:
    """Count a commit of the log writer."""
    _commit_records.observe(n_records)
    _commit_seconds.observe(seconds)


_tallies: dict[tuple[str, str, int], _Tally] = {}


def count_request(path: str, method: str, status: int, seconds: float) -> None:
    """Count a request of so many seconds; other processes see it after ``flush_requests``: shared memory is slow."""
    tally = _tallies.get((path, method, status))
    if tally is None:
        tally = _tallies[path, method, status] = _Tally(path, method, status)
    tally.seconds += seconds
    tally.buckets[bisect_left(BUCKETS, seconds)] += 1


def flush_requests() -> None:
    """Move the counts to the memory that all processes share."""
    for tally in _tallies.values():
        if any(tally.buckets):
            tally.flush()


LOOP_FIGURES = {  # by name in the status; a metric has the same name behind fedres_, but for RENAMED
    "model_version": "Position in the log up to which the models have learned.",
    "ranks": "Decisions made.",
    "waiting_events": "Pending events.",
    "waiting_bytes": "Bytes of memory that pending events take.",
    "early_events": "Events with a reward that are not decided yet.",
    "users": "Users with a personal model.",
    "learned_events": "Events learned from, including default rewards.",
    "rewarded_events": "Events learned from with a reward that arrived.",
    "reward_sum": "Sum of all rewards learned from.",
    "policy_reward": "Mean reward of the events learned from.",
    "provisional_reward": "Mean reward if every pending event ends with the default reward.",
    "baseline_reward": "Estimated mean reward, had the first action been taken each time.",
    "reward_lag_seconds": "Mean time from a decision to its reward.",
    "learner_lag_records": "Records in the log that are not learned yet.",
    "learner_lag_seconds": "Age of the oldest record not learned yet.",
    "learner_seconds": "Time that the learner has worked for the loop since it started.",
    "apprentice_events": "Decisions made as an apprentice.",
    "apprentice_agreement": "Share of an apprentice's decisions in which the policy agreed.",
    "learned_uploads": "Device uploads learned from.",
    "control_events": "Events of control groups with a reward, default or not.",
    "control_reward": "Mean reward of control groups.",
    "passed_over_uploads": "Device uploads stored but ignored by the learner.",
    "feedback": "Feedback on actions that the service did not choose; in no other figure.",
    "late_rewards": "Rewards that arrived after the wait time; they do not count.",
    "unmatched_rewards": "Rewards without an event, or beyond 1,000 for one; they do not count.",
    "catalogue_actions": "Actions in the catalogue.",
    "catalogue_bytes": "Bytes of ids and features in the catalogue.",
    "shared_model_bytes": "Bytes of the shared model in each ranker.",
    "events_since": "Time of the oldest event if older ones were removed, in seconds since 1970; else 0.",
}
RENAMED = {"ranks": "decisions", "events_since": "events_since_seconds"}
COUNTERS = (  # these only grow
    *("ranks", "learned_events", "rewarded_events", "apprentice_events", "control_events", "feedback"),
    *("learner_seconds", "learned_uploads", "passed_over_uploads", "late_rewards", "unmatched_rewards"),
)
LOG_FIGURES = {  # name in the status: (name of the metric, help)
    "bytes": ("fedres_log_bytes", "Size of the log on its disk."),
    "records": ("fedres_log_records", "Records in the log."),
    "bytes_per_event": ("fedres_log_bytes_per_event", "Estimated size of a decision with its rewards in the log."),
    "disk_free_bytes": ("fedres_disk_free_bytes", "Free space on the disk with this machine's files."),
    "disk_bytes": ("fedres_disk_bytes", "Size of the disk with this machine's files."),
}
NO_FIGURES: Mapping[str, float | None] = {}
Gauges = Mapping[str, Mapping[str, float]]  # by loop and name
Family = CounterMetricFamily | GaugeMetricFamily


class _Machine:
    """The metrics of loops and processes, read on request."""

    def __init__(self, loops: Gauges, processes: Iterable[Mapping[str, Any]], log: Mapping[str, float | None]) -> None:
        self._loops, self._processes, self._log = loops, processes, log

    def collect(self) -> Iterator[Family]:
        for name, text in LOOP_FIGURES.items():
            kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            family: Family = kind(f"fedres_{RENAMED.get(name, name)}", text, labels=["loop"])
            for loop, gauges in self._loops.items():
                family.add_metric([loop], float(gauges.get(name, math.nan)))
            yield family
        for name, (metric, text) in LOG_FIGURES.items():
            value = self._log.get(name)
            if value is not None:
                yield GaugeMetricFamily(metric, text, value=value)
        up = GaugeMetricFamily("fedres_process_up_seconds", "Age of a process.", labels=["role", "pid"])
        restarts = CounterMetricFamily("fedres_process_restarts", "Restarts of a process.", labels=["role", "number"])
        for process in self._processes:
            up.add_metric([process["role"], str(process["pid"])], process["uptime_seconds"])
            restarts.add_metric([process["role"], str(process["number"])], process["restarts"])
        yield up
        yield restarts


def text(
    loops: Gauges, processes: Iterable[Mapping[str, Any]] = (), log: Mapping[str, float | None] = NO_FIGURES
) -> bytes:
    """Return all metrics of the machine in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Machine(loops, processes, log))
    if FOLDER in os.environ:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
    return generate_latest(registry) + generate_latest(REGISTRY)

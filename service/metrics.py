"""Figures for Prometheus. Every process counts its own; whichever ranker is asked adds up those of the whole machine.

The processes of ``fedres serve`` share a folder for this (``PROMETHEUS_MULTIPROC_DIR``), named before the import.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

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
snapshots = Counter("fedres_snapshots", "Snapshots written.")


class _Tally:
    """Requests of one kind that are counted here, and not yet where all processes can see them."""

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
    """Count a request that took so long; other processes see it after ``flush_requests``: shared memory is slow."""
    tally = _tallies.get((path, method, status))
    if tally is None:
        tally = _tallies[path, method, status] = _Tally(path, method, status)
    tally.seconds += seconds
    tally.buckets[bisect_left(BUCKETS, seconds)] += 1


def flush_requests() -> None:
    """Let all processes see what was counted."""
    for tally in _tallies.values():
        if any(tally.buckets):
            tally.flush()


LOOP_FIGURES = {  # name of the gauge: (name of the metric, whether it only grows, help)
    "model_version": ("fedres_model_version", False, "Position in the log up to which the models have learned."),
    "ranks": ("fedres_decisions", True, "Decisions made."),
    "waiting_events": ("fedres_waiting_events", False, "Pending events."),
    "waiting_bytes": ("fedres_waiting_bytes", False, "Bytes of memory that pending events take."),
    "early_events": ("fedres_early_events", False, "Events with a reward that are not decided yet."),
    "users": ("fedres_users", False, "Users with a personal model."),
    "learned_events": ("fedres_learned_events", True, "Events learned from, including default rewards."),
    "rewarded_events": ("fedres_rewarded_events", True, "Events learned from with a reward that arrived."),
    "reward_sum": ("fedres_reward_sum", False, "Sum of all rewards learned from."),
    "policy_reward": ("fedres_policy_reward", False, "Mean reward of the events learned from."),
    "provisional_reward": (
        "fedres_provisional_reward",
        False,
        "Mean reward if every pending event ends with the default reward.",
    ),
    "baseline_reward": (
        "fedres_baseline_reward",
        False,
        "Estimated mean reward, had the first action been taken each time.",
    ),
    "reward_lag_seconds": ("fedres_reward_lag_seconds", False, "Mean time from a decision to its reward."),
    "learner_lag_records": ("fedres_learner_lag_records", False, "Records in the log that are not learned yet."),
    "learner_lag_seconds": ("fedres_learner_lag_seconds", False, "Age of the oldest record not learned yet."),
    "apprentice_events": ("fedres_apprentice_events", True, "Decisions made as an apprentice."),
    "apprentice_agreement": (
        "fedres_apprentice_agreement",
        False,
        "Share of an apprentice's decisions in which the policy agreed.",
    ),
    "learned_uploads": ("fedres_learned_uploads", True, "Device uploads learned from."),
    "control_events": ("fedres_control_events", True, "Events of control groups with a reward, default or not."),
    "control_reward": ("fedres_control_reward", False, "Mean reward of control groups."),
    "passed_over_uploads": ("fedres_passed_over_uploads", True, "Device uploads stored but ignored by the learner."),
    "feedback": ("fedres_feedback", True, "Feedback on actions that the service did not choose; in no other figure."),
    "late_rewards": ("fedres_late_rewards", True, "Rewards that arrived after the wait time; they do not count."),
    "unmatched_rewards": (
        "fedres_unmatched_rewards",
        True,
        "Rewards without an event, or beyond 1,000 for one; they do not count.",
    ),
    "catalogue_actions": ("fedres_catalogue_actions", False, "Actions in the catalogue."),
    "catalogue_bytes": ("fedres_catalogue_bytes", False, "Bytes of ids and features in the catalogue."),
    "shared_model_bytes": ("fedres_shared_model_bytes", False, "Bytes of the shared model in each ranker."),
    "events_since": (
        "fedres_events_since_seconds",
        False,
        "Time of the oldest event if older ones were removed, in seconds since 1970; else 0.",
    ),
}
LOG_FIGURES = {  # name in the status: (name of the metric, help)
    "bytes": ("fedres_log_bytes", "Size of the log on its disk."),
    "records": ("fedres_log_records", "Records in the log."),
    "bytes_per_event": ("fedres_log_bytes_per_event", "Estimated size of a decision with its rewards in the log."),
    "disk_free_bytes": ("fedres_disk_free_bytes", "Free space on the disk with this machine's files."),
    "disk_bytes": ("fedres_disk_bytes", "Size of the disk with this machine's files."),
}
NO_FIGURES: Mapping[str, float | None] = {}
Family = CounterMetricFamily | GaugeMetricFamily


class _Machine:
    """The figures of loops and of processes, read when somebody asks."""

    def __init__(
        self,
        loops: Mapping[str, Mapping[str, float]],
        processes: Iterable[Mapping[str, object]],
        log: Mapping[str, float | None],
    ) -> None:
        self._loops, self._processes, self._log = loops, processes, log

    def collect(self) -> Iterator[Family]:
        for name, (metric, grows, text) in LOOP_FIGURES.items():
            family: Family = (CounterMetricFamily if grows else GaugeMetricFamily)(metric, text, labels=["loop"])
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
            up.add_metric([str(process["role"]), str(process["pid"])], float(str(process["uptime_seconds"])))
            restarts.add_metric([str(process["role"]), str(process["number"])], float(str(process["restarts"])))
        yield up
        yield restarts


def text(
    loops: Mapping[str, Mapping[str, float]],
    processes: Iterable[Mapping[str, object]] = (),
    log: Mapping[str, float | None] = NO_FIGURES,
) -> bytes:
    """Return all figures of the machine as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(_Machine(loops, processes, log))
    if FOLDER in os.environ:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
    return generate_latest(registry) + generate_latest(REGISTRY)

"""Status of the whole machine, the same from every ranker: loops, processes, lag, readiness."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from service.errors import ApiError
from service.log.files import replacing
from service.log.protocol import Head, StoreUnavailable
from service.models.published import Loop
from service.rank.ranker import RankerContext

VERSION = version("fedres")
PROCESSES = "processes.json"  # in the run folder, written by the supervisor
MAX_STALENESS = 5.0  # seconds since the learner's last sign of life after which a machine is not ready
MOST_NAMED = 5  # loops that are still learned from the log


class Process(msgspec.Struct):
    """A process, as the supervisor knows it."""

    role: str  # supervisor, ranker, log, learner
    number: int  # among processes of the same role
    pid: int
    started: float  # seconds since 1970
    restarts: int


class MachineStatus:
    """The status of the whole machine; ``folder`` is where the supervisor writes, None without one.

    ``disk`` is a folder on the disk with the machine's own files, such as a log in SQLite.
    """

    def __init__(self, context: RankerContext, store: str, folder: Path | None = None, disk: Path = Path()) -> None:
        self._context, self._store, self._folder, self._disk = context, store, folder, disk

    @property
    def folder(self) -> Path | None:
        """The folder that all processes of the machine share; None without one."""
        return self._folder

    def processes(self) -> list[dict[str, Any]]:
        """Return the machine's processes with role, pid, uptime and restarts."""
        if self._folder is None:
            return []
        processes = msgspec.json.decode((self._folder / PROCESSES).read_bytes(), type=list[Process])
        now = time.time()
        return [
            {
                "role": process.role,
                "number": process.number,
                "pid": process.pid,
                "uptime_seconds": round(max(0.0, now - process.started), 3),
                "restarts": process.restarts,
            }
            for process in processes
        ]

    async def status(self) -> dict[str, Any]:
        """Return the machine's status; figures from the log are missing while it cannot be read."""
        heads: Mapping[str, Head] = {}
        n_bytes: int | None = None
        with contextlib.suppress(ApiError, StoreUnavailable):
            heads, n_bytes = await self._context.look_up("", lambda log: (log.heads(), log.size()))
        learner = self._context.models.learner()
        loops = self._loops()
        return {
            "version": VERSION,
            "store": self._store,
            "sqlite": sqlite3.sqlite_version,
            "position": sum(head.last for name, head in heads.items() if name in loops),
            "learned_position": sum(loop.view.position for loop in loops.values()),
            "trouble": self.trouble(),
            "rebuilt": 0 if learner is None else learner.rebuilt,
            "published_bytes": 0 if learner is None else learner.published_bytes,
            "staleness_seconds": round(self._context.models.staleness(), 3),
            "processes": self.processes(),
            "log": self._log(loops, heads, n_bytes),
            "quotas": asdict(self._context.quotas),
            "loops": {name: self._gauges(loop, heads.get(name)) for name, loop in loops.items()},
        }

    def _loops(self) -> dict[str, Loop]:
        """Return the loops that decide, by name: others are still learned from the log, or were just deleted."""
        loops = {}
        for name in self._context.models.names():
            with contextlib.suppress(ApiError):
                loops[name] = self._context.loop(name)
        return loops

    def _log(
        self, loops: Mapping[str, Loop], heads: Mapping[str, Head], n_bytes: int | None
    ) -> dict[str, float | None]:
        """Return the log's size and the free space on its disk; None for unknown figures.

        The number of remaining events is an estimate: removed records are taken as a random sample of a loop's records.
        """
        n_records = sum(head.last - head.removed for head in heads.values())
        n_events = 0.0
        for name, loop in loops.items():
            if name in heads:
                left = 1 - heads[name].removed / heads[name].last
                n_events += left * loop.view.statistics.ranks
        try:
            disk = os.statvfs(self._disk)
        except OSError:
            disk = None
        return {
            "bytes": n_bytes,
            "records": n_records,
            "bytes_per_event": None if n_bytes is None or n_events < 1 else round(n_bytes / n_events, 1),
            "disk_free_bytes": None if disk is None else disk.f_bavail * disk.f_frsize,
            "disk_bytes": None if disk is None else disk.f_blocks * disk.f_frsize,
        }

    def check_ready(self) -> str | None:
        """Refuse if a load balancer should use another machine; return any lesser trouble.

        A halted loop still decides, and another machine could not learn it either. One loop with much to learn must
        not take the machine from all others: how far each is behind is in the status and in the metrics.
        """
        trouble = self._trouble()
        if trouble is not None:
            raise ApiError(503, "not_ready", trouble)  # see NOT_READY of service.http.replies
        return self._standing_still()

    def _standing_still(self) -> str | None:
        learner = self._context.models.learner()
        if learner is not None and learner.standing_still is not None:
            return f"not everything is learned: {learner.standing_still}"
        if learner is not None and learner.incomplete:
            return f"still learned from the log: {', '.join(learner.incomplete[:MOST_NAMED])}"
        return None

    def trouble(self) -> str | None:
        """Return what is wrong with the service as a whole, or with some of its loops; None if nothing is."""
        return self._trouble() or self._standing_still()

    def _trouble(self) -> str | None:
        models = self._context.models
        if not models.ready:
            return "no models are published yet"
        if self._context.log.trouble is not None:
            return self._context.log.trouble
        if models.staleness() > MAX_STALENESS:
            return f"the learner has given no sign of life for {models.staleness():.0f} s"
        if models.names() and not self._loops():
            return "no loop decides yet: all are still learned from the log"
        learner = models.learner()
        if learner is None:
            return None
        return None if learner.trouble is None else f"not everything is learned: {learner.trouble}"

    def _gauges(self, loop: Loop, head: Head | None) -> dict[str, float]:
        """Return numbers for monitoring; NaN for averages without data."""
        view = loop.view
        sums, default = view.statistics, view.settings.default_reward
        behind = 0 if head is None else max(head.last - view.position, 0)
        pending = 0 if default is None else view.n_waiting
        return {
            "model_version": view.version,
            "ranks": sums.ranks,
            "waiting_events": view.n_waiting,
            "waiting_bytes": view.waiting_bytes,
            "early_events": view.n_early,
            "users": view.n_users,
            "learned_events": sums.settled,
            "rewarded_events": sums.rewarded,
            "reward_sum": sums.reward,
            "policy_reward": _ratio(sums.reward, sums.settled),
            "provisional_reward": _ratio(sums.reward + (default or 0.0) * pending, sums.settled + pending),
            "baseline_reward": _ratio(sums.baseline_reward, sums.baseline_weight),
            "reward_lag_seconds": _ratio(sums.delay / 1e6, sums.rewarded),
            "learner_lag_records": behind,
            "learner_seconds": view.learner_seconds,
            "learner_lag_seconds": max(0.0, (head.time - view.time) / 1e6) if head is not None and behind else 0.0,
            "apprentice_events": sums.apprentice,
            "apprentice_agreement": _ratio(sums.agreed, sums.apprentice),
            "learned_uploads": sums.uploads,
            "passed_over_uploads": sums.passed_over,
            "feedback": sums.feedback,
            "control_events": sums.control_settled,
            "control_reward": _ratio(sums.control_reward, sums.control_settled),
            "late_rewards": sums.late_rewards,
            "unmatched_rewards": sums.unmatched_rewards,
            "events_since": view.events_since / 1e6,
            "catalogue_actions": len(loop.catalogue),
            "catalogue_bytes": loop.copied.n_bytes,
            "shared_model_bytes": loop.weights.nbytes,
        }


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan


def write_processes(folder: Path, processes: Sequence[Process]) -> None:
    """Replace the file with the supervisor's processes."""
    with replacing(folder / PROCESSES) as new:
        new.write_bytes(msgspec.json.encode(processes))

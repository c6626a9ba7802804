"""Offline replay: schemes side by side on tasks made from one dataset, over many rollouts."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedres import checks
from fedres.checks import Array
from libsvm_tasks import engine, grid
from libsvm_tasks.data import Data
from libsvm_tasks.hosted import hosted_accuracy
from libsvm_tasks.load import load
from libsvm_tasks.schemes import TIMINGS, Scheme, shared_bits
from libsvm_tasks.tasks import Task, paper_task


@dataclass(frozen=True, slots=True)
class Setup:
    """What all schemes of a replay have in common."""

    dataset: str
    clients: int = 50
    rounds: int = 500
    rollouts: int = 50
    samples: int = 30  # N_0, the most examples of a class that a client has
    seed: int = 0
    label: str | None = None  # the column to predict, of a CSV file

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "rollouts", "samples"):
            checks.whole(name, getattr(self, name))
        checks.whole("seed", self.seed, least=0)


class RolloutOutcome(NamedTuple):
    """One scheme in one rollout: mean accuracy over clients, bits per client, seconds."""

    accuracy: float
    bits_up: float
    bits_down: float
    seconds: float


class Rollout(NamedTuple):
    """A piece of work for the grid: all schemes on the task of one seed, so that differences are paired."""

    setup: Setup
    schemes: tuple[Scheme, ...]
    number: int
    fingerprint: str  # of the dataset: another file of the same name is other work
    data: Data | None = None  # where it has no name to load it by


@dataclass(frozen=True)
class Result:
    """One row of the table; ``gain`` is the paired difference to Independent."""

    scheme: Scheme
    accuracy: Array  # one number a rollout
    bits_up: float
    bits_down: float
    seconds: float
    gain: Array | None = field(default=None)

    @property
    def accuracy_mean(self) -> float:
        return float(self.accuracy.mean())

    @property
    def accuracy_se(self) -> float:
        return standard_error(self.accuracy)


def standard_error(values: Array) -> float:
    """Return the standard error of the mean; 0 for a single value, which shows no spread."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Replay:
    """All results of one setup."""

    setup: Setup
    samples_per_client: float  # N, a mean over the rollouts
    results: list[Result]

    def to_json(self) -> dict[str, Any]:
        head = asdict(self.setup)
        head["samples_per_client"] = self.samples_per_client
        head["machine"] = platform.machine()
        del head["samples"]
        return {**head, "results": [_row(result) for result in self.results]}


def _row(result: Result) -> dict[str, Any]:
    row: dict[str, Any] = asdict(result.scheme) | {"global_learner": result.scheme.learner}
    row |= {"accuracy_mean": result.accuracy_mean, "accuracy_se": result.accuracy_se}
    row["accuracy"] = result.accuracy.tolist()  # of each rollout
    row |= {"bits_up": result.bits_up, "bits_down": result.bits_down, "seconds": result.seconds}
    if result.gain is not None:
        row |= {"gain_mean": float(result.gain.mean()), "gain_se": standard_error(result.gain)}
    return row


def replay(
    setup: Setup,
    schemes: Sequence[Scheme],
    *,
    data: Data | None = None,
    jobs: int | None = None,
    journal: Path | None = None,
    progress: grid.Progress | None = None,
) -> Replay:
    """Return every scheme's accuracy on the same tasks, made from ``data`` or from the dataset that the setup names.

    With a ``journal`` an interrupted call goes on where it was.
    """
    rows = dataset(setup.dataset, setup.label) if data is None else data
    paper_task(rows, setup.clients, samples=setup.samples, seed=setup.seed, n_rounds=setup.rounds)  # fails early
    fingerprint = hashlib.sha256(rows.features.tobytes() + rows.label.tobytes()).hexdigest()
    work = [Rollout(setup, tuple(schemes), number, fingerprint, data) for number in range(setup.rollouts)]
    pieces = grid.run(play_rollout, work, jobs=jobs, journal=journal, progress=progress)
    accuracy = np.array([[RolloutOutcome(*o).accuracy for o in piece["outcomes"]] for piece in pieces]).T
    totals = np.array([piece["outcomes"] for piece in pieces]).mean(axis=0)
    base = [row for row, scheme in zip(accuracy, schemes, strict=True) if scheme.scheme == "independent"]
    results = [
        Result(scheme, row, total[1], total[2], total[3] * setup.rollouts, row - base[0] if base else None)
        for scheme, row, total in zip(schemes, accuracy, totals, strict=True)
    ]
    return Replay(setup, float(np.mean([piece["samples"] for piece in pieces])), results)


def play_rollout(rollout: Rollout) -> dict[str, Any]:
    """Return the outcomes of all schemes on the task of one seed."""
    setup = rollout.setup
    data = rollout.data or dataset(setup.dataset, setup.label)
    tasks: dict[str, Task] = {}
    outcomes = []
    for scheme in rollout.schemes:
        features = scheme.local_features
        if features not in tasks:
            tasks[features] = paper_task(
                data,
                setup.clients,
                samples=setup.samples,
                seed=setup.seed + rollout.number,
                local_features=features,
                n_rounds=setup.rounds,
            )
        outcomes.append(tuple(play(tasks[features], scheme)))
    return {"outcomes": outcomes, "samples": next(iter(tasks.values())).samples}


def play(task: Task, scheme: Scheme) -> RolloutOutcome:
    """Return the outcome of one scheme on one task."""
    start = time.perf_counter()
    if scheme.scheme == "fedres" and (scheme.learner_name != "fedres-sgd" or scheme.local_learner != "linear"):
        accuracy, bits_up, bits_down = hosted_accuracy(task, scheme)
    else:
        timing, local_timing = TIMINGS[scheme.timing]
        accuracy = engine.run(
            task,
            scheme.scheme,
            uplink_delay=scheme.uplink_delay,
            downlink_delay=scheme.downlink_delay,
            timing=timing,
            local_timing=local_timing,
            alone=scheme.alone,
            **(scheme.hyperparameters if scheme.learner_name == "fedres-sgd" else {}),
        ).accuracy
        bits_up, bits_down = shared_bits(task, scheme)
    return RolloutOutcome(float(np.mean(accuracy)), bits_up, bits_down, time.perf_counter() - start)


@lru_cache(maxsize=2)
def dataset(name: str, label: str | None = None) -> Data:
    """Return a dataset, kept for the next rollouts of this process."""
    return load(name, label)

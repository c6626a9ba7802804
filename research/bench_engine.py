"""FedRes client-rounds a second, on one core: the engine, its readable twin, and the same loop over VW workspaces.

All three take the same data and the same steps (timing ``on-arrival``, local timing ``immediate``, no delay, one
run). Every row comes with two labels and steps are small, so that no model ever fits and every round updates both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

import numpy as np
from rich.table import Table

from libsvm_tasks import engine, readable
from libsvm_tasks.grid import Progress
from libsvm_tasks.setting import RunSetting
from libsvm_tasks.tasks import Task

SIZES = (16, 256, 784)  # the features of letter, usps and mnist
SAMPLES = 30  # N, as in the FedRes paper
SETTING: dict[str, Any] = {
    "timing": "on-arrival",
    "local_timing": "immediate",
    "server": "sequential",
    "learning_rate": 0.01,  # small: a prediction that jumps past the largest label seen is clamped to it
    "local_learning_rate": 0.01,
}


def make_task(n_features: int, n_clients: int = 50, n_rounds: int = 500, seed: int = 0) -> Task:
    """Return random dense features, half of them shared and half local; each row twice, with labels near −1 and 1."""
    rng = np.random.default_rng(seed)
    rows, columns = 2 * SAMPLES, rng.permutation(n_features)
    features = rng.normal(size=(n_clients, SAMPLES, n_features))
    sign = np.tile(np.repeat([-1.0, 1.0], SAMPLES), (n_clients, 1))
    visits = np.tile(np.arange(rows), (n_clients, -(-n_rounds // rows), 1))
    return Task(
        features=np.concatenate([features, features], axis=1),
        label=sign + 0.1 * rng.normal(size=sign.shape),
        order=rng.permuted(visits, axis=2).reshape(n_clients, -1)[:, :n_rounds],
        test_features=rng.normal(size=(n_clients, 2, n_features)),
        test_label=np.tile([-1.0, 1.0], (n_clients, 1)),
        global_features=columns[: n_features // 2],
        local_features=columns[n_features // 2 :],
        rows=np.arange(n_clients * rows).reshape(n_clients, rows),
        samples=SAMPLES,
    )


def measure(n_features: int, n_clients: int = 10, n_rounds: int = 10_000, repeats: int = 5) -> dict[str, float]:
    """Return client-rounds per second of CPU time of the three loops, best of ``repeats``, and their ratios.

    The engine is timed with all its preparations; the loops, which play fewer rounds, once their learners are made.
    ``updating`` is the share of client-rounds whose prediction missed its label, so that a step was due.
    """
    task = make_task(n_features, n_clients, n_rounds)
    predictions = engine.run(task, "fedres", **SETTING).predictions  # and compile, if that was not done before
    compiled = _speed(lambda: engine.run(task, "fedres", **SETTING), task.order.size, repeats)
    twin, vw = (_loop_speed(task, learner, min(n_rounds, 50), repeats) for learner in ("linear", "vw"))
    label = np.take_along_axis(task.label, task.order, axis=1).T.astype(np.float32)
    return {
        "features": n_features,
        "engine": compiled,
        "twin": twin,
        "vw": vw,
        "engine_over_twin": compiled / twin,
        "engine_over_vw": compiled / vw,
        "updating": float(np.mean(predictions != label)),
    }


def _loop_speed(task: Task, learner: str, n_rounds: int, repeats: int) -> float:
    """Time ``n_rounds`` after another, each time going on where the last one ended."""
    rounds = iter(range(task.order.shape[1]))
    with ExitStack() as stack:
        loop = readable.FedRes(task, RunSetting("fedres", **SETTING), readable.maker(learner, stack))

        def play() -> None:
            for t in islice(rounds, n_rounds):
                loop.play(t)

        return _speed(play, n_rounds * loop.n_clients, min(repeats, task.order.shape[1] // n_rounds))


def _speed(work: Callable[[], object], amount: int, repeats: int) -> float:
    def seconds() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return amount / min(seconds() for _ in range(repeats))


def table(rows: Sequence[Mapping[str, float]]) -> Table:
    """Return what ``measure`` returned, for people."""
    result = Table(title="FedRes client-rounds a second, one core")
    for heading in ("features", "engine", "twin loop", "VW loop", "to twin", "to VW", "updating"):
        result.add_column(heading, justify="right")
    for row in rows:
        speeds = [f"{row[name]:,.0f}" for name in ("features", "engine", "twin", "vw")]
        ratios = [f"{row[name]:,.0f}×" for name in ("engine_over_twin", "engine_over_vw")]
        result.add_row(*speeds, *ratios, f"{row['updating']:.2%}")
    return result


def measure_all(progress: Progress | None = None) -> list[dict[str, float]]:
    """Return ``measure`` at the sizes of letter, usps and mnist."""
    rows = []
    for size in SIZES:
        rows.append(measure(size))
        if progress is not None:
            progress(len(rows), len(SIZES))
    return rows

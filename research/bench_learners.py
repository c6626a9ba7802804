"""How fast the convex global learners run: steps of K clients a second, on one core.

A step is one whole round of ``Federation``: K clients predict and see their labels, uploads travel, the server steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from threadpoolctl import threadpool_limits

from fedres import Example, Federation, Linear, Softmax, global_learner, ofediq_parameters
from libsvm_tasks.grid import Progress

FEATURES, CLASSES = 785, 10  # 28×28 pixels and a constant: D = 7,850
PERIOD = 10  # of FedOMD and FedSEA: 10% of the bits


def settings(n_clients: int, dim: int) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the learners to time: a title, then name and hyperparameters."""
    learners: dict[str, tuple[str, Mapping[str, Any]]] = {
        "FedRes.SGD": ("fedres-sgd", {"step_size": 0.1 / n_clients}),
        "FedOGD": ("fedogd", {}),
    }
    for gamma in (0.1, 0.01):
        levels, blocks, chance = ofediq_parameters(gamma, dim)
        iq = {"participation": chance, "levels": levels, "blocks": blocks}
        learners[f"OFedAvg({gamma})"] = ("ofedavg", {"participation": gamma})
        learners[f"OFedIQ at {1 - gamma:.0%}"] = ("ofediq", iq)
    return learners | {
        f"FedOMD({PERIOD})": ("fedomd", {"sync": PERIOD}),
        f"FedSEA({PERIOD})": ("fedsea", {"period": PERIOD}),
        "dynamic FedAvg, 10 clients": ("dynamic-fedavg", {"participants": 10, "batch": 5, "buffer": 10}),
        "dynamic FedAvg, all clients": ("dynamic-fedavg", {}),
    }


CLIENTS = 1000  # K


def measure_all(progress: Progress | None = None, seconds: float = 2.0) -> list[dict[str, Any]]:
    """Return each learner's steps and client-steps a second of CPU time."""
    examples = _examples(CLIENTS, rounds=20, seed=0)
    model = Linear(FEATURES, CLASSES)
    rows = []
    with threadpool_limits(limits=1):
        contenders = settings(CLIENTS, model.dim)
        for title, (name, hyperparameters) in contenders.items():
            learner = global_learner(name, model=model, loss=Softmax(CLASSES), n_clients=CLIENTS, **hyperparameters)
            speed = _steps_per_second(Federation(learner), examples, seconds)
            rows.append({"learner": title, "steps_per_second": speed, "client_steps_per_second": speed * CLIENTS})
            if progress is not None:
                progress(len(rows), len(contenders))
    return rows


def _examples(n_clients: int, rounds: int, seed: int) -> list[Example]:
    """Return pictures of which, as in mnist, a fifth of the pixels is not empty."""
    rng = np.random.default_rng(seed)
    examples = []
    for _ in range(rounds):
        pixels = rng.random((n_clients, FEATURES)) * (rng.random((n_clients, FEATURES)) < 0.2)
        pixels[:, -1] = 1
        examples.append(Example(pixels, rng.integers(CLASSES, size=n_clients).astype(float)))
    return examples


def _steps_per_second(federation: Federation, examples: Sequence[Example], seconds: float) -> float:
    for example in examples[:PERIOD]:  # compiles, and fills buffers
        federation.play(example)
    steps, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        for example in examples:
            federation.play(example)
        steps += len(examples)
    return steps / (time.process_time() - start)


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return what ``measure_all`` returned, for people."""
    result = Table(title=f"{CLIENTS:,} clients, {FEATURES * CLASSES:,} weights, one core", title_justify="left")
    result.add_column("learner")
    for column in ("steps/s", "million client-steps/s"):
        result.add_column(column, justify="right")
    for row in rows:
        million = row["client_steps_per_second"] / 1e6
        result.add_row(row["learner"], f"{row['steps_per_second']:,.1f}", f"{million:.3f}")
    return result

"""What residual-kalman costs: microseconds to decide and to learn, and bytes of its models.

``python -m libsvm_tasks.decisions.speed`` prints it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.compiling import kernel
from fedres.decisions.constants import CORE_SIZE, ID_FIELD
from fedres.decisions.kalman_kernels import predict
from fedres.decisions.kalman_state import Events
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of, fixed, request_of

ACTIONS, COORDINATES = 10, 22  # 23 coordinates with the constant, all of them not 0
IDS, TOPICS = 6, 3  # 9 action features in all; each action has one of both
BATCH, USERS = 500, 20


@kernel
def _predict_often(shared: Any, own: Array, personal: bool, request: Any, parts: Array, n: int) -> None:
    for _ in range(n):
        predict(shared, own, personal, request, parts)  # for a literal it would be compiled once more


def measure(repeats: int = 5) -> dict[str, float]:
    """Return the least CPU time of the repeats, of one decision, scores only, and of one event; both in a batch."""
    rng, model = np.random.default_rng(0), ResidualKalman()
    kinds = [(100 + k % IDS, 200 + k % TOPICS) for k in range(ACTIONS)]
    actions = [(kind, (1.0, 1.0), (ID_FIELD, 2)) for kind in kinds]
    names = range(1, COORDINATES + 1)
    requests = [request_of((names, rng.normal(size=COORDINATES).tolist()), actions) for _ in range(BATCH)]
    users = rng.integers(USERS, size=BATCH).tolist()
    taken, rewards = rng.integers(ACTIONS, size=BATCH).tolist(), (rng.random(BATCH) < 0.2).astype(float).tolist()
    events = events_of([*zip(requests, taken, rewards, users, strict=True)])
    owns = model.learn(events, [NO_MODEL] * USERS)
    assert model.shared is not None
    learning, deciding, parts = [], [], np.empty((ACTIONS, 3))
    _predict_often(model.shared, owns[users[0]], True, fixed(requests[0]), parts, 1)  # compiles
    for _ in range(repeats):
        start = time.process_time()
        owns = model.learn(events, owns)
        learning.append((time.process_time() - start) / BATCH)
        start = time.process_time()
        _predict_often(model.shared, owns[users[0]], True, fixed(requests[0]), parts, BATCH)
        deciding.append((time.process_time() - start) / BATCH)
    largest = float(max(own.nbytes for own in owns))
    return {"decide_us": 1e6 * min(deciding), "learn_us": 1e6 * min(learning), "personal_bytes": largest}


def catalogue_bytes(n_ids: int = 100_000) -> float:
    """Return the bytes of a shared model that has learned so many ids, of contexts that fill the core."""
    model, n_context = ResidualKalman(), CORE_SIZE - 1
    hashes = np.tile(np.arange(1, n_context + 2, dtype=np.uint32), (n_ids, 1))
    hashes[:, -1] = np.arange(1000, 1000 + n_ids)
    fields, starts = np.full(hashes.size, 9, np.uint32), np.arange(n_ids + 1) * (n_context + 1)
    rewards = (np.random.default_rng(0).random(n_ids) < 0.5).astype(np.float32)
    model.learn(
        Events(hashes.ravel(), np.ones(hashes.size, np.float32), fields, starts, np.full(n_ids, n_context), rewards,
               np.full(n_ids, -1))
    )  # fmt: skip
    assert model.shared is not None
    return float(sum(array.nbytes for array in model.shared))


if __name__ == "__main__":
    for name, value in {**measure(), "bytes_of_100000_ids": catalogue_bytes()}.items():
        print(f"{name}: {value:,.1f}")

"""What residual-kalman costs: microseconds to decide and to learn, and bytes of a personal model."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from fedres.decisions.kalman_kernels import predict
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of, request_of

ACTIONS, COORDINATES, FEATURES = 10, 22, 9  # 23 coordinates with the constant; 9 features an action
BATCH = 500


def measure(repeats: int = 5) -> dict[str, float]:
    """Return the medians for 10 actions of 9 features and contexts of 23 coordinates that are all not 0."""
    rng, model = np.random.default_rng(0), ResidualKalman()
    requests = []
    for _ in range(BATCH):
        context = np.arange(1, COORDINATES + 1), rng.normal(size=COORDINATES)
        actions = [
            (
                100 * np.arange(1, FEATURES + 1) + rng.integers(10, size=FEATURES),
                np.ones(FEATURES),
                np.arange(FEATURES) + 1,
            )
            for _ in range(ACTIONS)
        ]
        requests.append(request_of(context, actions))  # type: ignore[arg-type]
    users = rng.integers(20, size=BATCH)
    events = events_of(
        [(request, 0, float(rng.random() < 0.2), int(u)) for request, u in zip(requests, users, strict=True)]
    )
    owns = model.learn(events, [NO_MODEL] * 20)
    learning, deciding, parts = [], [], np.empty((ACTIONS, 3))
    for _ in range(repeats):
        start = time.perf_counter()
        owns = model.learn(events, owns)
        learning.append((time.perf_counter() - start) / BATCH)
        assert model.shared is not None
        start = time.perf_counter()
        for request, user in zip(requests, users, strict=True):
            predict(model.shared, owns[user], True, request, parts)
        deciding.append((time.perf_counter() - start) / BATCH)
    return {
        "decide_us": 1e6 * median(deciding),
        "learn_us": 1e6 * median(learning),
        "personal_bytes": float(max(own.nbytes for own in owns)),
    }

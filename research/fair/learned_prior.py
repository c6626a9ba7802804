"""FedRes with second-order residuals whose penalties are learned from all clients: empirical Bayes.

[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020.
[LM72] D. V. Lindley, A. F. M. Smith. Bayes Estimates for the Linear Model. 1972.
[DLR77] A. P. Dempster, N. M. Laird, D. B. Rubin. Maximum Likelihood from Incomplete Data via the EM Algorithm. 1977.

A label is w·x + u_i·x and noise of variance σ². The personal parts u_i are drawn from N(0, Σ) [LM72]: in which
directions clients differ, and by how much, is one more thing that they share. In each round trip the server makes w,
Σ and σ² from sums of the clients (EM's M step, [DLR77]), and every client solves for its own u_i again (its E step).
What a client sends are d × d sums; neither rows nor u_i leave it. Σ starts as a multiple of the identity, and ``prior``
clients' worth of that start stays in it. Above ``MOST_DIRECTIONS`` features Σ is diagonal, which costs less.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from libsvm_tasks.tasks import Task
from research.fair.second_order import counts, with_constant

BETWEEN = 10  # rounds from one upload to the next where there is no delay
NOISE = 0.3  # σ² at the start, of labels −1 and 1
LEAST_NOISE = 1e-3
MOST_DIRECTIONS = 300


class SharedPrior(NamedTuple):
    """What the server sends."""

    weights: Array  # w
    spread: Array  # Σ, or its diagonal
    noise: float  # σ²


class Sums(NamedTuple):
    """What a client sends, of its rows X, y: with S = XΣXᵀ + σ²I."""

    gram: Array  # XᵀS⁻¹X
    target: Array  # XᵀS⁻¹y
    second_moment: Array  # E[u uᵀ], or its diagonal
    squares: float  # E‖y − X(w + u)‖²
    rows: int


def fit(task: Task, delay: int, penalty: float, prior: float, trips: int) -> Array:
    """Return w + u_i of every client after the last round, (P, d + 1), with at most ``trips`` round trips."""
    features, unit = with_constant(task.features)
    dim, n_rows, n_rounds = features.shape[2], task.label.shape[1], task.order.shape[1]
    scale = np.full(dim, NOISE / (penalty * unit))
    start = scale if dim > MOST_DIRECTIONS else np.diag(scale)
    shared = SharedPrior(np.zeros(dim), start, NOISE)
    made = [min(n_rows, n_rounds)]  # the rounds in which clients make their sums: first after a pass over their rows
    while len(made) < trips and made[-1] + delay + BETWEEN + delay <= n_rounds:
        made.append(made[-1] + delay + BETWEEN)
    for t in made:
        seen = counts(task.order, n_rows, t) > 0
        parts = [client(x[here], y[here], shared) for x, y, here in zip(features, task.label, seen, strict=True)]
        shared = server(parts, start, prior)
    return np.array([shared.weights + personal(x, y, shared)[0] for x, y in zip(features, task.label, strict=True)])


def personal(rows: Array, label: Array, shared: SharedPrior) -> tuple[Array, Array, Array]:
    """Return E[u], and what made it: ΣXᵀ and S⁻¹(X, y − Xw)."""
    across = _times(shared.spread, rows.T)
    left = np.linalg.solve(
        rows @ across + shared.noise * np.eye(len(rows)), np.column_stack([rows, label - rows @ shared.weights])
    )
    return np.asarray(across @ left[:, -1]), across, left


def client(rows: Array, label: Array, shared: SharedPrior) -> Sums:
    """Return a client's sums: its E step."""
    mean, across, left = personal(rows, label, shared)
    inverse_rows, kernel = left[:, :-1], rows @ across  # S⁻¹X and XΣXᵀ
    if shared.spread.ndim == 1:
        moment = shared.spread - (across * inverse_rows.T).sum(axis=1) * shared.spread + mean**2
    else:
        moment = shared.spread - across @ (inverse_rows @ shared.spread) + np.outer(mean, mean)
    residual = label - rows @ (shared.weights + mean)
    unsure = np.trace(kernel) - ((inverse_rows @ across) * kernel).sum()  # the sum of x·Cov[u]·x over the rows
    gram = rows.T @ inverse_rows
    target = rows.T @ left[:, -1] + gram @ shared.weights
    return Sums(gram, target, moment, float(residual @ residual + unsure), len(rows))


def _times(spread: Array, rows: Array) -> Array:
    """Return Σ·rows."""
    return spread[:, None] * rows if spread.ndim == 1 else spread @ rows


def server(parts: list[Sums], start: Array, prior: float) -> SharedPrior:
    """Return the next w, Σ and σ²: the M step, with ``start`` counted as ``prior`` clients."""
    least = 1 / (np.diag(start) if start.ndim == 2 else start) / len(parts)
    gram = np.sum([part.gram for part in parts], axis=0) + np.diag(least)
    weights = np.linalg.solve(gram, np.sum([part.target for part in parts], axis=0))
    spread = (np.sum([part.second_moment for part in parts], axis=0) + prior * start) / (len(parts) + prior)
    noise = sum(part.squares for part in parts) / sum(part.rows for part in parts)
    return SharedPrior(weights, spread, max(noise, LEAST_NOISE))

"""Ridge regression for many clients: each alone, one for all, and FedRes's shared and personal part solved jointly.

[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020.

FedRes.ERM alternates between both sides (algorithms 1 and 2). Here a client sends what is left of its sums once its own
part is eliminated (a Schur complement), so that the server's next model is the joint minimiser of

    Σ_i Σ_s c_s (y_s − w·x^g_s − u_i·x_s)² + global_ridge ‖w‖² + local_ridge Σ_i ‖u_i‖²

over all rows that have reached it, c_s the times that a row has come up. Neither rows nor u_i leave a client.
Penalties are in units of the mean of ‖x‖² over the rows and features, so that they mean the same at every scale.
"""

from __future__ import annotations

import numpy as np

from fedres.checks import Array
from libsvm_tasks.tasks import Task


def counts(order: Array, n_rows: int, n_rounds: int) -> Array:
    """Return how often each client has met each of its rows in the first ``n_rounds`` rounds, (P, R)."""
    seen = order[:, : max(n_rounds, 0)]
    result = np.zeros((len(order), n_rows))
    for i, rows in enumerate(seen):
        result[i] = np.bincount(rows, minlength=n_rows)
    return result


def with_constant(features: Array, size: float | None = None) -> tuple[Array, float]:
    """Return features with a constant behind them, and the mean of their squares: the constant's square, too."""
    unit = size or float(np.mean(features**2)) or 1.0
    return np.concatenate([features, np.full((*features.shape[:-1], 1), unit**0.5)], axis=-1), unit


class Ridge:
    """The rows of one task, weighted by how often they came up; ``arrived`` of them have reached the server."""

    def __init__(self, task: Task, columns: Array, delay: int) -> None:
        n_rows, n_rounds = task.label.shape[1], task.order.shape[1]
        own, arrived = (np.sqrt(counts(task.order, n_rows, t)) for t in (n_rounds, n_rounds - delay))
        features, self.unit = with_constant(task.features)
        self.columns = np.append(columns, task.features.shape[2])
        self.own, self.own_label = own[..., None] * features, own * task.label
        self.sent, self.sent_label = arrived[..., None] * features, arrived * task.label

    def alone(self, ridge: float) -> Array:
        """Return each client's own ridge regression, (P, d + 1)."""
        return _own_part(self.own, self.own_label, ridge * self.unit)

    def central(self, ridge: float) -> Array:
        """Return one ridge regression on everybody's rows, zero in the columns that it does not see."""
        rows = self.sent[..., self.columns].reshape(-1, len(self.columns))
        gram, target = rows.T @ rows, rows.T @ self.sent_label.ravel()
        return self._full(_solve(gram, target, ridge * self.unit * len(self.sent)))

    def fedres(self, local_ridge: float, global_ridge: float) -> tuple[Array, Array]:
        """Return w (zero in the columns that are not shared) and every u_i given w, (P, d + 1)."""
        local = local_ridge * self.unit
        gram: Array = np.zeros((len(self.columns), len(self.columns)))
        target: Array = np.zeros(len(self.columns))
        for rows, label in zip(self.sent, self.sent_label, strict=True):
            shared = rows[:, self.columns]
            left = np.linalg.solve(rows @ rows.T / local + np.eye(len(rows)), np.column_stack([shared, label]))
            gram += shared.T @ left[:, :-1]
            target += shared.T @ left[:, -1]
        weights = self._full(_solve(gram, target, global_ridge * self.unit))
        return weights, _own_part(self.own, self.own_label - self.own @ weights, local)

    def _full(self, weights: Array) -> Array:
        result = np.zeros(self.own.shape[2])
        result[self.columns] = weights
        return result


def _solve(gram: Array, target: Array, ridge: float) -> Array:
    return np.asarray(np.linalg.solve(gram + ridge * np.eye(len(gram)), target))


def _own_part(rows: Array, target: Array, ridge: float) -> Array:
    """Return argmin ‖target − rows·u‖² + ridge‖u‖² of every client, through its Gram matrix of rows."""
    kernel = rows @ rows.swapaxes(1, 2) + ridge * np.eye(rows.shape[1])
    dual = np.linalg.solve(kernel, target[..., None])
    return np.asarray((rows.swapaxes(1, 2) @ dual)[..., 0])

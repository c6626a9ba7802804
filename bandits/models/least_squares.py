"""Least squares for shared and personal weights at once, by running sums; what LinUCB needs.

The joint minimiser of FedRes.ERM [FedRes, eq. 2 and 3] with ridge, and how sure it is, without going back to old
samples and without alternating: each client eliminates its own weights. With V the inverse of the client's Gram matrix,
B = V Σ x^l x^gᵀ and m = V Σ x^l y, a sample (x^g, x^l, y) tells the server the row r/√q and the target e/√q, where
r = x^g − Bᵀx^l, e = y − m·x^l and q = 1 + x^l·V x^l; ridge on these rows gives w^g, and w_i = m − B w^g. All of it
changes by rank one (Sherman–Morrison). An upload depends on no shared model, so delay changes when the server knows it,
never what it knows.

[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from bandits.actions import Actions, Features
from bandits.models.protocol import Sample, Scored
from fedres.checks import Array
from fedres.local_learners.adagrad import kernel

MOST = 4_000  # weights of one block: a model keeps their square
SHRINK = 5.0  # how much more ridge personal weights get where there are shared ones: they are what is left over


@kernel
def fill(indices: Array, shift: int, values: Array, out: Array) -> None:
    """Write features as a dense row."""
    out[:] = 0
    for k in range(values.size):
        out[shift + indices[k]] += values[k]


@kernel
def multiply(matrix: Array, vector: Array, out: Array) -> None:
    for r in range(len(matrix)):
        total = 0.0
        for c in range(vector.size):
            total += matrix[r, c] * vector[c]
        out[r] = total


@kernel
def dot(a: Array, b: Array) -> float:
    total = 0.0
    for k in range(a.size):
        total += a[k] * b[k]
    return total


@kernel
def reduce(coupling: Array, xl: Array, xg: Array, out: Array) -> None:
    """r = x^g − Bᵀ x^l"""
    out[:] = xg
    for row in range(xl.size):
        if xl[row] != 0:
            for c in range(xg.size):
                out[c] -= coupling[row, c] * xl[row]


@kernel
def rank_one(matrix: Array, column: Array, row: Array, scale: float) -> None:
    """matrix += scale · column rowᵀ"""
    for r in range(column.size):
        factor = scale * column[r]
        for c in range(row.size):
            matrix[r, c] += factor * row[c]


@kernel
def predict(
    inverse: Array, coupling: Array, fitted: Array, server_inverse: Array, weights: Array, xl: Array, xg: Array
) -> tuple[float, float]:
    """Return the mean and the variance of w^g·x^g + w_i·x^l."""
    vx, r, sr = np.empty(xl.size), np.empty(xg.size), np.empty(xg.size)
    multiply(inverse, xl, vx)
    reduce(coupling, xl, xg, r)
    multiply(server_inverse, r, sr)
    return dot(fitted, xl) + dot(weights, r), dot(xl, vx) + dot(r, sr)


@kernel
def eliminate(inverse: Array, coupling: Array, fitted: Array, xl: Array, xg: Array, label: float, row: Array) -> float:
    """Eliminate the client's weights from a sample: write the upload's row, return its target."""
    vx = np.empty(xl.size)
    multiply(inverse, xl, vx)
    reduce(coupling, xl, xg, row)
    q, error = 1.0 + dot(xl, vx), label - dot(fitted, xl)
    rank_one(coupling, vx, row, 1 / q)
    for k in range(xl.size):
        fitted[k] += vx[k] * error / q
    rank_one(inverse, vx, vx, -1 / q)
    for k in range(xg.size):
        row[k] /= np.sqrt(q)
    target: float = error / np.sqrt(q)
    return target


@kernel
def add_row(inverse: Array, weights: Array, row: Array, target: float) -> None:
    """Take a row of least squares in."""
    z = np.empty(row.size)
    multiply(inverse, row, z)
    h, error = 1.0 + dot(row, z), target - dot(weights, row)
    for k in range(row.size):
        weights[k] += z[k] * error / h
    rank_one(inverse, z, z, -1 / h)


@kernel
def optimistic(
    personal: tuple[Array, Array, Array],
    shared: tuple[Array, Array],
    xg: tuple[Array, Array, int],
    xl: tuple[Array, Array, int],
    alpha: float,
    out: Array,
) -> None:
    """Write mean + α·width of every action. ``personal`` and ``shared`` have one block for all actions, or one each."""
    (inverse, coupling, fitted), (server_inverse, weights) = personal, shared
    (g_indices, g_values, g_stride), (l_indices, l_values, l_stride) = xg, xl
    row_g, row_l = np.zeros(weights.shape[1]), np.zeros(fitted.shape[1])
    blocks = len(weights)
    for a in range(out.size):
        b = a if blocks > 1 else 0
        if row_g.size:
            shift = 0 if blocks > 1 else a * g_stride
            fill(g_indices[min(a, len(g_indices) - 1)], shift, g_values[min(a, len(g_values) - 1)], row_g)
        if row_l.size:
            shift = 0 if blocks > 1 else a * l_stride
            fill(l_indices[min(a, len(l_indices) - 1)], shift, l_values[min(a, len(l_values) - 1)], row_l)
        mean, variance = predict(inverse[b], coupling[b], fitted[b], server_inverse[b], weights[b], row_l, row_g)
        out[a] = mean + alpha * np.sqrt(max(variance, 0.0))


class LeastSquaresModel(Scored):
    """``Model`` of the three schemes whose scores are optimistic: mean + α·width.

    Where every action has weights of its own (``arms``), each is a problem of its own ("block").
    """

    reusable = True

    def __init__(
        self, scheme: str, shared: Actions, private: Actions, alpha: float, ridge: float, delay: int = 0
    ) -> None:
        self.alpha, self.version = alpha, 0
        own = 0 if scheme == "central" else private.dim
        common = 0 if scheme == "independent" else shared.dim
        split = (shared.stride > 0 or not common) and (private.stride > 0 or not own)
        self.blocks = shared.n if split and (common or own) else 1
        self.own, self.common = own // self.blocks, common // self.blocks
        if max(self.own, self.common) > MOST:
            raise ValueError(f"linucb must have at most {MOST} weights a model, got {max(self.own, self.common)}")
        self.personal_ridge = ridge * SHRINK if common else ridge
        self.server_inverse = np.tile(np.eye(self.common) / ridge, (self.blocks, 1, 1))
        self.weights = np.zeros((self.blocks, self.common))
        self.personal: dict[int, tuple[Array, Array, Array]] = {}
        self.waiting: deque[list[tuple[int, Array, float]]] = deque([] for _ in range(delay))

    def join(self, slot: int) -> None:
        inverse = np.tile(np.eye(self.own) / self.personal_ridge, (self.blocks, 1, 1))
        coupling = np.zeros((self.blocks, self.own, self.common))
        self.personal[slot] = inverse, coupling, np.zeros((self.blocks, self.own))

    def leave(self, slot: int) -> None:
        del self.personal[slot]

    def scores(self, slot: int, shared: Actions, private: Actions) -> Array:
        out = np.empty(shared.n)
        xg = shared.indices, shared.values, shared.stride
        xl = private.indices, private.values, private.stride
        optimistic(self.personal[slot], (self.server_inverse, self.weights), xg, xl, self.alpha, out)
        return out

    def play(self, samples: list[Sample]) -> None:
        self.waiting.append([self._eliminate(sample) for sample in samples])
        arrived = self.waiting.popleft()
        if self.common and arrived:
            for block, row, target in arrived:
                add_row(self.server_inverse[block], self.weights[block], row, target)
            self.version += 1

    def close(self) -> None:
        """Nothing to free."""

    def _eliminate(self, sample: Sample) -> tuple[int, Array, float]:
        """Let the client learn; return its upload."""
        slot, action, shared, private, reward = sample
        block, xg = self._dense(shared.take(action), self.common)
        own_block, xl = self._dense(private.take(action), self.own)
        block = block if self.common else own_block
        inverse, coupling, fitted = (part[block] for part in self.personal[slot])
        row = np.empty(self.common)
        target = eliminate(inverse, coupling, fitted, xl, xg, reward, row)
        return block, row, target

    def _dense(self, features: Features, width: int) -> tuple[int, Array]:
        """Return the block that an action's features belong to, and them as a row of it."""
        row = np.zeros(width)
        if not width:
            return 0, row
        block, shift = divmod(features.shift, width) if self.blocks > 1 else (0, features.shift)
        fill(features.indices, shift, features.values, row)
        return block, row

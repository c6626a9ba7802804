"""Least squares for shared and personal weights at once, by running sums; what LinUCB needs.

The joint minimiser of FedRes.ERM [FedRes, eq. 2 and 3] with ridge, and how sure it is, without going back to old
samples and without alternating: each client eliminates its own weights. With V the inverse of the client's Gram matrix,
B = V Σ x^l x^gᵀ and m = V Σ x^l y, a sample (x^g, x^l, y) tells the server the row r/√q and the target e/√q, where
r = x^g − Bᵀx^l, e = y − m·x^l and q = 1 + x^l·V x^l; ridge on these rows gives w^g, and w_i = m − B w^g. All of it
changes by rank one (Sherman–Morrison). An upload depends on no shared model, so delay changes when the server knows it,
never what it knows.

Rank-one updates lose digits where features are large, so the sums are kept beside the inverses, which are made from
them again every ``EVERY`` samples. With a half-life the sums are discounted, so that old samples, whatever their
action, count less and less [RVC19]; widths grow accordingly, up to those of a model that has seen nothing. A client's
sums age by its own samples, the server's by rounds. The ridge is restored whenever an inverse is made.

[RVC19] Y. Russac, C. Vernade, O. Cappé. Weighted Linear Bandits for Non-Stationary Environments. 2019.
[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import numpy as np

from bandits.actions import Actions, Features
from bandits.models.protocol import Predicting, Prediction, Sample
from fedres.checks import Array
from fedres.compiling import kernel

MOST = 4_000  # weights of one block: a model keeps their square
EVERY = 256  # samples of a block between two inversions, or as many as it has weights
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
    personal: tuple[Array, Array, Array, float],
    server: tuple[Array, Array, float],
    ridges: tuple[float, float],
    xl: Array,
    xg: Array,
) -> tuple[float, float]:
    """Return the mean and the variance of w^g·x^g + w_i·x^l; a share ``left`` of each side's sums is left by now."""
    (inverse, coupling, fitted, left), (server_inverse, weights, server_left) = personal, server
    vx, r, sr = np.empty(xl.size), np.empty(xg.size), np.empty(xg.size)
    multiply(inverse, xl, vx)
    reduce(coupling, xl, xg, r)
    multiply(server_inverse, r, sr)
    own = min(dot(xl, vx) / left, dot(xl, xl) / ridges[0])
    common = min(dot(r, sr) / server_left, dot(r, r) / ridges[1])
    return dot(fitted, xl) + dot(weights, r), own + common


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
def age(clock: Array, discount: float) -> None:
    """Let all blocks age by one step; ``clock`` has the share left of each one's sums, and its samples since EVERY."""
    for b in range(len(clock)):
        clock[b, 0] *= discount


@kernel
def _catch_up(clock: Array, inverse: Array, sums: Array) -> None:
    """Discount a block's sums by what its clock says, and their inverse likewise."""
    left = clock[0]
    if left < 1:
        for r in range(len(inverse)):
            for c in range(len(inverse)):
                inverse[r, c] /= left
            for c in range(sums.shape[1]):
                sums[r, c] *= left
        clock[0] = 1.0


@kernel
def _invert(sums: Array, ridge: float, inverse: Array, coupling: Array, fitted: Array) -> None:
    """Make a block anew from its sums, Σ x (x, x^g, y)ᵀ."""
    n, common = coupling.shape
    matrix = np.empty((n, n))
    for r in range(n):
        for c in range(n):
            matrix[r, c] = sums[r, c] + (ridge if r == c else 0.0)
    inverse[:] = np.linalg.inv(matrix)
    for r in range(n):
        fitted[r] = dot(inverse[r], sums[:, n + common])
        for c in range(common):
            coupling[r, c] = dot(inverse[r], sums[:, n + c])


@kernel
def _counted(clock: Array, size: int) -> bool:
    """Count a sample; return whether the block is due to be made anew."""
    clock[1] += 1
    due: bool = clock[1] >= max(EVERY, size)
    if due:
        clock[1] = 0
    return due


@kernel
def learn_own(
    personal: tuple[Array, ...], b: int, xl: Array, xg: Array, label: float, row: Array, rule: Array
) -> float:
    """Let a client learn a sample of block ``b``; write the upload's row, return its target (``rule``: ``rule_of``)."""
    inverse, coupling, fitted, sums, clock = personal
    age(clock, rule[0])
    _catch_up(clock[b], inverse[b], sums[b])
    target = eliminate(inverse[b], coupling[b], fitted[b], xl, xg, label, row)
    n, common = xl.size, xg.size
    for r in range(n):
        if xl[r] != 0:
            for c in range(n):
                sums[b, r, c] += xl[r] * xl[c]
            for c in range(common):
                sums[b, r, n + c] += xl[r] * xg[c]
            sums[b, r, n + common] += xl[r] * label
    if n and _counted(clock[b], n):
        _invert(sums[b], rule[1], inverse[b], coupling[b], fitted[b])
    return target


@kernel
def learn_common(server: tuple[Array, ...], b: int, row: Array, target: float, rule: Array) -> None:
    """Let the server take in an upload for block ``b``."""
    inverse, weights, sums, clock = server
    _catch_up(clock[b], inverse[b], sums[b])
    add_row(inverse[b], weights[b], row, target)
    for r in range(row.size):
        for c in range(row.size):
            sums[b, r, c] += row[r] * row[c]
        sums[b, r, row.size] += row[r] * target
    if _counted(clock[b], row.size):
        _invert(sums[b], rule[2], inverse[b], np.empty((row.size, 0)), weights[b])


def rule_of(half_life: float, personal_ridge: float, ridge: float) -> Array:
    """Return what kernels need to know of a setting: the discount of one step, and both ridges."""
    return np.array([0.5 ** (1 / half_life), personal_ridge, ridge])


@kernel
def predict_all(
    personal: tuple[Array, ...],
    shared: tuple[Array, ...],
    rule: Array,
    xg: tuple[Array, Array, int],
    xl: tuple[Array, Array, int],
    means: Array,
    widths: Array,
) -> None:
    """Write mean and width of every action. ``personal`` and ``shared`` have one block for all actions, or one each."""
    (inverse, coupling, fitted, _, clock), (server_inverse, weights, _, server_clock) = personal, shared
    (g_indices, g_values, g_stride), (l_indices, l_values, l_stride) = xg, xl
    row_g, row_l, ridges = np.zeros(weights.shape[1]), np.zeros(fitted.shape[1]), (rule[1], rule[2])
    blocks = len(weights)
    for a in range(means.size):
        b = a if blocks > 1 else 0
        if row_g.size:
            shift = 0 if blocks > 1 else a * g_stride
            fill(g_indices[min(a, len(g_indices) - 1)], shift, g_values[min(a, len(g_values) - 1)], row_g)
        if row_l.size:
            shift = 0 if blocks > 1 else a * l_stride
            fill(l_indices[min(a, len(l_indices) - 1)], shift, l_values[min(a, len(l_values) - 1)], row_l)
        own = (inverse[b], coupling[b], fitted[b], clock[b, 0])
        common = (server_inverse[b], weights[b], server_clock[b, 0])
        means[a], variance = predict(own, common, ridges, row_l, row_g)
        widths[a] = np.sqrt(max(variance, 0.0))


class LeastSquaresModel(Predicting):
    """``BanditModel`` of the three schemes that knows how uncertain it is.

    Where every action has weights of its own (``arms``), each is a problem of its own ("block").
    """

    reusable = True

    def __init__(
        self,
        scheme: str,
        shared: Actions,
        private: Actions,
        ridge: float,
        delay: int = 0,
        half_life: float = math.inf,
    ) -> None:
        self.version = 0
        own = 0 if scheme == "central" else private.dim
        common = 0 if scheme == "independent" else shared.dim
        split = (shared.stride > 0 or not common) and (private.stride > 0 or not own)
        self.blocks = shared.n if split and (common or own) else 1
        self.own, self.common = own // self.blocks, common // self.blocks
        if max(self.own, self.common) > MOST:
            raise ValueError(f"linucb must have at most {MOST} weights a model, got {max(self.own, self.common)}")
        self.personal_ridge = ridge * SHRINK if common else ridge
        self.rule = rule_of(half_life, self.personal_ridge, ridge)
        self.server_inverse = np.tile(np.eye(self.common) / ridge, (self.blocks, 1, 1))
        self.weights = np.zeros((self.blocks, self.common))
        self.server_sums = np.zeros((self.blocks, self.common, self.common + 1))
        self.server_clock = np.tile([1.0, 0.0], (self.blocks, 1))
        self.personal: dict[int, tuple[Array, Array, Array, Array, Array]] = {}
        self.waiting: deque[list[tuple[int, Array, float]]] = deque([] for _ in range(delay))

    def join(self, slot: int) -> None:
        inverse = np.tile(np.eye(self.own) / self.personal_ridge, (self.blocks, 1, 1))
        coupling = np.zeros((self.blocks, self.own, self.common))
        sums = np.zeros((self.blocks, self.own, self.own + self.common + 1))
        clock = np.tile([1.0, 0.0], (self.blocks, 1))
        self.personal[slot] = inverse, coupling, np.zeros((self.blocks, self.own)), sums, clock

    def leave(self, slot: int) -> None:
        del self.personal[slot]

    def predict(self, slot: int, shared: Actions, private: Actions) -> Prediction:
        means, widths = np.empty(shared.n), np.empty(shared.n)
        xg = shared.indices, shared.values, shared.stride
        xl = private.indices, private.values, private.stride
        predict_all(self.personal[slot], self.server, self.rule, xg, xl, means, widths)
        return means, widths

    @property
    def server(self) -> tuple[Array, Array, Array, Array]:
        """The server's inverses, weights, sums and clock."""
        return self.server_inverse, self.weights, self.server_sums, self.server_clock

    def play(self, samples: list[Sample]) -> None:
        self.waiting.append([self._eliminate(sample) for sample in samples])
        arrived = self.waiting.popleft()
        if self.common and arrived:
            age(self.server_clock, self.rule[0])
            for block, row, target in arrived:
                learn_common(self.server, block, row, target, self.rule)
            self.version += 1

    def close(self) -> None:
        """Nothing to free."""

    def to_arrays(self) -> dict[str, Array]:
        own = {f"{slot}.{k}": part.copy() for slot, parts in self.personal.items() for k, part in enumerate(parts)}
        return {f"server.{k}": part.copy() for k, part in enumerate(self.server)} | own

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        for k, part in enumerate(self.server):
            part[:] = arrays[f"server.{k}"]
        self.personal = {}
        for slot in sorted({int(name.partition(".")[0]) for name in arrays if name[0] != "s"}):
            self.join(slot)
            for k, part in enumerate(self.personal[slot]):
                part[:] = arrays[f"{slot}.{k}"]

    def _eliminate(self, sample: Sample) -> tuple[int, Array, float]:
        """Let the client learn; return its upload."""
        slot, action, shared, private, reward = sample
        block, xg = self._dense(shared.take(action), self.common)
        own_block, xl = self._dense(private.take(action), self.own)
        block = block if self.common else own_block
        row = np.empty(self.common)
        target = learn_own(self.personal[slot], block, xl, xg, reward, row, self.rule)
        return block, row, target

    def _dense(self, features: Features, width: int) -> tuple[int, Array]:
        """Return the block that an action's features belong to, and them as a row of it."""
        row = np.zeros(width)
        if not width:
            return 0, row
        block, shift = divmod(features.shift, width) if self.blocks > 1 else (0, features.shift)
        fill(features.indices, shift, features.values, row)
        return block, row

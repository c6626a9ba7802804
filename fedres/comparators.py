"""The best models in hindsight that regret is measured against.

[FedRes] Agarwal, Langford and Wei 2020, "Federated Residual Learning".
If several models are best, ``best_fixed`` returns the one with the smallest weights. ``joint_minimiser`` assigns the
effects that shared and local features can both explain to the local models; of the best models left, it returns the
one with the smallest w^g, and the smallest w_i for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.losses import Logistic, Loss, Softmax, Squared

Step = Callable[[Array], tuple[Array, float, float]]  # direction, -gradient·direction, change of the predictions

SQUARED = Squared()
EPSILON = float(np.finfo(np.float64).eps)
MOST_STEPS = 200
NO_MINIMISER = "label must not be separable by the features, nor every prediction saturated: no best weights found"


def best_fixed(
    features: Array,
    label: Array,
    loss: Loss = SQUARED,
    *,
    offset: float | Array = 0.0,
    weights: Array | None = None,
    radius: float = math.inf,
    ridge: float = 0.0,
) -> Array:
    """Return the flat w, ‖w‖ ≤ radius, of least Σ weights·loss(features·w + offset, label) + ½ ridge ‖w‖².

    Features are (n, d); w has the shape of ``models.Linear``: (d,), or (d · outputs,) for softmax.
    """
    features = checks.array("features", features, (None, None))
    label = checks.array("label", label, (len(features),))
    loss.check(label)
    scale = _client_weights("weights", weights, len(features))
    checks.not_negative("ridge", ridge)
    if radius != math.inf:
        checks.positive("radius", radius)
    if isinstance(loss, Squared):
        return _least_squares(features, label - offset, 2 * loss.scale * scale, radius, ridge)
    used = scale > 0
    offset = np.broadcast_to(offset, (len(features), loss.outputs) if isinstance(loss, Softmax) else len(features))
    return _newton(features[used], label[used], loss, offset[used], scale[used], radius, ridge)


def joint_minimiser(
    global_features: Array,
    local_features: Array,
    label: Array,
    loss: Loss = SQUARED,
    *,
    client_weights: Array | None = None,
    present: Array | None = None,
) -> tuple[Array, Array]:
    """Return (w^g, one w_i a row) of least Σ_i λ_i Σ_t loss(w^g·x^g + w_i·x^l, y) [FedRes, eq. 1].

    Features are (T, P, d) and (T, P, d_l), labels (T, P); ``present`` (T, P) leaves rounds without data out.
    Each client's features are made orthogonal to all others, so the cost grows linearly in P.
    """
    global_features = checks.array("global_features", global_features, (None, None, None))
    rounds, clients, _ = global_features.shape
    local_features = checks.array("local_features", local_features, (rounds, clients, None))
    label = checks.array("label", label, (rounds, clients))
    mask = np.ones((rounds, clients)) if present is None else np.asarray(present, dtype=bool).astype(np.float64)
    scale = (mask * _client_weights("client_weights", client_weights, clients)).T  # λ_i, 0 without data
    loss.check(label[scale.T > 0])
    rows = np.sqrt(scale) if isinstance(loss, Squared) else (scale > 0).astype(np.float64)
    shared = rows[..., None] * global_features.swapaxes(0, 1)
    own = rows[..., None] * local_features.swapaxes(0, 1)
    arrow = _Arrow(shared, own)
    if isinstance(loss, Squared):
        return arrow.weights(*arrow.products(rows * label.T))
    if not isinstance(loss, Logistic):
        raise ValueError(f"loss must be Squared or Logistic, got {loss!r}")
    return _joint_newton(arrow, np.where(scale > 0, label.T, 1.0), loss, scale)


def quadratic_over_ball(curvature_matrix: Array, linear: Array, radius: float) -> Array:
    """Return a minimiser of ½xᵀHx − bᵀx over ‖x‖ ≤ radius, for any symmetric H (the trust-region problem)."""
    values, vectors = np.linalg.eigh(curvature_matrix)
    tiny = len(values) * EPSILON * np.abs(values).max(initial=0.0)
    values = np.where(np.abs(values) <= tiny, 0.0, values)
    gaps = values - min(values[0], 0.0)  # (H + νI) x = b with ν ≥ max(0, -λ_min)
    gaps[gaps <= tiny] = 0.0
    pull = vectors.T @ linear
    pull[(gaps == 0) & (np.abs(pull) <= 10 * len(pull) * EPSILON * np.linalg.norm(linear))] = 0.0
    escapes = bool(np.any((gaps == 0) & (pull != 0)))
    if radius == math.inf and (escapes or values[0] < 0):
        raise ValueError("radius must be finite for a quadratic that has no lower bound, got inf")
    inner = np.divide(pull, gaps, out=np.zeros_like(pull), where=gaps > 0)
    room = radius - float(np.linalg.norm(inner))
    if escapes or room < 0:
        return np.asarray(vectors @ _on_sphere(gaps, pull, radius))
    if values[0] < 0:  # the hard case: b has nothing along the lowest direction, so go to the sphere along it
        inner[0] = math.sqrt(room * (2 * radius - room))
    return np.asarray(vectors @ inner)


def _on_sphere(gaps: Array, pull: Array, radius: float) -> Array:
    """Return x_i = pull_i / (gaps_i + ν), ν such that ‖x‖ = radius (the secular equation)."""
    from scipy.optimize import brentq

    used = pull != 0
    gap, size = gaps[used], np.abs(pull[used])
    low = max(0.0, float((size / radius - gap).max())) * (1 - 1e-12)
    high = float(np.linalg.norm(size)) / radius * (1 + 1e-12)
    point = np.zeros_like(pull)
    shift = brentq(lambda nu: 1 / np.linalg.norm(size / (gap + nu)) - 1 / radius, low, high, xtol=1e-300)
    point[used] = pull[used] / (gap + shift)
    return np.asarray(point * (radius / np.linalg.norm(point)))


def _least_squares(features: Array, target: Array, scale: Array, radius: float, ridge: float) -> Array:
    rows = np.sqrt(scale)
    table, aim = rows[:, None] * features, rows * target
    if ridge:
        table = np.vstack([table, math.sqrt(ridge) * np.eye(features.shape[1])])
        aim = np.concatenate([aim, np.zeros(features.shape[1])])
    best: Array = np.linalg.lstsq(table, aim, rcond=None)[0]
    if np.linalg.norm(best) <= radius:
        return best
    return quadratic_over_ball(table.T @ table, table.T @ aim, radius)


def _newton(
    features: Array, label: Array, loss: Loss, offset: Array, scale: Array, radius: float, ridge: float
) -> Array:
    """Return the minimiser by Newton's method, in coordinates without the directions that change nothing."""
    from scipy.linalg import null_space

    _, sizes, directions = np.linalg.svd(features, full_matrices=False)
    directions = directions[sizes > max(features.shape) * EPSILON * sizes.max(initial=0.0)].T
    outputs = loss.outputs if isinstance(loss, Softmax) else 1
    basis = null_space(np.ones((1, outputs))) if outputs > 1 else np.ones((1, 1))  # a shift of all scores is idle
    design = features @ directions

    def predict(z: Array) -> Array:
        scores = design @ z.reshape(design.shape[1], -1) @ basis.T
        return np.asarray((scores if outputs > 1 else scores[:, 0]) + offset)

    def value(z: Array) -> float:
        return float(scale @ loss.value(predict(z), label) + ridge / 2 * z @ z)

    def step(z: Array) -> tuple[Array, float, float]:
        prediction = predict(z)
        slope = loss.slope(prediction, label).reshape(-1, outputs) * scale[:, None]
        bend = loss.bend(prediction).reshape(-1, outputs, outputs) * scale[:, None, None]
        gradient = (design.T @ slope @ basis).ravel() + ridge * z
        hessian = _hessian(design, basis.T @ bend @ basis) + ridge * np.eye(z.size)
        if radius == math.inf:
            direction = -_solve(hessian, gradient)
        else:
            direction = quadratic_over_ball(hessian, hessian @ z - gradient, radius) - z
        return direction, -float(gradient @ direction), _change(prediction, predict(z + direction))

    best = _descend(np.zeros(design.shape[1] * basis.shape[1]), value, step)
    return np.asarray(directions @ best.reshape(design.shape[1], -1) @ basis.T).ravel()


def _hessian(design: Array, bend: Array) -> Array:
    """Return Σ_n x xᵀ ⊗ bend_n, one row of outputs at a time, which keeps the memory at n · D."""
    (n, d), q = design.shape, bend.shape[-1]
    blocks = [design.T @ (design[:, :, None] * bend[:, i, None, :]).reshape(n, d * q) for i in range(q)]
    return np.stack(blocks, axis=1).reshape(d * q, d * q)


def _solve(hessian: Array, gradient: Array) -> Array:
    """Return H⁻¹g, or refuse an H that is singular once its diagonal is scaled to 1."""
    size = np.sqrt(np.maximum(np.diag(hessian), 0))
    if not (size > 0).all():
        raise ValueError(NO_MINIMISER)
    scaled = hessian / size[:, None] / size
    try:
        np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        raise ValueError(NO_MINIMISER) from None
    return np.asarray(np.linalg.solve(scaled, gradient / size) / size)


def _change(before: Array, after: Array) -> float:
    return float(np.abs(after - before).max(initial=0.0) / (1 + np.abs(before).max(initial=0.0)))


def _descend(point: Array, value: Callable[[Array], float], step: Step) -> Array:
    """Return the point where Newton steps, halved until they pay, stop changing the predictions.

    On separable labels they never stop: each step moves the predictions by about 1, forever.
    """
    for _ in range(MOST_STEPS):
        direction, decrease, change = step(point)
        if change <= 1e-9:
            return point + direction
        start, length = value(point), 1.0
        while value(point + length * direction) > start - 1e-4 * length * decrease + 1e-14 * abs(start):
            length /= 2
            if length < 1e-30:
                raise ValueError(NO_MINIMISER)
        point = point + length * direction
    raise ValueError(NO_MINIMISER)


class _Arrow:
    """Orthonormal coordinates of the joint model: E (P, T, r) for w^g, U (P, T, d_l) for the w_i, EᵀU = 0."""

    def __init__(self, shared: Array, own: Array) -> None:
        u, sizes, self._v = np.linalg.svd(own, full_matrices=False)
        kept = sizes > max(own.shape[1:]) * EPSILON * sizes.max(axis=1, keepdims=True)
        self._inverse = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=kept)
        self.U = u * kept[:, None, :]
        self.idle = ~kept
        self._overlap = self.U.swapaxes(1, 2) @ shared
        left = (shared - self.U @ self._overlap).reshape(-1, shared.shape[2])
        e, sizes, v = np.linalg.svd(left, full_matrices=False)
        rank = int((sizes > max(left.shape) * EPSILON * np.linalg.norm(shared)).sum())
        self.E = e[:, :rank].reshape(*shared.shape[:2], rank)
        self._back = v[:rank].T / sizes[:rank]

    def products(self, rows: Array) -> tuple[Array, Array]:
        """Return (Eᵀ rows, Uᵀ rows): the gradient of a loss with these slopes."""
        return np.einsum("ptr,pt->r", self.E, rows), np.einsum("ptk,pt->pk", self.U, rows)

    def predict(self, a: Array, b: Array) -> Array:
        return np.asarray(self.E @ a + np.einsum("ptk,pk->pt", self.U, b))

    def weights(self, a: Array, b: Array) -> tuple[Array, Array]:
        shared = self._back @ a
        own = self._inverse * (b - self._overlap @ shared)
        return shared, np.einsum("pkl,pk->pl", self._v, own)

    def solve(self, bend: Array, a: Array, b: Array) -> tuple[Array, Array]:
        """Return the Newton step of gradient (a, b), each w_i eliminated: a Schur complement."""
        curved = bend[..., None] * self.U
        corner = np.einsum("ptr,pts->rs", self.E, bend[..., None] * self.E)
        block = self.U.swapaxes(1, 2) @ curved + self.idle[:, :, None] * np.eye(b.shape[1])
        edge = curved.swapaxes(1, 2) @ self.E
        try:
            np.linalg.cholesky(block)
            inner = np.linalg.solve(block, np.concatenate([edge, b[..., None]], axis=2))
            schur = corner - np.einsum("pkr,pks->rs", edge, inner[..., :-1])
            da = -_solve(schur, a - np.einsum("pkr,pk->r", edge, inner[..., -1]))
        except np.linalg.LinAlgError:
            raise ValueError(NO_MINIMISER) from None
        return da, -inner[..., -1] - inner[..., :-1] @ da


def _joint_newton(arrow: _Arrow, label: Array, loss: Loss, scale: Array) -> tuple[Array, Array]:
    rank, shape = arrow.E.shape[2], arrow.idle.shape

    def split(z: Array) -> tuple[Array, Array]:
        return z[:rank], z[rank:].reshape(shape)

    def value(z: Array) -> float:
        return float((scale * loss.value(arrow.predict(*split(z)), label)).sum())

    def step(z: Array) -> tuple[Array, float, float]:
        prediction = arrow.predict(*split(z))
        a, b = arrow.products(scale * loss.slope(prediction, label))
        da, db = arrow.solve(scale * loss.bend(prediction), a, b)
        direction = np.concatenate([da, db.ravel()])
        decrease = -float(a @ da + (b * db).sum())
        return direction, decrease, _change(prediction, arrow.predict(*split(z + direction)))

    return arrow.weights(*split(_descend(np.zeros(rank + shape[0] * shape[1]), value, step)))


def _client_weights(name: str, value: Array | None, length: int) -> Array:
    weights = np.ones(length) if value is None else checks.array(name, value, (length,))
    if (weights < 0).any():
        raise ValueError(f"{name} must be at least 0, got {weights.min()}")
    return weights

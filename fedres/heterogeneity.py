"""How much the clients differ from one another, and the rounds from one another.

[OFedIQ] Kwon, Park and Hong, "Tighter Regret Analysis and Optimization of Online Federated Learning".
[FedSEA] Sahu, Jawanpuria and Sharma 2026, "FedSEA: Achieving Benefit of Parallelization in Federated Online
Learning".
Expected losses are quadratics f_{t,m}(x) = ½xᵀHx − bᵀx + a constant: H is (T, M, d, d), b (T, M, d).
"""

from __future__ import annotations

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.comparators import quadratic_over_ball
from fedres.losses import Loss, Softmax
from fedres.models import Linear


def sigma_diff2(features: Array, label: Array, comparator: Array, loss: Loss) -> float:
    """Return σ²_diff = 1/(KT) Σ_t Σ_k ‖∇ℓ_{k,t}(w*)‖² of linear models [OFedIQ, definition 1]."""
    features = checks.array("features", features, (None, None, None))
    rounds, clients, width = features.shape
    rows = features.reshape(rounds * clients, width)
    labels = checks.array("label", label, (rounds, clients)).ravel()
    model = Linear(width, loss.outputs if isinstance(loss, Softmax) else 0)
    comparator = checks.array("comparator", comparator, (model.dim,))
    slope = loss.slope(model.predict(comparator, rows), labels).reshape(len(rows), -1)
    return float(((slope**2).sum(axis=1) * (rows**2).sum(axis=1)).mean())  # ∇ = x ⊗ slope


def spatial(H: Array, b: Array, radius: float) -> Array:
    """Return ζ_t² (T,): the largest 1/M Σ_m ‖∇f_{t,m}(x) − ∇f_t(x)‖² over ‖x‖ ≤ radius [FedSEA, eq. 4]."""
    H, b = _quadratics(H, b, radius)
    dH, db = H - H.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    square = np.einsum("tmji,tmjk->tik", dH, dH) / H.shape[1]
    cross = np.einsum("tmji,tmj->ti", dH, db) / H.shape[1]
    worst = [quadratic_over_ball(-2 * A, -2 * v, radius) for A, v in zip(square, cross, strict=True)]
    gradients = np.einsum("tmij,tj->tmi", dH, np.array(worst)) - db
    result: Array = (gradients**2).sum(axis=2).mean(axis=1)
    return result


def temporal(H: Array, b: Array, radius: float) -> Array:
    """Return K_t² (T,) = f_t(x*) − f_t(x_t*), the cost of one point for all rounds [FedSEA, eq. 5]."""
    H, b = _quadratics(H, b, radius)
    curvature, linear = H.mean(axis=1), b.mean(axis=1)
    fixed = quadratic_over_ball(curvature.mean(axis=0), linear.mean(axis=0), radius)
    own = np.array([quadratic_over_ball(A, v, radius) for A, v in zip(curvature, linear, strict=True)])

    def value(x: Array) -> Array:
        return np.asarray(np.einsum("ti,tij,tj->t", x, curvature, x) / 2 - (linear * x).sum(axis=1))

    return np.asarray(np.maximum(value(np.broadcast_to(fixed, own.shape)) - value(own), 0.0))


def _quadratics(H: Array, b: Array, radius: float) -> tuple[Array, Array]:
    b = checks.array("b", b, (None, None, None))
    H = checks.array("H", H, (*b.shape, b.shape[2]))
    if not np.allclose(H, H.swapaxes(2, 3)):
        raise ValueError(f"H must be symmetric, got {H}")
    checks.positive("radius", radius)
    return H, b

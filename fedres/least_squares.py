"""Least squares from running sums: the minimiser of wᵀAw − 2bᵀw, near a start where A leaves it open."""

from __future__ import annotations

import math

import numpy as np

from fedres.checks import Array
from fedres.comparators import quadratic_over_ball
from fedres.losses import Loss, Squared
from fedres.models import Linear, Model


def fit(gram: Array, target: Array, start: Array, ridge: float, radius: float = math.inf) -> Array:
    """Return argmin wᵀAw − 2bᵀw + ridge‖w − start‖² over ‖w‖ ≤ radius; leading axes are separate problems."""
    matrix = gram + ridge * np.eye(gram.shape[-1])
    right = target + ridge * start
    weights: Array = np.linalg.solve(matrix, right[..., None])[..., 0]
    if radius == math.inf:
        return weights
    rows = weights.reshape(-1, weights.shape[-1])
    matrices, rights = matrix.reshape(-1, *matrix.shape[-2:]), right.reshape(rows.shape)
    for i in np.flatnonzero(np.linalg.norm(rows, axis=1) > radius):
        rows[i] = quadratic_over_ball(matrices[i], rights[i], radius)
    return rows.reshape(weights.shape)


def needs_squared_loss(name: str, model: Model, loss: Loss) -> None:
    """Refuse what running sums cannot represent."""
    if not (isinstance(loss, Squared) and isinstance(model, Linear)):
        raise ValueError(f"loss must be squared and model linear for {name}, got {loss!r} and {model!r}")

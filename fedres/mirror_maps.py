"""Mirror maps ψ for FedOMD: where a client's model lives, how it steps, and where models are averaged.

A client keeps a *state* (rows of shape (D,)) from which its point x follows. Models are averaged as points, or as
states where ``averages_states`` says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedres import checks
from fedres.checks import Array


class MirrorMap(Protocol):
    @property
    def averages_states(self) -> bool: ...
    def first(self, dim: int) -> Array: ...
    def state(self, point: Array) -> Array: ...
    def advance(self, state: Array, gradient: Array, step_size: float) -> Array: ...
    def point(self, state: Array) -> Array: ...


def project_to_ball(weights: Array, radius: float) -> Array:
    """Return Π_D(w), the nearest point of the ball, row by row."""
    if radius == math.inf:
        return weights
    norm = np.linalg.norm(weights, axis=-1, keepdims=True)
    result: Array = weights * (radius / np.maximum(norm, radius))
    return result


@dataclass(frozen=True, slots=True)
class Ball:
    """ψ = ½‖x‖² on the Euclidean ball of this radius: projected gradient descent."""

    radius: float = math.inf
    averages_states: bool = False

    def __post_init__(self) -> None:
        checks.radius("radius", self.radius)

    def first(self, dim: int) -> Array:
        return np.zeros(dim)

    def state(self, point: Array) -> Array:
        return project_to_ball(point, self.radius)

    def advance(self, state: Array, gradient: Array, step_size: float) -> Array:
        return project_to_ball(state - step_size * gradient, self.radius)

    def point(self, state: Array) -> Array:
        return state


@dataclass(frozen=True, slots=True)
class Simplex:
    """ψ = Σ x ln x on the probability simplex: exponentiated gradient. States are log-weights, which cannot vanish."""

    averages_states: bool = False

    def first(self, dim: int) -> Array:
        return np.full(dim, 1 / dim)

    def state(self, point: Array) -> Array:
        positive = np.maximum(point, np.finfo(float).tiny)  # late progress may leave the simplex
        result: Array = np.log(positive / positive.sum(axis=-1, keepdims=True))
        return result

    def advance(self, state: Array, gradient: Array, step_size: float) -> Array:
        from scipy.special import log_softmax

        result: Array = log_softmax(state - step_size * gradient, axis=-1)
        return result

    def point(self, state: Array) -> Array:
        return np.exp(state)


@dataclass(frozen=True, slots=True)
class PNorm:
    """ψ = ‖x‖_p²/(2(p−1)), 1 < p ≤ 2. States are the dual θ = ∇ψ(x), and states are averaged.

    A plain mean of points would break assumption 2 of [FedOMD], on which its theorems rest.
    """

    p: float
    averages_states: bool = True

    def __post_init__(self) -> None:
        if not 1 < self.p <= 2:
            raise ValueError(f"p must be in (1, 2], got {self.p}")

    def first(self, dim: int) -> Array:
        return np.zeros(dim)

    def state(self, point: Array) -> Array:
        return _norm_gradient(point, self.p) / (self.p - 1)

    def advance(self, state: Array, gradient: Array, step_size: float) -> Array:
        return state - step_size * gradient

    def point(self, state: Array) -> Array:
        return _norm_gradient(state, self.p / (self.p - 1)) * (self.p - 1)


def _norm_gradient(vector: Array, p: float) -> Array:
    """Return ∇ ½‖v‖_p²; powers are taken of |v|/‖v‖_p, which cannot overflow."""
    largest = np.abs(vector).max(axis=-1, keepdims=True)
    scaled = np.abs(vector) / np.where(largest > 0, largest, 1.0)
    norm = (scaled**p).sum(axis=-1, keepdims=True) ** (1 / p)
    ratio = scaled / np.where(norm > 0, norm, 1.0)
    result: Array = np.sign(vector) * ratio ** (p - 1) * norm * largest
    return result

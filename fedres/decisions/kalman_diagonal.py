"""Weights that are independent of all others, as b and h: variance c = 1/(1/τ + h), mean w = b c, compiled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.compiling import inner_kernel
from fedres.decisions.constants import LEAST_LOG_TAU, LOG_TAU_RATE, MOST_LOG_TAU


@inner_kernel
def diagonal_part(weight: Array, value: float, tau: float) -> Any:
    """Return mean w i, variance c i² and slope by log τ of a weight."""
    c = 1 / (1 / tau + np.float64(weight[1]))
    mean = np.float64(weight[0]) * c * value
    return mean, c * value * value, mean * c / tau


@inner_kernel
def learn_diagonal(weight: Array, value: float, tau: float, error: float, q: float) -> None:
    """w += c i e/q and c −= (c i)²/q, the latter as h += i²/(q − c i²)."""
    b, h = np.float64(weight[0]), np.float64(weight[1])
    c = 1 / (1 / tau + h)
    weight[1] = h + value * value / (q - c * value * value)
    weight[0] = (b * c + c * value * error / q) * (1 / tau + np.float64(weight[1]))


@inner_kernel
def step_log_tau(log_tau: Array, squares: Array, row: int, column: int, slope: float) -> None:
    """l follows −d(e²/2)/dl with AdaGrad's steps."""
    squares[row, column] += slope * slope
    if slope != 0:
        moved = log_tau[row, column] + LOG_TAU_RATE * slope / math.sqrt(squares[row, column])
        log_tau[row, column] = min(max(moved, LEAST_LOG_TAU), MOST_LOG_TAU)

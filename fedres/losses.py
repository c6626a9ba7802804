"""Losses of a prediction: value and slope (∂ℓ/∂ŷ), one row per example.

Each also has ``curvature``, the largest second derivative in the prediction: the smoothness β of a linear
model is ``curvature * max ‖x‖²``. SciPy is imported where it is called: it would be a third of a service's start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedres import checks
from fedres.checks import Array


class Loss(Protocol):
    """A convex loss. Predictions are (n,), or (n, outputs) for softmax; labels are (n,)."""

    @property
    def curvature(self) -> float: ...
    def value(self, prediction: Array, label: Array) -> Array: ...
    def slope(self, prediction: Array, label: Array) -> Array: ...
    def bend(self, prediction: Array) -> Array: ...
    def check(self, label: Array) -> None: ...


@dataclass(frozen=True, slots=True)
class Squared:
    """``scale * (prediction - label)**2``: scale 1 as in FedRes and VW, ½ as in FedOMD."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("scale", self.scale)

    @property
    def curvature(self) -> float:
        return 2 * self.scale

    def value(self, prediction: Array, label: Array) -> Array:
        return self.scale * (prediction - label) ** 2

    def slope(self, prediction: Array, label: Array) -> Array:
        return 2 * self.scale * (prediction - label)

    def bend(self, prediction: Array) -> Array:
        """Return the second derivative in the prediction."""
        return np.full(np.shape(prediction), 2 * self.scale)

    def check(self, label: Array) -> None:
        """Accept any label: the caller has made sure that it is finite."""


@dataclass(frozen=True, slots=True)
class Logistic:
    """``ln(1 + exp(-label * prediction))`` with labels -1 and 1."""

    curvature: float = 0.25

    def value(self, prediction: Array, label: Array) -> Array:
        result: Array = np.logaddexp(0.0, -label * prediction)
        return result

    def slope(self, prediction: Array, label: Array) -> Array:
        from scipy.special import expit

        result: Array = -label * expit(-label * prediction)
        return result

    def bend(self, prediction: Array) -> Array:
        """Return the second derivative in the prediction; it is the same for both labels."""
        from scipy.special import expit

        result: Array = expit(prediction) * expit(-prediction)
        return result

    def check(self, label: Array) -> None:
        wrong = label[np.abs(label) != 1]
        if wrong.size:
            raise ValueError(f"label must be -1 or 1 for the logistic loss, got {wrong[0]}")


@dataclass(frozen=True, slots=True)
class Softmax:
    """Cross-entropy of the softmax of (n, outputs) scores; a label is the number of a class, from 0."""

    outputs: int
    curvature: float = 0.5

    def __post_init__(self) -> None:
        checks.whole("outputs", self.outputs, least=2)

    def value(self, prediction: Array, label: Array) -> Array:
        from scipy.special import logsumexp

        chosen = np.take_along_axis(prediction, label.astype(np.intp)[..., None], axis=-1)[..., 0]
        result: Array = logsumexp(prediction, axis=-1) - chosen
        return result

    def slope(self, prediction: Array, label: Array) -> Array:
        from scipy.special import softmax

        result: Array = softmax(prediction, axis=-1)
        rows = np.arange(len(result))
        result[rows, label.astype(np.intp)] -= 1
        return result

    def bend(self, prediction: Array) -> Array:
        """Return the second derivative: one (outputs, outputs) matrix per row."""
        from scipy.special import softmax

        chance: Array = softmax(prediction, axis=-1)
        return chance[..., None] * (np.eye(self.outputs) - chance[..., None, :])

    def check(self, label: Array) -> None:
        wrong = label[(label < 0) | (label >= self.outputs) | (label != np.floor(label))]
        if wrong.size:
            raise ValueError(f"label must be a class from 0 to {self.outputs - 1}, got {wrong[0]}")

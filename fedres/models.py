"""Shared models f(x; w): what they predict, and how a slope of the loss becomes a gradient of their weights.

Weights are flat vectors, so every learner treats every model alike: shape (D,) when all rows share them, (n, D)
when each row has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numba import njit

from fedres import checks
from fedres.checks import Array


class Model(Protocol):
    """A function of features and flat weights. ``outputs`` is 0 when a prediction is one number a row."""

    @property
    def features(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def dim(self) -> int: ...
    def predict(self, weights: Array, features: Array) -> Array: ...
    def gradient(self, weights: Array, features: Array, slope: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class Factored:
    """∂ℓ/∂w of n examples, not multiplied out: a layer's part of row n is the outer product inputs[n] ⊗ slopes[n].

    Their sum is a matrix product a layer, and a step along each takes no table of n × D numbers beside the weights.
    """

    layers: tuple[tuple[Array, Array], ...]  # inputs (n, i) and slopes (n, o): i·o weights

    @property
    def dim(self) -> int:
        """The number D of weights."""
        return sum(inputs.shape[1] * slopes.shape[1] for inputs, slopes in self.layers)

    def rows(self) -> Array:
        """Return the dense gradients, (n, D)."""
        return self._subtracted(np.zeros((1, self.dim)), -1.0)

    def sum(self) -> Array:
        """Return the sum of the rows, (D,)."""
        return np.concatenate([(slopes.T @ inputs).T.ravel() for inputs, slopes in self.layers])

    def scaled(self, scale: Array) -> Factored:
        """Return row n times ``scale[n]``."""
        return Factored(tuple((inputs, slopes * scale[:, None]) for inputs, slopes in self.layers))

    def step(self, weights: Array, step_size: float) -> Array:
        """Return ``weights − step_size · rows()``, (n, D)."""
        return self._subtracted(np.atleast_2d(_once(weights)), step_size)

    def _subtracted(self, weights: Array, step_size: float) -> Array:
        """Return the step from weights (n, D), or from the one row that all n share."""
        weights = np.ascontiguousarray(weights)
        result, first = np.empty((len(self.layers[0][0]), weights.shape[1])), 0
        for inputs, slopes in self.layers:
            _subtract_products(result, weights, first, np.ascontiguousarray(inputs), step_size * slopes)
            first += inputs.shape[1] * slopes.shape[1]
        return result


def factored(model: Model, weights: Array, features: Array, slope: Array) -> Factored:
    """Return a model's gradients, as factors if it has ``factors``."""
    if isinstance(model, Linear | Network):
        return model.factors(weights, features, slope)
    return Factored(((model.gradient(weights, features, slope), np.ones((len(slope), 1))),))


@dataclass(frozen=True, slots=True)
class Linear:
    """``w·x``, or one such score per output. A constant feature is the caller's to add."""

    features: int
    outputs: int = 0

    def __post_init__(self) -> None:
        checks.whole("features", self.features)
        checks.whole("outputs", self.outputs, least=0)

    @property
    def dim(self) -> int:
        """The number D of weights."""
        return self.features * max(self.outputs, 1)

    def predict(self, weights: Array, features: Array) -> Array:
        weights = _once(weights)
        if not self.outputs:
            return features @ weights if weights.ndim == 1 else np.einsum("nd,nd->n", features, weights)
        table = weights.reshape(*weights.shape[:-1], self.features, self.outputs)
        result: Array = features @ table if weights.ndim == 1 else np.einsum("nd,ndo->no", features, table)
        return result

    def gradient(self, weights: Array, features: Array, slope: Array) -> Array:
        """Return ∂ℓ/∂w, one row (D,) per example, from ``slope`` = ∂ℓ/∂ŷ."""
        return self.factors(weights, features, slope).rows()

    def factors(self, weights: Array, features: Array, slope: Array) -> Factored:
        return Factored(((features, slope if self.outputs else slope[:, None]),))


@dataclass(frozen=True, slots=True)
class Network:
    """A fully connected ReLU network with biases, e.g. ``Network((16, 64, 64, 4))``."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) < 2:
            raise ValueError(f"sizes must name at least two layers, got {self.sizes}")
        for size in self.sizes:
            checks.whole("sizes", size)

    @property
    def features(self) -> int:
        return self.sizes[0]

    @property
    def outputs(self) -> int:
        return 0 if self.sizes[-1] == 1 else self.sizes[-1]

    @property
    def dim(self) -> int:
        return sum((rows + 1) * columns for rows, columns in zip(self.sizes, self.sizes[1:], strict=False))

    def start(self, rng: np.random.Generator) -> Array:
        """Return random first weights (He's scaling): a network that starts at 0 never learns."""
        layers = zip(self.sizes, self.sizes[1:], strict=False)
        return np.concatenate(
            [
                np.vstack([rng.normal(0, np.sqrt(2 / rows), (rows, columns)), np.zeros(columns)]).ravel()
                for rows, columns in layers
            ]
        )

    def predict(self, weights: Array, features: Array) -> Array:
        scores = self._forward(weights, features)[-1]
        return scores if self.outputs else scores[:, 0]

    def gradient(self, weights: Array, features: Array, slope: Array) -> Array:
        """Return ∂ℓ/∂w by back-propagation, one row (D,) per example."""
        return self.factors(weights, features, slope).rows()

    def factors(self, weights: Array, features: Array, slope: Array) -> Factored:
        inputs = self._forward(weights, features)[:-1]
        layers = self._layers(weights)
        back = slope if self.outputs else slope[:, None]
        parts = [(_with_one(inputs[-1]), back)]
        for table, values, below in zip(layers[:0:-1], inputs[:0:-1], inputs[-2::-1], strict=True):
            back = _times(back, np.swapaxes(table[..., :-1, :], -1, -2)) * (values > 0)
            parts.append((_with_one(below), back))
        return Factored(tuple(reversed(parts)))

    def _forward(self, weights: Array, features: Array) -> list[Array]:
        """Return the inputs of every layer, then the scores."""
        values = [features]
        layers = self._layers(weights)
        for number, table in enumerate(layers):
            scores = _times(values[-1], table[..., :-1, :]) + table[..., -1, :]
            values.append(scores if number == len(layers) - 1 else np.maximum(scores, 0))
        return values

    def _layers(self, weights: Array) -> list[Array]:
        weights = _once(weights)
        tables, first = [], 0
        for rows, columns in zip(self.sizes, self.sizes[1:], strict=False):
            last = first + (rows + 1) * columns
            tables.append(weights[..., first:last].reshape(*weights.shape[:-1], rows + 1, columns))
            first = last
        return tables


def _once(weights: Array) -> Array:
    """Return weights that are one vector seen n times (a broadcast) as that vector: matrix products are faster."""
    return weights[0] if weights.ndim == 2 and weights.strides[0] == 0 else weights


def _with_one(values: Array) -> Array:
    return np.concatenate([values, np.ones((len(values), 1))], axis=1)


def _times(values: Array, table: Array) -> Array:
    """Return each row of values times the table, or times its own where there are n of them."""
    result: Array = values @ table if table.ndim == 2 else np.matmul(values[:, None, :], table)[:, 0]
    return result


@njit(cache=True)
def _subtract_products(result: Array, weights: Array, first: int, inputs: Array, slopes: Array) -> None:
    """Set one layer of ``result`` to weights − inputs ⊗ slopes; a single row of weights serves all."""
    last = first + inputs.shape[1] * slopes.shape[1]
    shape = (inputs.shape[1], slopes.shape[1])
    for n in range(len(inputs)):
        before = weights[n if len(weights) > 1 else 0, first:last].reshape(shape)
        after = result[n, first:last].reshape(shape)
        for i in range(shape[0]):
            for o in range(shape[1]):
                after[i, o] = before[i, o] - inputs[n, i] * slopes[n, o]

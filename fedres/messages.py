"""Messages between clients and server, for one client or many at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedres.checks import Array
from fedres.models import Factored, Model

Kind = Literal["triplet", "gradient", "quantised gradient", "delta", "statistics"]

BITS_PER_REAL = 32


@dataclass(frozen=True, slots=True)
class Triplet:
    """Z = (x^g, f(x^l; w_i), y) of [FedRes, Alg. 3]: all that the server receives of a client's own model."""

    features: Array
    local_prediction: Array
    label: Array

    def shapes(self, model: Model) -> list[tuple[Array, tuple[int, ...]]]:
        """Return each array with the shape that its rows must have."""
        outputs = (model.outputs,) if model.outputs else ()
        return [(self.features, (model.features,)), (self.local_prediction, outputs), (self.label, ())]


@dataclass(frozen=True, slots=True)
class Statistics:
    """x^g, y and the d numbers Σ_s x^g_s (x^l_s·w_i): all that [FedRes, eq. 3] needs of a client for squared loss."""

    features: Array
    label: Array
    coupling: Array

    def shapes(self, model: Model) -> list[tuple[Array, tuple[int, ...]]]:
        """Return each array with the shape that its rows must have."""
        return [(self.features, (model.features,)), (self.label, ()), (self.coupling, (model.dim,))]


Body = Triplet | Statistics | Factored | Array | tuple[bytes, ...]

BODIES: dict[str, tuple[type, ...]] = {  # types of the body, by kind of upload
    "triplet": (Triplet,),
    "gradient": (Factored, np.ndarray),
    "quantised gradient": (tuple,),
    "delta": (np.ndarray,),
    "statistics": (Statistics,),
}


@dataclass(frozen=True, slots=True)
class Up:
    """An upload. Row j of the body comes from client ``who[j]``; ``bits`` is what each row costs.

    A ``Factored`` body saves work here; ``bits`` counts either the factors or the dense rows they stand for, by the
    learner's choice.
    """

    t: int
    who: Array
    kind: Kind
    base_version: int
    body: Body
    bits: int | Array

    def check(self, kinds: Collection[str], model: Model) -> None:
        """Refuse an upload of another kind, or one whose body does not fit its kind, its clients and the model."""
        if self.kind not in kinds or not isinstance(self.body, BODIES[self.kind]):
            expected = " or ".join(map(repr, kinds))
            raise ValueError(f"up must be of kind {expected}, got {self.kind!r} with a {type(self.body).__name__}")
        if isinstance(self.body, Factored) and self.body.dim != model.dim:
            raise ValueError(f"up must carry factors of {model.dim} weights, got {self.body.dim}")
        for part, shape in self._shapes(model):
            if part.shape != (len(self.who), *shape) or not np.isfinite(part).all():
                expected = f"shape {(len(self.who), *shape)}, all finite"
                raise ValueError(f"up must carry {self.kind}s of {expected}, got shape {part.shape}")

    def _shapes(self, model: Model) -> list[tuple[Array, tuple[int, ...]]]:
        body = self.body
        if isinstance(body, np.ndarray):
            return [(body, (model.dim,))]
        if isinstance(body, tuple):  # packed rows: decoding checks the rest
            return [(np.zeros(len(body)), ())]
        if isinstance(body, Factored):
            return [(part, part.shape[1:]) for layer in body.layers for part in layer]
        return body.shapes(model)

    def row_sum(self) -> Array:
        """Return the sum of the rows of a gradient or a delta."""
        total: Array = self.body.sum() if isinstance(self.body, Factored) else np.asarray(self.body).sum(axis=0)
        return total


@dataclass(frozen=True, slots=True)
class Down:
    """A new shared model. Of client k, uploads made in rounds t <= ``covers[k]`` are inside; ``bits`` is per client."""

    version: int
    covers: Array
    weights: Array
    bits: int

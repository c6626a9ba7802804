"""The interface of a client's own model. Implementations need not import this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fedres.checks import Array

Features = Array | tuple[Array, Array]  # dense, or sparse (indices, values)


class LocalLearner(Protocol):
    """One client's model, fitted to the residuals of the global prediction (``offset``)."""

    def score(self, features: Features) -> float:
        """Return the local part of a prediction: no offset, no clamp."""

    def predict(self, features: Features, offset: float = 0.0) -> float:
        """Return the joint prediction, global plus local part."""

    def learn(self, features: Features, label: float, offset: float = 0.0) -> None:
        """Take one step on the joint loss of (features, label)."""

    def correct(self, features: Features, slope: float) -> None:
        """Take the step that an earlier prediction on ``features`` with this slope ∂ℓ/∂ŷ calls for."""

    def see(self, label: float) -> None:
        """Widen the range of predictions to a label, without a step; ``learn`` does that itself."""

    def weigh(self, importance: float) -> None:
        """Set λ_i, the weight of all further examples in the loss."""


class Correction(NamedTuple):
    """One round's late gradients of n clients: features (n, d), slopes ∂ℓ/∂ŷ (n,), and which rows count (n,)."""

    features: Array
    slope: Array
    present: Array


class LocalGroup(Protocol):
    """The same for n clients at once: features (n, d), everything else (n,); ``present`` says which rows count."""

    def score(self, features: Array) -> Array: ...
    def predict(self, features: Array, offset: Array) -> Array: ...
    def learn(self, features: Array, label: Array, offset: Array, present: Array) -> None: ...
    def correct(self, batch: Sequence[Correction]) -> None: ...  # the rounds of one mini-batch, one or more
    def see(self, label: Array, present: Array) -> None: ...
    def weigh(self, importance: Array) -> None: ...

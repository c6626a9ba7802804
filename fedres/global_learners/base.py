"""What all global learners share: the setting they learn in, and the plain parts of both halves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedres import checks
from fedres.checks import Array
from fedres.losses import Loss, Squared
from fedres.messages import BITS_PER_REAL, Down, Up
from fedres.models import Factored, Model, factored


class ObservedRound(NamedTuple):
    """One round's checked examples of n clients, read-only; rows that are not present are zero."""

    features: Array
    local_prediction: Array
    label: Array
    present: Array
    offset: Array | None = None  # the clients' shared part of the prediction in this round, if already computed

    def take(self, rows: Array) -> ObservedRound:
        """Return these rows, which are in order and differ."""
        if len(rows) == len(self.label):
            return self
        offset = None if self.offset is None else self.offset[rows]
        return ObservedRound(
            self.features[rows], self.local_prediction[rows], self.label[rows], self.present[rows], offset
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """The problem of a global learner, whose hyperparameters are further fields.

    The class attributes are the learner's requirements for its host.
    """

    keeps_state: ClassVar[bool] = False  # clients keep models or samples in their half: a place is not for another
    brings_local_model: ClassVar[bool] = False  # the client half is the local learner too
    sums_clients: ClassVar[bool] = False  # a step is along the sum of the clients' gradients, not their mean

    model: Model
    n_clients: int = 1
    loss: Loss = field(default_factory=Squared)
    client_weights: npt.ArrayLike | None = None  # λ_i, 1 each by default
    start: npt.ArrayLike | None = None  # w_1, 0 by default

    def __post_init__(self) -> None:
        checks.has("model", self.model, "predict", "gradient")
        checks.has("loss", self.loss, "value", "slope")
        checks.whole("n_clients", self.n_clients)
        outputs = getattr(self.loss, "outputs", 0)
        if self.model.outputs != outputs:
            raise ValueError(f"model must have {outputs} outputs for this loss, got {self.model.outputs}")
        if self.client_weights is not None:
            weights = checks.array("client_weights", self.client_weights, (self.n_clients,))
            if (weights < 0).any():
                raise ValueError(f"client_weights must be at least 0, got {weights.min()}")
            self.keep("client_weights", weights)
        if self.start is not None:
            self.keep("start", checks.array("start", self.start, (self.model.dim,)))

    @property
    def minibatch(self) -> int:
        """The rounds of a mini-batch, within which both models do not change."""
        return 1

    def keep(self, name: str, value: Array) -> None:
        """Set a field to a copy: the caller's array may change."""
        object.__setattr__(self, name, value.copy())

    def first_weights(self) -> Array:
        """Return a fresh copy of w_1."""
        return np.zeros(self.model.dim) if self.start is None else np.array(self.start)

    def clients(self, who: npt.ArrayLike | None) -> Array:
        """Return the client numbers as an array, all of them for None."""
        if who is None:
            return np.arange(self.n_clients)
        result = np.atleast_1d(np.asarray(who))
        if result.dtype.kind not in "iu" or result.ndim != 1 or not result.size:
            raise ValueError(f"who must be client numbers, got {who!r}")
        if result.min() < 0 or result.max() >= self.n_clients:
            raise ValueError(f"who must be client numbers below n_clients = {self.n_clients}, got {who!r}")
        return result.astype(np.int64)

    def takes_part(self, t: int, who: Array) -> Array:
        """Return which of the clients ``who`` upload after round t, if they have data: all by default."""
        return np.ones(len(who), dtype=bool)

    def senders(self, t: int) -> Array:
        """Return the numbers of the clients that upload after round t, if they have data."""
        return np.flatnonzero(self.takes_part(t, np.arange(self.n_clients)))

    def importance(self, who: Array) -> Array:
        """Return λ of the clients ``who``."""
        if self.client_weights is None:
            return np.ones(len(who))
        return np.asarray(self.client_weights)[who]

    def check(
        self,
        n: int,
        features: npt.ArrayLike,
        local_prediction: npt.ArrayLike,
        label: npt.ArrayLike,
        present: npt.ArrayLike | None = None,
    ) -> ObservedRound:
        """Return a checked copy of one round's examples of n clients."""
        outputs = (self.model.outputs,) if self.model.outputs else ()
        if np.ndim(local_prediction) == 0:
            local_prediction = np.full((n, *outputs), local_prediction)
        here = np.ones(n, dtype=bool) if present is None else _mask(present, n)
        if not here.all():
            features = blank("features", features, here)
            label = blank("label", label, here)
            local_prediction = blank("local_prediction", local_prediction, here)
        label = checks.array("label", label, (n,))
        self.loss.check(label[here])
        features = checks.array("features", features, (n, self.model.features))
        local_prediction = checks.array("local_prediction", local_prediction, (n, *outputs))
        return ObservedRound(features.copy(), local_prediction.copy(), label.copy(), here.copy())

    def slope(self, weights: Array, who: Array, seen: ObservedRound) -> Array:
        """Return λ_i ∂ℓ/∂ŷ at the joint prediction, 0 for clients without data."""
        offset = self.model.predict(weights, seen.features) if seen.offset is None else seen.offset
        prediction = offset + seen.local_prediction
        scale = self.importance(who) * seen.present
        slope = self.loss.slope(prediction, seen.label)
        result: Array = slope * (scale[:, None] if slope.ndim == 2 else scale)
        return result

    def gradient(self, weights: Array, who: Array, seen: ObservedRound) -> Array:
        """Return λ_i ∇ℓ in the shared weights, one row per client, 0 for clients without data."""
        return self.factors(weights, who, seen).rows()

    def factors(self, weights: Array, who: Array, seen: ObservedRound) -> Factored:
        """Return the same, not multiplied out."""
        return factored(self.model, weights, seen.features, self.slope(weights, who, seen))


def _mask(present: npt.ArrayLike, n: int) -> Array:
    result = np.asarray(present)
    if result.dtype != bool or result.shape != (n,):
        raise ValueError(f"present must be {n} booleans, got {present!r}")
    return result


def blank(name: str, value: npt.ArrayLike, present: Array) -> Array:
    """Return ``value`` with zeros in the rows without data."""
    result = np.array(value, dtype=np.float64)
    if result.ndim == 0 or len(result) != len(present):
        raise ValueError(f"{name} must have {len(present)} rows, got shape {result.shape}")
    result[~present] = 0
    return result


L = TypeVar("L", bound=Setting)


class Observer(ABC, Generic[L]):
    """A clients' half that checks what it receives before it learns from it."""

    def __init__(self, learner: L, who: npt.ArrayLike | None = None) -> None:
        self.learner = learner
        self.who = learner.clients(who)

    def observe(
        self, t: int, features: Array, local_prediction: Array, label: Array, present: Array | None = None
    ) -> Up | None:
        return self.update(t, self.learner.check(len(self.who), features, local_prediction, label, present))

    @abstractmethod
    def update(self, t: int, seen: ObservedRound) -> Up | None: ...


class Client(Observer[L]):
    """The clients' half of a learner whose clients all predict with the newest shared model they know."""

    def __init__(self, learner: L, who: npt.ArrayLike | None = None) -> None:
        super().__init__(learner, who)
        self.version = 0
        self.shared = learner.first_weights()

    def weights(self, t: int) -> Array:
        return np.broadcast_to(self.shared, (len(self.who), self.shared.size))

    def receive(self, down: Down) -> None:
        if down.version > self.version:
            self.version, self.shared = down.version, down.weights


class Server(ABC, Generic[L]):
    """The server's half: the newest shared weights, their version, and the last included round of each client."""

    kinds: tuple[str, ...] = ("gradient",)  # of uploads that it reads

    def __init__(self, learner: L) -> None:
        self.learner = learner
        self.version = 0
        self.weights = learner.first_weights()
        self.covers = np.zeros(learner.n_clients, dtype=np.int64)  # rounds count from 1
        self.has_uploads = False  # since the last step

    def receive(self, up: Up) -> None:
        """Learn from an upload; refuse one that does not fit, without any change."""
        self.learner.clients(up.who)
        up.check(self.kinds, self.learner.model)
        self.add(up)
        self.covers[up.who] = np.maximum(self.covers[up.who], up.t)
        self.has_uploads = True

    @abstractmethod
    def add(self, up: Up) -> None:
        """Learn from a checked upload."""

    def step(self, t: int) -> Down | None:
        """Close round t: publish new weights if there are uploads since the last."""
        if not self.has_uploads:
            return None
        self.has_uploads = False
        self.weights = self.next_weights(t)
        self.version += 1
        return Down(self.version, self.covers.copy(), self.weights, BITS_PER_REAL * self.weights.size)

    @abstractmethod
    def next_weights(self, t: int) -> Array:
        """Return the shared weights for after round t."""

"""The shared model of a loop whose global learner works on dense vectors: the servers of ``fedres``, fed from a log.

Devices upload gradients or deltas, as bytes (``Wire``), or residuals (fedres-sgd). Each upload is received and stepped
on at once: all these servers add what they are sent, so that K uploads one by one make the model of a round of K.
(Two things make the order matter: a ``radius``, since each sum is projected, and residuals on arrival, whose error is
that of the model they meet.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedres import checks, global_learner
from fedres.checks import Array
from fedres.global_learners.base import ObservedRound
from fedres.messages import Kind, Up
from fedres.models import Factored
from fedres.quantizer import Quantizer
from fedres.scoring.model import LEARNING_RATE, Example, SharedModel, check_step
from fedres.scoring.sealing import sealed, unsealed

Hyperparameter = float | int | None
Clip = Callable[[Array], Array | None]

RESIDUALS = ("fedres-adagrad", "fedres-sgd")  # learners whose devices upload residuals
UPDATES: dict[str, Kind] = {
    "fedogd": "gradient",
    "ofedavg": "gradient",
    "ofediq": "quantised gradient",  # or exact ones, where ``levels`` is None
    "fedomd": "delta",
    "fedsea": "delta",
    "dynamic-fedavg": "delta",
}
DENSE = ("fedres-sgd", *UPDATES)
MOST_BITS = 14
MOST_CLIENTS = 2**20
MOST = 2**63 - 1  # of a hyperparameter, so that any encoder can write it
LAST_ROUND = 2**40
LARGEST = 1e30  # a larger weight means that the learner diverges

_HEADER = struct.Struct("<4s")
_MARK = b"FRF1"
_HOSTED: Array = np.zeros(1, dtype=np.int64)  # a hosted user has no number: the server treats all clients alike
_NO_ROUND = 0  # hosted users and residuals come outside of all rounds


class WrongKindError(ValueError):
    """An upload of a kind that the learner does not take."""


class NotChosenError(ValueError):
    """An upload of a round after which the client uploads nothing."""


class Pool(NamedTuple):
    """How uploads are pooled: those of ``size`` clients count as ``size`` times what ``combine`` makes of them."""

    size: int
    combine: Callable[[Sequence[Array]], Array]


def takes_residuals(name: str) -> bool:
    """Return whether devices upload residuals to the learner of this name; to the others they upload updates."""
    return name in RESIDUALS


def dense_learner(name: str, bits: int, hyperparameters: Mapping[str, Hyperparameter] | None = None) -> Any:
    """Return the learner of ``fedres`` for 2^bits hashed weights and a constant; raise if it is invalid."""
    checks.one_of("global_learner", name, DENSE)
    checks.whole("bits", bits)
    if bits > MOST_BITS:
        raise ValueError(f"bits must be at most {MOST_BITS} for {name!r}, got {bits}")
    arguments = dict(hyperparameters or {})
    for key, value in arguments.items():
        if key == "dim" or isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ValueError(f"hyperparameters must be numbers or null, and not dim, got {key} = {value!r}")
        if isinstance(value, int) and abs(value) > MOST:
            raise ValueError(f"{key} must be within ±2^63, got {value}")
    if (arguments.get("n_clients") or 1) > MOST_CLIENTS:  # before anything of that size is made
        raise ValueError(f"n_clients must be at most {MOST_CLIENTS}, got {arguments['n_clients']}")
    learner = global_learner(name, dim=2**bits + 1, **arguments)
    if name == "fedres-sgd" and learner.batch > 1:
        raise ValueError(f"batch must be 1, got {learner.batch}: every residual is learned from as it arrives")
    return learner


def as_features(example: Example, bits: int) -> Array:
    """Return x^g, float64 of length 2^bits + 1: hashed features summed by weight, the constant last."""
    keys, values = example
    return np.append(np.bincount(keys >> np.uint32(32 - bits), values, 2**bits), 1.0)


class Wire:
    """The format of a learner's uploads: float32, little-endian, or the quantizer's bytes."""

    def __init__(self, name: str, bits: int, hyperparameters: Mapping[str, Hyperparameter] | None = None) -> None:
        self.name, self.bits, self.hyperparameters = name, bits, dict(hyperparameters or {})
        self.learner = dense_learner(name, bits, hyperparameters)
        self.dim = 2**bits + 1
        self.quantizer: Quantizer | None = None
        if getattr(self.learner, "levels", None) is not None:
            self.quantizer = Quantizer(self.learner.levels, self.learner.blocks)
        self.kind: Kind | None = UPDATES.get(name)  # None: residuals
        if name == "ofediq" and self.quantizer is None:
            self.kind = "gradient"

    def check(self, number: int, t: int, kind: str, body: bytes) -> None:
        """Refuse an upload that cannot be what client ``number`` sends after round t."""
        self.read(number, t, kind, body)

    def read(self, number: int, t: int, kind: str, body: bytes) -> Array:
        """Return the vector that such an upload carries."""
        if kind != self.kind:
            raise WrongKindError(f"kind must be {self.kind or 'that of a residual'!r} for {self.name!r}, got {kind!r}")
        checks.whole("number", number, least=0)
        if number >= self.learner.n_clients:
            raise ValueError(f"number must be below n_clients = {self.learner.n_clients}, got {number}")
        checks.whole("t", t)
        if t > LAST_ROUND:
            raise ValueError(f"t must be at most {LAST_ROUND}, got {t}")
        if not self.learner.takes_part(t, np.array([number])).all():
            raise NotChosenError(f"t must be a round after which client {number} uploads, got {t}")
        return self._vector(body)

    def _vector(self, body: bytes) -> Array:
        if self.quantizer is not None:
            return self.quantizer.decode(body, self.dim)
        if len(body) != 4 * self.dim:
            raise ValueError(f"body must have {4 * self.dim} bytes, {self.dim} numbers of 32 bits, got {len(body)}")
        return checks.array("body", np.frombuffer(body, "<f4"), (self.dim,))

    def write(self, up: Up) -> bytes:
        """Return the body of an upload of one client."""
        if isinstance(up.body, tuple):
            return up.body[0]
        rows: Array = up.body.rows() if isinstance(up.body, Factored) else np.asarray(up.body)
        return bytes(rows[0].astype("<f4"))


class FederatedModel(SharedModel):
    """The shared model of a loop with one of the learners in ``DENSE``; 2^bits weights and a constant.

    ``learning_rate`` has no part in it: the step is a hyperparameter of the learner.
    """

    def __init__(
        self,
        name: str,
        bits: int,
        hyperparameters: Mapping[str, Hyperparameter] | None = None,
        learning_rate: float = LEARNING_RATE,
    ) -> None:
        self.wire = Wire(name, bits, hyperparameters)
        super().__init__(bits, learning_rate)
        self.learner = self.wire.learner
        self._server = self.learner.server()
        self._pending: dict[int, tuple[int, Array]] = {}  # round and vector of each client whose upload waits
        self._weights[:] = self._server.weights

    @property
    def newest(self) -> int:
        """The last round of which an upload is inside, 0 before the first."""
        return int(self._server.covers.max())

    def check(self, number: int, t: int, kind: str, body: bytes) -> None:
        """Refuse an upload that ``receive`` would refuse; needs nothing of what was learned."""
        self.wire.check(number, t, kind, body)

    def receive(
        self,
        number: int,
        t: int,
        version: int,
        kind: str,
        body: bytes,
        *,
        clip: Clip | None = None,
        pool: Pool | None = None,
    ) -> bool:
        """Receive the upload of client ``number`` after round t, made with the model of this version.

        ``clip`` returns the vector to use, or None to ignore the upload, and then this returns False. With a
        ``pool``, uploads wait for those of other clients; further uploads of one client are added up meanwhile.
        """
        vector = self.wire.read(number, t, kind, body)
        used = vector if clip is None else clip(vector)
        if used is None:
            return False
        last, waiting = self._pending.get(number, (0, 0.0))
        self._pending[number] = (max(last, t), waiting + used)
        if pool is None or len(self._pending) >= min(pool.size, self.learner.n_clients):
            self._release(pool)
        return True

    def _release(self, pool: Pool | None) -> None:
        """Step on all waiting uploads."""
        who = np.array(list(self._pending))
        t = max(last for last, _ in self._pending.values())
        vectors = [vector for _, vector in self._pending.values()]
        self._pending = {}
        rows = np.stack(vectors) if pool is None else np.broadcast_to(pool.combine(vectors), (len(who), self.wire.dim))
        self._apply(t, who, rows)

    def receive_residual(
        self, example: Example, label: float, local: float, global_: float | None = None, weight: float = 1.0
    ) -> None:
        """Take a step on a residual: at the shared part ``global_`` that it was made with, or at the newest model."""
        if not takes_residuals(self.wire.name):
            raise WrongKindError(f"residuals are not what {self.wire.name!r} takes, which is {self.wire.kind!r}")
        self._step(example, label, local, global_, weight)

    def learn(self, example: Example, reward: float, offset: float = 0.0, weight: float = 1.0) -> None:
        """Take the step of one client's gradient (a delta of −η times it), for a user whose model is hosted here."""
        self._step(example, reward, offset, None, weight)

    def correct(self, example: Example, reward: float, prediction: float, weight: float = 1.0) -> None:
        """Take the same step at a joint prediction that was made before."""
        self._step(example, reward, 0.0, prediction, weight)

    def _step(self, example: Example, label: float, local: float, global_: float | None, weight: float) -> None:
        check_step(label, local, weight)
        self._span[:] = min(self._span[0], label), max(self._span[1], label)
        gradient = self._gradient(example, label, local, global_) * weight
        rows = -self.learner.step_size * gradient if self.wire.kind == "delta" else gradient
        self._apply(_NO_ROUND, _HOSTED, rows)

    def _gradient(self, example: Example, label: float, local: float, global_: float | None) -> Array:
        part = self._part(example) if global_ is None else global_
        features = as_features(example, self.bits)[None]
        one = (np.array([value]) for value in (local, label, True, part))
        with np.errstate(over="ignore", invalid="ignore"):
            gradient: Array = self.learner.gradient(self._server.weights, _HOSTED, ObservedRound(features, *one))
        return gradient

    def _part(self, example: Example) -> float:
        """Return the shared part of a score in 64 bits; no BLAS, whose sums depend on the number of threads."""
        keys, values = example
        weights = self._server.weights
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sum(weights[keys >> np.uint32(32 - self.bits)] * values) + weights[-1])

    def _apply(self, t: int, who: Array, rows: Array) -> None:
        """Let the server step on the rows; if that diverges, undo the step."""
        server = self._server
        before = server.weights, getattr(server, "mean", None)
        if not np.isfinite(rows).all():
            return
        kind: Kind = "delta" if self.wire.kind == "delta" else "gradient"  # a packed one is decoded by now
        with np.errstate(over="ignore", invalid="ignore"):
            server.receive(Up(t, who, kind, server.version, rows, 0))
            server.step(t)
        if not all(np.abs(array).max() <= LARGEST for array in self._arrays()):
            server.weights, mean = before
            if mean is not None:
                server.mean = mean
        self._weights[:] = server.weights

    def _arrays(self) -> list[Array]:
        """Return the server's vectors: w^g and, of FedOMD, the mean that it is the projection of."""
        server = self._server
        return [server.weights, server.mean] if hasattr(server, "mean") else [server.weights]

    def forget(self, number: int) -> None:
        """Drop what a client has waiting in the pool."""
        self._pending.pop(number, None)

    def forget_all(self) -> None:
        """Drop all that waits in the pool."""
        self._pending = {}

    def to_bytes(self) -> bytes:
        """Return the model and the uploads that wait in the pool."""
        state = _State(
            self.wire.name,
            self.bits,
            self.wire.hyperparameters,
            self.reward_range,
            self._server.version,
            _pack(self._server.covers),
            [_pack(array) for array in self._arrays()],
            [(number, t, _pack(vector)) for number, (t, vector) in self._pending.items()],
        )
        return sealed(_HEADER.pack(_MARK) + msgspec.msgpack.encode(state))

    @classmethod
    def from_bytes(cls, state: bytes, learning_rate: float = LEARNING_RATE) -> FederatedModel:
        """Return the model that ``to_bytes`` wrote."""
        _, body = unsealed(state, _MARK, _HEADER)
        try:
            saved = msgspec.msgpack.decode(body, type=_State)
        except msgspec.MsgspecError as error:
            raise ValueError(f"state must be what to_bytes wrote: {error}") from None
        model = cls(saved.name, saved.bits, saved.hyperparameters, learning_rate)
        _check_state(saved, model.learner.n_clients)
        server, arrays = model._server, [_unpack(array, model.wire.dim) for array in saved.arrays]
        if len(arrays) != len(model._arrays()):
            raise ValueError(f"state must hold {len(model._arrays())} vectors, got {len(arrays)}")
        if not all(np.abs(array).max() <= LARGEST for array in arrays):
            raise ValueError(f"state must hold weights within ±{LARGEST:g}, got others")
        server.weights, server.version = arrays[0], saved.version
        if len(arrays) > 1:
            server.mean = arrays[1]
        server.covers = _unpack(saved.covers, model.learner.n_clients, "<i8")
        model._pending = {number: (t, _unpack(vector, model.wire.dim)) for number, t, vector in saved.pending}
        model._span[:] = saved.reward_range
        model._weights[:] = server.weights
        return model


class _State(msgspec.Struct, array_like=True):
    name: str
    bits: int
    hyperparameters: dict[str, float | int | None]
    reward_range: tuple[float, float]
    version: int
    covers: bytes
    arrays: list[bytes]
    pending: list[tuple[int, int, bytes]]


def _check_state(saved: _State, n_clients: int) -> None:
    """Refuse an invalid model, or one that cannot step."""
    low, high = saved.reward_range
    if not -np.inf < low <= high < np.inf:
        raise ValueError(f"state must hold a range of rewards, got {low}, {high}")
    for number, t, _ in saved.pending:
        if not (0 <= number < n_clients and 0 <= t <= LAST_ROUND):
            raise ValueError(
                f"state must hold uploads of {n_clients} clients up to round {LAST_ROUND}, got {number, t}"
            )


def _pack(array: Array) -> bytes:
    return array.astype("<i8" if array.dtype.kind == "i" else "<f8").tobytes()


def _unpack(data: bytes, size: int, dtype: str = "<f8") -> Array:
    if len(data) != 8 * size:
        raise ValueError(f"state must hold {size} numbers of 8 bytes, got {len(data)} bytes")
    result = np.frombuffer(data, dtype).astype(dtype[1:])
    if not np.isfinite(result).all():
        raise ValueError("state must hold finite numbers, got others")
    return result

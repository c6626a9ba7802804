"""A linear model that takes the steps of ``vw --adaptive`` (Vowpal Wabbit 9) bit for bit, in about 1 KB.

AdaGrad on the squared loss in 32-bit floats: features in turn, the constant last, and every joint prediction
clamped to the range of the labels seen so far (which holds 0 from the start).
"""

from __future__ import annotations

import math
import struct
import zlib
from functools import lru_cache
from typing import Any

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.compiling import kernel
from fedres.local_learners.adagrad import Real, clamp, dim_of, joint, see, valid, weighted_step
from fedres.local_learners.protocol import Features

_LARGEST = math.nextafter(2.0**128 - 2.0**103, 0.0)  # the next number up rounds to infinity in 32 bits
_HEADER = struct.Struct("<4sII")  # format and its version, dim, checksum of the rest
_FORMAT = b"FRL1"

_ONE = np.float32(1)


@kernel
def _score(state: Array, indices: Array, values: Array) -> Real:
    """Return the local part, or NaN if an argument is invalid."""
    if not valid(indices, values, dim_of(state)):
        return np.float32(np.nan)
    return joint(state, indices, 0, values, _ONE, np.float32(0))


@kernel
def _predict(state: Array, indices: Array, values: Array, offset: Real) -> Real:
    """Return the joint prediction, or NaN if an argument is invalid."""
    if not (np.isfinite(np.float32(offset)) and valid(indices, values, dim_of(state))):
        return np.float32(np.nan)
    return clamp(state, joint(state, indices, 0, values, _ONE, offset))


@kernel
def _learn(
    state: Array, indices: Array, values: Array, label: Real, offset: Real, rate: Real, importance: Real
) -> bool:
    """Take a step; return False, and change nothing, if an argument is invalid."""
    y = np.float32(label)
    if not (np.isfinite(y) and np.isfinite(np.float32(offset)) and valid(indices, values, dim_of(state))):
        return False
    see(state, label)
    error = y - clamp(state, joint(state, indices, 0, values, _ONE, offset))
    weighted_step(state, indices, 0, values, _ONE, error, rate, np.float32(importance))
    return True


@kernel
def _correct(state: Array, indices: Array, values: Array, slope: Real, rate: Real, importance: Real) -> bool:
    """Take a step; return False, and change nothing, if an argument is invalid."""
    error = np.float32(-slope / 2)
    if not (np.isfinite(error) and valid(indices, values, dim_of(state))):
        return False
    weighted_step(state, indices, 0, values, _ONE, error, rate, np.float32(importance))
    return True


class LinearLearner:
    """One client's linear model over ``dim`` features and a constant; an exact twin of ``VWLearner``.

    Features are an array of length ``dim`` or sparse ``(indices, values)``, where an index may come twice.

    >>> learner = LinearLearner(dim=2)
    >>> learner.learn([1.0, 0.5], label=1.0)
    >>> learner.predict([1.0, 0.5])
    1.0
    """

    __slots__ = ("_dim", "_importance", "_rate", "_state")

    def __init__(self, dim: int, learning_rate: float = 10.0) -> None:
        checks.whole("dim", dim)
        checks.positive("learning_rate", learning_rate)
        finite("learning_rate", learning_rate)
        self._dim = dim
        self._rate = learning_rate  # η
        self._importance = 1.0  # λ_i
        self._state: Array = np.zeros(4 + 2 * dim, dtype=np.float32)

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def learning_rate(self) -> float:
        return self._rate

    @property
    def weights(self) -> Array:
        """A copy of the ``dim + 1`` weights, the constant's last."""
        return self._state[2 : 3 + self._dim].copy()

    @property
    def label_range(self) -> tuple[float, float]:
        """The least and the greatest label seen, and 0: where predictions lie."""
        return float(self._state[0]), float(self._state[1])

    def score(self, features: Features) -> float:
        """Return the local part of a prediction: no offset, no clamp."""
        indices, values = split(features, self._dim)
        result: float = _score(self._state, indices, values)
        if result != result:
            refuse(indices, values, self._dim)
        return result

    def predict(self, features: Features, offset: float = 0.0) -> float:
        """Return offset plus local part, clamped to the range of the labels seen."""
        indices, values = split(features, self._dim)
        result: float = _predict(self._state, indices, values, float(offset))
        if result != result:
            finite("offset", offset)
            refuse(indices, values, self._dim)
        return result

    def learn(self, features: Features, label: float, offset: float = 0.0) -> None:
        """Take one step on the squared loss of the joint prediction."""
        indices, values = split(features, self._dim)
        if not _learn(self._state, indices, values, float(label), float(offset), self._rate, self._importance):
            finite("label", label)
            finite("offset", offset)
            refuse(indices, values, self._dim)

    def correct(self, features: Features, slope: float) -> None:
        """Take the step of an earlier prediction whose slope was 2(prediction − label)."""
        indices, values = split(features, self._dim)
        if not _correct(self._state, indices, values, float(slope), self._rate, self._importance):
            finite("slope", slope)
            refuse(indices, values, self._dim)

    def see(self, label: float) -> None:
        """Widen the range of predictions to hold ``label``; ``correct`` alone never does."""
        finite("label", label)
        see(self._state, float(label))

    def weigh(self, importance: float) -> None:
        """Give all further examples VW's importance weight ``importance``; it is no part of the state."""
        checks.not_negative("importance", importance)
        finite("importance", importance)
        self._importance = float(importance)

    def get_state(self) -> bytes:
        """Return all that was learned: 12 bytes, then 4 for each of 4 + 2·dim numbers."""
        body = self._state.astype("<f4").tobytes()
        return _HEADER.pack(_FORMAT, self._dim, zlib.crc32(body)) + body

    def set_state(self, state: bytes) -> None:
        """Restore the state that ``get_state`` returned; the learning rate stays this learner's own."""
        self._state = _unpack(state, self._dim)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._dim, self._rate, self.get_state(), self._importance)


def _restore(dim: int, learning_rate: float, state: bytes, importance: float = 1.0) -> LinearLearner:
    learner = LinearLearner(dim, learning_rate)
    learner.weigh(importance)
    learner.set_state(state)
    return learner


def _unpack(state: bytes, dim: int) -> Array:
    if len(state) < _HEADER.size or state[:4] != _FORMAT:
        raise ValueError(f"state must start with {_FORMAT!r} and a header, got {bytes(state[:12])!r}")
    _, its_dim, checksum = _HEADER.unpack_from(state)
    body = state[_HEADER.size :]
    if its_dim != dim:
        raise ValueError(f"state must have dim {dim}, got {its_dim}")
    if len(body) != 4 * (4 + 2 * dim) or zlib.crc32(body) != checksum:
        raise ValueError(f"state must be undamaged, got {len(state)} bytes that do not match their checksum")
    return np.frombuffer(body, dtype="<f4").astype(np.float32)


@lru_cache(maxsize=256)
def _positions(dim: int) -> Array:
    return np.arange(dim)


def split(features: Features, dim: int | None = None) -> tuple[Array, Array]:
    """Return features as int64 indices and float64 values of one length, not yet checked."""
    if isinstance(features, tuple):
        return _split_sparse(features)
    values = _vector("features", features)
    if dim is not None and values.size != dim:
        raise ValueError(f"features must have length {dim}, got {values.size}")
    return _positions(values.size), values


def _split_sparse(features: tuple[Array, ...]) -> tuple[Array, Array]:
    if len(features) != 2:
        raise ValueError(f"features must be (indices, values), got a tuple of {len(features)}")
    values = _vector("values", features[1])
    indices = np.asarray(features[0])
    if indices.dtype.kind not in "iu" and indices.size:
        raise ValueError(f"indices must be integers, got {indices.dtype}")
    if indices.shape != values.shape:
        raise ValueError(f"indices must have the shape of values, {values.shape}, got {indices.shape}")
    return np.ascontiguousarray(indices, dtype=np.int64), values


def _vector(name: str, numbers: Any) -> Array:
    try:
        values: Array = np.asarray(numbers, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers: {error}") from None
    if values.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {values.shape}")
    return values


def finite(name: str, value: float) -> None:
    """Refuse a number that is not finite as a 32-bit float."""
    if not abs(float(value)) <= _LARGEST:
        raise ValueError(f"{name} must be finite in 32 bits, got {value}")


def refuse(indices: Array, values: Array, dim: int) -> None:
    """Raise for an index outside [0, dim) and for a value that is not finite as a 32-bit float."""
    outside = indices[(indices < 0) | (indices >= dim)]
    if outside.size:
        raise ValueError(f"indices must be in [0, {dim}), got {outside[0]}")
    wrong = values[~(np.abs(values) <= _LARGEST)]
    if wrong.size:
        raise ValueError(f"features must be finite in 32 bits, got {wrong[0]}")

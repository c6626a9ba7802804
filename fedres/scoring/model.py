"""One linear model for all users and a small one for each: scores, and steps on the residuals of the other.

Both take the steps of ``vw --adaptive``, as ``fedres.LinearLearner`` does, over pairs of a context feature and an
action feature, either of which may be none (hashing.md). The order is always the same: context features, action
features, crosses (for each context feature all action features), and last a constant of each model's own.
"""

from __future__ import annotations

import struct

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.key_tables import TAIL, empty_table, slots_in
from fedres.local_learners.linear import finite
from fedres.scoring.features import Prepared
from fedres.scoring.kernels import (
    correct_shared,
    expanded,
    indices_of,
    learn_personal,
    learn_shared,
    n_missing,
    part_of,
    put,
    slots_of,
)
from fedres.scoring.scores import score_kernel
from fedres.scoring.sealing import sealed, unsealed

LEARNING_RATE = 0.1  # η of either side, chosen on users with tastes of their own and users with one taste

Example = tuple[Array, Array]  # uint32 keys and float32 values of one action's features, the constant not among them

SMALLEST_TABLE = 32
MAX_SLOTS = 4096
_PIECE = 2**15  # weights that are copied at once, about 0.1 ms of work
_NO_KEYS: Array = np.zeros(0, dtype=np.uint32)
_NO_WEIGHTS: Array = np.zeros(1, dtype=np.float32)
_SHARED_HEADER = struct.Struct("<4sIff")  # format, bits, lo, hi
_PERSONAL_HEADER = struct.Struct("<4sI")  # format, number of keys


class SharedModel:
    """The model of all users: 2^bits weights and a constant, and the range of the rewards seen."""

    __slots__ = ("_span", "_squares", "_weights", "bits", "learning_rate")

    def __init__(self, bits: int = 18, learning_rate: float = LEARNING_RATE) -> None:
        checks.whole("bits", bits)
        if bits > 28:
            raise ValueError(f"bits must be at most 28, got {bits}")
        _check_rate(learning_rate)
        self.bits = bits
        self.learning_rate = learning_rate  # η
        self._weights: Array = np.zeros(2**bits + 1, dtype=np.float32)
        self._squares: Array = np.zeros(2**bits + 1, dtype=np.float32)
        self._span: Array = np.zeros(2, dtype=np.float32)

    @property
    def weights(self) -> Array:
        """The 2^bits weights and the constant's, as they are now and not to be written to; copy them to publish."""
        view = self._weights.view()
        view.flags.writeable = False
        return view

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """The weights, the sums of squared gradients and the range of the rewards, to learn in."""
        return self._weights, self._squares, self._span

    @property
    def reward_range(self) -> tuple[float, float]:
        """The least and the greatest reward seen, and 0: where joint predictions lie."""
        return float(self._span[0]), float(self._span[1])

    @property
    def newest(self) -> int:
        """The last round of a device that is inside: 0, as devices count no rounds here."""
        return 0

    def score(self, example: Example) -> float:
        """Return the shared part of a score."""
        keys, values = example
        return float(part_of(self._weights, indices_of(keys, 32 - self.bits), values, 0.0))

    def learn(self, example: Example, reward: float, offset: float = 0.0, weight: float = 1.0) -> None:
        """Take one step on the squared loss of offset plus shared part, clamped to the range of the rewards."""
        check_step(reward, offset, weight)
        how = (float(weight), float(self.learning_rate))
        args = (float(reward), float(offset), how)
        learn_shared(self._weights, self._squares, self._span, example, 32 - self.bits, *args)

    def correct(self, example: Example, reward: float, prediction: float, weight: float = 1.0) -> None:
        """Take the same step on the error of a joint prediction that was made before, clamped in the same way."""
        check_step(reward, prediction, weight)
        how = (float(weight), float(self.learning_rate))
        args = (float(reward), float(prediction), how)
        correct_shared(self._weights, self._squares, self._span, example, 32 - self.bits, *args)

    def to_bytes(self) -> bytes:
        """Return all that was learned: 20 bytes, then 8 for each of 2^bits + 1 weights."""
        places = range(0, self._weights.size, _PIECE)
        parts = (array[k : k + _PIECE] for array in (self._weights, self._squares) for k in places)
        header = _SHARED_HEADER.pack(b"FRS1", self.bits, *self.reward_range)
        return sealed(header, (part.astype("<f4", copy=False).tobytes() for part in parts))

    @classmethod
    def from_bytes(cls, state: bytes, learning_rate: float = LEARNING_RATE) -> SharedModel:
        """Return the model that ``to_bytes`` wrote."""
        (bits, lo, hi), body = unsealed(state, b"FRS1", _SHARED_HEADER)
        model = cls(bits, learning_rate)
        half = 4 * model._weights.size
        if len(body) != 2 * half:
            raise ValueError(f"state must hold {2 * half} bytes of weights, got {len(body)}")
        model._weights[:] = np.frombuffer(body[:half], "<f4")
        model._squares[:] = np.frombuffer(body[half:], "<f4")
        model._span[:] = lo, hi
        if not (np.isfinite(model._weights).all() and np.isfinite(model._span).all() and lo <= 0 <= hi):
            raise ValueError(f"state must have finite weights and a finite range of rewards around 0, got {lo}, {hi}")
        if not (model._squares >= 0).all():
            raise ValueError("state must have sums of squares, got negative ones or NaN")  # huge features make them ∞
        return model


class PersonalModel:
    """One user's model: a table of the features met in rewards, at most four fifths of ``max_slots``.

    Once that many are held, features that are not among them are left out of this user's part; the others go on
    learning. Memory is 12 bytes a slot, two to four fifths of them full; ``to_bytes`` writes full slots only.
    """

    __slots__ = ("_count", "_squares", "_table", "_weights", "learning_rate", "max_slots")

    def __init__(self, learning_rate: float = LEARNING_RATE, max_slots: int = MAX_SLOTS) -> None:
        _check_rate(learning_rate)
        checks.whole("max_slots", max_slots, least=SMALLEST_TABLE)
        if max_slots & (max_slots - 1):
            raise ValueError(f"max_slots must be a power of two, got {max_slots}")
        self.learning_rate = learning_rate  # η
        self.max_slots = max_slots
        self._allocate(SMALLEST_TABLE)

    def _allocate(self, size: int) -> None:
        self._table: Array = empty_table(size)
        self._weights: Array = np.zeros(size + 1, dtype=np.float32)
        self._squares: Array = np.zeros(size + 1, dtype=np.float32)
        self._count = 0

    def __len__(self) -> int:
        """How many features are held."""
        return self._count

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory the model takes, 600 of them for the objects around the data."""
        return 600 + 12 * slots_in(self._table)

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """The table of keys, the weights and the sums of squared gradients; not to be written to."""
        return self._table, self._weights, self._squares

    @classmethod
    def of_arrays(cls, table: Array, weights: Array, squares: Array, count: int) -> PersonalModel:
        """Return the model that keeps ``arrays`` as its own."""
        model = cls.__new__(cls)
        model.learning_rate, model.max_slots, model._count = LEARNING_RATE, MAX_SLOTS, count
        model._table, model._weights, model._squares = table, weights, squares
        return model

    def copy(self) -> PersonalModel:
        """Return a model of its own that has learned the same."""
        other = PersonalModel.__new__(PersonalModel)
        other.learning_rate, other.max_slots, other._count = self.learning_rate, self.max_slots, self._count
        other._table, other._weights, other._squares = self._table.copy(), self._weights.copy(), self._squares.copy()
        return other

    @property
    def weights(self) -> dict[int, float]:
        """The features' 32-bit keys and their weights, by rising key."""
        order = self._order()
        return dict(zip(self._table[order].tolist(), self._weights[order].tolist(), strict=True))

    @property
    def constant(self) -> float:
        """The weight of the constant."""
        return float(self._weights[-1])

    def score(self, example: Example) -> float:
        """Return the personal part of a score."""
        keys, values = example
        return float(part_of(self._weights, slots_of(keys, self._table), values, 0.0))

    def learn(
        self, example: Example, reward: float, offset: float, reward_range: tuple[float, float], weight: float = 1.0
    ) -> None:
        """Take one step on the squared loss of offset plus personal part, clamped to ``reward_range``."""
        check_step(reward, offset, weight)
        self._reserve(n_missing(self._table, example))
        arrays = (self._table, self._weights, self._squares, self._count)
        how = (float(weight), float(self.learning_rate))
        self._count = learn_personal(*arrays, example, reward_range, float(reward), float(offset), how)

    def _reserve(self, n_more: int) -> None:
        needed = min(_slots_for(self._count + n_more), self.max_slots)
        if needed > slots_in(self._table):
            order = self._order()
            self._fill(needed, self._table[order], *self._numbers(order))

    def _order(self) -> Array:
        slots = np.flatnonzero(self._table[:-TAIL])
        return slots[np.argsort(self._table[slots])]

    def _numbers(self, slots: Array) -> tuple[Array, Array]:
        """Return the weights and the sums of ``slots`` and of the constant."""
        with_constant = np.append(slots, -1)
        return self._weights[with_constant], self._squares[with_constant]

    def _fill(self, size: int, keys: Array, weights: Array, squares: Array) -> None:
        self._allocate(size)
        slots, self._count = put(self._table, keys, 0)
        with_constant = np.append(slots, -1)
        self._weights[with_constant] = weights
        self._squares[with_constant] = squares

    def to_bytes(self) -> bytes:
        """Return all that was learned: 20 bytes, and 12 for each feature held, by rising key."""
        order = self._order()
        numbers = np.concatenate(self._numbers(order))
        body = self._table[order].astype("<u4").tobytes() + numbers.astype("<f4").tobytes()
        return sealed(_PERSONAL_HEADER.pack(b"FRP1", len(self)) + body)

    @classmethod
    def from_bytes(
        cls, state: bytes, learning_rate: float = LEARNING_RATE, max_slots: int = MAX_SLOTS
    ) -> PersonalModel:
        """Return the model that ``to_bytes`` wrote; it keeps all its features."""
        (n,), body = unsealed(state, b"FRP1", _PERSONAL_HEADER)
        if len(body) != 12 * n + 8:
            raise ValueError(f"state must hold {n} features, got {len(body)} bytes for them")
        model = cls(learning_rate)
        keys = np.frombuffer(body, "<u4", n).astype(np.uint32)
        numbers = np.frombuffer(body, "<f4", offset=4 * n)
        model._fill(_slots_for(n), keys, numbers[: n + 1], numbers[n + 1 :])
        return model


def _slots_for(n_features: int) -> int:
    """Return the least table, a power of two, that ``n_features`` fill to four fifths at most."""
    size = SMALLEST_TABLE
    while 5 * n_features > 4 * size:
        size *= 2
    return size


def expand(prepared: Prepared, action: int) -> Example:
    """Return the keys and values of all features of one action: of the context, its own, and their crosses."""
    if not 0 <= action < prepared.n_actions:
        raise ValueError(f"action must be in [0, {prepared.n_actions}), got {action}")
    keys, values = expanded(prepared, action)
    return keys, values


def arrays(weights: Array, personal: PersonalModel | None) -> tuple[Array, int, Array, Array]:
    """Return the models' arguments of ``score_kernel``: shared weights, shift, personal table, personal weights."""
    if personal is None:
        return weights, shift_of(weights), _NO_KEYS, _NO_WEIGHTS
    return weights, shift_of(weights), personal._table, personal._weights


def shift_of(weights: Array) -> int:
    """Return the number of bits by which a key is shifted to get the index of its shared weight."""
    return 33 - (weights.size - 1).bit_length()


def score(prepared: Prepared, weights: Array, personal: PersonalModel | None = None) -> tuple[Array, Array]:
    """Return the shared and the personal part of every action's score; ``weights`` are those of a ``SharedModel``."""
    parts: Array = score_kernel(prepared, *arrays(weights, personal))
    return parts[:, 0], parts[:, 1]


def learn(
    prepared: Prepared,
    action: int,
    reward: float,
    shared: SharedModel,
    personal: PersonalModel | None = None,
    weight: float = 1.0,
) -> None:
    """Let both models learn the other's residual (before this step) of the reward for ``action``."""
    example = expand(prepared, action)
    if personal is None:
        shared.learn(example, reward, 0.0, weight)
        return
    offset = shared.score(example)
    shared.learn(example, reward, personal.score(example), weight)
    personal.learn(example, reward, offset, shared.reward_range, weight)


def _check_rate(learning_rate: float) -> None:
    checks.positive("learning_rate", learning_rate)
    finite("learning_rate", learning_rate)


def check_step(reward: float, offset: float, weight: float) -> None:
    finite("reward", reward)
    finite("offset", offset)
    if not 0 < weight <= 1e15:
        raise ValueError(f"weight must be positive and at most 1e15, got {weight}")

"""One linear model for all users and a small one for each: scores, and steps on what the other leaves over.

Both take the steps of ``vw --adaptive``, as ``fedres.LinearLearner`` does, over pairs of a context feature and an
action feature, either of which may be none (docs/hashing.md). The order is always the same: context features, action
features, crosses (for each context feature all action features), and last a constant of each model's own.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.local_learners.adagrad import Real, kernel, multiply_add
from fedres.local_learners.linear import finite
from service.scoring.features import Limits, Prepared, Preparer, action_features, flatten

LEARNING_RATE = 0.1  # η of either side, chosen on users with tastes of their own and users with one taste

Example = tuple[Array, Array]  # uint32 keys and float32 values of one action's features, the constant not among them

Key = Any  # uint32 inside the kernels

_SMALLEST_SQUARE = np.float32(1.084202e-19) * np.float32(1.084202e-19)  # VW's X2_MIN
_SMALLEST_TABLE = 32
_LARGEST = np.finfo(np.float32).max
_NO_KEYS: Array = np.zeros(0, dtype=np.uint32)
_NO_WEIGHTS: Array = np.zeros(1, dtype=np.float32)
_SHARED_HEADER = struct.Struct("<4sIff")  # format, bits, lo, hi
_PERSONAL_HEADER = struct.Struct("<4sI")  # format, number of keys


@kernel
def pair_key(context_hash: Key, action_hash: Key) -> Key:
    """Return the 32-bit key of a pair of feature hashes; 0 stands for none."""
    x = np.uint32(np.uint32(context_hash) * np.uint32(0x9E3779B1) + np.uint32(action_hash))
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32((x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(x ^ (x >> np.uint32(16)))


@kernel
def _fill_crosses(keys: Array, values: Array, hashes: Array, xs: Array, context_hash: Key, context_value: Real) -> None:
    for j in range(hashes.size):
        keys[j] = pair_key(context_hash, hashes[j])
        values[j] = context_value * xs[j]


@kernel
def _expand(prepared: Any, action: int) -> Any:
    n, first, last = prepared.starts[0], prepared.starts[action], prepared.starts[action + 1]
    context, context_values = prepared.hashes[:n], prepared.values[:n]
    hashes, xs = prepared.hashes[first:last], prepared.values[first:last]
    m = last - first
    size = n + m + (n * m if prepared.crosses else 0)
    keys, values = np.empty(size, np.uint32), np.empty(size, np.float32)
    for i in range(n):
        keys[i], values[i] = pair_key(context[i], 0), context_values[i]
    _fill_crosses(keys[n:], values[n:], hashes, xs, np.uint32(0), np.float32(1))
    for i in range(n if prepared.crosses else 0):
        at = n + m + i * m
        _fill_crosses(keys[at:], values[at:], hashes, xs, context[i], context_values[i])
    return keys, values


# A personal table holds keys by open addressing: the key's low bits say where to look first; 0 is an empty slot, so
# the key 0 is kept as 1. Weights and sums of squared gradients have the constant's last.


@kernel
def _find(table: Array, key: Key) -> Any:
    """Return the slot that holds ``key``, or else −1 less the free slot where it would go."""
    mask = table.size - 1
    wanted = key if key != 0 else np.uint32(1)
    slot = np.int64(wanted) & mask
    while table[slot] != wanted:
        if table[slot] == 0:
            return -1 - slot
        slot = (slot + 1) & mask
    return slot


@kernel
def _marks(table: Array) -> Array:
    """Return a bit for each of 2^13 kinds of keys, set where the table has one: most that it has not are told so."""
    marks = np.zeros(128 if table.size else 0, np.uint64)
    for slot in range(table.size):
        if table[slot] != 0:
            marks[table[slot] >> np.uint32(25)] |= _mark(table[slot])
    return marks


@kernel
def _mark(key: Key) -> Any:
    return np.uint64(1) << np.uint64((key >> np.uint32(19)) & np.uint32(63))


@kernel
def _number(total: Real) -> Real:
    """Return a number that JSON can carry: 0 for none, the largest there is for one beyond."""
    return min(max(total, -_LARGEST), _LARGEST) if total == total else np.float32(0)


@kernel
def _indices(keys: Array, shift: int) -> Array:
    indices = np.empty(keys.size, np.int64)
    for k in range(keys.size):
        indices[k] = keys[k] >> shift
    return indices


@kernel
def _slots(keys: Array, table: Array) -> Array:
    slots = np.empty(keys.size, np.int64)
    for k in range(keys.size):
        slots[k] = _find(table, keys[k])
    return slots


@kernel
def _part(weights: Array, indices: Array, values: Array, offset: Real) -> Real:
    """Return offset + Σ w_j x_j; a negative index has no weight yet."""
    total = np.float32(offset)
    for k in range(values.size):
        if values[k] != 0 and indices[k] >= 0:
            total = multiply_add(weights[indices[k]], values[k], total)
    return _number(total + weights[-1])


@kernel
def _add(total: Real, weights: Array, index: Any, value: Real) -> Real:
    return multiply_add(weights[index], value, total) if value != 0 and index >= 0 else total


@kernel
def _add_row(parts: Array, models: Any, hashes: Array, xs: Array, context_hash: Key, context_value: Real) -> None:
    """Add what pairs of one context feature, or none, with an action's features give, in the order of ``_expand``."""
    weights, shift, table, own, marks = models
    shared, personal = parts[0], parts[1]
    for j in range(hashes.size):
        key, value = pair_key(context_hash, hashes[j]), context_value * xs[j]
        shared = _add(shared, weights, np.int64(key >> shift), value)
        if marks.size and marks[key >> np.uint32(25)] & _mark(key):
            personal = _add(personal, own, _find(table, key), value)
    parts[0], parts[1] = shared, personal


@kernel
def score_kernel(prepared: Any, weights: Array, shift: int, table: Array, own: Array) -> Any:
    """Return what ``_part`` of ``_expand`` is for every action, without making the arrays."""
    models = (weights, shift, table, own, _marks(table))
    n, starts = prepared.starts[0], prepared.starts
    hashes, values = prepared.hashes, prepared.values
    alone, none = np.zeros(2, np.float32), np.zeros(1, np.uint32)
    for i in range(n):
        _add_row(alone, models, none, values[i : i + 1], hashes[i], np.float32(1))
    parts = np.zeros((starts.size - 1, 2), np.float32)
    for action in range(starts.size - 1):
        row, first, last = parts[action], starts[action], starts[action + 1]
        row[:] = alone
        _add_row(row, models, hashes[first:last], values[first:last], np.uint32(0), np.float32(1))
        for i in range(n if prepared.crosses else 0):
            _add_row(row, models, hashes[first:last], values[first:last], hashes[i], values[i])
        row[0] = _number(row[0] + weights[-1])
        row[1] = _number(row[1] + own[-1]) if table.size else np.float32(0)
    return parts


@kernel
def _accumulate(squares: Array, j: int, x: Real, squared_slope: Real) -> None:
    """G_j += (weight·4·e·e)·(x·x)"""
    squares[j] = multiply_add(squared_slope, max(x * x, _SMALLEST_SQUARE), squares[j])


@kernel
def _move(weights: Array, squares: Array, j: int, x: Real, pull: Real) -> None:
    """w_j += (2·e·η·weight)·(x·(1/√G_j))"""
    if squares[j] > 0:
        weights[j] = multiply_add(pull, x * (np.float32(1) / np.sqrt(squares[j])), weights[j])


@kernel
def _step(
    weights: Array, squares: Array, indices: Array, values: Array, error: Real, importance: Real, rate: Real
) -> None:
    one = np.float32(1)
    squared_slope = np.float32(importance) * (np.float32(4) * error * error)
    pull = np.float32(2) * error * (np.float32(rate) * np.float32(importance))
    for k in range(values.size):  # all sums before all weights: an index that comes twice sees its last sum
        if values[k] != 0 and indices[k] >= 0:
            _accumulate(squares, indices[k], values[k], squared_slope)
    _accumulate(squares, squares.size - 1, one, squared_slope)
    for k in range(values.size):
        if values[k] != 0 and indices[k] >= 0:
            _move(weights, squares, indices[k], values[k], pull)
    _move(weights, squares, weights.size - 1, one, pull)


@kernel
def _error(prediction: Real, label: Real, lo: Real, hi: Real) -> Real:
    return np.float32(label) - min(max(prediction, np.float32(lo)), np.float32(hi))


@kernel
def _learn_shared(
    weights: Array, squares: Array, span: Array, example: Any, shift: int, label: Real, offset: Real, how: Any
) -> None:
    keys, values = example
    importance, rate = how
    span[0], span[1] = min(span[0], np.float32(label)), max(span[1], np.float32(label))
    indices = _indices(keys, shift)
    error = _error(_part(weights, indices, values, offset), label, span[0], span[1])
    if error * error > 0:
        _step(weights, squares, indices, values, error, importance, rate)


@kernel
def _correct_shared(
    weights: Array, squares: Array, span: Array, example: Any, shift: int, label: Real, prediction: Real, how: Any
) -> None:
    keys, values = example
    importance, rate = how
    span[0], span[1] = min(span[0], np.float32(label)), max(span[1], np.float32(label))
    error = _error(np.float32(prediction), label, span[0], span[1])
    if error * error > 0:
        _step(weights, squares, _indices(keys, shift), values, error, importance, rate)


@kernel
def _missing(table: Array, example: Any) -> int:
    keys, values = example
    n = 0
    for k in range(keys.size):
        n += values[k] != 0 and _find(table, keys[k]) < 0
    return n


@kernel
def _put(table: Array, keys: Array, count: int) -> Any:
    """Give every key a slot while four in five are not full; return the slots, −1 for none, and the new count."""
    slots = _slots(keys, table)
    for k in range(keys.size):
        if slots[k] < 0:
            slot = _find(table, keys[k])  # once more: the key may come twice
            if slot < 0 and 5 * (count + 1) <= 4 * table.size:
                slot = -1 - slot
                table[slot] = keys[k] if keys[k] != 0 else np.uint32(1)
                count += 1
            slots[k] = max(slot, -1)
    return slots, count


@kernel
def _learn_personal(
    table: Array,
    weights: Array,
    squares: Array,
    count: int,
    example: Any,
    span: Any,
    label: Real,
    offset: Real,
    how: Any,
) -> int:
    keys, values = example
    importance, rate = how
    error = _error(_part(weights, _slots(keys, table), values, offset), label, span[0], span[1])
    if error * error > 0:
        slots, count = _put(table, keys[values != 0], count)
        _step(weights, squares, slots, values[values != 0], error, importance, rate)
    return count


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
        return float(_part(self._weights, _indices(keys, 32 - self.bits), values, 0.0))

    def learn(self, example: Example, reward: float, offset: float = 0.0, weight: float = 1.0) -> None:
        """Take one step on the squared loss of offset plus shared part, clamped to the range of the rewards."""
        _check_step(reward, offset, weight)
        how = (float(weight), float(self.learning_rate))
        args = (float(reward), float(offset), how)
        _learn_shared(self._weights, self._squares, self._span, example, 32 - self.bits, *args)

    def correct(self, example: Example, reward: float, prediction: float, weight: float = 1.0) -> None:
        """Take the same step on the error of a joint prediction that was made before, clamped in the same way."""
        _check_step(reward, prediction, weight)
        how = (float(weight), float(self.learning_rate))
        args = (float(reward), float(prediction), how)
        _correct_shared(self._weights, self._squares, self._span, example, 32 - self.bits, *args)

    def to_bytes(self) -> bytes:
        """Return all that was learned: 20 bytes, then 8 for each of 2^bits + 1 weights."""
        body = self._weights.astype("<f4").tobytes() + self._squares.astype("<f4").tobytes()
        return _sealed(_SHARED_HEADER.pack(b"FRS1", self.bits, *self.reward_range) + body)

    @classmethod
    def from_bytes(cls, state: bytes, learning_rate: float = LEARNING_RATE) -> SharedModel:
        """Return the model that ``to_bytes`` wrote."""
        (bits, lo, hi), body = _open(state, b"FRS1", _SHARED_HEADER)
        model = cls(bits, learning_rate)
        half = 4 * model._weights.size
        if len(body) != 2 * half:
            raise ValueError(f"state must hold {2 * half} bytes of weights, got {len(body)}")
        model._weights[:] = np.frombuffer(body[:half], "<f4")
        model._squares[:] = np.frombuffer(body[half:], "<f4")
        model._span[:] = lo, hi
        return model


class PersonalModel:
    """One user's model: a table of the features met in rewards, at most four fifths of ``max_slots``.

    Once that many are held, features that are not among them are left out of this user's part; the others go on
    learning. Memory is 12 bytes a slot, two to four fifths of them full; ``to_bytes`` writes full slots only.
    """

    __slots__ = ("_count", "_squares", "_table", "_weights", "learning_rate", "max_slots")

    def __init__(self, learning_rate: float = LEARNING_RATE, max_slots: int = 4096) -> None:
        _check_rate(learning_rate)
        checks.whole("max_slots", max_slots, least=_SMALLEST_TABLE)
        if max_slots & (max_slots - 1):
            raise ValueError(f"max_slots must be a power of two, got {max_slots}")
        self.learning_rate = learning_rate  # η
        self.max_slots = max_slots
        self._allocate(_SMALLEST_TABLE)

    def _allocate(self, n_slots: int) -> None:
        self._table: Array = np.zeros(n_slots, dtype=np.uint32)
        self._weights: Array = np.zeros(n_slots + 1, dtype=np.float32)
        self._squares: Array = np.zeros(n_slots + 1, dtype=np.float32)
        self._count = 0

    def __len__(self) -> int:
        """How many features are held."""
        return self._count

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory the model takes, 600 of them for the objects around the data."""
        return 600 + 12 * self._table.size

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
        return float(_part(self._weights, _slots(keys, self._table), values, 0.0))

    def learn(
        self, example: Example, reward: float, offset: float, reward_range: tuple[float, float], weight: float = 1.0
    ) -> None:
        """Take one step on the squared loss of offset plus personal part, clamped to ``reward_range``."""
        _check_step(reward, offset, weight)
        self._reserve(_missing(self._table, example))
        arrays = (self._table, self._weights, self._squares, self._count)
        how = (float(weight), float(self.learning_rate))
        self._count = _learn_personal(*arrays, example, reward_range, float(reward), float(offset), how)

    def _reserve(self, n_more: int) -> None:
        n_slots = min(_slots_for(self._count + n_more), self.max_slots)
        if n_slots > self._table.size:
            order = self._order()
            self._fill(n_slots, self._table[order], *self._numbers(order))

    def _order(self) -> Array:
        slots = np.flatnonzero(self._table)
        return slots[np.argsort(self._table[slots])]

    def _numbers(self, slots: Array) -> tuple[Array, Array]:
        """Return the weights and the sums of ``slots`` and of the constant."""
        with_constant = np.append(slots, -1)
        return self._weights[with_constant], self._squares[with_constant]

    def _fill(self, n_slots: int, keys: Array, weights: Array, squares: Array) -> None:
        self._allocate(n_slots)
        slots, self._count = _put(self._table, keys, 0)
        with_constant = np.append(slots, -1)
        self._weights[with_constant] = weights
        self._squares[with_constant] = squares

    def to_bytes(self) -> bytes:
        """Return all that was learned: 20 bytes, and 12 for each feature held, by rising key."""
        order = self._order()
        numbers = np.concatenate(self._numbers(order))
        body = self._table[order].astype("<u4").tobytes() + numbers.astype("<f4").tobytes()
        return _sealed(_PERSONAL_HEADER.pack(b"FRP1", len(self)) + body)

    @classmethod
    def from_bytes(cls, state: bytes, learning_rate: float = LEARNING_RATE, max_slots: int = 4096) -> PersonalModel:
        """Return the model that ``to_bytes`` wrote; it keeps all its features, even if ``max_slots`` is less now."""
        (n,), body = _open(state, b"FRP1", _PERSONAL_HEADER)
        if len(body) != 12 * n + 8:
            raise ValueError(f"state must hold {n} features, got {len(body)} bytes for them")
        model = cls(learning_rate, max_slots)
        keys = np.frombuffer(body, "<u4", n).astype(np.uint32)
        numbers = np.frombuffer(body, "<f4", offset=4 * n)
        model._fill(_slots_for(n), keys, numbers[: n + 1], numbers[n + 1 :])
        return model


def _slots_for(n_features: int) -> int:
    """Return the least table, a power of two, that ``n_features`` fill to four fifths at most."""
    n_slots = _SMALLEST_TABLE
    while 5 * n_features > 4 * n_slots:
        n_slots *= 2
    return n_slots


def expand(prepared: Prepared, action: int) -> Example:
    """Return the keys and values of all features of one action: of the context, its own, and their crosses."""
    if not 0 <= action < prepared.n_actions:
        raise ValueError(f"action must be in [0, {prepared.n_actions}), got {action}")
    keys, values = _expand(prepared, action)
    return keys, values


def arrays(weights: Array, personal: PersonalModel | None) -> tuple[Array, int, Array, Array]:
    """Return what ``score_kernel`` takes of the models: shared weights, shift, personal table, personal weights."""
    shift = 33 - (weights.size - 1).bit_length()
    if personal is None:
        return weights, shift, _NO_KEYS, _NO_WEIGHTS
    return weights, shift, personal._table, personal._weights


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
    """Let both models learn what the other, as it was before, leaves over of the reward for ``action``."""
    example = expand(prepared, action)
    if personal is None:
        shared.learn(example, reward, 0.0, weight)
        return
    offset = shared.score(example)
    shared.learn(example, reward, personal.score(example), weight)
    personal.learn(example, reward, offset, shared.reward_range, weight)


class Contribution(NamedTuple):
    """What a pair of features adds to a score; an empty name is none, and two of them are the constant."""

    context: str
    action: str
    shared: float
    personal: float


class Explanation(NamedTuple):
    shared: float  # the shared part of the score
    personal: float  # the personal part
    strongest: list[Contribution]


def explain(
    context: bytes,
    action: tuple[str, bytes],
    weights: Array,
    personal: PersonalModel | None = None,
    *,
    crosses: bool = True,
    limits: Limits | None = None,
    top: int = 10,
) -> Explanation:
    """Return why an action scores as it does, the ``top`` strongest contributions first."""
    limits = limits or Limits()
    prepared = Preparer(crosses=crosses, limits=limits, cache_bytes=0).prepare(context, [action])
    names = _names(flatten(context, limits), action_features(*action, limits), crosses)
    keys, values = expand(prepared, 0)
    shared = np.append(weights[_indices(keys, 33 - (weights.size - 1).bit_length())] * values, weights[-1])
    own = np.zeros_like(shared)
    if personal is not None:
        slots = _slots(keys, personal._table)
        own = np.append(np.where(slots >= 0, personal._weights[slots] * values, 0), personal._weights[-1])
    order = np.argsort(-np.abs(shared + own), kind="stable")[:top]
    strongest = [Contribution(names[k][0], names[k][1], float(shared[k]), float(own[k])) for k in order]
    parts = score(prepared, weights, personal)
    return Explanation(float(parts[0][0]), float(parts[1][0]), strongest)


def _names(
    context: Sequence[tuple[str, float]], action: Sequence[tuple[str, float]], crosses: bool
) -> list[tuple[str, str]]:
    """Return the pairs of names in the order of ``expand``, and the constant's."""
    alone = [(name, "") for name, _ in context] + [("", name) for name, _ in action]
    crossed = [(first, second) for first, _ in context for second, _ in action] if crosses else []
    return [*alone, *crossed, ("", "")]


def _check_rate(learning_rate: float) -> None:
    checks.positive("learning_rate", learning_rate)
    finite("learning_rate", learning_rate)


def _check_step(reward: float, offset: float, weight: float) -> None:
    finite("reward", reward)
    finite("offset", offset)
    if not 0 < weight <= 1e15:
        raise ValueError(f"weight must be positive and at most 1e15, got {weight}")


def _sealed(state: bytes) -> bytes:
    return state + struct.pack("<I", zlib.crc32(state))


def _open(state: bytes, mark: bytes, header: struct.Struct) -> tuple[tuple[Any, ...], bytes]:
    """Return the header's fields but the mark, and what lies between header and checksum."""
    if len(state) < header.size + 4 or state[:4] != mark:
        raise ValueError(f"state must start with {mark!r} and a header, got {bytes(state[:12])!r}")
    if zlib.crc32(state[:-4]) != int.from_bytes(state[-4:], "little"):
        raise ValueError(f"state must be undamaged, got {len(state)} bytes that do not match their checksum")
    return header.unpack_from(state)[1:], state[header.size : -4]

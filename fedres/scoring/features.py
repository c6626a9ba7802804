"""From JSON features to hashed ones.

``flattening`` defines features. Those of plain objects are hashed by a compiled loop: names and strings of ASCII
without escapes, numbers of at most 18 digits between about 1e-22 and 1e15, true, false, null, and objects of these; not
arrays, nor names that begin with "_". Invalid objects are not plain either.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel
from fedres.scoring.flattening import LARGEST, FeatureError, FeatureLimits, action_features, feature_hash, flatten

Json = bytes | msgspec.Raw

_ONE = struct.pack("=f", 1.0)
_ID = zlib.crc32(b"_id").to_bytes(4, sys.byteorder)


class Prepared(NamedTuple):
    """The hashed features of one request: the context's come first, up to ``starts[0]``.

    Action ``k`` has those from ``starts[k]`` up to ``starts[k + 1]``.
    """

    hashes: Array  # uint32
    values: Array  # float32
    starts: Array  # int64, one more than there are actions
    crosses: bool

    @property
    def n_actions(self) -> int:
        return self.starts.size - 1


class Hashed(msgspec.Struct, frozen=True, gc=False):
    """The hashed features of a context or of an action."""

    size: int  # how many there are
    hashes: bytes  # native uint32
    values: bytes  # native float32
    fields: bytes  # native uint32, hashes of the JSON keys


class Named(msgspec.Struct, frozen=True, gc=False):
    """Features to be hashed, as JSON: those of an action have its id, and errors name the place."""

    place: str
    action: str | None
    features: bytes


class Preparer:
    """Hashes requests within limits.

    >>> prepared = Preparer().prepare(b'{"hour": 9}', [("a", b'{"topic": "sport"}'), ("b", b"{}")])
    >>> prepared.n_actions, prepared.values.tolist()
    (2, [9.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, *, crosses: bool = True, limits: FeatureLimits | None = None) -> None:
        self.crosses = crosses
        self.limits = limits or FeatureLimits()
        self._plain = Plain(self.limits)

    @classmethod
    def within(cls, largest: float, *, crosses: bool = True) -> Preparer:
        """Return one that refuses numbers beyond ``largest``, on which VW's ``--adaptive`` steps diverge."""
        advice = ": scale numbers to about 1, or change the loop's setting largest_number"
        return cls(crosses=crosses, limits=FeatureLimits(number=largest, advice=advice))

    def prepare(self, context: Json, actions: Sequence[tuple[str, Json]]) -> Prepared:
        """Return the hashed features of a context and of (id, features) actions, both as JSON objects."""
        named = [Named("context", None, bytes(context))]
        named += [Named(f"actions[{k}]", name, bytes(features)) for k, (name, features) in enumerate(actions)]
        rows = []
        for row in self.hash_all(named):
            if isinstance(row, FeatureError):
                raise row
            rows.append(row)
        if self.crosses:
            check_crosses(rows[0].size, sum([row.size for row in rows[1:]]), self.limits)
        starts = np.cumsum([row.size for row in rows], dtype=np.int64)
        hashes = np.frombuffer(b"".join([row.hashes for row in rows]), np.uint32)
        values = np.frombuffer(b"".join([row.values for row in rows]), np.float32)
        return Prepared(hashes, values, starts, self.crosses)

    def hash_all(self, named: Sequence[Named]) -> list[Hashed | FeatureError]:
        """Return each object's hashed features, or its error, by one call of the compiled loop."""
        results: list[Hashed | FeatureError] = []
        for one, plain in zip(named, self._plain.hashed([one.features for one in named]), strict=True):
            action = one.action
            if plain is None:
                results.append(self._hash(one))
                continue
            hashes, values, fields = plain
            if self._has_larger(values):
                results.append(self._hash(one))
                continue
            size = len(hashes) // 4
            if action is None:
                results.append(Hashed(size, hashes, values, fields))
            elif action.isascii() and size < self.limits.features and len(action) + 4 <= self.limits.name:
                identity = zlib.crc32(b"_id=" + action.encode()).to_bytes(4, sys.byteorder)
                results.append(Hashed(size + 1, identity + hashes, _ONE + values, _ID + fields))
            else:
                results.append(self._hash(one))
        return results

    def _has_larger(self, values: bytes) -> bool:
        """Return whether a number is beyond a limit of its own; the compiled loop has the usual one."""
        if self.limits.number >= LARGEST or not values:
            return False
        return bool(np.abs(np.frombuffer(values, np.float32)).max() > self.limits.number)

    def _hash(self, one: Named) -> Hashed | FeatureError:
        """Hash in Python what the compiled loop does not support: arrays, escapes, letters beyond ASCII, and errors."""
        try:
            limits, action = self.limits, one.action
            named = flatten(one.features, limits) if action is None else action_features(action, one.features, limits)
            hashes = [feature_hash(feature.name) for feature in named]
            fields = [feature_hash(feature.field) for feature in named]
        except FeatureError as error:
            return FeatureError(f"{one.place}: {error}")
        n = len(named)
        values = struct.pack(f"={n}f", *[feature.value for feature in named])
        return Hashed(n, struct.pack(f"={n}I", *hashes), values, struct.pack(f"={n}I", *fields))


def check_crosses(n_context: int, n_actions: int, limits: FeatureLimits) -> None:
    """Refuse more pairs of features than a request may have; each action feature also counts alone."""
    if (n_context + 1) * n_actions > limits.crosses:
        got = f"({n_context} + 1) × {n_actions}"
        message = f"(context features + 1) × action features must be at most {limits.crosses}, got {got}"
        raise FeatureError(message)


# Plain objects

MOST_KEYS = 64  # in an object that is plain, those of objects inside it counted too
DEEPEST = 8  # objects inside each other
MOST = 10**18  # of a number's digits, read without the point
EXACT = 2**53  # up to which they and a power of ten are without error, and their quotient is rounded once
_ROUNDED = 2.0**-50  # more than the error of a number beyond that
_POWERS = 10.0 ** np.arange(23)  # without error, all of them

Byte = Any  # uint8 inside the kernels

_QUOTE, _BACKSLASH, _COLON, _COMMA, _POINT, _MINUS, _PLUS = (ord(sign) for sign in '"\\:,.-+')
_OPEN, _CLOSE, _UNDERSCORE, _EQUALS, _ZERO, _NINE, _E = (ord(sign) for sign in "{}_=09e")
_TRUE, _FALSE, _NULL = (np.frombuffer(word, np.uint8) for word in (b"true", b"false", b"null"))


def _crc_table() -> Array:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, np.uint32(0xEDB88320) ^ (table >> 1), table >> 1)
    return table.astype(np.uint32)


_CRC = _crc_table()
_START = np.uint32(0xFFFFFFFF)


class Plain:
    """Hashes plain objects within limits; for one thread."""

    def __init__(self, limits: FeatureLimits) -> None:
        self._bounds = np.zeros(3 + DEEPEST, np.int64)
        self._bounds[:3] = min(limits.features, MOST_KEYS), min(limits.depth, DEEPEST), limits.name
        self._room = np.empty(DEEPEST + MOST_KEYS, np.uint32)

    def hashed(self, objects: Sequence[bytes]) -> list[tuple[bytes, bytes, bytes] | None]:
        """Return hashes, values and fields' hashes of each object's features, 32 bits each; None if it is not plain.

        All at once, as calling the compiled loop takes about as long as it does.
        """
        text = np.frombuffer(b"".join([*objects, b" "]), np.uint8)  # NumPy takes no empty ones
        ends = np.fromiter(accumulate(map(len, objects)), np.int64, len(objects))
        sizes, hashes = np.empty_like(ends), np.empty(len(objects) * MOST_KEYS, np.uint32)
        values, fields = np.empty(hashes.size, np.float32), np.empty_like(hashes)
        n = _hash_each(text, ends, self._bounds, self._room, sizes, hashes, values, fields)
        columns = [hashes[:n].tobytes(), values[:n].tobytes(), fields[:n].tobytes()]
        rows: list[tuple[bytes, bytes, bytes] | None] = []
        first = 0
        for size in sizes.tolist():
            last = first + 4 * max(size, 0)
            row = columns[0][first:last], columns[1][first:last], columns[2][first:last]
            rows.append(row if size >= 0 else None)
            first = last
        return rows


@inner_kernel
def _after_spaces(text: Array, at: int) -> int:
    while at < text.size and (text[at] == 32 or 9 <= text[at] <= 10 or text[at] == 13):
        at += 1
    return at


@inner_kernel
def _is(text: Array, at: int, sign: int) -> bool:
    return at < text.size and text[at] == sign


@inner_kernel
def _is_word(text: Array, at: int, word: Array) -> bool:
    k = 0
    while k < word.size and _is(text, at + k, word[k]):
        k += 1
    return k == word.size


@inner_kernel
def _step(crc: Any, byte: Byte) -> Any:
    return np.uint32(_CRC[(crc ^ np.uint32(byte)) & np.uint32(255)] ^ (crc >> np.uint32(8)))


@inner_kernel
def _string(text: Array, at: int, crc: Any) -> Any:
    """Return the end of a string that began before ``at``, −1 if it is not plain, and the continued hash."""
    while at < text.size and text[at] != _QUOTE:
        if text[at] < 32 or text[at] == _BACKSLASH or text[at] >= 128:
            return -1, crc
        crc = _step(crc, text[at])
        at += 1
    return (at if at < text.size else -1), crc


@inner_kernel
def _digits(text: Array, at: int, number: Any) -> Any:
    """Return the end of digits, and the continued number, at most ``MOST``."""
    while at < text.size and _ZERO <= text[at] <= _NINE:
        number = number * 10 + np.int64(text[at]) - _ZERO if number < MOST // 10 else MOST
        at += 1
    return at, number


@inner_kernel
def _exponent(text: Array, at: int) -> Any:
    """Return the end of an exponent, −1 if it is not plain, and the exponent."""
    if at >= text.size or (text[at] | 32) != _E:
        return at, 0
    negative = _is(text, at + 1, _MINUS)
    first = at + 2 if negative or _is(text, at + 1, _PLUS) else at + 1
    end, power = _digits(text, first, 0)
    if not 1 <= end - first <= 3:
        return -1, 0
    return end, -power if negative else power


@inner_kernel
def _number(text: Array, at: int) -> Any:
    """Return the end of a number, −1 if it is not plain, and the number; its float32 is that of the nearest float64."""
    negative = _is(text, at, _MINUS)
    first = at + 1 if negative else at
    end, number = _digits(text, first, 0)
    if end == first or (end > first + 1 and text[first] == _ZERO):
        return -1, 0.0
    power = 0
    if _is(text, end, _POINT):
        point = end + 1
        end, number = _digits(text, point, number)
        power = point - end
        if power == 0:
            return -1, 0.0
    end, exponent = _exponent(text, end)
    power += exponent
    if end < 0 or number == MOST or not -22 <= power <= 22:
        return -1, 0.0
    value = number / _POWERS[-power] if power < 0 else number * _POWERS[power]
    unsure = number > EXACT and np.float32(value * (1 - _ROUNDED)) != np.float32(value * (1 + _ROUNDED))
    if unsure or value > 0.99 * LARGEST:
        return -1, 0.0
    return end, -value if negative else value


@inner_kernel
def _has(keys: Array, n: int, crc: Any) -> bool:
    k = 0
    while k < n and keys[k] != crc:
        k += 1
    return k < n


@inner_kernel
def _name(text: Array, at: int, crc: Any) -> Any:
    """Return the start of the value behind a name at ``at``, −1 if it is not plain, its hash, and its end."""
    if not _is(text, at, _QUOTE) or _is(text, at + 1, _UNDERSCORE):
        return -1, crc, 0
    end, crc = _string(text, at + 1, crc)
    colon = _after_spaces(text, end + 1)
    if end <= at + 1 or not _is(text, colon, _COLON):  # not plain, or empty
        return -1, crc, 0
    return _after_spaces(text, colon + 1), crc, end


@inner_kernel
def _value(text: Array, at: int, crc: Any) -> Any:
    """Return the end of a value other than an object, −1 if it is not plain, the hash of its feature, and its number.

    Values that are not features have no number.
    """
    if _is(text, at, _QUOTE):
        end, crc = _string(text, at + 1, _step(crc, _EQUALS))
        return (end + 1 if end >= 0 else -1), crc, 1.0
    if _is_word(text, at, _TRUE):
        return at + 4, crc, 1.0
    if _is_word(text, at, _FALSE):
        return at + 5, crc, np.nan
    if _is_word(text, at, _NULL):
        return at + 4, crc, np.nan
    end, number = _number(text, at)
    return end, crc, number


@inner_kernel
def plain_kernel(text: Array, bounds: Array, room: Array, hashes: Array, values: Array, fields: Array) -> int:
    """Fill in the features; return how many they are, −1 if the text is not that of a plain object.

    ``bounds`` are how many features there may be, how deep, how long their names; then, for each object that is around
    what is read, the size of its name with the point. ``room`` is for the hashes of those names, and of all names.
    """
    most, deepest, longest = bounds[0], bounds[1], bounds[2]
    sizes, crcs, keys = bounds[2:], room[:DEEPEST], room[DEEPEST:]
    at = _after_spaces(text, 0)
    if not _is(text, at, _OPEN):
        return -1
    n, n_keys, depth = 0, 0, 1
    crcs[0], sizes[1] = _START, 0
    at = _after_spaces(text, at + 1)
    named = not _is(text, at, _CLOSE)  # a name comes next; else a comma or an end
    while True:
        if named:
            start, crc, end = _name(text, at, crcs[depth - 1])
            if start < 0 or n_keys == keys.size or _has(keys, n_keys, crc):
                return -1
            keys[n_keys], n_keys = crc, n_keys + 1
            size = sizes[depth] + end - at - 1
            if _is(text, start, _OPEN):
                depth += 1
                if depth > deepest:
                    return -1
                crcs[depth - 1], sizes[depth] = _step(crc, _POINT), size + 1
                at = _after_spaces(text, start + 1)
                named = not _is(text, at, _CLOSE)
                continue
            field = crc
            at, crc, number = _value(text, start, crc)
            size += at - start - 1 if _is(text, start, _QUOTE) else 0  # two quotes less, "=" more
            is_feature = not np.isnan(number)
            if at < 0 or (is_feature and (n == most or size > longest)):
                return -1
            if is_feature:
                hashes[n], values[n], fields[n] = crc ^ _START, number, field ^ _START
                n += 1
        at = _after_spaces(text, at)
        if _is(text, at, _CLOSE):
            at, depth, named = at + 1, depth - 1, False
            if depth == 0:
                return n if _after_spaces(text, at) == text.size else -1
        elif _is(text, at, _COMMA):
            at, named = _after_spaces(text, at + 1), True
        else:
            return -1


@bare_kernel
def _hash_each(
    text: Array, ends: Array, bounds: Array, room: Array, sizes: Array, hashes: Array, values: Array, fields: Array
) -> int:
    """Fill in the features of texts that follow each other, and how many each has; return how many that is."""
    first = n = 0
    for k in range(ends.size):
        sizes[k] = plain_kernel(text[first : ends[k]], bounds, room, hashes[n:], values[n:], fields[n:])
        n += max(sizes[k], 0)
        first = ends[k]
    return n

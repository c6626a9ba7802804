"""From JSON features to hashed ones."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.scoring.flattening import FeatureError, Limits, action_features, feature_hash, flatten
from fedres.scoring.plain import Plain

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


class Named(NamedTuple):
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

    def __init__(self, *, crosses: bool = True, limits: Limits | None = None) -> None:
        self.crosses = crosses
        self.limits = limits or Limits()
        self._plain = Plain(self.limits)

    def prepare(self, context: Json, actions: Sequence[tuple[str, Json]]) -> Prepared:
        """Return the features of a context and of (id, features) actions, given as JSON objects, hashed."""
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
        """Return each object's features hashed, or what is wrong with it; by one call of the compiled loop."""
        found: list[Hashed | FeatureError] = []
        for one, plain in zip(named, self._plain.hashed([one.features for one in named]), strict=True):
            action = one.action
            if plain is None:
                found.append(self._hash(one))
                continue
            hashes, values, fields = plain
            size = len(hashes) // 4
            if action is None:
                found.append(Hashed(size, hashes, values, fields))
            elif action.isascii() and size < self.limits.features and len(action) + 4 <= self.limits.name:
                identity = zlib.crc32(b"_id=" + action.encode()).to_bytes(4, sys.byteorder)
                found.append(Hashed(size + 1, identity + hashes, _ONE + values, _ID + fields))
            else:
                found.append(self._hash(one))
        return found

    def _hash(self, one: Named) -> Hashed | FeatureError:
        """Return what the compiled loop leaves to Python: arrays, escapes, letters beyond ASCII, and errors."""
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


def check_crosses(n_context: int, n_actions: int, limits: Limits) -> None:
    """Refuse more pairs of features than a request may have."""
    if n_context * n_actions > limits.crosses:
        message = f"context × action features must be at most {limits.crosses}, got {n_context} × {n_actions}"
        raise FeatureError(message)

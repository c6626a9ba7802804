"""From JSON features to hashed ones, and a memory of what was hashed."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec
import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.scoring.flattening import FeatureError, Limits, action_features, feature_hash, flatten
from fedres.scoring.plain import Plain

Json = bytes | msgspec.Raw


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


_CacheKey = tuple[str | None, bytes]  # the id of an action, None for a context, and the JSON text


class Hashed(msgspec.Struct, frozen=True, gc=False):
    """The features of a context or of an action."""

    hashes: bytes  # native uint32
    values: bytes  # native float32
    size: bytes = b""  # native int64, how many there are; a context is joined with no other and needs none


class HashedOffer(msgspec.Struct, frozen=True, gc=False):
    """The actions of a request, one after the other."""

    hashes: bytes
    values: bytes
    sizes: bytes  # native int64, how many features each has
    places: list[int]  # of each action's first byte, and the end


class Made:
    """What a preparer made of an action that may come again, with the limits that the preparer had."""

    __slots__ = ("hashed", "limits")

    hashed: Hashed

    def __init__(self) -> None:
        self.limits: Limits | None = None


class Given(tuple[tuple[str, bytes], ...]):
    """(id, features) of actions that may come again; a preparer leaves here what it made of all and of each."""

    hashed: tuple[Preparer, HashedOffer] | None = None
    each: Sequence[Made]

    @classmethod
    def of(cls, actions: Iterable[tuple[str, bytes]], each: Sequence[Made]) -> Given:
        given = cls(actions)
        given.each = each
        return given


class Preparer:
    """Hashes requests, and keeps what it hashed by its JSON text, up to ``cache_bytes``; for one thread.

    >>> prepared = Preparer().prepare(b'{"hour": 9}', [("a", b'{"topic": "sport"}'), ("b", b"{}")])
    >>> prepared.n_actions, prepared.values.tolist()
    (2, [9.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, *, crosses: bool = True, limits: Limits | None = None, cache_bytes: int = 64_000_000) -> None:
        checks.whole("cache_bytes", cache_bytes, least=0)
        self.crosses = crosses
        self.limits = limits or Limits()
        self._room = cache_bytes
        self._plain = Plain(self.limits)
        self._cache: OrderedDict[_CacheKey, Hashed] = OrderedDict()

    def prepare(self, context: Json, actions: Sequence[tuple[str, Json]]) -> Prepared:
        """Return the features of a context and of (id, features) actions, given as JSON objects, hashed.

        What was made of ``Given`` actions is found without looking at them.
        """
        row, offer = self.hashed(context, actions)
        hashes = np.frombuffer(row.hashes + offer.hashes, np.uint32)
        values = np.frombuffer(row.values + offer.values, np.float32)
        return Prepared(hashes, values, (np.array(offer.places, np.int64) + len(row.hashes)) // 4, self.crosses)

    def contexts(self, texts: Sequence[bytes]) -> list[Hashed | None]:
        """Return contexts for ``hashed``, None where one is not plain: they are found faster together."""
        return [None if plain is None else Hashed(*plain) for plain in self._plain.hashed(texts)]

    def hashed(
        self, context: Json | Hashed, actions: Sequence[tuple[str, Json]] | HashedOffer
    ) -> tuple[Hashed, HashedOffer]:
        """Return the same in two parts."""
        row = context if isinstance(context, Hashed) else self._context(bytes(context))
        offer = actions if isinstance(actions, HashedOffer) else self._offer_of(actions)
        n, m = len(row.hashes) // 4, len(offer.hashes) // 4
        if self.crosses and n * m > self.limits.crosses:
            raise FeatureError(f"context × action features must be at most {self.limits.crosses}, got {n} × {m}")
        return row, offer

    def _context(self, text: bytes) -> Hashed:
        """Return a context, hashed anew if it is plain: it mostly does not come again, and would fill the cache."""
        [plain] = self.contexts([text])
        return plain or self._look_up((None, text), 0)

    def _offer_of(self, actions: Sequence[tuple[str, Json]]) -> HashedOffer:
        if not isinstance(actions, Given):
            return _joined(self._rows([(name, bytes(features)) for name, features in actions]))
        if actions.hashed is None or actions.hashed[0] is not self:
            limits = self.limits
            rows = [made.hashed for made in actions.each if made.limits is limits]
            actions.hashed = self, _joined(rows if len(rows) == len(actions) else self._rows_left(actions))
        return actions.hashed[1]

    def _rows_left(self, actions: Given) -> list[Hashed]:
        """Return the rows, and leave each with its action."""
        rows = self._rows(actions)
        for made, row in zip(actions.each, rows, strict=True):
            made.limits, made.hashed = self.limits, row
        return rows

    def _rows(self, actions: Sequence[tuple[str, bytes]]) -> list[Hashed]:
        return [self._look_up(action, place) for place, action in enumerate(actions, 1)]

    def _look_up(self, key: _CacheKey, place: int) -> Hashed:
        hashed = self._cache.get(key)
        if hashed is None:
            hashed = self._make(*key, place)
            self._keep(key, hashed)
        else:
            self._cache.move_to_end(key)
        return hashed

    def _make(self, action: str | None, features: bytes, place: int) -> Hashed:
        try:
            found = flatten(features, self.limits) if action is None else action_features(action, features, self.limits)
            hashes = [feature_hash(name) for name, _ in found]
        except FeatureError as error:
            where = "context" if action is None else f"actions[{place - 1}]"
            raise FeatureError(f"{where}: {error}") from None
        n = len(found)
        values = struct.pack(f"={n}f", *[value for _, value in found])
        return Hashed(struct.pack(f"={n}I", *hashes), values, struct.pack("=q", n))

    def _keep(self, key: _CacheKey, hashed: Hashed) -> None:
        self._cache[key] = hashed
        self._room -= _size(key, hashed)
        while self._room < 0:
            self._room += _size(*self._cache.popitem(last=False))


def _joined(rows: Sequence[Hashed]) -> HashedOffer:
    hashes, values, sizes = [row.hashes for row in rows], [row.values for row in rows], [row.size for row in rows]
    places = [*accumulate(map(len, hashes), initial=0)]
    return HashedOffer(b"".join(hashes), b"".join(values), b"".join(sizes), places)


def _size(key: _CacheKey, hashed: Hashed) -> int:
    """Return about how many bytes an entry of the cache takes, 500 of them for the objects around the data."""
    return 500 + len(key[0] or "") + len(key[1]) + 2 * len(hashed.hashes)

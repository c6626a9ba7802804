"""From JSON features to hashed ones: names, values and a hash that is the same in any language (docs/hashing.md)."""

from __future__ import annotations

import json
import struct
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedres import checks
from fedres.checks import Array

LARGEST = 1e15  # the product of two such values is finite in 32 bits

Json = bytes | msgspec.Raw

_decode = msgspec.json.Decoder().decode


class FeatureError(ValueError):
    """Features that the service does not take; the message names the place, the rule and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may hold."""

    features: int = 1_000  # of the context, and of each action
    depth: int = 8  # objects inside each other
    name: int = 1_000  # characters of a name, an indicator's value included
    crosses: int = 250_000  # context features × features of all actions

    def __post_init__(self) -> None:
        for name in ("features", "depth", "name", "crosses"):
            checks.whole(name, getattr(self, name))


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


class HashedOffer(msgspec.Struct, frozen=True, gc=False):
    """The actions of a request, one after the other."""

    hashes: bytes
    values: bytes
    sizes: bytes  # native int64, how many features each has
    places: list[int]  # of each action's first byte, and the end
    starts: Array  # int64, of each action's first feature, and the end


class Given(tuple[tuple[str, bytes], ...]):
    """(id, features) of actions that may come again; a preparer leaves here what it made of them."""

    hashed: tuple[Preparer, HashedOffer] | None = None


class Preparer:
    """Hashes requests, and keeps what it hashed by its JSON text, up to ``cache_bytes``; for one thread.

    Lists of actions that repeat as a whole are kept too, in a quarter of that.

    >>> prepared = Preparer().prepare(b'{"hour": 9}', [("a", b'{"topic": "sport"}'), ("b", b"{}")])
    >>> prepared.n_actions, prepared.values.tolist()
    (2, [9.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, *, crosses: bool = True, limits: Limits | None = None, cache_bytes: int = 64_000_000) -> None:
        checks.whole("cache_bytes", cache_bytes, least=0)
        self.crosses = crosses
        self.limits = limits or Limits()
        self._room, self._room_for_offers = cache_bytes, cache_bytes // 4
        self._cache: OrderedDict[_CacheKey, Hashed] = OrderedDict()
        self._offers: OrderedDict[tuple[tuple[str, bytes], ...], HashedOffer] = OrderedDict()

    def prepare(self, context: Json, actions: Sequence[tuple[str, Json]]) -> Prepared:
        """Return the features of a context and of (id, features) actions, given as JSON objects, hashed.

        What was made of ``Given`` actions is found without looking at them.
        """
        row, offer = self.hashed(context, actions)
        hashes = np.frombuffer(row.hashes + offer.hashes, np.uint32)
        values = np.frombuffer(row.values + offer.values, np.float32)
        return Prepared(hashes, values, offer.starts + len(row.hashes) // 4, self.crosses)

    def hashed(self, context: Json, actions: Sequence[tuple[str, Json]]) -> tuple[Hashed, HashedOffer]:
        """Return the same in two parts."""
        row, offer = self._look_up((None, bytes(context)), 0), self._offer_of(actions)
        n, m = len(row.hashes) // 4, len(offer.hashes) // 4
        if self.crosses and n * m > self.limits.crosses:
            raise FeatureError(f"context × action features must be at most {self.limits.crosses}, got {n} × {m}")
        return row, offer

    def _offer_of(self, actions: Sequence[tuple[str, Json]]) -> HashedOffer:
        if not isinstance(actions, Given):
            return self._offer(tuple([(name, bytes(features)) for name, features in actions]))
        if actions.hashed is None or actions.hashed[0] is not self:
            actions.hashed = self, self._offer(actions)
        return actions.hashed[1]

    def _offer(self, key: tuple[tuple[str, bytes], ...]) -> HashedOffer:
        offer = self._offers.get(key)
        if offer is not None:
            self._offers.move_to_end(key)
            return offer
        rows = [self._look_up(action, place) for place, action in enumerate(key, 1)]
        places = [0, *accumulate([len(row.hashes) for row in rows])]
        starts = np.array(places, np.int64) // 4
        hashes, values = b"".join([row.hashes for row in rows]), b"".join([row.values for row in rows])
        offer = HashedOffer(hashes, values, np.diff(starts).tobytes(), places, starts)
        self._keep_offer(key, offer)
        return offer

    def _keep_offer(self, key: tuple[tuple[str, bytes], ...], offer: HashedOffer) -> None:
        self._offers[key] = offer
        self._room_for_offers -= _offer_size(key, offer)
        while self._room_for_offers < 0:
            self._room_for_offers += _offer_size(*self._offers.popitem(last=False))

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
            named = flatten(features, self.limits) if action is None else action_features(action, features, self.limits)
            hashes = [feature_hash(name) for name, _ in named]
        except FeatureError as error:
            where = "context" if action is None else f"actions[{place - 1}]"
            raise FeatureError(f"{where}: {error}") from None
        n = len(named)
        return Hashed(struct.pack(f"={n}I", *hashes), struct.pack(f"={n}f", *[value for _, value in named]))

    def _keep(self, key: _CacheKey, hashed: Hashed) -> None:
        self._cache[key] = hashed
        self._room -= _size(key, hashed)
        while self._room < 0:
            self._room += _size(*self._cache.popitem(last=False))


def _size(key: _CacheKey, hashed: Hashed) -> int:
    """Return about how many bytes an entry of the cache takes, 500 of them for the objects around the data."""
    return 500 + len(key[0] or "") + len(key[1]) + 2 * len(hashed.hashes)


def _offer_size(key: tuple[tuple[str, bytes], ...], offer: HashedOffer) -> int:
    """Return about how many bytes an offer takes, 300 of them for each action's objects."""
    return 500 + sum([300 + len(name) + len(features) for name, features in key]) + 2 * len(offer.hashes)


def feature_hash(name: str) -> int:
    """Return the CRC-32 of a feature's name in UTF-8."""
    try:
        return zlib.crc32(name.encode())
    except UnicodeEncodeError:
        raise FeatureError(f"names must be valid Unicode, got {name!a}") from None


def action_features(action: str, features: bytes, limits: Limits) -> list[tuple[str, float]]:
    """Return an action's features, the first of them its id: `_id=<id>`, which no name in JSON can be."""
    named: list[tuple[str, float]] = []
    _add(named, f"_id={action}", 1.0, limits)
    _flatten_text(features, limits, named)
    return named


def flatten(features: bytes, limits: Limits) -> list[tuple[str, float]]:
    """Return the names and values of the features in a JSON object; nothing or null is an object without any."""
    named: list[tuple[str, float]] = []
    _flatten_text(features, limits, named)
    return named


def _flatten_text(features: bytes, limits: Limits, named: list[tuple[str, float]]) -> None:
    tree = _parse(features) if features else None
    if tree is None:
        return
    if not isinstance(tree, dict):
        raise FeatureError(f"features must be an object, got {_shown(tree)}")
    n_keys = _flatten_object("", tree, 1, limits, named)
    if features.count(b":") != n_keys:  # a colon inside a string, an ignored object, or a key that came twice
        _parse_strictly(features)


def _parse(features: bytes) -> Any:
    try:
        return _decode(features)
    except msgspec.ValidationError:  # a number out of range: the other parser makes it infinite, so it can be named
        return _parse_strictly(features)
    except (RecursionError, ValueError) as error:
        raise FeatureError(f"features must be JSON: {error}") from None


def _parse_strictly(features: bytes) -> Any:
    try:
        return json.loads(features.decode(), object_pairs_hook=_each_once, parse_int=float)
    except FeatureError:
        raise
    except (RecursionError, ValueError) as error:
        raise FeatureError(f"features must be JSON: {error}") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise FeatureError(f"a name must come once in an object, got {name[:100]!a} twice")
        made[name] = value
    return made


def _flatten_object(prefix: str, tree: dict[str, Any], depth: int, limits: Limits, named: list[Any]) -> int:
    """Add what ``tree`` holds to ``named``; return how many keys were looked at."""
    if depth > limits.depth:
        raise FeatureError(f"{prefix[:-1]} must be nested at most {limits.depth} deep, got {depth}")
    n_keys = len(tree)
    for key, value in tree.items():
        if not key:
            raise FeatureError(f"{prefix or 'features'} must have names of at least one character, got an empty one")
        if key[0] == "_" or value is None:
            continue
        name = prefix + key
        kind = type(value)
        if kind is str:
            _add(named, f"{name}={value}", 1.0, limits)
        elif kind is dict:
            n_keys += _flatten_object(f"{name}.", value, depth + 1, limits, named)
        elif kind is list:
            _flatten_array(name, value, limits, named)
        elif value:  # a number but 0, or true
            _add(named, name, _number(name, value), limits)
    return n_keys


def _flatten_array(name: str, items: list[Any], limits: Limits, named: list[Any]) -> None:
    strings = bool(items) and type(items[0]) is str
    kinds = (str,) if strings else (int, float)
    for i, item in enumerate(items):
        if type(item) not in kinds:
            raise FeatureError(f"{name} must hold numbers alone or strings alone, got {_shown(item)} in it")
        if strings:
            _add(named, f"{name}={item}", 1.0, limits)
        elif item:
            at = f"{name}[{i}]"
            _add(named, at, _number(at, item), limits)


def _add(named: list[tuple[str, float]], name: str, value: float, limits: Limits) -> None:
    """Append a feature; refuse the first that is too many, whatever follows."""
    if len(name) > limits.name:
        raise FeatureError(f"names must have at most {limits.name} characters, got {len(name)} in {name[:40]!a}...")
    if len(named) >= limits.features:
        raise FeatureError(f"features must be at most {limits.features}, got more")
    named.append((name, value))


def _number(name: str, value: float) -> float:
    if not -LARGEST <= value <= LARGEST:
        raise FeatureError(f"{name} must be within ±{LARGEST:g}, got {str(value)[:30]}")
    return float(value)


def _shown(value: object) -> str:
    return {list: "an array", dict: "an object", str: "a string", bool: "a bool", type(None): "null"}.get(
        type(value), "a number"
    )

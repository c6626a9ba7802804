"""From JSON features to names and values, and the hash of a name that is the same in any language (hashing.md)."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from fedres import checks

LARGEST = 1e15  # the product of two such values is finite in 32 bits

_decode = msgspec.json.Decoder().decode


class FeatureError(ValueError):
    """Features that the service does not accept; the message names the place, the rule and the value."""


class NamedFeature(NamedTuple):
    """A feature of a JSON object: ``topic=sport`` and 1 for a string, its field ``topic``; a number's is its name."""

    name: str
    value: float
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLimits:
    """Limits of one request."""

    features: int = 1_000  # of the context, and of each action
    depth: int = 8  # objects inside each other
    name: int = 1_000  # characters of a name, an indicator's value included
    crosses: int = 250_000  # (context features + 1) × features of all actions
    number: float = LARGEST  # size of a number
    # Advice in the error about a number that is larger.
    advice: str = ""
    arrays_of_objects: bool = False  # as Vowpal Wabbit writes namespaces; what is in them is named `array[0].name`

    def __post_init__(self) -> None:
        for name in ("features", "depth", "name", "crosses"):
            checks.whole(name, getattr(self, name))


def feature_hash(name: str) -> int:
    """Return the CRC-32 of a feature's name in UTF-8."""
    try:
        return zlib.crc32(name.encode())
    except UnicodeEncodeError:
        raise FeatureError(f"names must be valid Unicode, got {name!a}") from None


def action_features(action: str, features: bytes, limits: FeatureLimits) -> list[NamedFeature]:
    """Return an action's features, the first of them its id: `_id=<id>`, which no name in JSON can be."""
    named: list[NamedFeature] = []
    _add(named, f"_id={action}", 1.0, "_id", limits)
    _flatten_text(features, limits, named)
    return named


def flatten(features: bytes, limits: FeatureLimits) -> list[NamedFeature]:
    """Return the features in a JSON object; nothing or null is an object without any."""
    named: list[NamedFeature] = []
    _flatten_text(features, limits, named)
    return named


def flatten_tree(tree: dict[str, Any], limits: FeatureLimits) -> list[NamedFeature]:
    """Return the features of a JSON object that is parsed already."""
    named: list[NamedFeature] = []
    _flatten_object("", tree, 1, limits, named)
    return named


def _flatten_text(features: bytes, limits: FeatureLimits, named: list[NamedFeature]) -> None:
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


def _flatten_object(
    prefix: str, tree: dict[str, Any], depth: int, limits: FeatureLimits, named: list[NamedFeature]
) -> int:
    """Append the features in ``tree`` to ``named``; return the number of keys read."""
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
            _add(named, f"{name}={value}", 1.0, name, limits)
        elif kind is dict:
            n_keys += _flatten_object(f"{name}.", value, depth + 1, limits, named)
        elif kind is list:
            _flatten_array(name, value, depth, limits, named)
        elif value is not False:
            _add(named, name, _number(name, value, limits), name, limits)
    return n_keys


def _flatten_array(name: str, items: list[Any], depth: int, limits: FeatureLimits, named: list[NamedFeature]) -> None:
    strings = bool(items) and type(items[0]) is str
    kinds = (str,) if strings else (int, float)
    for i, item in enumerate(items):
        if limits.arrays_of_objects and type(item) is dict:
            _flatten_object(f"{name}[{i}].", item, depth + 1, limits, named)
            continue
        if type(item) not in kinds:
            raise FeatureError(f"{name} must hold numbers alone or strings alone, got {_shown(item)} in it")
        if strings:
            _add(named, f"{name}={item}", 1.0, name, limits)
        elif item:
            at = f"{name}[{i}]"
            _add(named, at, _number(at, item, limits), at, limits)


def _add(named: list[NamedFeature], name: str, value: float, field: str, limits: FeatureLimits) -> None:
    """Append a feature; refuse the first that is too many, whatever follows."""
    if len(name) > limits.name:
        raise FeatureError(f"names must have at most {limits.name} characters, got {len(name)} in {name[:40]!a}...")
    if len(named) >= limits.features:
        raise FeatureError(f"features must be at most {limits.features}, got more")
    named.append(NamedFeature(name, value, field))


def _number(name: str, value: float, limits: FeatureLimits) -> float:
    if not -limits.number <= value <= limits.number:
        raise FeatureError(f"{name} must be within ±{limits.number:g}, got {str(value)[:30]}{limits.advice}")
    return float(value)


def _shown(value: object) -> str:
    return {list: "an array", dict: "an object", str: "a string", bool: "a bool", type(None): "null"}.get(
        type(value), "a number"
    )

"""Converts Azure's lists of feature dictionaries to one native object, and ids to native length."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fedres.scoring.flattening import FeatureLimits
from fedres_client.event_ids import LONGEST_ID
from service.errors import invalid
from service.http.routes import Call
from service.plugins.personalizer.errors import Refusal

INVALID = "InvalidRankRequest"
NO_NAMES: Mapping[str, str] = {}
LONGEST = 256  # characters of any id in Azure's API
# Dictionaries that are merged to one: each has a feature, or is of no use.
MOST_DICTIONARIES = FeatureLimits().features


def native_id(name: str, longest: int = LONGEST_ID) -> str:
    """Return an id for the log: unchanged, or its beginning and a hash if it is too long."""
    if len(name) <= longest:
        return name
    return f"{name[: longest - 65]}~{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def id_in(call: Call, name: str) -> str:
    """Return an id of the path."""
    value = call.parameters[name]
    if len(value) > LONGEST:
        raise invalid(f"{name} must have at most {LONGEST} characters, got {len(value)}", name)
    return value


def merged(
    target: str, dictionaries: Sequence[Any], ignored: tuple[str, ...], rename: Mapping[str, str] = NO_NAMES
) -> msgspec.Raw:
    """Return one object with the features of all dictionaries; ``rename`` has new names for reserved ones.

    Names that begin with ``_`` are not features, nor are namespaces whose first letter is ``ignored``. Objects of one
    name are merged; of other values the last one counts, but all strings do.
    """
    if len(dictionaries) > MOST_DICTIONARIES:
        message = f"{target} must have at most {MOST_DICTIONARIES} objects, got {len(dictionaries)}"
        raise Refusal(INVALID, message, target)
    whole: dict[str, Any] = {}
    for place, features in enumerate(dictionaries):
        if not isinstance(features, dict):
            raise Refusal(INVALID, f"{target}[{place}] must be an object, got {_kind(features)}", target)
        for name, value in features.items():
            if name and not name.startswith("_") and not name.startswith(ignored):
                _put(whole, rename.get(name, name), _checked(f"{target}[{place}].{name}", value))
    return msgspec.Raw(msgspec.json.encode(whole))


def merge(dictionaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one object with the content of all, by the rules of ``merged``."""
    whole: dict[str, Any] = {}
    for features in dictionaries:
        for name, value in features.items():
            _put(whole, name, value)
    return whole


def _put(into: dict[str, Any], name: str, value: Any) -> None:
    before = into.get(name)
    if isinstance(before, dict) and isinstance(value, dict):
        for inner, below in value.items():
            _put(before, inner, below)
    elif isinstance(before, str) and isinstance(value, str) and before != value:
        into[name] = [before, value]
    elif isinstance(before, list) and isinstance(value, str):
        before.append(value)
    else:
        into[name] = value


def _checked(target: str, value: Any) -> Any:
    """Return a value without names that are not features; refuse arrays of anything but numbers."""
    if isinstance(value, dict):
        features: dict[str, Any] = {}
        for name, below in value.items():
            if name and not name.startswith("_"):
                _put(features, name, _checked(f"{target}.{name}", below))
        return features
    if isinstance(value, list):
        for item in value:
            if isinstance(item, bool) or not isinstance(item, (int, float)):
                raise Refusal(INVALID, f"{target} must hold numbers alone, got {_kind(item)} in it", target)
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a bool", type(None): "null"}
    return names.get(type(value), "a number")

"""Values of a logged event: features made flat, probabilities and numbers checked."""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import Any

from fedres.scoring.flattening import FeatureLimits, flatten_tree

SUM_TOLERANCE = 1e-3  # probabilities are written with few digits


LOGGED = FeatureLimits(features=10**9, depth=100, name=10**9, number=sys.float_info.max, arrays_of_objects=True)


def flatten(name: str, value: Any) -> dict[str, float]:
    """Return {feature: number} of a JSON object, by the rules of the service, or of a plain array of numbers: ``[i]``.

    Where several values of an object have one name, the last counts.
    """
    if value is None:
        return {}
    if isinstance(value, list):
        return dict(zip(_dense_names(len(value)), numbers(name, value), strict=True))
    return {feature: size for feature, size, _ in flatten_tree(as_object(name, value), LOGGED)}


def action_features(name: str, value: Any) -> dict[str, float]:
    """Return ``flatten`` of an action's features, from memory where a catalogue repeats them."""
    try:
        return _flatten_items(tuple(value.items())) if type(value) is dict else flatten(name, value)
    except TypeError:  # nested features cannot be a key
        return flatten(name, value)


@lru_cache(maxsize=10_000)
def _flatten_items(items: tuple[tuple[str, Any], ...]) -> dict[str, float]:
    return flatten("features", dict(items))


@lru_cache(maxsize=64)
def _dense_names(n: int) -> tuple[str, ...]:
    return tuple(f"[{i}]" for i in range(n))


def logged_probability(name: str, value: Any) -> float:
    """Return the probability of an action that was taken, which cannot be 0."""
    if value is None:
        raise ValueError(f"{name} must be in (0, 1], but is missing")
    if type(value) not in (float, int) or not 0 < value <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value!r}")
    return float(value)


def distribution(name: str, value: Any, n_actions: int) -> tuple[float, ...]:
    """Return ``n_actions`` probabilities that sum to 1."""
    entries = tuple(numbers(name, nonempty_list(name, value)))
    if len(entries) != n_actions:
        raise ValueError(f"{name} must have one entry for each of {n_actions} actions, got {len(entries)}")
    if min(entries) < 0 or abs(sum(entries) - 1) > SUM_TOLERANCE:
        raise ValueError(f"{name} must be at least 0 and sum to 1, got {list(entries)}")
    return entries


def number(name: str, value: Any) -> float:
    if type(value) in (float, int) and math.isfinite(value):  # JSON has no other numbers; bool is not one
        return float(value)
    raise ValueError(f"{name} must be a finite number, got {value!r}")


def numbers(name: str, values: list[Any]) -> list[float]:
    """Return all as floats; the usual case, finite floats throughout, is checked at the speed of C."""
    if {float}.issuperset(map(type, values)) and math.isfinite(sum(map(abs, values))):
        return values
    return [number(f"{name}[{i}]", value) for i, value in enumerate(values)]


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {value!r}")
    return value


def nonempty_list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} must be a list with at least one entry, got {value!r}")
    return value


def as_object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a JSON object, got {value!r}")
    return value

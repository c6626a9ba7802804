"""Attributes of catalogue items with a meaning: whether and until when an item is shown, and a boost of its score.

With a leading ``_`` they are not features, and take precedence over those without.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from service.times import seconds_of

AVAILABLE, EXPIRES, BOOST = "available", "expires", "boost"
LARGEST_BOOST = 1e9


class Meaning(NamedTuple):
    """The meaning of an item's attributes."""

    is_available: bool = True
    expires: float = math.inf  # seconds since 1970
    boost: float = 0.0


def read_meaning(features: Any, *, strict: bool = True) -> Meaning:
    """Return the meaning of an item's attributes; ``ValueError`` names an invalid one.

    If not ``strict``, as with items of an imported log, an item whose time cannot be read is never shown, and the other
    two are ignored.
    """
    meaning = Meaning()
    for name in (AVAILABLE, EXPIRES, BOOST) if isinstance(features, dict) else ():
        key = f"_{name}" if f"_{name}" in features else name
        if features.get(key) is None:
            continue
        try:
            meaning = _with(meaning, name, key, features[key])
        except ValueError:
            if strict:
                raise
            if name == EXPIRES:
                meaning = meaning._replace(expires=-math.inf)
    return meaning


def _with(meaning: Meaning, name: str, key: str, value: Any) -> Meaning:
    """Return the meaning with one more attribute."""
    if name == AVAILABLE:
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false, got {str(value)[:100]!r}")
        return meaning._replace(is_available=value)
    if name == EXPIRES:
        try:
            return meaning._replace(expires=seconds_of(value))
        except ValueError as error:
            raise ValueError(f"{key} {error}") from None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= LARGEST_BOOST:
        raise ValueError(f"{key} must be a number within ±{LARGEST_BOOST:g}, got {str(value)[:100]!r}")
    return meaning._replace(boost=float(value))

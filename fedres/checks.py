"""Checks made at the edges (constructors, messages): a ``ValueError`` names the argument, the rule and the value."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def positive(name: str, value: float) -> None:
    if not (_is_number(value) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")


def not_negative(name: str, value: float) -> None:
    if not (_is_number(value) and math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be at least 0 and finite, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def probability(name: str, value: float) -> None:
    """Refuse values that are not participation probabilities, in (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value}")


def whole(name: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def has(name: str, value: object, *methods: str) -> None:
    """Refuse an object without these methods."""
    if not all(callable(getattr(value, method, None)) for method in methods):
        raise ValueError(f"{name} must have the methods {', '.join(methods)}, got {value!r}")


def radius(name: str, value: object) -> None:
    """Refuse values that are not the radius of a ball; infinity is allowed and means no bound."""
    if not (isinstance(value, int | float | np.number) and _is_number(value) and value > 0):
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def one_of(name: str, value: object, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(sorted(choices))}, got {value!r}")


def array(name: str, value: npt.ArrayLike, shape: Sequence[int | None]) -> Array:
    """Return ``value`` as float64 of shape ``shape`` (``None`` is any length), all entries finite."""
    try:
        result = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers: {error}") from None
    matches = len(shape) == result.ndim and all(
        want is None or want == have for want, have in zip(shape, result.shape, strict=True)
    )
    if not matches:
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must have shape ({expected}), got {result.shape}")
    if not np.isfinite(result).all():
        raise ValueError(f"{name} must be finite, got {result[~np.isfinite(result)][0]}")
    return result

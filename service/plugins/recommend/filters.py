"""Filters over attributes of items: ``{"category": ["drama", "comedy"], "price": {"max": 20}, "sale": true}``.

All conditions must hold. A value must be equal, a list must contain the value; an object has ``min`` and ``max``, both
inclusive, or ``exists``. For an array attribute, one of its values must satisfy the condition.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from fedres.checks import Array
from service.errors import ApiError, invalid
from service.plugins.recommend.items import LARGEST, MOST_NAMES, Column, Items, shown

MOST_CONDITIONS, MOST_VALUES = 20, 1_000  # of a filter, and of a list in one
RULES = ("min", "max", "exists")


def matching(items: Items, conditions: dict[str, Any]) -> Array:
    """Return which rows satisfy a filter; refuse one that does not fit the catalogue's attributes."""
    if len(conditions) > MOST_CONDITIONS:
        raise invalid(f"filter must have at most {MOST_CONDITIONS} conditions, got {len(conditions)}", "filter")
    items.make_columns(conditions)
    mask = np.ones(len(items.ids), np.bool_)
    for name, condition in conditions.items():
        target = f"filter.{name}"
        column = items.columns.get(name)
        if column is None:
            if condition == {"exists": False}:
                continue
            names = shown(sorted(items.names)) or "none"
            message = f"filter must name attributes of the catalogue, got {name[:100]!r}; it has {names}"
            if len(items.names) >= MOST_NAMES:
                message += f"; filters can name the first {MOST_NAMES} alone"
            raise ApiError(422, "unknown_attribute", message, target)
        mask &= _holds(column, condition, target, mask.size)
    return mask


def _holds(column: Column, condition: Any, target: str, size: int) -> Array:
    """Return which rows satisfy one condition."""
    if isinstance(condition, dict):
        return _by_rules(column, condition, target, size)
    values = condition if isinstance(condition, list) else [condition]
    if not 1 <= len(values) <= MOST_VALUES:
        raise invalid(f"{target} must have 1 to {MOST_VALUES} values, got {len(values)}", target)
    for value in values:
        if isinstance(value, str | bool):
            _check_kind(column, target, value, are_words=True)
        elif isinstance(value, int | float):
            _check_size(value, target)
            _check_kind(column, target, value, are_words=False)
        else:
            kind = "null" if value is None else "an array or object"
            raise invalid(f"{target} must be text, numbers or true and false, got {kind}", target)
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    codes = [column.words[value] for value in values if isinstance(value, str | bool) and value in column.words]
    mask = np.zeros(size, np.bool_)
    mask[np.asarray(column.number_rows)[np.isin(column.numbers, numbers)]] = True
    mask[np.asarray(column.word_rows)[np.isin(column.codes, codes)]] = True
    return mask


def _check_size(number: float, target: str) -> None:
    """Refuse a whole number that is larger than any float: it can neither be compared nor logged."""
    if not abs(number) <= LARGEST:
        raise invalid(f"{target} must be numbers within ±{LARGEST:.1e}, got {str(number)[:20]}...", target)


def _check_kind(column: Column, target: str, value: Any, *, are_words: bool) -> None:
    """Refuse text for an attribute that has numbers only, and numbers for one that has text only."""
    if are_words and not column.codes and column.numbers:
        has = f"numbers from {min(column.numbers):g} to {max(column.numbers):g}"
        raise invalid(f"{target} must be a number, got {str(value)[:100]!r}; the catalogue has {has}", target)
    if not are_words and not column.numbers and column.codes:
        raise invalid(f"{target} must be one of its values, got {value}; it has {most_common(column)}", target)


def _by_rules(column: Column, rules: dict[str, Any], target: str, size: int) -> Array:
    unknown = [name for name in rules if name not in RULES]
    if unknown or not rules:
        got = repr(unknown[0][:100]) if unknown else "an empty object"
        raise invalid(f"{target} must have {', '.join(RULES)}, got {got}", target)
    mask = np.zeros(size, np.bool_)
    if "exists" in rules:
        if not isinstance(rules["exists"], bool) or len(rules) > 1:
            got = repr(rules["exists"])[:100]
            raise invalid(f"{target}.exists must be true or false, and alone, got {got}", target)
        for rows in (column.word_rows, column.number_rows):
            mask[np.asarray(rows)] = True
        return mask if rules["exists"] else ~mask
    bounds = [rules.get("min", -np.inf), rules.get("max", np.inf)]
    for name, bound in zip(("min", "max"), bounds, strict=True):
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise invalid(f"{target}.{name} must be a number, got {str(bound)[:100]!r}", target)
        if name in rules:
            _check_size(bound, target)
    if not column.numbers:
        message = f"{target} must be one of its values, as it has no numbers to compare"
        raise invalid(f"{message}; it has {most_common(column)}", target)
    numbers = np.asarray(column.numbers)
    mask[np.asarray(column.number_rows)[(numbers >= bounds[0]) & (numbers <= bounds[1])]] = True
    return mask


def most_common(column: Column) -> str:
    """Return the most frequent values, for a message."""
    words = [*column.words]
    return shown([words[code] for code, _ in Counter(column.codes).most_common(11)])


def nothing_left(items: Items, conditions: dict[str, Any]) -> ApiError:
    """Return the refusal of a filter without matches; its message lists existing values."""
    about = []
    for name in conditions:
        column = items.columns.get(name)
        if column is not None and column.codes:
            about.append(f"{name} has {most_common(column)}")
        elif column is not None and column.numbers:
            about.append(f"{name} is from {min(column.numbers):g} to {max(column.numbers):g}")
    message = f"filter and exclude must leave an item that may be shown, got none of {len(items.rows)}"
    return ApiError(422, "no_candidates", "; ".join([message, *about]), "filter")

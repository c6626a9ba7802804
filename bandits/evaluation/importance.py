"""How much each feature says about rewards: adjusted shares of variance, from 1 for the strongest down to 0.

Rewards are grouped by a feature's value, for a feature of the context together with the action that was taken. The
score is ε² = (between − (groups − 1)·within/(n − groups)) / all, less what the action alone explains; a feature without
any influence has 0 on average, however many values it has. Numbers are grouped by quartile.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.scoring.flattening import FeatureError, FeatureLimits, flatten

QUARTILES = (0.25, 0.5, 0.75)
CONTEXT, ACTION = "context", "action"


def scored_columns(rows: list[dict[str, Any]]) -> list[tuple[str, str, float, list[Any]]]:
    """Return kind, name, score and values of each feature; None is the value where an event does not have it."""
    rewards = np.array([float(row["reward"]) for row in rows])
    taken = _codes([str(row["action"]) for row in rows])
    columns = _columns(rows)
    alone = _explained(rewards, taken)
    scored: list[tuple[str, str, float, list[Any]]] = []
    for (kind, name), values in columns.items():
        groups = _codes(values)
        if kind == CONTEXT:
            score = _explained(rewards, groups * (taken.max(initial=0) + 1) + taken) - alone
        else:
            score = _explained(rewards, groups)
        scored.append((kind, name, max(score, 0.0), values))
    top = max([score for _, _, score, _ in scored], default=0.0) or 1.0
    return [(kind, name, score / top, values) for kind, name, score, values in scored]


def _columns(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[Any]]:
    """Return the values of each feature in all events, None where it is missing."""
    columns: dict[tuple[str, str], list[Any]] = {}
    for at, row in enumerate(rows):
        for kind, features in _parts(row):
            for name, value in _flat(features):
                column = columns.setdefault((kind, name), [])
                column += [None] * (at - len(column))
                if len(column) == at:
                    column.append(value)
    for column in columns.values():
        column += [None] * (len(rows) - len(column))
    return columns


def _parts(row: dict[str, Any]) -> tuple[tuple[str, Any], tuple[str, Any]]:
    """Return the features of the context and of the action that was taken."""
    taken = next((action["features"] for action in row["actions"] if action["id"] == row["action"]), None)
    return (CONTEXT, row["context"]), (ACTION, taken)


def names_in(row: dict[str, Any]) -> set[tuple[str, str]]:
    """Return kind and name of each feature of an event."""
    return {(kind, name) for kind, features in _parts(row) for name in flat_names(features)}


def _flat(features: Any) -> list[tuple[str, Any]]:
    """Return names and values; a string is the value of its name."""
    try:
        named = flatten(msgspec.json.encode(features), FeatureLimits())
    except FeatureError:  # logged under other limits
        return []
    return [(one.field, one.value if one.name == one.field else one.name[len(one.field) + 1 :]) for one in named]


def flat_names(features: Any) -> set[str]:
    """Return the names of features."""
    return {name for name, _ in _flat(features)}


def _codes(values: list[Any]) -> Array:
    """Return a number for each different value, numbers by quartile where there are many."""
    numbers = [value for value in values if isinstance(value, float)]
    if len(set(numbers)) > len(QUARTILES) + 1:
        cuts = np.quantile(numbers, QUARTILES)
        values = [int(np.searchsorted(cuts, value)) if isinstance(value, float) else value for value in values]
    codes: dict[Any, int] = {}
    return np.array([codes.setdefault(value, len(codes)) for value in values], dtype=np.int64)


def _explained(rewards: Array, groups: Array) -> float:
    """Return ε², the share of variance between groups without what chance puts there."""
    n, all_squares = len(rewards), float(((rewards - rewards.mean()) ** 2).sum()) if len(rewards) else 0.0
    _, group = np.unique(groups, return_inverse=True)
    counts = np.bincount(group)
    if all_squares == 0 or len(counts) >= n:
        return 0.0
    means = np.bincount(group, rewards) / counts
    within = float(((rewards - means[group]) ** 2).sum())
    by_chance = (len(counts) - 1) * within / (n - len(counts))
    return (all_squares - within - by_chance) / all_squares

"""What a loop decides: the share and the reward of each action, and which action goes to which context."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import NormalDist
from typing import Annotated, Any

import msgspec
import numpy as np

from bandits.evaluation.importance import CONTEXT
from bandits.evaluation.table import number_users
from fedres.checks import Array
from service.hints import about
from service.plugins.reports.lift import Bounds
from service.plugins.reports.report import RECENT, FinishedDecision

MOST_ACTIONS = 50  # in the table
LEAST_USERS = 20  # of an action with an interval
MOST_SEGMENTS = 3  # context features
MOST_VALUES = 8  # of a feature: numbers are grouped, rarer words are left out
MOST_COLUMNS = 5  # actions of a segment
LONGEST_NAME = 80  # characters of a value
Z = NormalDist().inv_cdf(0.975)

CELL = {"share": 0.8, "reward": 0.4}  # examples
ROW = {"value": "phone", "events": 496, "cells": [CELL]}
SEGMENT = {"feature": "device", "actions": ["hat"], "rows": [ROW]}

Column = tuple[str, str, float, list[Any]]  # kind, name, importance and values, of ``scored_columns``


class ActionReport(msgspec.Struct):
    """An action among the finished decisions of the policy."""

    action: Annotated[str, about("The action.")]
    events: Annotated[int, about("Finished decisions that took it.")]
    users: Annotated[int, about("Users of these; an event without a user is one.")]
    share_now: Annotated[float, about("Share of the newest fifth of the decisions.")]
    share_before: Annotated[float, about("Share of the decisions before.")]
    mean: Annotated[float, about("Mean reward per event.")]
    reward: Annotated[Bounds | None, about("The same with its 95% interval at one look; null below 20 users.")]


class SegmentCell(msgspec.Struct):
    """An action in one context."""

    share: Annotated[float, about("Share of the decisions in this context that took the action.", 0.8)]
    reward: Annotated[float | None, about("Mean reward of these; null without any.", 0.4)]


class SegmentRow(msgspec.Struct):
    """The decisions with one value of a feature."""

    value: Annotated[str, about("The value of the feature.", "phone")]
    events: Annotated[int, about("Decisions with this value.", 496)]
    cells: Annotated[list[SegmentCell], about("What each action got, in the order of the actions.", [CELL])]


class Segment(msgspec.Struct):
    """What the policy took by the values of one context feature, among the newest finished decisions."""

    feature: Annotated[str, about("The feature of the context.", "device")]
    actions: Annotated[list[str], about("The most frequent actions.", ["hat"])]
    rows: Annotated[list[SegmentRow], about("One for each value.", [ROW])]


class ActionsReport(msgspec.Struct):
    """What a loop decides, and for whom."""

    actions: Annotated[list[ActionReport], about("The most frequent actions first.")]
    segments: Annotated[list[Segment], about("The strongest features of the context first.", [SEGMENT])]


def action_reports(decisions: Sequence[FinishedDecision]) -> list[ActionReport]:
    """Return the most frequent actions of the policy's rewarded decisions."""
    if not decisions:
        return []
    decisions = sorted(decisions, key=lambda decision: decision.time)
    n_now = max(1, round(RECENT * len(decisions)))
    taken = np.array([decision.action for decision in decisions], object)
    reward = np.array([decision.reward for decision in decisions], float)
    user = number_users(decision.user for decision in decisions)
    is_now = np.arange(len(decisions)) >= len(decisions) - n_now
    n_before = max(1, len(decisions) - n_now)
    reports = []
    for action, n in Counter(taken.tolist()).most_common(MOST_ACTIONS):
        of = taken == action
        n_users, mean, reach = _mean_by_user(reward[of], user[of])
        reports.append(
            ActionReport(
                action,
                n,
                n_users,
                round(float((of & is_now).sum() / n_now), 4),
                round(float((of & ~is_now).sum() / n_before), 4),
                mean,
                Bounds(mean, mean - reach, mean + reach) if n_users >= LEAST_USERS else None,
            )
        )
    return reports


def _mean_by_user(reward: Array, user: Array) -> tuple[int, float, float]:
    """Return the users, the mean per event, and half the width of its interval, where a user is one observation."""
    _, place = np.unique(user, return_inverse=True)
    sums = np.bincount(place, reward)
    events = np.bincount(place)
    mean = float(sums.sum() / events.sum())
    n = len(sums)
    if n < 2:
        return n, mean, math.inf
    error = math.sqrt(float(((sums - mean * events) ** 2).sum()) * n / (n - 1)) / float(events.sum())
    return n, mean, Z * error


def segments_of(rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> list[Segment]:
    """Return what was taken by the values of the strongest context features; ``rows`` have an entry ``is_control``."""
    strongest = sorted((column for column in columns if column[0] == CONTEXT and column[2] > 0), key=lambda c: -c[2])
    segments = (_segment(name, values, rows) for _, name, _, values in strongest)
    return [segment for segment in segments if segment is not None][:MOST_SEGMENTS]


def _segment(feature: str, values: list[Any], rows: Sequence[dict[str, Any]]) -> Segment | None:
    """Return the segments by one feature; None if there are not two values or more."""
    of_policy = [k for k, row in enumerate(rows) if not row["is_control"]]
    named = _value_names(values)
    by_value = defaultdict[str, list[int]](list)
    for k in of_policy:
        by_value[named[k]].append(k)
    frequent = sorted(by_value, key=lambda value: -len(by_value[value]))[:MOST_VALUES]
    if len(frequent) < 2:
        return None
    actions = [action for action, _ in Counter(rows[k]["action"] for k in of_policy).most_common(MOST_COLUMNS)]
    shown = [
        SegmentRow(value, len(by_value[value]), [_cell(action, by_value[value], rows) for action in actions])
        for value in sorted(frequent)
    ]
    return Segment(feature[:LONGEST_NAME], actions, shown)


def _cell(action: str, places: list[int], rows: Sequence[dict[str, Any]]) -> SegmentCell:
    rewards = [rows[k]["reward"] for k in places if rows[k]["action"] == action]
    mean = float(f"{sum(rewards) / len(rewards):.4g}") if rewards else None
    return SegmentCell(round(len(rewards) / len(places), 4), mean)


def _value_names(values: list[Any]) -> list[str]:
    """Return values as text: numbers in thirds where there are many different ones, missing ones as (none)."""
    numbers = [value for value in values if isinstance(value, float)]
    if len(set(numbers)) <= MOST_VALUES:
        return ["(none)" if value is None else _shown(value) for value in values]
    low, high = np.quantile(numbers, [1 / 3, 2 / 3])
    names = [f"1: up to {low:.3g}", f"2: {low:.3g} to {high:.3g}", f"3: above {high:.3g}"]

    def name(value: Any) -> str:
        if value is None:
            return "(none)"
        return names[int(value > low) + int(value > high)] if isinstance(value, float) else _shown(value)

    return [name(value) for value in values]


def _shown(value: Any) -> str:
    return (f"{value:g}" if isinstance(value, float) else str(value))[:LONGEST_NAME]

"""Drift: are recent rewards, and the errors of their predictions, unlike those before?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from bandits.evaluation.over_time import mean_change
from bandits.evaluation.table import number_users
from fedres.checks import Array
from service.plugins.reports.lift import Bounds

if TYPE_CHECKING:
    from service.plugins.reports.report import FinishedDecision

LEAST = 500  # events before the two parts are compared
LEAST_USERS = 20  # in either of them; an event without a user is one
RECENT = 0.2  # share of the events that counts as recent
ERRORS = 4.0  # half the width of intervals, in standard errors: somebody looks all day


class Change(msgspec.Struct):
    """A mean per event: earlier and recent."""

    earlier: float
    recent: float
    difference: Bounds  # recent − earlier, ± 4 standard errors: wide, as it is looked at often


class Drift(msgspec.Struct):
    """The newest fifth of the policy's finished events against those before."""

    earlier_events: int
    recent_events: int
    recent_since: float  # seconds since 1970
    reward: Change
    bias: Change  # reward less what was predicted for the action: near 0 while the model is right
    squared_error: Change  # of the prediction; it also changes with which actions are taken
    is_drifting: bool  # predictions of late are off, to a side, and further than before


def drift_of(events: Sequence[FinishedDecision]) -> Drift | None:
    """Return it for the policy's events with a reward, oldest decision first; None where there are too few."""
    if len(events) < LEAST:
        return None
    events = sorted(events, key=lambda event: event.time)
    reward = np.array([event.reward for event in events], float)
    error = reward - np.array([event.scores[event.chosen] for event in events], float)
    user = number_users(event.user for event in events)
    n_recent = int(RECENT * len(events))
    recent = np.arange(len(events)) >= len(events) - n_recent
    if min(np.unique(user[part]).size for part in (recent, ~recent)) < LEAST_USERS:
        return None
    bias = _change(error, recent, user)
    off = abs(bias.recent) - (bias.difference.high - bias.difference.low) / 2
    is_further = bias.difference.high < 0 if bias.recent < 0 else bias.difference.low > 0
    return Drift(
        len(events) - n_recent,
        n_recent,
        events[-n_recent].time / 1e6,
        _change(reward, recent, user),
        bias,
        _change(error**2, recent, user),
        bool(off > 0 and is_further),
    )


def _change(values: Array, recent: Array, user: Array) -> Change:
    earlier, later, error = mean_change(values, recent, user)
    difference, half = later - earlier, ERRORS * error
    return Change(earlier, later, Bounds(difference, difference - half, difference + half))

"""The summary of a loop for the first page of the dashboard: small, and computed without its features and policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from service.hints import about
from service.plugins.reports.lift import Bounds, LiftReport, alike
from service.plugins.reports.report import Alarm, FinishedDecision
from service.times import DAY, HOUR

N_POINTS = 24  # of a line
LEAST_JOINED = 20  # events of a point: fewer are joined with those before, or a line of few events is all spikes
NEWEST = 200  # decisions of the policy whose actions are counted
MOST_NAMED = 3  # actions
LONGEST_NAME = 80  # characters of an action
LONGEST_MESSAGE = 300  # characters of an alarm
KEPT_HOURS = 7 * 24
READABLE = 10.0  # a share of control beyond which the difference says more


class StandingAlarm(msgspec.Struct):
    """An alarm, and since when it stands."""

    code: Annotated[str, about("The kind of alarm, for programs.", "guardrail")]
    message: Annotated[str, about("What is wrong, for people.", "purchase fell by more than 0.5")]
    since: Annotated[float | None, about("When it was noticed first, in seconds since 1970.", 1793534400.0)] = None


class ActionShare(msgspec.Struct):
    """How often the policy took an action in its newest decisions."""

    action: Annotated[str, about("The action.")]
    share: Annotated[float, about("Share of the newest decisions of the policy.")]


class LiftSummary(msgspec.Struct):
    """The lift, and how much it rests on."""

    absolute: Annotated[Bounds | None, about("Treatment − control, per event; null without enough data.")]
    relative: Annotated[Bounds | None, about("The difference as a share of control; null if unknown.")]
    control_users: Annotated[int, about("Users of the control group.")]
    treatment_users: Annotated[int, about("All other users.")]
    missing: Annotated[
        str | None,
        about("The data that a result still needs; null if there is a result.", "control has 17 users, and needs 20"),
    ]
    more_users: Annotated[
        int | None, about("Additional users needed to halve the interval; null without a result.", 1200)
    ]
    in_words: Annotated[str, about("The gain with its interval, in words.")]
    is_frozen: Annotated[bool, about("Whether the experiment waits for the end of a hold.")]


class LoopSummary(msgspec.Struct):
    """What the first page shows of a loop, up to a position of its log."""

    position: int
    time: str  # of the last record
    decisions_day: int  # in the last 24 hours
    actions: list[ActionShare]  # the most frequent ones
    n_actions: int  # different ones in the newest decisions
    policy: list[float | None]  # mean rewards by time
    control: list[float | None]
    lift: LiftSummary | None
    held_since: str | None
    alarms: list[StandingAlarm]


class HourlyCounts:
    """How many decisions were made in each of the newest hours."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, time: int) -> None:
        """Count a decision at a time in microseconds."""
        hour = time // HOUR
        self._counts[hour] = self._counts.get(hour, 0) + 1
        if len(self._counts) > KEPT_HOURS:
            del self._counts[min(self._counts)]

    def of_day(self, now: int) -> int:
        """Return the decisions of the 24 hours before ``now``, by whole hours."""
        return sum(n for hour, n in self._counts.items() if now - DAY < (hour + 1) * HOUR)


def line(decisions: Sequence[FinishedDecision], low: int, high: int) -> list[float | None]:
    """Return mean rewards by time, between two times; None where a point has too few events of its own."""
    times = np.array([decision.time for decision in decisions], float)
    rewards = np.array([decision.reward for decision in decisions], float)
    place = np.minimum((times - low) * N_POINTS // max(high - low, 1), N_POINTS - 1).astype(int)
    events = np.bincount(place, minlength=N_POINTS)
    sums = np.bincount(place, rewards, N_POINTS)
    points: list[float | None] = [None] * N_POINTS
    first = 0
    for k in range(N_POINTS):
        n = int(events[first : k + 1].sum())
        if n >= LEAST_JOINED:
            points[k] = float(f"{sums[first : k + 1].sum() / n:.4g}")
            first = k + 1
    return points


def actions_of(decisions: Sequence[FinishedDecision]) -> tuple[list[ActionShare], int]:
    """Return the most frequent actions of the newest decisions, and how many different ones there are."""
    newest = decisions[-NEWEST:]
    counts = Counter(decision.action for decision in newest)
    frequent = counts.most_common(MOST_NAMED)
    return [ActionShare(action[:LONGEST_NAME], round(n / len(newest), 3)) for action, n in frequent], len(counts)


def lift_summary(lift: LiftReport | None) -> LiftSummary | None:
    if lift is None:
        return None
    return LiftSummary(
        lift.absolute,
        lift.relative,
        lift.control.users,
        lift.treatment.users,
        lift.missing,
        lift.more_users,
        gain_in_words(lift.absolute, lift.relative),
        lift.held is not None,
    )


def gain_in_words(absolute: Bounds | None, relative: Bounds | None) -> str:
    """Return a lift with its interval: as a share of control, or as a difference while control may be near 0."""
    if relative is not None and relative.high < READABLE:
        value, low, high = (f"{100 * bound:+.0f}%" for bound in (relative.value, relative.low, relative.high))
    elif absolute is not None:
        value, low, high = alike(absolute.value, absolute.low, absolute.high)
    else:
        return "too early"
    return f"{value} ({low} to {high})".replace("-", "−")


def standing(alarms: Sequence[Alarm]) -> list[StandingAlarm]:
    return [StandingAlarm(alarm.code, alarm.message[:LONGEST_MESSAGE]) for alarm in alarms]

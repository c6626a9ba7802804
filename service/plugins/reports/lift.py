"""The lift of a loop: treatment against control."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np

from bandits.evaluation.intervals import Interval
from bandits.evaluation.lift import Arm, Lift, lift, sample_ratio_is_wrong
from service.hints import about
from service.settings import Control
from service.times import iso_time


class Bounds(msgspec.Struct):
    """An estimate with its 95% interval."""

    value: Annotated[float, about("The estimate.")]
    low: Annotated[float, about("Lower end of the 95% interval.")]
    high: Annotated[float, about("Upper end of the 95% interval.")]


class ArmReport(msgspec.Struct):
    """The users of an arm of the experiment, and their rewards."""

    users: Annotated[int, about("Users in the arm.")]
    events: Annotated[int, about("Events with a final reward, the default reward included.")]
    reward: Annotated[float | None, about("Mean reward per event; null without events.")]


class OutcomeLift(msgspec.Struct):
    """Treatment against control for a named outcome, by its sum per event."""

    outcome: Annotated[str, about("Name of the outcome.")]
    control: Annotated[float | None, about("Mean per event in the control group; null without events.")]
    treatment: Annotated[float | None, about("Mean per event in the treatment; null without events.")]
    absolute: Annotated[
        Bounds | None, about("Treatment − control; null below 20 users in each arm or 20 events with the outcome.")
    ]
    relative: Annotated[Bounds | None, about("The difference as a share of control; null if unknown.")]


class LiftReport(msgspec.Struct):
    """Treatment against control, since the experiment began."""

    experiment: Annotated[str, about("Name of the experiment.")]
    began: Annotated[str, about("When it began, as ISO 8601.")]
    share: Annotated[float, about("Share of the users in the control group.")]
    baseline: Annotated[str, about("The rule of the control group: first or uniform.")]
    control: Annotated[ArmReport, about("The control group.")]
    treatment: Annotated[ArmReport, about("All other users.")]
    absolute: Annotated[Bounds | None, about("Treatment − control, per event; null without enough data.")]
    relative: Annotated[Bounds | None, about("The difference as a share of control; null without enough data.")]
    sentence: Annotated[str, about("The result in words.")]
    missing: Annotated[
        str | None,
        about("The data that a result still needs; null if there is a result.", "control has 17 users, and needs 20"),
    ]
    sample_ratio_is_wrong: Annotated[
        bool, about("Whether users were not split as the share requires; then no figure here can be trusted.")
    ]
    variance_left: Annotated[float, about("Share of the variance that users' earlier rewards do not explain.")]
    more_users: Annotated[
        int | None, about("Additional users needed to halve the absolute interval; null without a result.")
    ]
    outcomes: Annotated[list[OutcomeLift], about("The same for each named outcome.")]
    events_since: Annotated[
        str | None,
        about("Time from which on the log still has events; null if none were removed.", "2026-11-01T00:00:00+00:00"),
    ] = None


class UserSums:
    """Rewards (or sums of an outcome) and events of each user; the number of events with a non-default value."""

    def __init__(self) -> None:
        self.users: dict[str, list[float]] = {}
        self.n_rewarded = 0

    def add(self, user: str, reward: float, events: float = 1) -> None:
        sums = self.users.setdefault(user, [0.0, 0.0])
        sums[0] += reward
        sums[1] += events

    def arm(self, before: UserSums) -> Arm:
        """Return them as an arm, with the earlier rewards of the same users."""
        numbers = np.array([*self.users.values()], float).reshape(-1, 2)
        earlier = np.array([before.users.get(user, (np.nan, 1.0)) for user in self.users], float).reshape(-1, 2)
        return Arm(numbers[:, 0], numbers[:, 1], self.n_rewarded, earlier[:, 0] / earlier[:, 1])


class Experiment:
    """The running sums of an experiment; any change of ``control`` begins a new one."""

    def __init__(self) -> None:
        self.control, self.position, self.began = Control(), 0, 0
        # by outcome, "" is the reward; and whether it is control
        self.arms = defaultdict[tuple[str, bool], UserSums](UserSums)
        self.before = defaultdict[str, UserSums](UserSums)

    @property
    def n_users(self) -> int:
        """Users in all sums, each as often as it is in one."""
        return sum(len(sums.users) for sums in (*self.arms.values(), *self.before.values()))

    def take_settings(self, control: Control, position: int, time: int) -> None:
        if control == self.control and self.position:
            return
        self.control, self.position, self.began = control, position, time
        for (name, _), sums in self.arms.items():
            for user, numbers in sums.users.items():
                self.before[name].add(user, *numbers)
        self.arms.clear()

    def add(self, user: str, values: Mapping[str, float], default: float | None, settings: int, control: bool) -> None:
        """Count an event that was decided under the settings at a position: its outcomes by name, its reward as ""."""
        for name, value in values.items():
            sums = self.arms[name, control] if settings >= self.position else self.before[name]
            sums.add(user, value)
            sums.n_rewarded += value != (0.0 if name else default)

    def report(self) -> LiftReport:
        """Return the lift report."""
        control, treatment = (self.arms["", is_control].arm(self.before[""]) for is_control in (True, False))
        measured = lift(control, treatment)
        half = None if measured.absolute is None else (measured.absolute.high - measured.absolute.low) / 4
        share = self.control.share
        is_wrong = sample_ratio_is_wrong(control.n_users, treatment.n_users, share) if share else False
        return LiftReport(
            experiment=self.control.experiment,
            began=iso_time(self.began),
            share=share,
            baseline=self.control.baseline,
            control=_arm_report(control, measured.control),
            treatment=_arm_report(treatment, measured.treatment),
            absolute=_bounds_of(measured.absolute),
            relative=_bounds_of(measured.relative),
            sentence=sentence(measured),
            missing=measured.missing,
            sample_ratio_is_wrong=is_wrong and not self.control.hold,
            variance_left=measured.variance_left,
            more_users=None if half is None else measured.more_users(half),
            outcomes=[self._outcome(name) for name, is_control in [*self.arms] if name and not is_control],
        )

    def _outcome(self, name: str) -> OutcomeLift:
        control, treatment = (self.arms[name, is_control].arm(self.before[name]) for is_control in (True, False))
        n_had = control.n_rewarded + treatment.n_rewarded  # one arm may have hardly any, which is what is to be seen
        measured = lift(replace(control, n_rewarded=n_had), replace(treatment, n_rewarded=n_had))
        means = _arm_report(control, measured.control).reward, _arm_report(treatment, measured.treatment).reward
        return OutcomeLift(name, means[0], means[1], _bounds_of(measured.absolute), _bounds_of(measured.relative))


def sentence(measured: Lift) -> str:
    """Return the lift as a sentence."""
    if measured.absolute is None:
        return f"Not enough data yet: {measured.missing}."
    value, low, high = measured.absolute
    verdict = "earns more than" if low > 0 else "earns less than" if high < 0 else "cannot be told apart yet from"
    each, least, most = _alike(value, low, high)
    text = f"The policy {verdict} its control group: {each} per event, 95% interval {least} to {most}"
    if measured.relative is not None:
        share, least, most = _alike(*(100 * bound for bound in measured.relative))
        text += f"; {share}% ({least}% to {most}%)"
    return f"{text}. The interval is valid at any time."


def _alike(value: float, low: float, high: float) -> list[str]:
    """Return an estimate and its bounds with the decimals that the width deserves, as the dashboard does."""
    width = high - low
    places = max(0, 1 - math.floor(math.log10(width))) if 0 < width < math.inf else 4
    return [f"{number:+,.{places}f}" for number in (value, low, high)]


def _arm_report(arm: Arm, mean: float) -> ArmReport:
    return ArmReport(arm.n_users, arm.n_events, mean if arm.n_events else None)


def bounds(value: float, low: float, high: float) -> Bounds | None:
    """Return an estimate, None where one of its numbers is not finite: JSON has no others."""
    return Bounds(value, low, high) if math.isfinite(value + low + high) else None


def _bounds_of(interval: Interval | None) -> Bounds | None:
    return None if interval is None else bounds(*interval)

"""The lift of a loop: treatment against control."""

from __future__ import annotations

import math
from collections import defaultdict, deque
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

MOST_PAST = 20  # earlier experiments that are listed


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


class HeldPeriod(msgspec.Struct):
    """A hold that goes on: the baseline decides for everybody."""

    since: Annotated[str, about("When it began, as ISO 8601.", "2026-11-01T00:00:00+00:00")]
    reason: Annotated[str, about("Why the loop is held.", "wrong prices")]


class LiftReport(msgspec.Struct):
    """Treatment against control, from the beginning of the experiment on; what was decided during holds is left out."""

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
    held: Annotated[HeldPeriod | None, about("The hold that goes on; null if the policy decides.")] = None
    paused_seconds: Annotated[float, about("Seconds of earlier holds of this experiment, all together.")] = 0.0
    ended: Annotated[
        str | None,
        about(
            "When it ended, as ISO 8601; null if it goes on. Events that were pending then are left out.",
            "2026-11-01T00:00:00+00:00",
        ),
    ] = None


class Experiments(msgspec.Struct):
    """The experiments of a loop, the newest first."""

    experiments: Annotated[list[LiftReport], about("Each with its result; a running one is the first.")]


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
    """The running sums of an experiment. A hold pauses it; any other change of ``control`` begins a new one."""

    def __init__(self) -> None:
        self.control = Control()
        self.position = 0  # of the settings that began it
        self.began = 0  # microseconds
        self.held_since = 0  # microseconds; 0 if the policy decides
        self.resumed = 0  # position of the settings that ended the last hold; 0 without one
        self.past: deque[LiftReport] = deque(maxlen=MOST_PAST)
        self._paused = 0  # microseconds of earlier holds
        # by outcome, "" is the reward; and whether it is control
        self.arms = defaultdict[tuple[str, bool], UserSums](UserSums)
        self.before = defaultdict[str, UserSums](UserSums)
        # the same since the last hold ended: a guardrail judges these, or it would break again at once
        self.resumed_arms = defaultdict[tuple[str, bool], UserSums](UserSums)

    @property
    def n_users(self) -> int:
        """Users in all sums, each as often as it is in one."""
        all_sums = (*self.arms.values(), *self.before.values(), *self.resumed_arms.values())
        return sum(len(sums.users) for sums in all_sums)

    def take_settings(self, control: Control, position: int, time: int) -> None:
        """Take the settings from a position on: they begin, pause or continue the experiment, or leave it alone."""
        goes_on = self.position and without_hold(control) == without_hold(self.control)
        if not goes_on:
            self._begin(position, time)
        if control.hold and not self.held_since:
            self.held_since = time
        elif self.held_since and not control.hold:
            self._paused += time - max(self.held_since, self.began) if goes_on else 0
            self.held_since = 0
            self.resumed = position
            self.resumed_arms.clear()
        self.control = control

    def _begin(self, position: int, time: int) -> None:
        """Begin a new experiment: users' rewards so far are those from before it."""
        if self.control.share and any(sums.users for sums in self.arms.values()):
            self.past.append(self.report(iso_time(time)))
        for (name, _), sums in self.arms.items():
            for user, numbers in sums.users.items():
                self.before[name].add(user, *numbers)
        self.arms.clear()
        self.resumed_arms.clear()
        self.position = position
        self.began = time
        self.resumed = 0
        self._paused = 0

    def add(self, user: str, values: Mapping[str, float], default: float | None, settings: int, control: bool) -> None:
        """Count an event that was decided under the settings at a position: its outcomes by name, its reward as "".

        Events that were decided during a hold must not come here.
        """
        for name, value in values.items():
            is_rewarded = value != (0.0 if name else default)
            sums = self.arms[name, control] if settings >= self.position else self.before[name]
            sums.add(user, value)
            sums.n_rewarded += is_rewarded
            if name and self.resumed and settings >= self.resumed:
                resumed = self.resumed_arms[name, control]
                resumed.add(user, value)
                resumed.n_rewarded += is_rewarded

    def report(self, ended: str | None = None) -> LiftReport:
        """Return the lift report; ``ended`` is when the experiment ended, None if it goes on."""
        control = self.arms["", True].arm(self.before[""])
        treatment = self.arms["", False].arm(self.before[""])
        measured = lift(control, treatment)
        half = None if measured.absolute is None else (measured.absolute.high - measured.absolute.low) / 4
        share = self.control.share
        held = self._held() if ended is None else None
        return LiftReport(
            experiment=self.control.experiment,
            began=iso_time(self.began),
            share=share,
            baseline=self.control.baseline,
            control=_arm_report(control, measured.control),
            treatment=_arm_report(treatment, measured.treatment),
            absolute=_bounds_of(measured.absolute),
            relative=_bounds_of(measured.relative),
            sentence=sentence(measured) + ("" if held is None else f" {_held_sentence(held)}"),
            missing=measured.missing,
            sample_ratio_is_wrong=bool(share) and sample_ratio_is_wrong(control.n_users, treatment.n_users, share),
            variance_left=measured.variance_left,
            more_users=None if half is None else measured.more_users(half),
            outcomes=_outcomes(self.arms, self.before),
            held=held,
            paused_seconds=self._paused / 1e6,
            ended=ended,
        )

    def guarded(self) -> list[OutcomeLift]:
        """Return the outcomes that guardrails judge: those since the last hold, else of the whole experiment."""
        return _outcomes(self.resumed_arms if self.resumed else self.arms, self.before)

    def _held(self) -> HeldPeriod | None:
        return HeldPeriod(iso_time(self.held_since), str(self.control.hold)) if self.held_since else None


def without_hold(control: Control) -> Control:
    """Return a control group without its hold."""
    return msgspec.structs.replace(control, hold=None)


def _held_sentence(held: HeldPeriod) -> str:
    return f"Held since {held.since}: the baseline decides for everybody, and these figures wait until it is resumed."


def _outcomes(arms: defaultdict[tuple[str, bool], UserSums], before: defaultdict[str, UserSums]) -> list[OutcomeLift]:
    """Return the lift of each named outcome."""
    return [
        _outcome(name, arms[name, True].arm(before[name]), arms[name, False].arm(before[name]))
        for name in sorted({name for name, _ in arms if name})
    ]


def _outcome(name: str, control: Arm, treatment: Arm) -> OutcomeLift:
    n_had = control.n_rewarded + treatment.n_rewarded  # one arm may have hardly any, which is what is to be seen
    measured = lift(replace(control, n_rewarded=n_had), replace(treatment, n_rewarded=n_had))
    return OutcomeLift(
        name,
        _arm_report(control, measured.control).reward,
        _arm_report(treatment, measured.treatment).reward,
        _bounds_of(measured.absolute),
        _bounds_of(measured.relative),
    )


def sentence(measured: Lift) -> str:
    """Return the lift as a sentence."""
    if measured.absolute is None:
        return f"Not enough data yet: {measured.missing}."
    value, low, high = measured.absolute
    verdict = "earns more than" if low > 0 else "earns less than" if high < 0 else "cannot be told apart yet from"
    each, least, most = alike(value, low, high)
    text = f"The policy {verdict} its control group: {each} per event, 95% interval {least} to {most}"
    if measured.relative is not None:
        share, least, most = alike(*(100 * bound for bound in measured.relative))
        text += f"; {share}% ({least}% to {most}%)"
    return f"{text}. The interval is valid at any time."


def alike(value: float, low: float, high: float) -> list[str]:
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

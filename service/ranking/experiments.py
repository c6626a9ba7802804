"""What a loop's control group shows: treatment against control, from the log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from service.learn.join import Decided, Join, Rules, Settled
from service.learn.loop_state import read_settings_body, rules_of
from service.log.protocol import Log
from service.log.records import ACTIVATE, LOOP, RANK, REWARD, SETTINGS, Entry, Example, read_decision, read_reward
from service.settings import Settings

if TYPE_CHECKING:  # SciPy is loaded by the first report: a ranker starts without it
    from bandits.evaluation.intervals import Interval
    from bandits.evaluation.lift import Arm, Lift

CHUNK = 5_000  # records read at once
_NO_FEATURES = Example(b"", b"", 0)

Sums = dict[str, list[float]]  # by user: rewards, events


class Bounds(msgspec.Struct):
    """An estimate with its 95% interval."""

    value: float
    low: float
    high: float


class ArmReport(msgspec.Struct):
    users: int
    events: int  # with a final reward, the default included
    reward: float | None  # mean per event


class LiftReport(msgspec.Struct):
    """Treatment against control, since the experiment began."""

    experiment: str
    began: str
    share: float
    baseline: str
    control: ArmReport
    treatment: ArmReport
    absolute: Bounds | None  # treatment − control; null where there is not enough data
    relative: Bounds | None  # as a share of control
    sentence: str  # the same in words
    missing: str | None  # what there is not enough of
    sample_ratio_is_wrong: bool  # users were not split as the share says: distrust all of this
    variance_left: float  # share of the variance that users' earlier rewards do not explain
    more_users: int | None  # until the absolute interval is half as wide


class _Reader:
    """Sums the rewards of each user, in front of the experiment and in each of its arms."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._join, self._rules = Join(), dict[int, Rules]()
        self._newest = Rules(0, None)
        self._defaults = dict[int, float | None]()
        self.before: Sums = {}
        self.control: Sums = {}
        self.treatment: Sums = {}
        self.n_rewarded = [0, 0]  # events of control and of treatment with another reward than the default

    def take(self, entry: Entry) -> None:
        for settled in self._join.expire(entry.time):
            self._count(settled)
        if entry.kind in (LOOP, SETTINGS):
            settings = read_settings_body(entry.body)
            self._newest = self._rules[entry.position] = rules_of(settings)
            self._defaults[entry.position] = settings.default_reward
        found = self._joined(entry)
        if found is not None:
            self._count(found)

    def finish(self, now: int) -> None:
        for settled in self._join.expire(now):
            self._count(settled)

    def _joined(self, entry: Entry) -> Settled | None:
        event, position, time, join = entry.event, entry.position, entry.time, self._join
        if event is None or entry.kind not in (RANK, REWARD, ACTIVATE):
            return None
        if entry.kind == ACTIVATE:
            return join.activate(event, position, time, self._newest)
        assert entry.example is not None
        if entry.kind == REWARD:
            return join.reward(event, position, time, *read_reward(entry.example), self._newest)
        decision = read_decision(entry.example)
        if decision.agreed is not None:  # an apprentice's
            return None
        user = f"event {event}" if entry.user is None else f"user {entry.user}"
        decided = Decided(user, _NO_FEATURES, decision.settings, 0.0, decision.control)
        return join.rank(event, position, time, self._rules[decision.settings], decided, decision.deferred)

    def _count(self, settled: Settled) -> None:
        decided, reward = settled.decided, settled.reward
        if reward is None or decided.user is None:
            return
        sums = self.before
        if decided.settings >= self._begin:
            sums = self.control if decided.control else self.treatment
            self.n_rewarded[not decided.control] += reward != self._defaults[decided.settings]
        mine = sums.setdefault(decided.user, [0.0, 0.0])
        mine[0] += reward
        mine[1] += 1

    def arm(self, sums: Sums, n_rewarded: int) -> Arm:
        from bandits.evaluation.lift import Arm

        numbers = np.array([*sums.values()], float).reshape(-1, 2)
        before = np.array([_mean(self.before.get(user)) for user in sums], float)
        return Arm(numbers[:, 0], numbers[:, 1], n_rewarded, before)


def report(log: Log, loop: str, since: int, begin: int, settings: Settings) -> LiftReport:
    """Return what the experiment shows that began at position ``begin``, in a loop made at ``since``."""
    from bandits.evaluation.lift import lift, sample_ratio_is_wrong

    reader, began = _Reader(begin), 0
    for entry in _entries(log, loop, since - 1):
        reader.take(entry)
        if entry.position == begin:
            began = entry.time
    reader.finish(log.heads()[loop].time)
    arms = reader.arm(reader.control, reader.n_rewarded[0]), reader.arm(reader.treatment, reader.n_rewarded[1])
    found, control = lift(*arms), settings.control
    half = None if found.absolute is None else (found.absolute.high - found.absolute.low) / 4
    return LiftReport(
        experiment=control.experiment,
        began=datetime.fromtimestamp(began / 1e6, UTC).isoformat(timespec="seconds"),
        share=control.share,
        baseline=control.baseline,
        control=_arm_report(arms[0], found.control),
        treatment=_arm_report(arms[1], found.treatment),
        absolute=_bounds(found.absolute),
        relative=_bounds(found.relative),
        sentence=sentence(found),
        missing=found.missing,
        sample_ratio_is_wrong=sample_ratio_is_wrong(arms[0].n_users, arms[1].n_users, control.share),
        variance_left=found.variance_left,
        more_users=None if half is None else found.more_users(half),
    )


def sentence(found: Lift) -> str:
    """Return the lift in words."""
    if found.absolute is None:
        return f"Not enough data yet: {found.missing}."
    value, low, high = found.absolute
    verdict = "earns more than" if low > 0 else "earns less than" if high < 0 else "cannot be told apart yet from"
    text = f"The policy {verdict} its control group: {value:+.4g} per event, 95% interval {low:+.4g} to {high:+.4g}"
    if found.relative is not None:
        share, least, most = (f"{100 * bound:+.3g}%" for bound in found.relative)
        text += f"; {share} ({least} to {most})"
    return f"{text}. It may be looked at at any time."


def _entries(log: Log, loop: str, after: int) -> Iterator[Entry]:
    while entries := log.read(loop, after, CHUNK, bodies=False):
        yield from entries
        after = entries[-1].position


def _mean(sums: list[float] | None) -> float:
    return float("nan") if sums is None else sums[0] / sums[1]


def _arm_report(arm: Arm, mean: float) -> ArmReport:
    return ArmReport(arm.n_users, arm.n_events, mean if arm.n_events else None)


def _bounds(interval: Interval | None) -> Bounds | None:
    return None if interval is None else Bounds(*interval)

"""Figures of a loop from one pass over its log, which goes on where it stopped when it is asked again.

``LoopFigures`` takes records in order and keeps sums and the newest finished events; ``report`` says what they show.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fedres.checks import Array
from service.admin.exporting import NO_FEATURES, settle, time_or_none
from service.learn.join import Join, Rules, Settled
from service.learn.loop_state import read_settings_body, rules_of
from service.log.direct import is_pruned
from service.log.protocol import Head, Log
from service.log.records import (
    ACTIONS,
    ACTIVATE,
    ERASED,
    JOIN,
    LOOP,
    RANK,
    RESIDUAL,
    SETTINGS,
    UPDATE,
    Entry,
    LoggedRank,
    decode_actions,
    decode_erased,
    decode_rank,
    read_decision,
)
from service.outcomes import Guardrail
from service.plugins.reports.device_figures import DeviceList, DeviceLog
from service.plugins.reports.drift import Drift, drift_of
from service.plugins.reports.experiments import Experiment, LiftReport, OutcomeLift
from service.plugins.reports.feature_figures import FeatureSamples
from service.plugins.reports.loop_report import LoopReport
from service.plugins.reports.series import (
    Alarm,
    Delays,
    Finished,
    Funnel,
    Line,
    Taken,
    buckets,
    line_of,
    numbered,
    traffic_of,
    uniform_line,
    values_of,
)
from service.plugins.reports.what_if import WhatIf, candidates, what_if
from service.settings import Settings

if TYPE_CHECKING:
    from service.log.workers import Worker

CHUNK = 2_000  # records read at once
MOST = 50_000  # finished events that a report looks at one by one, the newest
MOST_KEPT = 1_000_000  # events of all loops together, some 1 KB each
DELAYS = (0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10_800, 43_200, 86_400, 604_800)  # seconds
COLLAPSED, WATCHED = 0.95, 200  # alarm: this share of so many of the newest decisions took one action
LOST = 0.05  # alarm: share of rewards that are late or have no event


class LoopFigures:
    """One loop, as far as it was read. ``head`` is where its log ended at the beginning."""

    def __init__(self, created_at: int, head: Head) -> None:
        self.created_at, self.position, self.time = created_at, created_at - 1, 0
        self.removed, self.erased = head.removed, 0  # records that went, and where the last erasure or pruning was
        self.pruned_before = 0  # older events are not in the log any more; microseconds since 1970
        self.experiment = Experiment()
        self.funnel, self.delays = Funnel(), [0] * (len(DELAYS) + 1)
        self.finished: deque[Finished] = deque(maxlen=MOST)
        self._pending: dict[str, tuple[Finished, LoggedRank]] = {}
        self._samples, self._devices, self._n_learned = FeatureSamples(), DeviceLog(), 0
        self._catalogue: dict[str, msgspec.Raw] = {}
        self._apprentice: set[str] = set()
        self._join, self._settings, self._newest = Join(), dict[int, Settings](), 0

    def read(self, log: Log, loop: str, last: int) -> None:
        """Read what is new."""
        while entries := log.read(loop, self.position, CHUNK, bodies=self.position > last - 3 * MOST):
            for entry in entries:
                self.take(entry)

    def take(self, entry: Entry) -> None:
        """Take the next record."""
        self.position, self.time = entry.position, entry.time
        if entry.kind in (LOOP, SETTINGS):
            settings = self._settings[entry.position] = read_settings_body(entry.body)
            self._newest = entry.position
            self.experiment.take_settings(settings.control, entry.position, entry.time)
        elif entry.kind == ERASED:
            self.erased, self.pruned_before = entry.position, decode_erased(entry.body).before or self.pruned_before
        elif entry.kind == ACTIONS:
            self._catalogue.update({action.id: action.features for action in decode_actions(entry.body).put})
        elif entry.kind == RANK:
            self._rank(entry)
        elif entry.kind in (RESIDUAL, UPDATE, JOIN):
            self._devices.take(entry)
            self._n_learned += entry.kind != JOIN
        was_activated = entry.kind == ACTIVATE and self._is_activated(entry.event)
        for settled in settle(self._join, entry, self._rules, self._newest):
            self._settle(settled)
        if entry.kind in (RANK, ACTIVATE):
            self.funnel.activated += self._is_activated(entry.event) and not was_activated
        late, unmatched = self._join.take_counts()
        self.funnel.late += late
        self.funnel.unmatched += unmatched

    def _rules(self, position: int) -> Rules:
        return rules_of(self._settings.get(position) or self._settings[self._newest])

    def _is_activated(self, event: str | None) -> bool:
        found = self._join.events.get(event or "")
        return found is not None and found.rules is not None and found.status != "deferred"

    def _rank(self, entry: Entry) -> None:
        assert entry.event is not None
        assert entry.example is not None
        self.funnel.ranked += 1
        decision = read_decision(entry.example)
        if decision.agreed is not None:
            self._apprentice.add(entry.event)
        if not entry.body:
            return
        body = decode_rank(entry.body)
        excluded = set(body.exclude)
        allowed = [k for k, action in enumerate(body.actions) if action.id not in excluded]
        decided = Finished(
            entry.event,
            entry.time,
            entry.user,
            decision.control,
            tuple([body.actions[k].id for k in allowed]),
            allowed.index(body.action),
            tuple([body.probabilities[k] for k in allowed]),
            tuple([body.scores[k] for k in allowed]),
            decision.settings,
            self._n_learned,
        )
        self._pending[entry.event] = decided, body

    def _settle(self, settled: Settled) -> None:
        event, decided, reward, delay, outcomes = settled
        if delay is None:
            self.funnel.expired += 1
        else:
            self.funnel.rewarded += 1
            self.delays[bisect_left(DELAYS, delay / 1e6)] += 1
        settings = self._settings.get(decided.settings) or self._settings[self._newest]
        self._n_learned += reward is not None and (not decided.control or settings.control.learns)
        pending = self._pending.pop(event, None)
        if pending is not None:
            finished, body = pending[0]._replace(reward=reward), pending[1]
            self.finished.append(finished)
            if reward is not None:
                self._samples.add(finished, body)
        if event in self._apprentice:
            self._apprentice.remove(event)
        elif reward is not None:
            user = f"event {event}" if decided.user is None else f"user {decided.user}"
            values = {"": reward, **dict.fromkeys(settings.outcomes, 0.0), **outcomes}
            self.experiment.add(user, values, settings.default_reward, decided.settings, decided.control)

    @property
    def n_kept(self) -> int:
        """How many events it remembers one by one."""
        return len(self.finished) + len(self._pending)

    def events_of(self, user: str, most: int) -> list[str]:
        """Return a user's newest events, the newest first."""
        newest = (one for one, _ in reversed(self._pending.values()) if one.user == user)
        finished = (one for one in reversed(self.finished) if one.user == user)
        found = sorted([*islice(newest, most), *islice(finished, most)], key=lambda one: -one.time)
        return [one.event_id for one in found[:most]]

    def newest_taken(self, most: int) -> list[Taken]:
        """Return what the newest finished decisions of different users took."""
        found: dict[str, Taken] = {}
        for one, body in reversed(self._samples.newest):
            if len(found) == most:
                break
            if one.user is not None and one.user not in found:
                action = body.actions[body.action]
                features = action.features or self._catalogue.get(action.id, NO_FEATURES)
                found[one.user] = Taken(one.user, body.context, action.id, features)
        return [*found.values()]

    def what_if(self, wanted: Sequence[dict[str, Any]]) -> WhatIf:
        """Return what other settings of exploration would have earned."""
        now = self._settings[self._newest]
        settings = {**dict.fromkeys({one.settings for one in self.finished}, now), **self._settings}
        known = [one for one in self.finished if one.reward is not None and _is_known(one)]
        return what_if(known, settings, now, wanted or candidates(now))

    def device_list(self) -> DeviceList:
        return self._devices.newest()

    def report(self) -> LoopReport:
        """Return what the log shows."""
        rewarded = [one for one in self.finished if one.reward is not None]
        ends, bucket = buckets(rewarded)
        reward = np.array([one.reward for one in rewarded], float)
        user = numbered([one.user or f"\0{one.event_id}" for one in rewarded])
        control = np.array([one.control for one in rewarded], bool)
        known = np.array([_is_known(one) for one in rewarded], bool)
        drift = drift_of([one for one in rewarded if not one.control])
        weight = np.array([1 / (len(one.actions) * one.probabilities[one.chosen]) for one in rewarded], float)

        def line(mask: Array, weights: Array) -> Line:
            return line_of(bucket[mask], reward[mask], weights[mask], user[mask], len(ends))

        own = np.ones(len(rewarded))
        waiting = {**msgspec.structs.asdict(self.funnel), "waiting": self._join.n_waiting}
        shows = self.lift() if self.experiment.control.share else None
        return LoopReport(
            position=self.position,
            time=datetime.fromtimestamp(self.time / 1e6, UTC).isoformat(timespec="seconds"),
            events=len(rewarded),
            bucket_ends=[end / 1e6 for end in ends],
            policy=line(~control, own),
            control=line(control, own),
            uniform=uniform_line(bucket[known], reward[known], weight[known], user[known], len(ends)),
            traffic=traffic_of([one for one in rewarded if not one.control], bucket[~control], len(ends)),
            funnel=Funnel(**waiting),
            delays=Delays(DELAYS, self.delays),
            features=self._samples.features(self._catalogue),
            drift=drift,
            devices=self._devices.summary(self.time),
            lift=shows,
            values=values_of(
                [one for one, good in zip(rewarded, known, strict=True) if good],
                self._settings[self._newest].reward_range,
            ),
            alarms=self._alarms(rewarded, shows, drift),
            events_since=time_or_none(self.pruned_before),
        )

    def lift(self) -> LiftReport:
        """Return what the control group shows, of the events that the log has."""
        return msgspec.structs.replace(self.experiment.report(), events_since=time_or_none(self.pruned_before))

    def _alarms(self, rewarded: Sequence[Finished], shows: LiftReport | None, drift: Drift | None) -> list[Alarm]:
        alarms, held = [], self.experiment.control.hold
        if held:
            alarms.append(Alarm("held", f"The baseline decides for everybody: {held}"))
        elif shows is not None and shows.sample_ratio_is_wrong:
            alarms.append(Alarm("sample_ratio", "Users are not split as control.share says: do not trust the lift."))
        for guardrail in self._settings[self._newest].guardrails:
            alarms += _guarded(guardrail, [] if shows is None or held else shows.outcomes)
        newest = [one for one in rewarded[-2 * WATCHED :] if not one.control and len(one.actions) > 1][-WATCHED:]
        if len(newest) == WATCHED:
            [(action, n)] = Counter(one.actions[one.chosen] for one in newest).most_common(1)
            if n >= COLLAPSED * WATCHED:
                message = f"{n} of the newest {WATCHED} decisions took the action {action!r}."
                alarms.append(Alarm("collapsed", f"{message} The policy may have stopped exploring."))
        if drift is not None and drift.is_drifting:
            since = datetime.fromtimestamp(drift.recent_since, UTC).isoformat(timespec="seconds")
            off = f"{drift.bias.recent:+.3g} of late, {drift.bias.earlier:+.3g} before"
            alarms.append(Alarm("drift", f"Rewards since {since} are not what was predicted: {off}, per event."))
        arrived = self.funnel.rewarded + self.funnel.late + self.funnel.unmatched
        for code, n in (("late_rewards", self.funnel.late), ("unmatched_rewards", self.funnel.unmatched)):
            if n > LOST * arrived:
                why = "came after the wait time" if code == "late_rewards" else "had no event"
                alarms.append(Alarm(code, f"{n} of {arrived} rewards {why} and do not count."))
        return alarms


def _is_known(one: Finished) -> bool:
    """Return whether the policy decided, and every action had a chance."""
    return not one.control and min(one.probabilities) > 0


def _guarded(guardrail: Guardrail, outcomes: Sequence[OutcomeLift]) -> Iterator[Alarm]:
    """Yield an alarm where an outcome surely did what it must not."""
    revert = guardrail.revert
    for one in outcomes:
        if one.outcome == guardrail.outcome and one.absolute is not None:
            change = f"{one.absolute.low:+.3g} to {one.absolute.high:+.3g} per event against the control group"
            if guardrail.rise is not None and one.absolute.low > guardrail.rise:
                yield Alarm("guardrail", f"{one.outcome} rose by more than {guardrail.rise:g}: {change}.", revert)
            if guardrail.fall is not None and one.absolute.high < -guardrail.fall:
                yield Alarm("guardrail", f"{one.outcome} fell by more than {guardrail.fall:g}: {change}.", revert)


class Question(msgspec.Struct):
    """What is asked about a loop that was made at position ``since``: a key of ``_ANSWERS``."""

    what: str
    loop: str
    created_at: int
    user: str = ""
    most: int = 20
    settings: list[dict[str, Any]] = []  # changes, for what-if


def answer(worker: Worker, question: Question) -> bytes:
    """Return the answer as JSON."""
    return msgspec.json.encode(worker.kept(Reporter, worker.rest).answer(worker.log, question))


def _is_outdated(known: LoopFigures, log: Log, loop: str, head: Head) -> bool:
    """Return whether records that were read are gone; while old events are being removed, that can wait."""
    if known.removed == head.removed:
        return False
    erased = log.of_kind(loop, ERASED)
    if not erased or erased[-1].position > known.erased:
        return True
    body = decode_erased(erased[-1].body)
    return not body.cut or is_pruned(log, loop, body.begun)


class Reporter:
    """Answers questions, and remembers what it read for the next one.

    A report is made anew once something was logged, but not before ``rest`` times as long as the last one took.
    """

    def __init__(self, rest: float = 0.0) -> None:
        self._loops: dict[str, LoopFigures] = {}
        self._reports: dict[str, tuple[LoopReport, float]] = {}  # and until when it is good enough
        self._rest = rest

    def answer(self, log: Log, question: Question) -> Any:
        """Return what the log says now."""
        loop, head = question.loop, log.heads()[question.loop]
        known = self._loops.get(loop)
        if known is None or known.created_at != question.created_at or _is_outdated(known, log, loop, head):
            known = self._loops[loop] = LoopFigures(question.created_at, head)
            self._reports.pop(loop, None)
        self._loops[loop] = self._loops.pop(loop)  # the newest last
        known.read(log, loop, head.last)
        self._forget_others()
        return _ANSWERS[question.what](self, known, question)

    def _forget_others(self) -> None:
        """Forget the loops that were not asked about for longest, where all together are too many events."""
        kept = 0
        for loop, figures in [*reversed(self._loops.items())]:
            kept += figures.n_kept
            if kept > MOST_KEPT and figures is not next(reversed(self._loops.values())):
                del self._loops[loop]
                self._reports.pop(loop, None)

    def _report(self, figures: LoopFigures, question: Question) -> LoopReport:
        began = time.monotonic()
        known, until = self._reports.get(question.loop, (None, 0.0))
        if known is None or (known.position != figures.position and began >= until):
            known = figures.report()
            now = time.monotonic()
            self._reports[question.loop] = known, now + self._rest * (now - began)
        return known


_ANSWERS: dict[str, Callable[[Reporter, LoopFigures, Question], Any]] = {
    "report": Reporter._report,
    "lift": lambda _, figures, question: figures.lift(),
    "user": lambda _, figures, question: figures.events_of(question.user, question.most),
    "taken": lambda _, figures, question: figures.newest_taken(question.most),
    "devices": lambda _, figures, question: figures.device_list(),
    "what-if": lambda _, figures, question: figures.what_if(question.settings),
}

"""Reads the log of a loop for reports incrementally: each request reads only new records.

``LoopReader`` takes records in order and keeps sums and the newest finished events; ``report`` summarizes them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from bandits.evaluation.over_time import snips_by_bucket, snips_so_far
from bandits.evaluation.table import number_users
from fedres.checks import Array
from service.admin.exporting import NO_FEATURES, settle, time_or_none
from service.learn.join import Join, Rules, Settled
from service.learn.loop_state import read_settings_body, rules_of
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
from service.log.writer import is_pruned
from service.outcomes import Guardrail
from service.plugins.reports.devices import DeviceList, DeviceLog
from service.plugins.reports.features import FeatureSample, FeatureSamples
from service.plugins.reports.lift import Experiment, LiftReport, OutcomeLift
from service.plugins.reports.personalization import TakenAction
from service.plugins.reports.report import (
    Alarm,
    Delays,
    Drift,
    FinishedDecision,
    Funnel,
    LoopReport,
    PageLog,
    RewardSeries,
    buckets,
    drift_of,
    reward_series,
    traffic_of,
    values_of,
)
from service.plugins.reports.what_if import WhatIf, candidates, what_if
from service.settings import Settings
from service.times import iso_time

if TYPE_CHECKING:
    from service.log.workers import Worker

CHUNK = 2_000  # records read at once
MOST = 50_000  # newest finished events that a report analyzes one by one
MOST_KEPT = 1_000_000  # events of all loops together, some 1 KB each
DELAYS = (0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10_800, 43_200, 86_400, 604_800)  # seconds
COLLAPSED, WATCHED = 0.95, 200  # alarm: this share of so many of the newest decisions took one action
LOST = 0.05  # alarm: share of rewards that are late or have no event


class LoopReader:
    """The part of one loop that was read. ``head`` is where its log ended at the beginning.

    A report is computed again after new records, but not before ``rest`` times the duration of the last one.
    """

    def __init__(self, created_at: int, head: Head, rest: float) -> None:
        self.created_at, self.position, self.time = created_at, created_at - 1, 0
        self.removed, self.erased = head.removed, 0  # records removed, and the position of the last erasure or pruning
        self.pruned_before = 0  # older events are no longer in the log; microseconds since 1970
        self.experiment = Experiment()
        self.funnel, self.delays = Funnel(), [0] * (len(DELAYS) + 1)
        self.finished: deque[FinishedDecision] = deque(maxlen=MOST)
        self.feedback: deque[tuple[int, str, float]] = deque(maxlen=MOST)  # when it happened, action and reward
        self._pending: dict[str, tuple[FinishedDecision, LoggedRank]] = {}
        self._samples, self._devices, self._pages, self._n_learned = FeatureSamples(), DeviceLog(), PageLog(), 0
        self._catalogue: dict[str, msgspec.Raw] = {}
        self._apprentice: set[str] = set()
        self._join, self._settings, self._newest = Join(), dict[int, Settings](), 0
        self._rest, self._report_until = rest, 0.0
        self._report: LoopReport | None = None

    def read(self, log: Log, loop: str, last: int) -> None:
        """Read new records."""
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
            actions = decode_actions(entry.body)
            self._catalogue.update({action.id: action.features for action in actions.put})
            self._pages.take_catalogue(actions)
        elif entry.kind == RANK:
            self._rank(entry)
        elif entry.kind in (RESIDUAL, UPDATE, JOIN):
            self._devices.take(entry)
            self._n_learned += entry.kind != JOIN
        was_activated = entry.kind == ACTIVATE and self._is_activated(entry.event)
        for settled in settle(self._join, entry, self._rules, self._newest):
            if settled.counts:
                self._settle(settled)
            else:
                self._n_learned += 1
                was_activated = True
        if entry.kind in (RANK, ACTIVATE):
            self.funnel.activated += self._is_activated(entry.event) and not was_activated
        late, unmatched = self._join.take_counts()
        self.funnel.late += late
        self.funnel.unmatched += unmatched

    def _rules(self, position: int) -> Rules:
        return rules_of(self._settings.get(position) or self._settings[self._newest])

    def _is_activated(self, event: str | None) -> bool:
        about = self._join.events.get(event or "")
        return about is not None and about.status not in ("early", "deferred")

    def _rank(self, entry: Entry) -> None:
        assert entry.event is not None
        assert entry.example is not None
        decision = read_decision(entry.example)
        if decision.feedback is not None:
            if entry.body:
                sent = decode_rank(entry.body)
                self.feedback.append((sent.happened or entry.time, sent.actions[0].id, decision.feedback))
            return
        self.funnel.ranked += 1
        if decision.agreed is not None:
            self._apprentice.add(entry.event)
        if not entry.body:
            return
        body = decode_rank(entry.body)
        excluded = set(body.exclude)
        allowed = [k for k, action in enumerate(body.actions) if action.id not in excluded]
        decided = FinishedDecision(
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
            place=0 if body.page is None else body.page.place,
            is_new=body.page is not None and self._pages.show(body.actions[body.action].id),
        )
        self._pending[entry.event] = decided, body

    def _settle(self, settled: Settled) -> None:
        event, decided, reward = settled.event, settled.decided, settled.reward
        if settled.delay is None:
            self.funnel.expired += 1
        else:
            self.funnel.rewarded += 1
            self.delays[bisect_left(DELAYS, settled.delay / 1e6)] += 1
        settings = self._settings.get(decided.settings) or self._settings[self._newest]
        self._n_learned += reward is not None and (not decided.control or settings.control.learns)
        pending = self._pending.pop(event, None)
        if pending is not None:
            decision, body = pending
            self.finished.append(decision._replace(reward=reward))
            if reward is not None:
                self._samples.add(FeatureSample(decision.user, reward, body))
        if event in self._apprentice:
            self._apprentice.remove(event)
        elif reward is not None:
            user = f"event {event}" if decided.user is None else f"user {decided.user}"
            values = {"": reward, **dict.fromkeys(settings.outcomes, 0.0), **settled.outcomes}
            self.experiment.add(user, values, settings.default_reward, decided.settings, decided.control)

    @property
    def n_kept(self) -> int:
        """The number of events kept one by one."""
        return len(self.finished) + len(self.feedback) + len(self._pending)

    def events_of(self, user: str, most: int) -> list[str]:
        """Return a user's newest events, the newest first."""
        pending = (decision for decision, _ in reversed(self._pending.values()) if decision.user == user)
        finished = (decision for decision in reversed(self.finished) if decision.user == user)
        newest = sorted([*islice(pending, most), *islice(finished, most)], key=lambda decision: -decision.time)
        return [decision.event_id for decision in newest[:most]]

    def newest_taken(self, most: int) -> list[TakenAction]:
        """Return the actions taken in the newest finished decisions of different users."""
        by_user: dict[str, TakenAction] = {}
        for user, _, body in reversed(self._samples.newest):
            if len(by_user) == most:
                break
            if user is not None and user not in by_user:
                action = body.actions[body.action]
                features = action.features or self._catalogue.get(action.id, NO_FEATURES)
                by_user[user] = TakenAction(user, body.context, action.id, features)
        return [*by_user.values()]

    def what_if(self, changes: Sequence[dict[str, Any]]) -> WhatIf:
        """Return estimates for other settings of exploration."""
        now = self._settings[self._newest]
        settings = {**dict.fromkeys({decision.settings for decision in self.finished}, now), **self._settings}
        evaluable = [decision for decision in self.finished if decision.reward is not None and decision.is_evaluable]
        return what_if(evaluable, settings, now, changes or candidates(now))

    def device_list(self) -> DeviceList:
        return self._devices.newest()

    def report(self) -> LoopReport:
        """Return the report, or a recent one."""
        began = time.monotonic()
        if self._report is None or (self._report.position != self.position and began >= self._report_until):
            self._report = self._new_report()
            ended = time.monotonic()
            self._report_until = ended + self._rest * (ended - began)
        return self._report

    def _new_report(self) -> LoopReport:
        rewarded = [decision for decision in self.finished if decision.reward is not None]
        of_policy = [decision for decision in rewarded if not decision.control]
        ends, bucket = buckets(rewarded)
        n = len(ends)
        reward = np.array([decision.reward for decision in rewarded], float)
        user = number_users(decision.user for decision in rewarded)
        control = np.array([decision.control for decision in rewarded], bool)
        evaluable = np.array([decision.is_evaluable for decision in rewarded], bool)
        weight = np.array([1 / (len(event.actions) * event.probabilities[event.chosen]) for event in rewarded], float)

        def mean(of: Array) -> RewardSeries:
            return reward_series(snips_by_bucket(bucket[of], reward[of], np.ones(of.sum()), user[of], n))

        uniform = snips_so_far(bucket[evaluable], reward[evaluable], weight[evaluable], user[evaluable], n)
        drift = drift_of(of_policy)
        lift = self.lift() if self.experiment.control.share else None
        return LoopReport(
            position=self.position,
            time=iso_time(self.time),
            events=len(rewarded),
            reward_range=self._settings[self._newest].reward_range,
            bucket_ends=[end / 1e6 for end in ends],
            policy=mean(~control),
            control=mean(control),
            uniform=reward_series(uniform),
            traffic=traffic_of(of_policy, bucket[~control], n),
            funnel=msgspec.structs.replace(self.funnel, waiting=self._join.n_waiting),
            delays=Delays(DELAYS, self.delays),
            features=self._samples.features(self._catalogue),
            drift=drift,
            devices=self._devices.summary(self.time),
            pages=self._pages.summary(self.finished),
            lift=lift,
            values=values_of(
                [decision for decision in rewarded if decision.is_evaluable], self._settings[self._newest].reward_range
            ),
            alarms=self._alarms(rewarded, lift, drift),
            events_since=time_or_none(self.pruned_before),
        )

    def lift(self) -> LiftReport:
        """Return the lift against the control group, by the events in the log."""
        return msgspec.structs.replace(self.experiment.report(), events_since=time_or_none(self.pruned_before))

    def _alarms(
        self, rewarded: Sequence[FinishedDecision], lift: LiftReport | None, drift: Drift | None
    ) -> list[Alarm]:
        alarms, held = [], self.experiment.control.hold
        if held:
            alarms.append(Alarm("held", f"The baseline decides for everybody: {held}"))
        elif lift is not None and lift.sample_ratio_is_wrong:
            alarms.append(Alarm("sample_ratio", "Users are not split as control.share says: do not trust the lift."))
        for guardrail in self._settings[self._newest].guardrails:
            alarms += _guarded(guardrail, [] if lift is None or held else lift.outcomes)
        choices = [event for event in rewarded[-2 * WATCHED :] if not event.control and len(event.actions) > 1]
        newest = choices[-WATCHED:]
        if len(newest) == WATCHED:
            [(action, n)] = Counter(event.actions[event.chosen] for event in newest).most_common(1)
            if n >= COLLAPSED * WATCHED:
                message = f"{n} of the newest {WATCHED} decisions took the action {action!r}."
                alarms.append(Alarm("collapsed", f"{message} The policy may have stopped exploring."))
        if drift is not None and drift.is_drifting:
            since = iso_time(1e6 * drift.recent_since)
            off = f"{drift.bias.recent:+.3g} recently, {drift.bias.earlier:+.3g} before"
            alarms.append(Alarm("drift", f"Rewards since {since} differ from predictions: {off}, per event."))
        arrived = self.funnel.rewarded + self.funnel.late + self.funnel.unmatched
        for code, n in (("late_rewards", self.funnel.late), ("unmatched_rewards", self.funnel.unmatched)):
            if n > LOST * arrived:
                why = "came after the wait time" if code == "late_rewards" else "had no event"
                alarms.append(Alarm(code, f"{n} of {arrived} rewards {why} and do not count."))
        return alarms


def _guarded(guardrail: Guardrail, outcomes: Sequence[OutcomeLift]) -> Iterator[Alarm]:
    """Yield an alarm if an outcome surely violates its guardrail."""
    revert = guardrail.revert
    for outcome in outcomes:
        if outcome.outcome == guardrail.outcome and outcome.absolute is not None:
            name, low, high = outcome.outcome, outcome.absolute.low, outcome.absolute.high
            change = f"{low:+.3g} to {high:+.3g} per event against the control group"
            if guardrail.rise is not None and low > guardrail.rise:
                yield Alarm("guardrail", f"{name} rose by more than {guardrail.rise:g}: {change}.", revert)
            if guardrail.fall is not None and high < -guardrail.fall:
                yield Alarm("guardrail", f"{name} fell by more than {guardrail.fall:g}: {change}.", revert)


def read_loop(worker: Worker, loop: str, created_at: int, question: Callable[..., Any], *arguments: Any) -> bytes:
    """Read the log of a loop; return the result of a method of its ``LoopReader`` as JSON."""
    reader = worker.kept(LoopReaders, worker.rest).loop(worker.log, loop, created_at)
    return msgspec.json.encode(question(reader, *arguments))


class LoopReaders:
    """One reader for each loop with requests."""

    def __init__(self, rest: float = 0.0) -> None:
        self._readers: dict[str, LoopReader] = {}
        self._rest = rest

    def loop(self, log: Log, loop: str, created_at: int) -> LoopReader:
        """Return the reader of a loop, after it has read the whole log."""
        head = log.heads()[loop]
        reader = self._readers.pop(loop, None)
        if reader is None or reader.created_at != created_at or _is_outdated(reader, log, loop, head):
            reader = LoopReader(created_at, head, self._rest)
        self._readers[loop] = reader  # the newest last
        reader.read(log, loop, head.last)
        self._forget_others()
        return reader

    def _forget_others(self) -> None:
        """Forget the least recently requested loops if all together have too many events."""
        newest, *others = reversed(self._readers.items())
        n_kept = newest[1].n_kept
        for loop, reader in others:
            n_kept += reader.n_kept
            if n_kept > MOST_KEPT:
                del self._readers[loop]


def _is_outdated(reader: LoopReader, log: Log, loop: str, head: Head) -> bool:
    """Return whether records that were read have been removed since; during a pruning, that can wait."""
    if reader.removed == head.removed:
        return False
    erased = log.of_kind(loop, ERASED)
    if not erased or erased[-1].position > reader.erased:
        return True
    body = decode_erased(erased[-1].body)
    return not body.cut or is_pruned(log, loop, body.begun)

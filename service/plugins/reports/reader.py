"""Reads the log of a loop for reports incrementally: each request reads only new records.

``LoopReader`` takes records in order and keeps sums and the newest finished events; ``report`` summarizes them. What it
keeps is bounded in bytes: of a log with large events it keeps fewer, and reads features again when a report needs them.
"""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
import numpy as np

from bandits.evaluation.importance import scored_columns
from bandits.evaluation.over_time import snips_by_bucket, snips_so_far
from bandits.evaluation.table import LEAST_PROBABILITY, number_users
from fedres.checks import Array
from service.admin.exporting import NO_FEATURES, settle, time_or_none
from service.errors import ApiError
from service.learn.join import EVENT_BYTES, Join, Rules, Settled
from service.learn.loop_state import read_settings_body, rules_of
from service.log import workers
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
    ActionsBody,
    Entry,
    LoggedAction,
    decode_actions,
    decode_erased,
    decode_rank,
    read_decision,
)
from service.log.writer import is_pruned
from service.outcomes import Guardrail
from service.plugins.reports.actions import ActionsReport, action_reports, segments_of
from service.plugins.reports.devices import DeviceList, DeviceLog
from service.plugins.reports.features import FeatureSample, FeatureSamples, features_of
from service.plugins.reports.lift import Experiment, Experiments, LiftReport, OutcomeLift
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
    SettingsChange,
    buckets,
    drift_of,
    reward_series,
    traffic_of,
    values_of,
)
from service.plugins.reports.summary import HourlyCounts, LoopSummary, actions_of, lift_summary, line, standing
from service.plugins.reports.what_if import WhatIf, candidates, what_if
from service.settings import Settings
from service.times import iso_time

if TYPE_CHECKING:
    from service.rank.ranker import RankerContext

CHUNK = 2_000  # records read at once, at most
CHUNK_BYTES = 4_000_000  # of bodies read at once, about
FIRST_CHUNK = 50  # records with bodies, whose size the first ones show
SLICE_SECONDS = 0.5  # of reading, after which another loop has its turn
MOST = 50_000  # newest finished events that a report analyzes one by one
MOST_BYTES = 64_000_000  # of memory for decisions of a loop, finished or pending
MOST_BYTES_TOGETHER = 256_000_000  # of memory for all loops; those requested least recently are forgotten
SAMPLED_BYTES = 8_000_000  # of contexts and features that a report analyzes
RETIRED_BYTES = 8_000_000  # of features of items that are no longer in the catalogue
USER_BYTES = ITEM_BYTES = 300  # of memory, about, for the sums of a user, an item or a device
FEEDBACK_BYTES = 200
DELAYS = (0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10_800, 43_200, 86_400, 604_800)  # seconds
COLLAPSED, WATCHED = 0.95, 200  # alarm: this share of so many of the newest decisions took one action
MOST_CHANGES = 20  # of the settings, for marks in charts
LONGEST_CHANGE = 200  # characters
LOST = 0.05  # alarm: share of rewards that are late or have no event


class LoopReader:
    """The part of one loop that was read. ``head`` is where its log ended at the beginning.

    A report is computed again after new records, but not before ``rest`` times the duration of the last one.
    """

    def __init__(self, log: Log, loop: str, created_at: int, head: Head, rest: float) -> None:
        self._log, self._loop = log, loop
        self.created_at, self.position, self.time = created_at, created_at - 1, 0
        self.removed, self.erased = head.removed, 0  # records removed, and the position of the last erasure or pruning
        self.pruned_before = 0  # older events are no longer in the log; microseconds since 1970
        self.is_behind = True  # there may be more records to read
        self.experiment = Experiment()
        self.funnel, self.delays = Funnel(), [0] * (len(DELAYS) + 1)
        self.decisions = Decisions()
        self.feedback: deque[tuple[int, str, float]] = deque(maxlen=MOST)  # when it happened, action and reward
        self._samples, self._devices, self._pages, self._n_learned = FeatureSamples(), DeviceLog(), PageLog(), 0
        self._catalogue = CatalogueFeatures()
        self._hours = HourlyCounts()
        self._changes: deque[SettingsChange] = deque(maxlen=MOST_CHANGES)
        self._apprentice: set[str] = set()
        self._join, self._settings, self._newest = Join(), dict[int, Settings](), 0
        self._rest, self._report_until = rest, 0.0
        self._report: LoopReport | None = None
        self._chunk = FIRST_CHUNK

    def read(self, last: int, seconds: float = math.inf) -> None:
        """Read new records, for so many seconds at most."""
        until = time.monotonic() + seconds
        while True:
            with_bodies = self.position > last - 3 * MOST
            limit = self._chunk if with_bodies else CHUNK
            entries = self._log.read(self._loop, self.position, limit, bodies=with_bodies)
            for entry in entries:
                self.take(entry)
            self.is_behind = bool(entries)
            if with_bodies and entries:
                mean = sum(len(entry.body) for entry in entries) / len(entries)
                self._chunk = min(int(CHUNK_BYTES / max(mean, 1.0)) + 1, 2 * self._chunk, CHUNK)
            if not entries or time.monotonic() >= until:
                return

    def take(self, entry: Entry) -> None:
        """Take the next record."""
        self.position, self.time = entry.position, entry.time
        if entry.kind in (LOOP, SETTINGS):
            settings = self._settings[entry.position] = read_settings_body(entry.body)
            if entry.kind == SETTINGS and self._newest:
                text = described_change(self._settings[self._newest], settings)
                self._changes.append(SettingsChange(entry.time / 1e6, text))
            self._newest = entry.position
            self.experiment.take_settings(settings.control, entry.position, entry.time)
        elif entry.kind == ERASED:
            self.erased, self.pruned_before = entry.position, decode_erased(entry.body).before or self.pruned_before
        elif entry.kind == ACTIONS:
            actions = decode_actions(entry.body)
            self._catalogue.take(actions)
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
        logged = read_decision(entry.example)
        if logged.feedback is not None:
            if entry.body:
                sent = decode_rank(entry.body)
                self.feedback.append((sent.happened or entry.time, sent.actions[0].id, logged.feedback))
            return
        self.funnel.ranked += 1
        self._hours.add(entry.time)
        if logged.agreed is not None:
            self._apprentice.add(entry.event)
        if not entry.body:
            return
        body = decode_rank(entry.body)
        excluded = set(body.exclude)
        allowed = [k for k, action in enumerate(body.actions) if action.id not in excluded]
        taken = body.actions[body.action].id
        decision = FinishedDecision(
            entry.event,
            entry.time,
            entry.user,
            logged.control,
            taken,
            allowed.index(body.action),
            array("d", [body.probabilities[k] for k in allowed]),
            array("d", [body.scores[k] for k in allowed]),
            logged.settings,
            self._n_learned,
            place=0 if body.page is None else body.page.place,
            is_new=body.page is not None and self._pages.show(taken),
            position=entry.position,
        )
        self.decisions.put(decision)

    def _settle(self, settled: Settled) -> None:
        event, decided, reward = settled.event, settled.decided, settled.reward
        if settled.delay is None:
            self.funnel.expired += 1
        else:
            self.funnel.rewarded += 1
            self.delays[bisect_left(DELAYS, settled.delay / 1e6)] += 1
        settings = self._settings.get(decided.settings) or self._settings[self._newest]
        self._n_learned += reward is not None and (not decided.control or settings.control.learns)
        decision = self.decisions.finish(event, reward)
        if decision is not None and reward is not None:
            self._samples.add(FeatureSample(decision.position, reward, decision.control))
        if event in self._apprentice:
            self._apprentice.remove(event)
        elif reward is not None and not settings.control.hold:  # a hold pauses the experiment
            user = f"event {event}" if decided.user is None else f"user {decided.user}"
            values = {"": reward, **dict.fromkeys(settings.outcomes, 0.0), **settled.outcomes}
            self.experiment.add(user, values, settings.default_reward, decided.settings, decided.control)

    @property
    def finished(self) -> Sequence[FinishedDecision]:
        return self.decisions.finished

    @property
    def n_bytes(self) -> int:
        """The memory that the reader takes, about."""
        join = self._join.n_bytes + EVENT_BYTES * (len(self._join.events) - self._join.n_waiting)
        people = USER_BYTES * (self.experiment.n_users + self._devices.n_devices) + ITEM_BYTES * self._pages.n_items
        feedback = FEEDBACK_BYTES * len(self.feedback)
        return self.decisions.n_bytes + join + people + feedback + self._catalogue.n_bytes

    def events_of(self, user: str, most: int) -> list[str]:
        """Return a user's newest events, the newest first."""
        pending = (decision for decision in reversed(self.decisions.pending.values()) if decision.user == user)
        finished = (decision for decision in reversed(self.finished) if decision.user == user)
        newest = sorted([*islice(pending, most), *islice(finished, most)], key=lambda decision: -decision.time)
        return [decision.event_id for decision in newest[:most]]

    def newest_taken(self, most: int) -> list[TakenAction]:
        """Return the actions taken in the newest finished decisions of different users."""
        by_user: dict[str, TakenAction] = {}
        for _, taken in self._sampled(self._samples.newest):
            if taken.user:
                by_user.setdefault(taken.user, taken)
            if len(by_user) == most:
                break
        return [*by_user.values()]

    def _sampled(self, samples: Sequence[FeatureSample]) -> Iterator[tuple[FeatureSample, TakenAction]]:
        """Yield the newest samples with their features, up to so many bytes of these."""
        n_bytes = 0
        for sample in reversed(samples):
            for entry in self._log.read(self._loop, sample.position - 1, 1):
                if entry.position != sample.position:  # it was erased since
                    continue
                body = decode_rank(entry.body)
                action = body.actions[body.action]
                features = self._catalogue.features(action)
                n_bytes += len(bytes(body.context)) + len(bytes(features))
                if n_bytes > SAMPLED_BYTES:
                    return
                yield sample, TakenAction(entry.user or "", body.context, action.id, features)

    def _rows(self, samples: Sequence[FeatureSample]) -> list[dict[str, Any]]:
        """Return rows for ``features_of``, the oldest first."""
        decode = msgspec.json.decode
        rows = [
            {
                "context": decode(taken.context),
                "actions": [{"id": taken.action, "features": decode(taken.features)}],
                "action": taken.action,
                "reward": sample.reward,
                "is_control": sample.is_control,
            }
            for sample, taken in self._sampled(samples)
        ]
        return rows[::-1]

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
        chance = np.array([event.probabilities[event.chosen] for event in rewarded], float)
        n_actions = np.array([event.n_actions for event in rewarded], float)
        weight = 1 / (n_actions * np.maximum(chance, LEAST_PROBABILITY))

        def mean(of: Array) -> RewardSeries:
            return reward_series(snips_by_bucket(bucket[of], reward[of], np.ones(of.sum()), user[of], n))

        uniform = snips_so_far(bucket[evaluable], reward[evaluable], weight[evaluable], user[evaluable], n)
        drift = drift_of(of_policy)
        lift = self.lift() if self.experiment.control.share else None
        sampled = self._rows(self._samples.newest)
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
            features=features_of(
                sampled, scored_columns(sampled), self._rows(self._samples.earlier), self._catalogue.by_id
            ),
            drift=drift,
            devices=self._devices.summary(self.time),
            pages=self._pages.summary(self.finished),
            lift=lift,
            values=values_of(
                [decision for decision in rewarded if decision.is_evaluable], self._settings[self._newest].reward_range
            ),
            alarms=self._alarms(rewarded, lift, drift),
            events_since=time_or_none(self.pruned_before),
            one_in=self.decisions.one_in,
            older_left_out=self.decisions.older_left_out,
            changes=[*self._changes],
        )

    def lift(self) -> LiftReport:
        """Return the lift against the control group, by the events in the log."""
        return msgspec.structs.replace(self.experiment.report(), events_since=time_or_none(self.pruned_before))

    def summary(self, now: int) -> LoopSummary:
        """Return the summary for the first page of the dashboard at a time in microseconds."""
        rewarded = [decision for decision in self.finished if decision.reward is not None]
        of_policy = [decision for decision in rewarded if not decision.control]
        of_control = [decision for decision in rewarded if decision.control]
        low = min((decision.time for decision in rewarded), default=0)
        high = max((decision.time for decision in rewarded), default=0)
        actions, n_actions = actions_of(of_policy)
        lift = self.lift() if self.experiment.control.share else None
        return LoopSummary(
            position=self.position,
            time=iso_time(self.time),
            decisions_day=self._hours.of_day(now),
            actions=actions,
            n_actions=n_actions,
            policy=line(of_policy, low, high),
            control=line(of_control, low, high),
            lift=lift_summary(lift),
            held_since=iso_time(self.experiment.held_since) if self.experiment.held_since else None,
            alarms=standing(self._alarms(rewarded, lift, drift_of(of_policy))),
        )

    def actions_report(self) -> ActionsReport:
        """Return what the policy decides: rewards by action, and actions by the strongest context features."""
        finished = self.finished
        of_policy = [decision for decision in finished if decision.reward is not None and not decision.control]
        rows = self._rows(self._samples.newest)
        return ActionsReport(action_reports(of_policy), segments_of(rows, scored_columns(rows)))

    def experiments(self) -> Experiments:
        """Return the experiments, the newest first, with their results."""
        now = [self.lift()] if self.experiment.control.share else []
        return Experiments([*now, *reversed(self.experiment.past)])

    def _alarms(
        self, rewarded: Sequence[FinishedDecision], lift: LiftReport | None, drift: Drift | None
    ) -> list[Alarm]:
        alarms = []
        held = self.experiment.control.hold
        if held:
            since = iso_time(self.experiment.held_since)
            alarms.append(Alarm("held", f"The baseline decides for everybody since {since}: {held}"))
        elif lift is not None and lift.sample_ratio_is_wrong:
            alarms.append(Alarm("sample_ratio", "Users are not split as control.share says: do not trust the lift."))
        guarded = [] if lift is None or held else self.experiment.guarded()
        for guardrail in self._settings[self._newest].guardrails:
            alarms += _guarded(guardrail, guarded)
        choices = [event for event in rewarded[-2 * WATCHED :] if not event.control and event.n_actions > 1]
        newest = choices[-WATCHED:]
        if len(newest) == WATCHED:
            [(action, n)] = Counter(event.action for event in newest).most_common(1)
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


def described_change(before: Settings, after: Settings) -> str:
    """Return what has changed in words, such as "floor 0.05 to 0.08"."""
    if after.control.hold and not before.control.hold:
        return f"held: {after.control.hold}"[:LONGEST_CHANGE]
    if before.control.hold and not after.control.hold:
        return "resumed"
    old = msgspec.to_builtins(before)
    new = msgspec.to_builtins(after)
    names = [name for name in new if old[name] != new[name]]
    texts = [
        f"{name} {msgspec.json.encode(old[name]).decode()} to {msgspec.json.encode(new[name]).decode()}"
        for name in names
    ]
    return ", ".join(texts)[:LONGEST_CHANGE] or "nothing"


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


class Decisions:
    """The newest decisions of a loop, at most ``MOST`` finished ones and in at most ``MOST_BYTES`` of memory.

    If the pending ones alone take more than half of it, only one in so many decisions is kept from then on, by the hash
    of its id: the oldest pending ones are those without a reward so far, and without them means would be too high.
    """

    def __init__(self) -> None:
        self.pending: dict[str, FinishedDecision] = {}
        self.finished: deque[FinishedDecision] = deque()
        self.one_in = 1
        self.older_left_out = False
        self._pending_bytes = self._finished_bytes = 0

    @property
    def n_bytes(self) -> int:
        return self._pending_bytes + self._finished_bytes

    def put(self, decision: FinishedDecision) -> None:
        """Keep a pending decision."""
        if not self._is_picked(decision):
            return
        self.pending[decision.event_id] = decision
        self._pending_bytes += decision.n_bytes
        while self._pending_bytes > MOST_BYTES // 2 and len(self.pending) > 1:
            self.one_in *= 2
            self.pending = {event: other for event, other in self.pending.items() if self._is_picked(other)}
            self.finished = deque(other for other in self.finished if self._is_picked(other))
            self._pending_bytes = sum(other.n_bytes for other in self.pending.values())
            self._finished_bytes = sum(other.n_bytes for other in self.finished)
        self._leave_out_older()

    def finish(self, event: str, reward: float | None) -> FinishedDecision | None:
        """Return a decision that was pending, with its reward; None if it is not kept."""
        decision = self.pending.pop(event, None)
        if decision is not None:
            decision.reward = reward
            self.finished.append(decision)
            self._pending_bytes -= decision.n_bytes
            self._finished_bytes += decision.n_bytes
            self._leave_out_older()
        return decision

    def _is_picked(self, decision: FinishedDecision) -> bool:
        return self.one_in == 1 or crc32(decision.event_id.encode()) % self.one_in == 0

    def _leave_out_older(self) -> None:
        while self.finished and (len(self.finished) > MOST or self.n_bytes > MOST_BYTES):
            self._finished_bytes -= self.finished.popleft().n_bytes
            self.older_left_out = True


class CatalogueFeatures:
    """Features of the catalogue's items, and of some that are no longer in it: decisions name them by their ids."""

    def __init__(self) -> None:
        self.by_id: dict[str, msgspec.Raw] = {}
        self.n_bytes = 0
        self._retired: deque[tuple[str, msgspec.Raw]] = deque()
        self._retired_bytes = 0

    def take(self, body: ActionsBody) -> None:
        """Take a change of the catalogue."""
        for action in body.put:
            self._drop(action.id)
            self.by_id[action.id] = action.features.copy()  # else each would keep all items of its record
            self.n_bytes += _item_bytes(action.id, action.features)
        for item in body.retire:
            if item in self.by_id:
                self._retired.append((item, self.by_id[item]))
                self._retired_bytes += _item_bytes(*self._retired[-1])
        while self._retired_bytes > RETIRED_BYTES:
            item, features = self._retired.popleft()
            self._retired_bytes -= _item_bytes(item, features)
            if self.by_id.get(item) is features:  # it was not put again
                self._drop(item)

    def features(self, action: LoggedAction) -> msgspec.Raw:
        """Return the features of an action in the log."""
        return action.features or self.by_id.get(action.id, NO_FEATURES)

    def _drop(self, item: str) -> None:
        features = self.by_id.pop(item, None)
        if features is not None:
            self.n_bytes -= _item_bytes(item, features)


def _item_bytes(item: str, features: msgspec.Raw) -> int:
    return ITEM_BYTES + len(item) + len(bytes(features))


async def ask_reader(context: RankerContext, loop: str, question: Callable[..., Any], *arguments: Any) -> bytes:
    """Return the result of a method of a loop's ``LoopReader`` as JSON, from the process that reads logs.

    A long log is read in pieces, between which other loops have their turns. A request that gives up leaves what was
    read to the next one.
    """
    created_at = context.loop(loop).view.created_at
    try:
        async with asyncio.timeout(workers.SECONDS):
            while not (answer := await context.reports.call(loop, read_loop, created_at, question, *arguments)):
                pass
    except TimeoutError:
        text = f"the log could not be read within {workers.SECONDS:g} s; the next request goes on from there"
        raise ApiError(503, "report_timeout", text) from None
    return answer


def read_loop(
    worker: workers.Worker, loop: str, created_at: int, question: Callable[..., Any], *arguments: Any
) -> bytes:
    """Read on in the log of a loop; return the result of a method of its ``LoopReader`` as JSON.

    If there is more to read, return nothing.
    """
    reader = worker.kept(LoopReaders, worker.rest).loop(worker.log, loop, created_at, SLICE_SECONDS)
    return b"" if reader.is_behind else msgspec.json.encode(question(reader, *arguments))


class LoopReaders:
    """One reader for each loop with requests."""

    def __init__(self, rest: float = 0.0) -> None:
        self._readers: dict[str, LoopReader] = {}
        self._rest = rest

    def loop(self, log: Log, loop: str, created_at: int, seconds: float = math.inf) -> LoopReader:
        """Return the reader of a loop, after it has read the log, or has read for so many seconds."""
        head = log.heads()[loop]
        reader = self._readers.pop(loop, None)
        if reader is None or reader.created_at != created_at or _is_outdated(reader, log, loop, head):
            reader = LoopReader(log, loop, created_at, head, self._rest)
        self._readers[loop] = reader  # the newest last
        reader.read(head.last, seconds)
        self._forget_others()
        return reader

    def _forget_others(self) -> None:
        """Forget the least recently requested loops if all together take too much memory."""
        newest, *others = reversed(self._readers.items())
        n_bytes = newest[1].n_bytes
        for loop, reader in others:
            n_bytes += reader.n_bytes
            if n_bytes > MOST_BYTES_TOGETHER:
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

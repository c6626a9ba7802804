"""Figures of a loop from one pass over its log, which goes on where it stopped when it is asked again.

``LoopFigures`` takes records in order and keeps sums and the newest finished events; ``report`` says what they show.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedres.checks import Array
from service.learn.join import Join, Rules, Settled
from service.learn.loop_state import read_settings_body, rules_of
from service.log.protocol import Head, Log
from service.log.records import (
    ACTIONS,
    ACTIVATE,
    LOOP,
    RANK,
    SETTINGS,
    Entry,
    LoggedRank,
    decode_actions,
    decode_rank,
    read_decision,
)
from service.personalizer.importance import scored_columns
from service.ranking.experiments import Bounds, Experiment, LiftReport
from service.ranking.exporting import NO_FEATURES, settle
from service.settings import Settings

CHUNK = 2_000  # records read at once
MOST = 50_000  # finished events that a report looks at one by one, the newest
LEAST_VALUED = 100  # events before policies are valued
LEAST_EFFECTIVE = 20  # effective sample size from which uniform picks are valued
N_BUCKETS = 48  # of time
SAMPLED = 2_000  # finished events whose features are looked at
MOST_FEATURES = 100
MOST_ACTIONS = 8  # shown by name; the others are added up
DELAYS = (0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10_800, 43_200, 86_400, 604_800)  # seconds
COLLAPSED, WATCHED = 0.95, 200  # alarm: this share of so many of the newest decisions took one action
LOST = 0.05  # alarm: share of rewards that are late or have no event
POLICIES = {"first": "first", "uniform": "uniform", "likeliest": "greedy"}  # names in bandits.evaluation, and ours


class Finished(NamedTuple):
    """A decision and what came of it."""

    event_id: str
    time: int
    user: str | None
    control: bool
    actions: tuple[str, ...]  # ids that were not excluded
    chosen: int
    probabilities: tuple[float, ...]
    reward: float | None = None


class PolicyValue(msgspec.Struct):
    """What a policy would have earned on the logged decisions of the loop's own policy, per event."""

    policy: str  # logged, first, uniform or greedy: always the likeliest action of the logged policy
    reward: Bounds
    difference: Bounds | None  # to the logged policy, event by event; null for itself
    ess: float  # effective sample size
    warning: str  # empty where nothing is wrong


class Line(msgspec.Struct):
    """Mean rewards by time, with 95% bands for each point alone; null where there is no event."""

    events: list[int]
    reward: list[float | None]
    low: list[float | None]
    high: list[float | None]


class Traffic(msgspec.Struct):
    """Which actions the policy took, by time."""

    actions: list[str | None]  # the most frequent ones; null is all others
    events: list[list[int]]  # of each action
    evenness: list[float | None]  # entropy of the actions taken, as a share of what it can be


class Funnel(msgspec.Struct):
    """What became of decisions and of rewards, since the loop was made."""

    ranked: int = 0
    activated: int = 0  # deferred decisions count once they are activated
    rewarded: int = 0
    expired: int = 0  # without a reward
    waiting: int = 0
    late: int = 0  # rewards
    unmatched: int = 0  # rewards


class Delays(msgspec.Struct):
    """How long rewards took; the last count is of all that took longer."""

    up_to_seconds: tuple[float, ...]
    events: list[int]


class Feature(msgspec.Struct):
    """A feature in the newest events."""

    kind: str  # of the context, or of the action that was taken
    name: str
    importance: float  # share of the rewards' variance it explains, relative to the strongest feature
    coverage: float  # share of events that have it
    values: int  # different ones; a feature with one only says nothing


class Alarm(msgspec.Struct):
    code: str
    message: str


class LoopReport(msgspec.Struct):
    """What a loop's log shows, up to a position."""

    position: int
    time: str  # of the last record
    events: int  # finished ones that series and values are about: the newest
    bucket_ends: list[float]  # seconds since 1970
    policy: Line
    control: Line
    uniform: Line  # what uniform picks would have earned until then, by inverse propensity (SNIPS)
    traffic: Traffic
    funnel: Funnel
    delays: Delays
    features: list[Feature]  # the most important first
    lift: LiftReport | None  # null without a control group
    values: list[PolicyValue]  # empty below 100 events whose probabilities are known
    alarms: list[Alarm]


class LoopFigures:
    """One loop, as far as it was read. ``head`` is where its log ended at the beginning."""

    def __init__(self, since: int, head: Head) -> None:
        self.since, self.position, self.time = since, since - 1, 0
        self.removed = head.removed
        self.experiment = Experiment()
        self.funnel, self.delays = Funnel(), [0] * (len(DELAYS) + 1)
        self.finished: deque[Finished] = deque(maxlen=MOST)
        self._pending: dict[str, tuple[Finished, LoggedRank]] = {}
        self._samples: deque[tuple[Finished, LoggedRank]] = deque(maxlen=SAMPLED)
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
        elif entry.kind == ACTIONS:
            self._catalogue.update({action.id: action.features for action in decode_actions(entry.body).put})
        elif entry.kind == RANK:
            self._rank(entry)
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
        )
        self._pending[entry.event] = decided, body

    def _settle(self, settled: Settled) -> None:
        event, decided, reward, delay = settled
        if delay is None:
            self.funnel.expired += 1
        else:
            self.funnel.rewarded += 1
            self.delays[bisect_left(DELAYS, delay / 1e6)] += 1
        pending = self._pending.pop(event, None)
        if pending is not None:
            finished, body = pending[0]._replace(reward=reward), pending[1]
            self.finished.append(finished)
            if reward is not None:
                self._samples.append((finished, body))
        if event in self._apprentice:
            self._apprentice.remove(event)
        elif reward is not None:
            user = f"event {event}" if decided.user is None else f"user {decided.user}"
            is_default = reward == self._settings[decided.settings].default_reward
            self.experiment.add(
                user, reward, settings=decided.settings, is_control=decided.control, is_default=is_default
            )

    def events_of(self, user: str, most: int) -> list[str]:
        """Return a user's newest events, the newest first."""
        newest = (one for one, _ in reversed(self._pending.values()) if one.user == user)
        finished = (one for one in reversed(self.finished) if one.user == user)
        found = sorted([*islice(newest, most), *islice(finished, most)], key=lambda one: -one.time)
        return [one.event_id for one in found[:most]]

    def report(self) -> LoopReport:
        """Return what the log shows."""
        rewarded = [one for one in self.finished if one.reward is not None]
        ends, bucket = _buckets(rewarded)
        reward = np.array([one.reward for one in rewarded], float)
        user = _numbered([one.user or f"\0{one.event_id}" for one in rewarded])
        control = np.array([one.control for one in rewarded], bool)
        known = np.array([min(one.probabilities) > 0 for one in rewarded], bool) & ~control
        weight = np.array([1 / (len(one.actions) * one.probabilities[one.chosen]) for one in rewarded], float)

        def line(mask: Array, weights: Array) -> Line:
            return _line(bucket[mask], reward[mask], weights[mask], user[mask], len(ends))

        own = np.ones(len(rewarded))
        waiting = {**msgspec.structs.asdict(self.funnel), "waiting": self._join.n_waiting}
        shows = self.experiment.report() if self.experiment.control.share else None
        return LoopReport(
            position=self.position,
            time=datetime.fromtimestamp(self.time / 1e6, UTC).isoformat(timespec="seconds"),
            events=len(rewarded),
            bucket_ends=[end / 1e6 for end in ends],
            policy=line(~control, own),
            control=line(control, own),
            uniform=_uniform(bucket[known], reward[known], weight[known], user[known], len(ends)),
            traffic=_traffic([one for one in rewarded if not one.control], bucket[~control], len(ends)),
            funnel=Funnel(**waiting),
            delays=Delays(DELAYS, self.delays),
            features=self._features(),
            lift=shows,
            values=_values([one for one, good in zip(rewarded, known, strict=True) if good]),
            alarms=self._alarms(rewarded, shows),
        )

    def _features(self) -> list[Feature]:
        """Return how often features are there, and how much they say about rewards."""
        rows = []
        for one, body in self._samples:
            taken = body.actions[body.action]
            features = taken.features or self._catalogue.get(taken.id, NO_FEATURES)
            action = {"id": taken.id, "features": msgspec.json.decode(features)}
            context = msgspec.json.decode(body.context)
            rows.append({"context": context, "actions": [action], "action": taken.id, "reward": one.reward})
        found = []
        for kind, name, score, values in scored_columns(rows):
            n_missing = values.count(None)
            n_values = len(set(values)) - bool(n_missing)
            found.append(Feature(kind, name, _round(score), _round(1 - n_missing / len(rows)), n_values))
        return sorted(found, key=lambda one: (-one.importance, one.kind, one.name))[:MOST_FEATURES]

    def _alarms(self, rewarded: Sequence[Finished], shows: LiftReport | None) -> list[Alarm]:
        alarms = []
        if shows is not None and shows.sample_ratio_is_wrong:
            alarms.append(Alarm("sample_ratio", "Users are not split as control.share says: do not trust the lift."))
        newest = [one for one in rewarded[-2 * WATCHED :] if not one.control and len(one.actions) > 1][-WATCHED:]
        if len(newest) == WATCHED:
            [(action, n)] = Counter(one.actions[one.chosen] for one in newest).most_common(1)
            if n >= COLLAPSED * WATCHED:
                message = f"{n} of the newest {WATCHED} decisions took the action {action!r}."
                alarms.append(Alarm("collapsed", f"{message} The policy may have stopped exploring."))
        arrived = self.funnel.rewarded + self.funnel.late + self.funnel.unmatched
        for code, n in (("late_rewards", self.funnel.late), ("unmatched_rewards", self.funnel.unmatched)):
            if n > LOST * arrived:
                why = "came after the wait time" if code == "late_rewards" else "had no event"
                alarms.append(Alarm(code, f"{n} of {arrived} rewards {why} and do not count."))
        return alarms


def _buckets(events: Sequence[Finished]) -> tuple[list[float], Array]:
    """Return the ends of equal spans of time, and the number of the span of each event."""
    if not events:
        return [], np.zeros(0, int)
    times = np.array([one.time for one in events], float)
    low, high = times.min(), times.max()
    width = max((high - low) / N_BUCKETS, 1.0)
    n = 1 if high == low else N_BUCKETS
    return [float(low + width * (k + 1)) for k in range(n)], np.minimum((times - low) // width, n - 1).astype(int)


def _numbered(names: Sequence[str]) -> Array:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], int)


def _line(bucket: Array, reward: Array, weight: Array, user: Array, n: int) -> Line:
    """Return weighted means by bucket; a user's events count together in the variance, as in ``bandits.evaluation``."""
    events = np.bincount(bucket, minlength=n)
    total = np.bincount(bucket, weight, n)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(bucket, weight * reward, n) / total
        pairs, pair = np.unique(bucket + n * user, return_inverse=True)
        errors = np.bincount(pair, weight * (reward - mean[bucket]), pairs.size) ** 2
        users = np.bincount(pairs % n, minlength=n)
        error = np.sqrt(users / (users - 1) * np.bincount(pairs % n, errors, n)) / total
    return Line(events.tolist(), _shown(mean), _shown(mean - 1.96 * error), _shown(mean + 1.96 * error))


def _uniform(bucket: Array, reward: Array, weight: Array, user: Array, n: int) -> Line:
    """Return a line whose points are about all events until then: in a short time the policy tries little else.

    There is no point where too few of the events were explored; weights are 1 on average otherwise.
    """
    line = Line([], [], [], [])
    for k in range(n):
        until = bucket <= k
        w = weight[until]
        effective = w.sum() ** 2 / max((w**2).sum(), 1e-300)
        point = _line(np.zeros(w.size, int), reward[until], w, user[until], 1)
        if effective < LEAST_EFFECTIVE or not w.size / 1.5 < w.sum() < 1.5 * w.size:
            point = Line(point.events, [None], [None], [None])
        for name in Line.__struct_fields__:
            getattr(line, name).extend(getattr(point, name))
    return line


def _shown(values: Array) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def _traffic(events: Sequence[Finished], bucket: Array, n: int) -> Traffic:
    taken = [one.actions[one.chosen] for one in events]
    known = [action for action, _ in Counter(taken).most_common(MOST_ACTIONS)]
    places = {action: place for place, action in enumerate(known)}
    others = len(set(taken)) > MOST_ACTIONS
    counts = np.zeros((len(known) + others, n), int)
    for action, place in zip(taken, bucket, strict=True):
        counts[places.get(action, len(known)), place] += 1
    share = counts / np.maximum(counts.sum(0), 1)
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(0) / np.log(max(len(counts), 2))
    evenness = [_round(value) if total else None for value, total in zip(entropy, counts.sum(0), strict=True)]
    return Traffic([*known, *([None] * others)], counts.tolist(), evenness)


def _round(value: float) -> float:
    return round(float(value), 4)


def _bounds(*numbers: float) -> Bounds:
    return Bounds(*map(float, numbers))


def _values(events: Sequence[Finished]) -> list[PolicyValue]:
    """Return the values of simple policies on decisions whose actions all had a chance."""
    if len(events) < LEAST_VALUED:
        return []
    from bandits.evaluation import LoggedEvent, evaluate, table

    logged = (
        LoggedEvent(
            one.event_id,
            {},
            one.actions,
            ({},) * len(one.actions),
            one.chosen,
            one.probabilities[one.chosen],
            one.reward,
            one.probabilities,
            user=one.user,
        )
        for one in events
    )
    found = evaluate(table(logged), [*POLICIES], estimators=("snips",), time_uniform=True)
    return [
        PolicyValue(
            POLICIES.get(row.policy, "logged"),
            _bounds(row.value, row.low, row.high),
            None if row.policy == "logging" else _bounds(row.difference, row.difference_low, row.difference_high),
            float(row.ess),
            row.warning,
        )
        for row in found.rows
    ]


class Question(msgspec.Struct):
    """What is asked about a loop that was made at position ``since``: report, lift or the newest events of a user."""

    what: str
    loop: str
    since: int
    user: str = ""
    most: int = 20


class Reporter:
    """Answers questions, and remembers what it read for the next one."""

    def __init__(self) -> None:
        self._loops: dict[str, LoopFigures] = {}
        self._reports: dict[str, LoopReport] = {}

    def answer(self, log: Log, question: Question) -> Any:
        """Return what the log says now."""
        loop, head = question.loop, log.heads()[question.loop]
        known = self._loops.get(loop)
        if known is None or known.since != question.since or known.removed != head.removed:  # or somebody was erased
            known = self._loops[loop] = LoopFigures(question.since, head)
            self._reports.pop(loop, None)
        known.read(log, loop, head.last)
        return _ANSWERS[question.what](self, known, question)

    def _report(self, figures: LoopFigures, question: Question) -> LoopReport:
        known = self._reports.get(question.loop)
        if known is None or known.position != figures.position:
            known = self._reports[question.loop] = figures.report()
        return known


_ANSWERS: dict[str, Callable[[Reporter, LoopFigures, Question], Any]] = {
    "report": Reporter._report,
    "lift": lambda _, figures, question: figures.experiment.report(),
    "user": lambda _, figures, question: figures.events_of(question.user, question.most),
}

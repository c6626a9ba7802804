"""The report of a loop: its parts, and their computation from finished decisions."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import msgspec
import numpy as np

from bandits.evaluation import LoggedEvent, Row, evaluate, table
from bandits.evaluation.over_time import MeanSeries, mean_change
from bandits.evaluation.policies import Policy
from bandits.evaluation.table import number_users
from fedres.checks import Array
from service.log.records import ActionsBody
from service.plugins.reports.devices import DeviceSummary
from service.plugins.reports.features import Feature
from service.plugins.reports.lift import Bounds, LiftReport, bounds

LEAST_EVALUATED = 100  # events before policies are evaluated
N_BUCKETS = 48  # of time
MOST_ACTIONS = 8  # shown by name; the others are added up
LEAST_DRIFTING = 500  # events before the newest of them are compared with the others
LEAST_USERS = 20  # in either part; an event without a user is one
RECENT = 0.2  # share of the events that counts as recent
ERRORS = 4.0  # half the width of these intervals, in standard errors: wide, as they are checked all day
NEW = 10  # an item is new as long as it was shown fewer times
DECISION_BYTES = 600  # of memory that a decision takes beside ids and actions
MOST_PAIRS = 500_000  # of events and their actions that policies are evaluated on: the newest
POLICIES = ("first", "uniform", "likeliest")  # as in bandits.evaluation


class FinishedDecision(msgspec.Struct, gc=False):
    """A decision and its reward, in little memory: up to 50,000 of them with hundreds of actions each are kept."""

    event_id: str
    time: int
    user: str | None
    control: bool
    action: str  # the one that was taken
    chosen: int  # its place among the actions that were not excluded
    probabilities: array[float]  # of these actions
    scores: array[float]  # predicted rewards
    settings: int  # position of those in force
    n_learned: int  # finished events that the model had learned from, about
    reward: float | None = None
    place: int = 0  # on a page of recommended items, whose records lack other items' probabilities; 0: not on a page
    is_new: bool = False  # the item had been shown a few times only
    position: int = 0  # in the log

    @property
    def n_actions(self) -> int:
        return len(self.probabilities)

    @property
    def n_bytes(self) -> int:
        """The memory that it takes, about."""
        ids = len(self.event_id) + len(self.action) + len(self.user or "")
        return DECISION_BYTES + ids + 2 * self.probabilities.itemsize * self.n_actions

    @property
    def is_evaluable(self) -> bool:
        """Whether the policy decided, and every action had a chance."""
        return not self.control and not self.place and min(self.probabilities) > 0


class PolicyValue(msgspec.Struct):
    """What a policy would have earned on the logged decisions of the loop's own policy, per event."""

    policy: str  # logged, first, uniform or likeliest: always the likeliest action of the logged policy
    reward: Bounds | None  # null where no logged decision says anything about the policy
    difference: Bounds | None  # to the logged policy, event by event; null for itself too
    ess: float  # effective sample size
    warning: str  # empty where nothing is wrong


class RewardSeries(msgspec.Struct):
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
    """Counts of decisions and rewards since the loop was created."""

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
    is_drifting: bool  # recent predictions are biased, more than before


class PlaceReward(msgspec.Struct):
    """What a place of pages earned, per event."""

    place: int
    events: int
    reward: float


class PageSummary(msgspec.Struct):
    """What pages of recommended items show."""

    items: int  # in the catalogue
    shown: int  # of them that were on a page
    new_share: float  # of the finished events, those of items that had been shown fewer than ten times
    places: list[PlaceReward]


class Alarm(msgspec.Struct):
    code: str
    message: str
    revert: bool = False  # it asks for the baseline


class LoopReport(msgspec.Struct):
    """What a loop's log shows, up to a position."""

    position: int
    time: str  # of the last record
    events: int  # finished ones that series and values are about: the newest
    reward_range: tuple[float, float]  # of the loop's settings
    bucket_ends: list[float]  # seconds since 1970
    policy: RewardSeries
    control: RewardSeries
    uniform: RewardSeries  # what uniform picks would have earned until then, by inverse propensity (SNIPS)
    traffic: Traffic
    funnel: Funnel
    delays: Delays
    features: list[Feature]  # the most important first
    drift: Drift | None  # null below 500 events of the policy, or 20 earlier or recent users
    devices: DeviceSummary | None  # null without any
    pages: PageSummary | None  # null without recommended items
    lift: LiftReport | None  # null without a control group
    values: list[PolicyValue]  # empty below 100 events with probabilities
    alarms: list[Alarm]
    events_since: str | None = None  # older events were removed from the log; null if none were
    one_in: int = 1  # events are large: one in so many decisions is in series and estimates
    older_left_out: bool = False  # older events in the log are in counts only: they are too many, or too large


def buckets(events: Sequence[FinishedDecision]) -> tuple[list[float], Array]:
    """Return the ends of equal spans of time in microseconds, and the number of the span of each event."""
    if not events:
        return [], np.zeros(0, int)
    times = np.array([event.time for event in events], float)
    low, high = times.min(), times.max()
    width = max((high - low) / N_BUCKETS, 1.0)
    n = 1 if high == low else N_BUCKETS
    return [float(low + width * (k + 1)) for k in range(n)], np.minimum((times - low) // width, n - 1).astype(int)


def reward_series(series: MeanSeries) -> RewardSeries:
    """Return a series with few digits, null for NaN."""
    mean, low, high = ([float(f"{value:.6g}") if np.isfinite(value) else None for value in row] for row in series[1:])
    return RewardSeries(series.events.tolist(), mean, low, high)


def traffic_of(events: Sequence[FinishedDecision], bucket: Array, n: int) -> Traffic:
    taken = [event.action for event in events]
    frequent = [action for action, _ in Counter(taken).most_common(MOST_ACTIONS)]
    places = {action: place for place, action in enumerate(frequent)}
    others = len(set(taken)) > MOST_ACTIONS
    counts = np.zeros((len(frequent) + others, n), int)
    for action, place in zip(taken, bucket, strict=True):
        counts[places.get(action, len(frequent)), place] += 1
    share = counts / np.maximum(counts.sum(0), 1)
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(0) / np.log(max(len(counts), 2))
    evenness = [round(float(e), 4) if total else None for e, total in zip(entropy, counts.sum(0), strict=True)]
    return Traffic([*frequent, *([None] * others)], counts.tolist(), evenness)


def evaluated(
    events: Sequence[FinishedDecision], policies: Sequence[str | Policy], range_now: tuple[float, float]
) -> Sequence[Row]:
    """Return a row for the logging policy and one for each other, by SNIPS with intervals for all looks together."""
    # Policies here depend on the places of actions only, so that these need no ids.
    log = table(
        LoggedEvent(
            event.event_id,
            {},
            ("",) * event.n_actions,
            ({},) * event.n_actions,
            event.chosen,
            event.probabilities[event.chosen],
            event.reward,
            tuple(event.probabilities),
            user=event.user,
        )
        for event in events
    )
    span = range_of(log.reward, range_now)
    return evaluate(log, policies, estimators=("snips",), time_uniform=True, reward_range=span).rows


def range_of(rewards: Array, range_now: tuple[float, float]) -> tuple[float, float] | None:
    """Return the current reward range, None if rewards under earlier settings, or sums, exceeded it."""
    low, high = range_now
    return range_now if rewards.size and low <= rewards.min() and rewards.max() <= high else None


def values_of(events: Sequence[FinishedDecision], range_now: tuple[float, float]) -> list[PolicyValue]:
    """Return estimates of simple policies, from decisions in which every action had a chance."""
    events = newest_within(events, len(events), MOST_PAIRS)
    if len(events) < LEAST_EVALUATED:
        return []
    return [
        PolicyValue(
            row.policy if row.policy in POLICIES else "logged",
            bounds(row.value, row.low, row.high),
            None if row.policy == "logging" else bounds(row.difference, row.difference_low, row.difference_high),
            float(row.ess),
            row.warning,
        )
        for row in evaluated(events, POLICIES, range_now)
    ]


def newest_within(events: Sequence[FinishedDecision], most: int, most_pairs: int) -> Sequence[FinishedDecision]:
    """Return the newest events, at most so many, and with all their actions at most so many pairs."""
    start = len(events)
    while start > max(len(events) - most, 0):
        most_pairs -= events[start - 1].n_actions
        if most_pairs < 0:
            break
        start -= 1
    return events[start:]


def drift_of(events: Sequence[FinishedDecision]) -> Drift | None:
    """Compare the newest of the policy's events with a reward with those before; None if there are too few."""
    if len(events) < LEAST_DRIFTING:
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


class PageLog:
    """Counts the items shown on pages, and the items of the catalogue."""

    def __init__(self) -> None:
        self._items: set[str] = set()
        self._shown: Counter[str] = Counter()

    @property
    def n_items(self) -> int:
        return len(self._items) + len(self._shown)

    def take_catalogue(self, body: ActionsBody) -> None:
        self._items.update(action.id for action in body.put)
        self._items.difference_update(body.retire)

    def show(self, item: str) -> bool:
        """Count a shown item; return whether it is new."""
        self._shown[item] += 1
        return self._shown[item] <= NEW

    def summary(self, finished: Sequence[FinishedDecision]) -> PageSummary | None:
        """Return a summary of pages from finished decisions, None if none of them was on a page."""
        places = [decision for decision in finished if decision.place]
        if not places:
            return None
        rewards: dict[int, list[float]] = {}
        for decision in places:
            if decision.reward is not None:
                rewards.setdefault(decision.place, []).append(decision.reward)
        return PageSummary(
            items=len(self._items),
            shown=sum(item in self._items for item in self._shown),
            new_share=sum(decision.is_new for decision in places) / len(places),
            places=[PlaceReward(place, len(own), fmean(own)) for place, own in sorted(rewards.items())],
        )

"""The report of a loop: its parts, and their computation from finished decisions."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated

import msgspec
import numpy as np

from bandits.evaluation import LoggedEvent, Row, evaluate, table
from bandits.evaluation.over_time import MeanSeries, mean_change
from bandits.evaluation.policies import Policy
from bandits.evaluation.table import number_users
from fedres.checks import Array
from service.hints import about
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

    policy: Annotated[
        str, about("logged, first, uniform or likeliest (always the likeliest action of the logged policy).")
    ]
    reward: Annotated[
        Bounds | None, about("Estimated reward per event; null if no logged decision has evidence about the policy.")
    ]
    difference: Annotated[
        Bounds | None, about("Estimated difference to the logged policy, event by event; null for the logged policy.")
    ]
    ess: Annotated[float, about("Effective sample size: the number of events that the estimate is worth.")]
    warning: Annotated[str, about("Why the estimate may be wrong; empty if nothing is.")]


class RewardSeries(msgspec.Struct):
    """Mean rewards by time, with 95% bands for each point alone; null where there is no event."""

    events: Annotated[list[int], about("Events in each span of time.")]
    reward: Annotated[list[float | None], about("Mean reward in each span; null without events.")]
    low: Annotated[list[float | None], about("Lower end of the 95% interval of each mean.")]
    high: Annotated[list[float | None], about("Upper end of the 95% interval of each mean.")]


class Traffic(msgspec.Struct):
    """Which actions the policy took, by time."""

    actions: Annotated[list[str | None], about("Ids of the most frequent actions; null stands for all others.")]
    events: Annotated[list[list[int]], about("For each action, its events in each span of time.")]
    evenness: Annotated[
        list[float | None], about("Entropy of the actions taken in each span, as a share of the largest possible.")
    ]


class Funnel(msgspec.Struct):
    """Counts of decisions and rewards since the loop was created."""

    ranked: Annotated[int, about("Decisions.")] = 0
    activated: Annotated[
        int, about("Decisions whose wait for a reward began; deferred ones count once they are activated.")
    ] = 0
    rewarded: Annotated[int, about("Events with a reward.")] = 0
    expired: Annotated[int, about("Events whose wait time ended without a reward.")] = 0
    waiting: Annotated[int, about("Events that still wait for a reward.")] = 0
    late: Annotated[int, about("Rewards that came after the wait time.")] = 0
    unmatched: Annotated[int, about("Rewards whose event id is unknown.")] = 0


class Delays(msgspec.Struct):
    """How long rewards took; the last count is of all that took longer."""

    up_to_seconds: Annotated[
        tuple[float, ...], about("Upper limits of the delays that are counted together, in seconds.")
    ]
    events: Annotated[list[int], about("Rewards up to each limit; a last count is of all that took longer.")]


class Change(msgspec.Struct):
    """A mean per event: earlier and recent."""

    earlier: Annotated[float, about("Mean of the earlier events.")]
    recent: Annotated[float, about("Mean of the recent events.")]
    difference: Annotated[Bounds, about("Recent − earlier ± 4 standard errors; it is wide because it is read often.")]


class Drift(msgspec.Struct):
    """The newest fifth of the policy's finished events against those before."""

    earlier_events: Annotated[int, about("Number of earlier events.")]
    recent_events: Annotated[int, about("Number of recent events.")]
    recent_since: Annotated[float, about("Time of the first recent event, in seconds since 1970.")]
    reward: Annotated[Change, about("The reward.")]
    bias: Annotated[Change, about("The reward minus its prediction; near 0 while the model is right.")]
    squared_error: Annotated[
        Change, about("The squared error of the prediction, which also depends on the actions taken.")
    ]
    is_drifting: Annotated[bool, about("Whether recent predictions are biased, and more than earlier ones.")]


class PlaceReward(msgspec.Struct):
    """What a place of pages earned, per event."""

    place: Annotated[int, about("Number of the place, from 1.")]
    events: Annotated[int, about("Finished events of the place.")]
    reward: Annotated[float, about("Mean reward per event.")]


class PageSummary(msgspec.Struct):
    """What pages of recommended items show."""

    items: Annotated[int, about("Items in the catalogue.")]
    shown: Annotated[int, about("Items of the catalogue that a page has shown.")]
    new_share: Annotated[float, about("Share of the finished events whose item had been shown fewer than ten times.")]
    places: Annotated[list[PlaceReward], about("The rewards of each place.")]


class Alarm(msgspec.Struct):
    """Something that needs attention."""

    code: Annotated[str, about("The kind of alarm, for programs.", "guardrail")]
    message: Annotated[
        str,
        about(
            "What is wrong and what to do, for people.", "purchase fell by at least 0.5 per event: the baseline decides"
        ),
    ]
    revert: Annotated[bool, about("Whether the alarm lets the baseline decide for everybody.", True)] = False


class SettingsChange(msgspec.Struct):
    """A change of the settings, for marks in charts."""

    time: Annotated[float, about("When, in seconds since 1970.", 1793534400.0)]
    text: Annotated[str, about("What has changed.", "floor 0.05 to 0.08")]


class LoopReport(msgspec.Struct):
    """What a loop's log shows, up to a position."""

    position: Annotated[int, about("Position of the last record in the loop's log.")]
    time: Annotated[str, about("Time of the last record, as ISO 8601.")]
    events: Annotated[int, about("Finished events that series and estimates are about: the newest.")]
    reward_range: Annotated[tuple[float, float], about("Smallest and largest reward by the loop's settings.")]
    bucket_ends: Annotated[list[float], about("Ends of the spans of time of all series, in seconds since 1970.")]
    policy: Annotated[RewardSeries, about("Rewards of the loop's own policy.")]
    control: Annotated[RewardSeries, about("Rewards of the control group.")]
    uniform: Annotated[RewardSeries, about("Rewards of uniform draws, estimated from the log (SNIPS) up to each time.")]
    traffic: Annotated[Traffic, about("Actions that the policy took.")]
    funnel: Annotated[Funnel, about("Counts of decisions and rewards.")]
    delays: Annotated[Delays, about("How long rewards took.")]
    features: Annotated[list[Feature], about("The features in the newest events, the most important first.")]
    drift: Annotated[
        Drift | None,
        about("Recent against earlier events; null below 500 events of the policy, or 20 earlier or recent users."),
    ]
    devices: Annotated[DeviceSummary | None, about("Devices; null without any.")]
    pages: Annotated[PageSummary | None, about("Pages of recommended items; null without any.")]
    lift: Annotated[LiftReport | None, about("The policy against its control group; null without one.")]
    values: Annotated[
        list[PolicyValue], about("Estimates for other policies; empty below 100 events with probabilities.")
    ]
    alarms: Annotated[
        list[Alarm],
        about(
            "What needs attention; empty if nothing does.",
            [{"code": "guardrail", "message": "purchase fell by at least 0.5 per event", "revert": True}],
        ),
    ]
    events_since: Annotated[
        str | None,
        about("Time from which on the log still has events; null if none were removed.", "2026-11-01T00:00:00+00:00"),
    ] = None
    one_in: Annotated[int, about("Series and estimates use one in this many decisions, because events are large.")] = 1
    older_left_out: Annotated[
        bool, about("Whether older events are in counts only, because they are too many or too large.")
    ] = False
    changes: Annotated[list[SettingsChange], about("The newest changes of the settings, the oldest first.")] = []


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
    numbers = {action: number for number, action in enumerate(dict.fromkeys(taken))}
    chosen = np.array([bucket, [numbers[action] for action in taken]], int).reshape(2, -1)
    pairs, n_pairs = np.unique(chosen, axis=1, return_counts=True)
    totals = counts.sum(0)
    share = n_pairs / totals[pairs[0]]
    entropy = np.bincount(pairs[0], -share * np.log(share), n) / np.log(max(len(numbers), 2))
    evenness = [round(abs(float(e)), 4) if total else None for e, total in zip(entropy, totals, strict=True)]
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

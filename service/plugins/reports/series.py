"""What reports are made of: points in time with bands, traffic by action, values of policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from fedres.checks import Array
from service.plugins.reports.evaluation import range_of
from service.plugins.reports.experiments import Bounds

if TYPE_CHECKING:  # SciPy is loaded by the first report
    from bandits.evaluation import LoggedEvent

LEAST_VALUED = 100  # events before policies are valued
LEAST_EFFECTIVE = 20  # effective sample size from which uniform picks are valued
N_BUCKETS = 48  # of time
MOST_ACTIONS = 8  # shown by name; the others are added up
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
    scores: tuple[float, ...]  # rewards as they were predicted
    settings: int  # position of those in force
    n_learned: int  # finished events that the model had learned from, about
    reward: float | None = None


class Taken(msgspec.Struct):
    """The action that a user's newest finished decision took."""

    user: str
    context: msgspec.Raw
    action: str
    features: msgspec.Raw


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
    values: int  # different ones
    note: str  # constant, gone (it was in earlier events), never taken (only in the catalogue), or empty


class Alarm(msgspec.Struct):
    code: str
    message: str
    revert: bool = False  # it asks for the baseline


def buckets(events: Sequence[Finished]) -> tuple[list[float], Array]:
    """Return the ends of equal spans of time, and the number of the span of each event."""
    if not events:
        return [], np.zeros(0, int)
    times = np.array([one.time for one in events], float)
    low, high = times.min(), times.max()
    width = max((high - low) / N_BUCKETS, 1.0)
    n = 1 if high == low else N_BUCKETS
    return [float(low + width * (k + 1)) for k in range(n)], np.minimum((times - low) // width, n - 1).astype(int)


def numbered(names: Sequence[str]) -> Array:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], int)


def line_of(bucket: Array, reward: Array, weight: Array, user: Array, n: int) -> Line:
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


def uniform_line(bucket: Array, reward: Array, weight: Array, user: Array, n: int) -> Line:
    """Return a line whose points are about all events until then: in a short time the policy tries little else.

    There is no point where too few of the events were explored; weights are 1 on average otherwise.
    """
    line = Line([], [], [], [])
    for k in range(n):
        until = bucket <= k
        w = weight[until]
        effective = w.sum() ** 2 / max((w**2).sum(), 1e-300)
        point = line_of(np.zeros(w.size, int), reward[until], w, user[until], 1)
        if effective < LEAST_EFFECTIVE or not w.size / 1.5 < w.sum() < 1.5 * w.size:
            point = Line(point.events, [None], [None], [None])
        for name in Line.__struct_fields__:
            getattr(line, name).extend(getattr(point, name))
    return line


def _shown(values: Array) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def traffic_of(events: Sequence[Finished], bucket: Array, n: int) -> Traffic:
    taken = [one.actions[one.chosen] for one in events]
    known = [action for action, _ in Counter(taken).most_common(MOST_ACTIONS)]
    places = {action: place for place, action in enumerate(known)}
    others = len(set(taken)) > MOST_ACTIONS
    counts = np.zeros((len(known) + others, n), int)
    for action, place in zip(taken, bucket, strict=True):
        counts[places.get(action, len(known)), place] += 1
    share = counts / np.maximum(counts.sum(0), 1)
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(0) / np.log(max(len(counts), 2))
    evenness = [rounded(value) if total else None for value, total in zip(entropy, counts.sum(0), strict=True)]
    return Traffic([*known, *([None] * others)], counts.tolist(), evenness)


def rounded(value: float) -> float:
    return round(float(value), 4)


def _bounds(*numbers: float) -> Bounds:
    return Bounds(*map(float, numbers))


def logged_events(events: Sequence[Finished]) -> Iterator[LoggedEvent]:
    """Yield events as ``bandits.evaluation`` takes them, without features."""
    from bandits.evaluation import LoggedEvent

    for one in events:
        yield LoggedEvent(
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


def values_of(events: Sequence[Finished], known_range: tuple[float, float]) -> list[PolicyValue]:
    """Return the values of simple policies on decisions whose actions all had a chance."""
    if len(events) < LEAST_VALUED:
        return []
    from bandits.evaluation import evaluate, table

    log = table(logged_events(events))
    span = range_of(log.reward, known_range)
    found = evaluate(log, [*POLICIES], estimators=("snips",), time_uniform=True, reward_range=span)
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

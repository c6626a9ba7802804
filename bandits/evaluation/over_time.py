"""Mean rewards over time and between two times, with the errors of users' means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from fedres.checks import Array

NORMAL = 1.96  # standard errors of a 95% interval
LEAST_EFFECTIVE = 20  # effective sample size of a point of ``snips_so_far``


class MeanSeries(NamedTuple):
    """A weighted mean for each span of time, with its 95% band; NaN where no event has weight."""

    events: Array
    mean: Array
    low: Array
    high: Array


def snips_by_bucket(bucket: Array, reward: Array, weight: Array, user: Array, n: int) -> MeanSeries:
    """Return SNIPS in each of ``n`` buckets; all weights are 1 for the logging policy.

    A user's events count together in the variance, as in :mod:`bandits.evaluation.intervals`.
    """
    events = np.bincount(bucket, minlength=n)
    total = np.bincount(bucket, weight, n)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(bucket, weight * reward, n) / total
        pairs, pair = np.unique(bucket + n * user, return_inverse=True)
        squares = np.bincount(pair, weight * (reward - mean[bucket]), pairs.size) ** 2
        users = np.bincount(pairs % n, minlength=n)
        error = np.sqrt(_correction(users) * np.bincount(pairs % n, squares, n)) / total
    return MeanSeries(events, mean, mean - NORMAL * error, mean + NORMAL * error)


def _correction(users: Array) -> Array:
    """Return n / (n − 1) for numbers of users; one user alone has no error, which is NaN."""
    return np.where(users > 1, users / (users - 1), np.nan)


def snips_so_far(bucket: Array, reward: Array, weight: Array, user: Array, n: int) -> MeanSeries:
    """Return SNIPS over all events up to each bucket: within a short time, a policy tries few other actions.

    A point is NaN where the effective sample size is small, or weights do not average about 1.
    """
    shift = float(reward.mean()) if reward.size else 0.0  # sums of squares around it lose no digits
    off = reward - shift
    # The sums of each user in each bucket, ordered by user, then by bucket.
    pairs, pair = np.unique(user * max(n, 1) + bucket, return_inverse=True)
    pair_bucket = pairs % max(n, 1)
    is_first = np.diff(pairs // max(n, 1), prepend=-1) > 0  # of its user
    weights = np.bincount(pair, weight, pairs.size)
    rewards = np.bincount(pair, weight * off, pairs.size)
    weights_before = _before(weights, is_first)
    rewards_before = _before(rewards, is_first)

    def until(of_pairs: Array) -> Array:
        """Return the sums up to each bucket."""
        sums: Array = np.cumsum(np.bincount(pair_bucket, of_pairs, n))
        return sums

    events = np.cumsum(np.bincount(bucket, minlength=n))
    users = until(is_first.astype(float))
    total = until(weights)
    # Σ over users of their squared sums so far: each pair adds (before + now)² − before².
    reward_squares = until(rewards * (rewards + 2 * rewards_before))
    weight_squares = until(weights * (weights + 2 * weights_before))
    products = until(rewards * weights + rewards * weights_before + weights * rewards_before)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = until(rewards) / total
        squares = np.maximum(reward_squares - 2 * mean * products + mean**2 * weight_squares, 0.0)
        error = np.sqrt(_correction(users) * squares) / total
        effective = total**2 / np.cumsum(np.bincount(bucket, weight**2, n))
    is_good = (effective >= LEAST_EFFECTIVE) & (events / 1.5 < total) & (total < 1.5 * events)
    bands = np.array([mean, mean - NORMAL * error, mean + NORMAL * error]) + shift
    return MeanSeries(events, *np.where(is_good, bands, np.nan))


def _before(values: Array, is_first: Array) -> Array:
    """Return the sum of earlier values of the same user; ``is_first`` marks where a user begins."""
    before = np.cumsum(values) - values
    starts = np.flatnonzero(is_first)
    sizes = np.diff(np.append(starts, values.size))
    of_others: Array = np.repeat(before[starts], sizes)
    return np.asarray(before - of_others)


class MeanChange(NamedTuple):
    """The mean of a later part of some values against that of the earlier part."""

    earlier: float
    later: float
    error: float  # standard error of later − earlier; all values of a user are one observation


def mean_change(values: Array, is_later: Array, user: Array) -> MeanChange:
    """Return how the mean changed; ``user`` numbers the users from 0 on."""
    earlier, later = float(values[~is_later].mean()), float(values[is_later].mean())
    parts = np.where(is_later, (values - later) / is_later.sum(), -(values - earlier) / (~is_later).sum())
    return MeanChange(earlier, later, float(np.sqrt((np.bincount(user, parts) ** 2).sum())))


@dataclass(slots=True)
class SnipsSums:
    """What SNIPS needs of a span of time, in sums that can be added; w is a weight, r a reward."""

    time: int  # when the span begins
    n: int = 0
    weight: float = 0.0  # Σ w
    reward: float = 0.0  # Σ w r
    squares: float = 0.0  # Σ (w r)²
    weight_squares: float = 0.0  # Σ w²
    products: float = 0.0  # Σ w² r
    possible: float = 0.0  # events with w > 0

    def __add__(self, other: SnipsSums) -> SnipsSums:
        """Return the sums of both spans; the first is the earlier one."""
        theirs = asdict(other)
        return SnipsSums(self.time, **{name: n + theirs[name] for name, n in asdict(self).items() if name != "time"})

    def value(self) -> float:
        """Return Σ w r / Σ w, 0 without weight."""
        return self.reward / self.weight if self.weight else 0.0

    def half_width(self) -> float:
        """Return half of the normal 95% interval, events taken as independent: Σ w² (r − v)² = variance · (Σ w)²."""
        v = self.value()
        spread = self.squares - 2 * v * self.products + v * v * self.weight_squares
        return NORMAL * math.sqrt(max(spread, 0.0)) / self.weight if self.weight else 0.0


def snips_sums(time: Array, width: int, weight: Array, reward: Array) -> list[SnipsSums]:
    """Return the sums of each span of ``width`` that has events, the earliest first."""
    starts, span = np.unique(time // width * width, return_inverse=True)
    product = weight * reward
    columns = (weight, product, product**2, weight**2, weight * product, (weight > 0).astype(float))
    sums: Sequence[list[float]] = [np.bincount(span, column, len(starts)).tolist() for column in columns]
    counts = np.bincount(span, minlength=len(starts)).tolist()
    return [SnipsSums(*row) for row in zip(starts.tolist(), counts, *sums, strict=True)]

"""Confidence intervals for a policy's value from terms a − b θ, whose mean is 0 where θ is that value.

[F54] E. Fieller. *Some Problems in Interval Estimation*. Journal of the Royal Statistical Society B 16(2), 1954.
[KLM20] N. Karampatziakis, J. Langford, P. Mineiro. *Empirical Likelihood for Contextual Bandits*. NeurIPS 2020.
[CM15] C. Cameron, D. Miller. *A Practitioner's Guide to Cluster-Robust Inference*. Journal of Human Resources 50(2),
       2015.

An interval holds every θ that the terms do not speak against: no estimate is linearized, and what a term can be at
most counts beside what was seen [F54, KLM20]. So no interval has width 0 where a reward could have been another.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bandits.evaluation.evidence import Rule, fixed_time, time_uniform
from fedres.checks import Array


class Interval(NamedTuple):
    value: float
    low: float
    high: float


class Terms(NamedTuple):
    """a − b θ, with b ≥ 0: one for each event, or the sums for each user."""

    a: Array
    b: Array

    def at(self, theta: float) -> Array:
        return np.subtract(self.a, self.b * theta)

    def mirrored(self) -> Terms:
        """Return the terms of −θ."""
        return Terms(-self.a, self.b)

    def by(self, user: Array) -> Terms:
        """Return the sums over the events of each user, given as a number from 0 on."""
        return Terms(np.bincount(user, self.a), np.bincount(user, self.b))


@dataclass(frozen=True, slots=True)
class IntervalKind:
    """Which interval is wanted."""

    level: float
    time_uniform: bool  # or for one look
    reward_range: tuple[float, float]
    user: Array  # of each event, numbered from 0 on

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ValueError(f"level must be in (0, 1), got {self.level}")

    def looks(self) -> Sequence[IntervalKind]:
        """Return the kinds whose widest interval is wanted.

        Those for one look count users if they are few, and cut weights. So with few events a time-uniform interval
        could be the narrower one, which would be right as well, and believed by nobody.
        """
        return (replace(self, time_uniform=False), self) if self.time_uniform else (self,)

    @property
    def n_users(self) -> int:
        return int(self.user.max()) + 1


def interval(
    terms: Callable[[float], tuple[Terms, Terms]], value: float, span: tuple[float, float], kind: IntervalKind
) -> Interval:
    """Return ``value`` with the limits of θ, which lies in ``span``.

    ``terms(end)`` are those of the events and those that an event could have had, where what the log cannot say of
    rewards is set to ``end`` of their range.
    """
    (worst, best), (bottom, top) = kind.reward_range, span
    seen, possible = terms(best)
    high = _limit(seen, possible, top, kind)
    seen, possible = terms(worst)
    low = -_limit(seen.mirrored(), possible.mirrored(), -bottom, kind)
    if math.isnan(value):
        return Interval(value, low, high)
    return Interval(value, min(low, value), max(high, value))


def widest(intervals: Iterable[Interval]) -> Interval:
    """Return the interval that holds all of these, which are about one value."""
    value, low, high = zip(*intervals, strict=True)
    return Interval(value[0], min(low), max(high))


def _limit(seen: Terms, possible: Terms, top: float, kind: IntervalKind) -> float:
    n_events, seen = seen.a.size, seen.by(kind.user)
    if kind.time_uniform:
        return upper_limit(seen, possible, top, time_uniform(kind.level, kind.n_users))
    limit = upper_limit(seen, possible, top, fixed_time(kind.level))
    return limit if kind.n_users == n_events else max(limit, student_limit(seen, top, kind.level))


def upper_limit(seen: Terms, possible: Terms, top: float, rule: Rule) -> float:
    """Return the largest θ ≤ ``top`` that ``seen`` does not speak against.

    ``possible`` holds the terms that a single event could have had.
    """
    from scipy.optimize import brentq

    total = float(seen.b.sum())
    estimate = float(seen.a.sum()) / total if total > 0 else top
    if not estimate < top:
        return top
    pairs, count = np.unique(np.array(seen).T.copy().view(complex), return_counts=True)
    # As arguments: SciPy wraps a function in one that refers to itself, so that what a closure held would stay.
    about = (Terms(pairs.real, pairs.imag), count, possible, rule)
    if _lacking(top, *about) < 0:
        return top
    if _lacking(estimate, *about) >= 0:  # no term can differ from 0
        return estimate
    return float(brentq(_lacking, estimate, top, about, xtol=max(1e-9 * (top - estimate), sys.float_info.min)))


def _lacking(theta: float, distinct: Terms, count: Array, possible: Terms, rule: Rule) -> float:
    """Return how much the evidence against θ exceeds what the rule needs."""
    z = distinct.at(theta)
    largest = max(float(z.max()), float(possible.at(theta).max()))
    return min(rule.evidence(z, count, largest), 2 * rule.needed) - rule.needed


def student_limit(seen: Terms, top: float, level: float) -> float:
    """Return the upper end of Student's interval, one observation a user [CM15]: needed where users are few."""
    from scipy.special import stdtrit

    n, total = seen.a.size, float(seen.b.sum())
    if n < 2 or total <= 0:
        return top
    estimate = float(seen.a.sum()) / total
    error = math.sqrt(n / (n - 1) * float((seen.at(estimate) ** 2).sum())) / total
    return min(top, estimate + float(stdtrit(n - 1, (1 + level) / 2)) * error)

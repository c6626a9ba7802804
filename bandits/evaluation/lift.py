"""How much more a treatment earns than its control group, with intervals that hold whenever one looks.

[WS24]  I. Waudby-Smith, D. Arbour, R. Sinha, E. Kennedy, A. Ramdas. *Time-Uniform Central Limit Theory and Asymptotic
        Confidence Sequences*. Annals of Statistics 52(6), 2024.
[DXKW13] A. Deng, Y. Xu, R. Kohavi, T. Walker. *Improving the Sensitivity of Online Controlled Experiments by Utilizing
        Pre-Experiment Data*. WSDM 2013. (CUPED)
[LM22]  M. Lindon, A. Malek. *Anytime-Valid Inference for Multinomial Count Data*. NeurIPS 2022.
[F54]   E. Fieller. *Some Problems in Interval Estimation*. Journal of the Royal Statistical Society B 16(2), 1954.

A user is one observation: the sum of the user's rewards and the number of the user's events. Means are rewards per
event, so their errors are those of ratios, linearized. Intervals are asymptotic: below ``LEAST_USERS`` users or
``LEAST_REWARDED`` rewarded events in an arm there is none. What is rare may be missing in a small arm by chance, whose
variance then seems to be 0. So in the variance of each arm counts how far one more user could move its mean: the one of
both arms who would move it most, as the largest possible observation does in ``evidence``. Users of the other arm count
by how far they are from the mean of their own, or a lift would widen its own interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bandits.evaluation.intervals import Interval
from fedres.checks import Array

LEAST_USERS = 20  # in each arm
LEAST_REWARDED = 20  # events in each arm whose reward was not the most common one
TIGHTEST = 10_000  # events at which the interval is tightest, relative to one for a single look
RATIO_ALARM = 1e-3  # how often a sample-ratio alarm is false, over all looks together


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the two groups: an entry for each user."""

    rewards: Array  # sums over the user's events
    events: Array  # how many there were
    n_rewarded: int  # events whose reward was not the most common one
    before: Array | None = None  # the user's mean reward before the experiment, nan where there was none

    @property
    def n_users(self) -> int:
        return self.events.size

    @property
    def n_events(self) -> int:
        return int(self.events.sum())


@dataclass(frozen=True, slots=True)
class Lift:
    """Treatment against control."""

    control: float  # mean reward per event
    treatment: float
    absolute: Interval | None  # treatment − control; None where there is not enough data
    relative: Interval | None  # (treatment − control) / control; None too where control may be 0 or less
    # The data that a result still needs.
    missing: str | None
    n_users: int
    variance_left: float  # share of the variance that earlier rewards do not explain; 1 without any

    def more_users(self, half_width: float) -> int | None:
        """Return about how many more users it takes until the absolute interval is ± ``half_width``.

        None if there is no interval, or a width of 0 is wanted, as where all rewards are equal.
        """
        if self.absolute is None or half_width <= 0:
            return None
        now = (self.absolute.high - self.absolute.low) / 2
        return max(0, math.ceil(self.n_users * ((now / half_width) ** 2 - 1)))


def lift(control: Arm, treatment: Arm, level: float = 0.95) -> Lift:
    """Return how much more the treatment earns, with an interval that holds at all looks together."""
    from scipy.special import ndtr, stdtrit

    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    n_users = control.n_users + treatment.n_users
    means = _mean(control.rewards, control.events), _mean(treatment.rewards, treatment.events)
    missing = _missing(control, "control") or _missing(treatment, "treatment")
    if missing:
        return Lift(*means, None, None, missing, n_users, 1.0)
    variance0, variance1 = _variances([control.rewards, treatment.rewards], [control.events, treatment.events])
    plain = variance0 + variance1
    adjusted = _adjusted(control, treatment)
    mean0, mean1 = _mean(adjusted[0], control.events), _mean(adjusted[1], treatment.events)
    variance0, variance1 = _variances(adjusted, [control.events, treatment.events])
    factor = _factor(control.n_events + treatment.n_events, 1 - level)
    factor = float(-stdtrit(min(control.n_users, treatment.n_users) - 1, ndtr(-factor)))  # variances are estimates
    width = factor * math.sqrt(variance0 + variance1)
    difference = mean1 - mean0
    absolute = Interval(difference, difference - width, difference + width)
    relative = _relative(mean0, mean1, variance0, variance1, factor)
    left = (variance0 + variance1) / plain if plain > 0 else 1.0
    return Lift(*means, absolute, relative, None, n_users, left)


def sample_ratio_is_wrong(n_control: int, n_treatment: int, share: float) -> bool:
    """Return whether users were not assigned with the probability ``share``; a false alarm is 1 in 1,000 at most,
    however often one looks [LM22]."""
    from scipy.special import betaln

    k, n = n_control, n_control + n_treatment
    prior = 10 * share, 10 * (1 - share)
    evidence = betaln(prior[0] + k, prior[1] + n - k) - betaln(*prior)
    return bool(evidence - k * math.log(share) - (n - k) * math.log1p(-share) > -math.log(RATIO_ALARM))


def _missing(arm: Arm, name: str) -> str | None:
    if arm.n_users < LEAST_USERS:
        return f"{name} has {arm.n_users} users, and needs {LEAST_USERS}"
    if arm.n_rewarded < LEAST_REWARDED:
        return f"{name} has {arm.n_rewarded} rewarded events, and needs {LEAST_REWARDED}"
    return None


def _mean(rewards: Array, events: Array) -> float:
    n = float(events.sum())
    return float(rewards.sum()) / n if n else math.nan


def _variances(rewards: Sequence[Array], events: Sequence[Array]) -> list[float]:
    """Return the variance of each arm's mean reward per event, one observation a user; see above for rare rewards."""
    off = [of_users - _mean(of_users, n) * n for of_users, n in zip(rewards, events, strict=True)]
    variances = []
    for own_off, own_events in zip(off, events, strict=True):
        n, n_events = own_events.size, float(own_events.sum())
        own = n / (n - 1) * float((own_off**2).sum()) / n_events**2
        one_more = max(float(((far / (n_events + n)) ** 2).max()) for far, n in zip(off, events, strict=True))
        variances.append(own + one_more)
    return variances


def _factor(n_events: int, alpha: float) -> float:
    """Return how many standard errors hold at all looks together [WS24, theorem 2.2, with events as its clock].

    Variances are those of users, whose events count together: information then grows no faster than events do, so that
    the clock runs ahead of it, which is the safe side.
    """
    scaled = n_events / TIGHTEST * (-2 * math.log(alpha) + math.log(1 - 2 * math.log(alpha)))
    return math.sqrt((1 + 1 / scaled) * math.log((1 + scaled) / alpha**2))


def _adjusted(control: Arm, treatment: Arm) -> list[Array]:
    """Return the rewards of both arms less what users' earlier rewards foretell [DXKW13]."""
    arms = (control, treatment)
    if control.before is None or treatment.before is None:
        return [arm.rewards for arm in arms]
    before = np.concatenate([control.before, treatment.before])
    events = np.concatenate([arm.events for arm in arms]).astype(float)
    has_before = np.isfinite(before)
    if not has_before.any():
        return [arm.rewards for arm in arms]
    middle = float(events[has_before] @ before[has_before]) / float(events[has_before].sum())
    x = np.where(has_before, before - middle, 0.0) * events
    y = np.concatenate([arm.rewards - _mean(arm.rewards, arm.events) * arm.events for arm in arms])
    squares = float(x @ x)
    slope = float(x @ y) / squares if squares > 0 else 0.0
    return [arm.rewards - slope * part for arm, part in zip(arms, np.split(x, [control.n_users]), strict=True)]


def _relative(mean0: float, mean1: float, variance0: float, variance1: float, factor: float) -> Interval | None:
    """Return the δ for which mean1 − (1 + δ) mean0 may be 0 [F54]."""
    a = mean0**2 - factor**2 * variance0
    if a <= 0 or mean0 <= 0:  # control's mean may be 0
        return None
    root = math.sqrt(max(0.0, (mean0 * mean1) ** 2 - a * (mean1**2 - factor**2 * variance1)))
    value = mean1 / mean0 - 1
    low = (mean0 * mean1 - root) / a - 1
    high = (mean0 * mean1 + root) / a - 1
    if not math.isfinite(low + high):
        return None
    return Interval(value, min(low, value), max(high, value))  # of which rounding could leave it out

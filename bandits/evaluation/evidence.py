"""How strongly numbers with known bounds speak against having the mean 0 or more: once, or looked at every day.

[R81]  D. Rubin. *The Bayesian Bootstrap*. Annals of Statistics 9(1), 1981.
[G05]  N. Gaffke. *Three Test Statistics for a Nonparametric One-Sided Hypothesis on the Mean of a Nonnegative
       Variable*. Mathematical Methods of Statistics 14(4), 2005.
[LT20] E. Learned-Miller, P. Thomas. *A New Confidence Interval for the Mean of a Bounded Random Variable*.
       arXiv:1905.06208, 2020.
[LR80] R. Lugannani, S. Rice. *Saddle Point Approximation for the Distribution of the Sum of Independent Random
       Variables*. Advances in Applied Probability 12(2), 1980; in the form r* of O. Barndorff-Nielsen, *Inference on
       Full or Partial Parameters Based on the Standardized Signed Log Likelihood Ratio*. Biometrika 73(2), 1986.
[OJ24] F. Orabona, K.-S. Jun. *Tight Concentrations and Confidence Sequences from the Regret of Universal Portfolio*.
       IEEE Transactions on Information Theory 70(1), 2024.

Both ask what a gambler would have won who bet on a mean below 0, with the best stake s in hindsight: Σ log(1 − s z),
the empirical log-likelihood ratio. A stake may not risk more than all the gambler has, so s is at most 1 / (largest
possible z): this is where the bound comes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedres.checks import Array

CERTAIN = 1e3  # evidence where no number is above 0, and none can be


@dataclass(frozen=True, slots=True)
class Rule:
    """A mean of 0 is refused where ``evidence(z, count, largest)`` reaches ``needed``."""

    evidence: Callable[[Array, Array, float], float]  # count: how often each z was seen; largest: what z can be
    needed: float


def fixed_time(level: float) -> Rule:
    """Return the rule for one look at a log whose length was not chosen by its rewards."""
    from scipy.special import ndtri  # in functions: a service that evaluates nothing need not load SciPy

    return Rule(bootstrap_score, float(ndtri((1 + level) / 2)))


def time_uniform(level: float, n: int) -> Rule:
    """Return the rule for a look at ``n`` numbers that may be one of many: all limits hold together [OJ24]."""
    from scipy.special import gammaln

    regret = 0.5 * math.log(math.pi) + gammaln(n + 1) - gammaln(n + 0.5)  # of a universal portfolio after n rounds
    return Rule(log_wealth, float(-math.log(1 - level) + regret))


def bootstrap_score(z: Array, count: Array, largest: float) -> float:
    """Return the normal quantile of P(Σ E z < 0), with independent exponential E, and ``largest`` once among the z.

    That is the Bayesian bootstrap [R81] with one more observation, the largest possible [G05, LT20]. For 0/1 numbers
    the limits are Clopper and Pearson's; that they hold for all bounded numbers is a conjecture that nobody has seen
    fail. The distribution is approximated to about 1% of the tail [LR80].
    """
    z, count = np.append(z, largest), np.append(count, 1.0)
    if count @ z >= 0:
        return 0.0
    if largest <= 0:
        return CERTAIN
    stake = _best_stake(z, count, largest)
    won = float(count @ np.log1p(-stake * z))
    r = math.sqrt(2 * max(won, 0.0))
    if r < 1e-4:
        return 0.0
    u = stake * math.sqrt(float(count @ (z / (1 - stake * z)) ** 2))
    return r + math.log(u / r) / r  # r*


def log_wealth(z: Array, count: Array, largest: float) -> float:
    """Return what the best stake in hindsight would have won."""
    if count @ z >= 0:
        return 0.0
    if largest <= 0:
        return math.inf
    return float(count @ np.log1p(-_best_stake(z, count, largest) * z))


def _best_stake(z: Array, count: Array, largest: float) -> float:
    """Return argmax Σ log(1 − s z) over 0 ≤ s < 1 / largest."""
    from scipy.optimize import brentq

    y = z / largest
    most = 1 - 1e-12
    if _slope(0.0, y, count) >= 0:
        return 0.0
    if _slope(most, y, count) <= 0:
        return most / largest
    return float(brentq(_slope, 0.0, most, (y, count))) / largest  # no closure, as in ``intervals.upper_limit``


def _slope(s: float, y: Array, count: Array) -> float:
    """Return −d/ds Σ log(1 − s y), times a factor that takes away the pole at 1."""
    return float(count @ (y / (1 - s * y))) * (1 - s)

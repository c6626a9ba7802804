"""What an estimator's interval rests on: for every event, and for every action it could have taken, a term a − b θ.

[BP13] L. Bottou, J. Peters, J. Quiñonero-Candela, et al. *Counterfactual Reasoning and Learning Systems: The Example of
       Computational Advertising*. JMLR 14, 2013, section 4.4.

A weight past a cap is cut to it. The probability that the cuts take from the target's actions is known, and the
rewards that went with it lie between the ends of their range: the upper limit takes the highest, the lower limit the
lowest [BP13]. An action that could not be taken has an infinite weight, and is all cut off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bandits.evaluation.estimators import Sample
from bandits.evaluation.intervals import Terms
from bandits.evaluation.table import Log
from fedres.checks import Array


@dataclass(frozen=True, slots=True)
class Cut:
    """Events with weights cut to a cap; ``predicted``, ``baseline`` and ``lost_predicted`` are 0 without a model."""

    reward: Array  # r
    weight: Array  # ŵ ≤ w
    predicted: Array  # q
    baseline: Array  # v = Σ_a π q
    lost: Array  # Σ_a π (1 − ŵ/w): the probability cut off
    lost_predicted: Array  # Σ_a π (1 − ŵ/w) q


def seen_and_possible(
    log: Log, s: Sample, target: Array, predicted: Array, weight: Array, cap: float, ends: tuple[float, float]
) -> tuple[Cut, Cut]:
    """Return the events as they were, and all that could have been: every action with either end of the rewards.

    ``target``, ``predicted`` and ``weight`` are π, q and π/p of every (event, action) pair.
    """
    kept = np.divide(cap, weight, out=np.ones_like(weight), where=weight > cap)
    lost = target * (1 - kept)
    about = (log.per_event(lost), log.per_event(lost * predicted))
    seen = Cut(s.reward, np.minimum(s.weight, cap), s.predicted, s.baseline, *about)
    event = np.tile(np.repeat(np.arange(len(log)), log.n_actions), 2)
    could_weigh = np.where(np.isfinite(weight), np.minimum(weight, cap), 0.0)
    could_weigh, could_predict = np.tile(could_weigh, 2), np.tile(predicted, 2)
    of_events = (column[event] for column in (s.baseline, *about))
    return seen, Cut(np.repeat(ends, weight.size), could_weigh, could_predict, *of_events)


def plain_rewards(reward: Array) -> Cut:
    """Return events of the logging policy: all weights are 1."""
    return Cut(reward, np.ones_like(reward), *np.zeros((4, reward.size)))


def without_model(x: Cut) -> Cut:
    nothing = np.zeros_like(x.reward)
    return replace(x, predicted=nothing, baseline=nothing, lost_predicted=nothing)


def value_terms(x: Cut, end: float, centre: float | None = None) -> Terms:
    """Return terms for a policy's value, where rewards cut off are ``end`` each.

    Without ``centre`` they are those of IPS and DR. With it they are those of the self-normalized forms: weights have
    the mean 1, so that (w − 1)(``centre`` − θ) can be added; ``centre`` is 0 for SNIPS and the mean baseline for SNDR.
    """
    a, mass = _unbiased(x, end), x.weight + x.lost
    if centre is None:
        return Terms(a, np.ones_like(a))
    return Terms(a + (mass - 1) * centre, mass)


def difference_terms(x: Cut, end: float, centre: float = 0.0) -> Terms:
    """Return terms for value − mean reward of the log, event by event, with (w − 1) ``centre`` added.

    ``centre`` is 0 for IPS and DR, and the mean baseline less the estimate for the self-normalized forms.
    """
    a = _unbiased(x, end) - x.reward + (x.weight + x.lost - 1) * centre
    return Terms(a, np.ones_like(a))


def _unbiased(x: Cut, end: float) -> Array:
    a: Array = x.baseline + x.weight * (x.reward - x.predicted) + x.lost * end - x.lost_predicted
    return a

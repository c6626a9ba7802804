"""Several target policies compared on one log, with the policy that wrote it as the yardstick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from bandits.evaluation.estimators import BIASED_DR, ESTIMATORS, MODEL_FREE, Sample, doubly_robust, sample
from bandits.evaluation.intervals import LEAST_EVENTS, Interval, effective_sample_size, interval, weight_warning
from bandits.evaluation.policies import Policy, Rewards, policy_name, target_probabilities
from bandits.evaluation.reward_model import crossfit_rewards
from bandits.evaluation.table import Log, load_log
from fedres.checks import Array, one_of


@dataclass(frozen=True, slots=True)
class Row:
    """One estimate. NaN where no logged action says anything about the policy."""

    policy: str
    estimator: str  # "mean" for the logging policy
    value: float  # mean reward the policy would have had
    low: float
    high: float
    difference: float  # to the logging policy, paired event by event
    difference_low: float
    difference_high: float
    ess: float  # effective sample size
    largest_weight: float
    n: int
    warning: str  # empty where nothing is wrong


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All rows, the logging policy's first, and what was read."""

    rows: tuple[Row, ...]
    n: int
    n_without_reward: int  # left out of the estimates, or given the default reward
    default_reward: float | None
    level: float

    def to_json(self) -> dict[str, object]:
        """Return plain values for a JSON file; null where there is no number."""
        document = asdict(self)
        document["rows"] = [{key: _plain(value) for key, value in row.items()} for row in document["rows"]]
        return document


def evaluate(
    log: Log | str | Path,
    policies: Sequence[str | Policy],
    *,
    estimators: Sequence[str] = ("snips", "dr"),
    default_reward: float | None = None,
    level: float = 0.95,
    n_folds: int = 5,
) -> Evaluation:
    """Return a row for the logging policy, then one for every policy and estimator.

    A policy is a name (``POLICY_FORMS``) or a function from a ``LoggedEvent`` to the probabilities of its actions;
    ``log`` is a file or a ``Log``, ``default_reward`` is for the events of a file that have none. Names that learn
    (greedy, epsilon-greedy, squarecb) and estimators with a model share one cross-fitted reward model: what is
    valued is the policy learned from ``n_folds − 1`` parts of the log, on the part it did not see. Switch-DR and DRos
    have DR's intervals: theirs would leave out the bias that they trade for variance.
    """
    for estimator in estimators:
        one_of("estimator", estimator, ESTIMATORS)
    if isinstance(log, Log) and default_reward is not None:
        raise ValueError(f"default_reward must be None for a log that is loaded, got {default_reward}")
    data = log if isinstance(log, Log) else load_log(log, default_reward)
    if len(data) < LEAST_EVENTS:
        raise ValueError(f"log must have at least {LEAST_EVENTS} events with a reward, got {len(data)}")
    rewards = cache(lambda: crossfit_rewards(data, n_folds))
    rows = [_logging_row(data, level)]
    for policy in policies:
        if policy != "logging":
            rows += _policy_rows(data, policy, estimators, level, rewards)
    return Evaluation(tuple(rows), len(data), data.n_without_reward, data.default_reward, level)


def _logging_row(log: Log, level: float) -> Row:
    n = len(log)
    return Row("logging", "mean", *interval(log.reward, level), 0.0, 0.0, 0.0, float(n), 1.0, n, "")


def _policy_rows(
    log: Log, policy: str | Policy, estimators: Sequence[str], level: float, rewards: Rewards
) -> list[Row]:
    target = target_probabilities(log, policy, rewards)
    predicted = np.zeros_like(target) if MODEL_FREE.issuperset(estimators) else rewards()
    s = sample(
        log.reward,
        log.propensity,
        target[log.chosen],
        chosen=log.chosen,
        offsets=log.offsets,
        target_all=target,
        predicted_all=predicted,
    )
    warning = weight_warning(s.weight, unsupported(log, target))
    return [_row(policy_name(policy), estimator, s, level, warning) for estimator in estimators]


def _row(policy: str, estimator: str, s: Sample, level: float, warning: str) -> Row:
    contributions = ESTIMATORS[estimator](s)
    spread = doubly_robust(s) if estimator in BIASED_DR else contributions
    value = _around(contributions, interval(spread, level))
    difference = _around(contributions - s.reward, interval(spread - s.reward, level))
    ess, largest = effective_sample_size(s.weight), float(s.weight.max())
    return Row(policy, estimator, *value, *difference, ess, largest, s.reward.size, warning)


def _around(contributions: Array, given: Interval) -> Interval:
    """Return the mean with the given interval, widened where it does not hold the mean."""
    mean = float(contributions.mean())
    return Interval(mean, min(mean, given.low), max(mean, given.high))


def unsupported(log: Log, target: Array) -> float:
    """Return the share of the target's choices that the log could not hold.

    Those are actions with logging probability 0 where the log says so, and else actions it never took.
    """
    taken = np.zeros(len(log.action_ids), dtype=bool)
    taken[log.action[log.chosen]] = True
    possible = np.where(np.isnan(log.logging), taken[log.action], log.logging > 0)
    return float(target[~possible].sum() / len(log))


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Estimates of policies' rewards on logged events, by the estimators of ``bandits``, in total and over time."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import cache, reduce
from typing import Any

import msgspec
import numpy as np

from bandits.evaluation import Log, evaluate, log_of
from bandits.evaluation.compare import LEAST_EVENTS
from bandits.evaluation.importance import scored_columns
from bandits.evaluation.over_time import SnipsSums, snips_sums
from bandits.evaluation.policies import target_probabilities
from bandits.evaluation.reward_model import crossfit_rewards
from fedres.checks import Array
from service.plugins.personalizer.arguments import DEFAULT_ARGUMENTS, DEFAULT_EPSILON, epsilon_in, with_epsilon
from service.plugins.personalizer.durations import microseconds, read_time, show_time
from service.plugins.personalizer.messages import PolicyContract

BIN = 5 * 60 * 1_000_000  # microseconds
EXPERIMENTS = (0.0, 0.05, 0.1)  # shares of exploration that an optimization tries
MOST_EVENTS = 100_000  # whose features are looked at, the newest


class EvaluatedPolicy(msgspec.Struct):
    """What a policy would have earned."""

    name: str
    arguments: str
    source: str  # Online, Baseline, Random, Custom, OfflineExperimentation
    value: float
    low: float
    high: float
    bins: list[SnipsSums]


def evaluate_policies(
    events: Iterable[dict[str, Any]], online: str, custom: Sequence[PolicyContract], *, optimise: bool
) -> list[EvaluatedPolicy]:
    """Evaluate the online policy, the baseline, uniform draws, custom policies and, if ``optimise``, others."""
    log = log_of(events)
    policies = [
        ("online", online, "Online", "logging"),
        ("baseline1", "", "Baseline", "first"),
        ("baselineRand", "", "Random", "uniform"),
    ]
    for policy in custom:  # they choose by the log's own reward model, with their own exploration
        explored = float(epsilon_in(policy.arguments) or DEFAULT_EPSILON)
        policies.append((policy.name, policy.arguments, "Custom", f"epsilon-greedy:{explored}"))
    if optimise:
        for epsilon in EXPERIMENTS:
            arguments = with_epsilon(DEFAULT_ARGUMENTS, epsilon)
            policies.append((f"Hyper{epsilon:g}", arguments, "OfflineExperimentation", f"epsilon-greedy:{epsilon}"))
    # a model cannot be fitted to one event alone: all actions are worth the same then
    rewards = cache(lambda: crossfit_rewards(log, min(5, len(log))) if len(log) > 1 else np.zeros(log.action.size))
    times = np.array([microseconds(read_time(str(about[0]))) for about in log.about])
    return [_evaluated(log, times, rewards, *policy) for policy in policies]


def _evaluated(
    log: Log, times: Array, rewards: Any, name: str, arguments: str, source: str, policy: str
) -> EvaluatedPolicy:
    if policy == "logging":
        weight = np.ones(len(log))
    else:
        weight = target_probabilities(log, policy, rewards)[log.chosen] / log.propensity
    bins = snips_sums(times, BIN, weight, log.reward)
    if len(log) < LEAST_EVENTS:  # too few for an interval that means anything
        return EvaluatedPolicy(name, arguments, source, total(bins).value(), -1.0, 1.0, bins)
    row = evaluate(log, [policy], estimators=("snips",)).rows[-1]
    value, low, high = (0.0 if math.isnan(number) else number for number in (row.value, row.low, row.high))
    return EvaluatedPolicy(name, arguments, source, value, low, high, bins)


def total(bins: Sequence[SnipsSums]) -> SnipsSums:
    """Return the sums over all time."""
    return reduce(operator.add, bins, SnipsSums(bins[0].time if bins else 0))


def feature_scores(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return namespaces, names and scores, the highest first."""
    scores: list[tuple[float, str, str]] = []
    for kind, name, score, _ in scored_columns(list(events)[-MOST_EVENTS:]):
        namespace, _, rest = name.partition(".")
        scores.append((score, namespace if rest else kind, rest or namespace))
    scores.sort(key=lambda row: (-row[0], row[1:]))
    return [{"namespace": space, "featureName": name, "score": score} for score, space, name in scores]


# results in Azure's two families of versions


def old_results(values: Sequence[EvaluatedPolicy], end: str) -> list[dict[str, Any]]:
    """Return the policy results of v1.x: sums for every five minutes and in total."""
    return [
        {
            "name": policy.name,
            "arguments": policy.arguments,
            "policySource": policy.source,
            "summary": [_old_summary(sums, show_time(sums.time), "PT5M", sums.half_width()) for sums in policy.bins],
            "totalSummary": {
                **_old_summary(total(policy.bins), end, "PT0S", (policy.high - policy.low) / 2),
                "averageReward": policy.value,
            },
        }
        for policy in values
    ]


def _old_summary(sums: SnipsSums, at: str, window: str, half_width: float) -> dict[str, Any]:
    return {
        "timeStamp": at,
        "ipsEstimatorNumerator": sums.reward,
        "ipsEstimatorDenominator": float(sums.n),
        "snipsEstimatorDenominator": sums.weight,
        "aggregateTimeWindow": window,
        "nonZeroProbability": sums.possible,
        "sumOfSquares": sums.squares,
        "confidenceInterval": half_width,
        "averageReward": sums.value(),
    }


def new_results(
    values: Sequence[EvaluatedPolicy], start: int, end: int, minutes: int, *, rolling: bool
) -> list[dict[str, Any]]:
    """Return the policy results of 2022: estimates of windows, or from the beginning to each, within a time."""
    return [
        {
            "name": policy.name,
            "arguments": policy.arguments,
            "slotId": "",
            "policySource": policy.source,
            "summary": {"expectedReward": policy.value, "confidenceInterval": [policy.low, policy.high]},
            "timeseries": {"data": _series(policy.bins, start, end, minutes * 60_000_000, rolling=rolling)},
        }
        for policy in values
    ]


def _series(bins: Sequence[SnipsSums], start: int, end: int, width: int, *, rolling: bool) -> list[dict[str, Any]]:
    windows: dict[int, SnipsSums] = {}
    for sums in bins:
        at = sums.time // width * width
        windows[at] = windows.get(at, SnipsSums(at)) + sums
    so_far, shown = SnipsSums(0), []
    for at, sums in windows.items():
        so_far = so_far + sums
        seen = sums if rolling else so_far
        value, half = seen.value(), seen.half_width()
        if start <= at <= end:
            bounds = [value - half, value + half]
            shown.append({"timeStamp": show_time(at), "expectedReward": value, "confidenceInterval": bounds})
    return shown

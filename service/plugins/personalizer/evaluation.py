"""What policies would have earned on logged events, by the estimators of ``bandits``, in total and over time."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fedres.checks import Array
from service.log.records import encode
from service.plugins.personalizer.arguments import DEFAULT_ARGUMENTS, DEFAULT_EPSILON, with_epsilon
from service.plugins.personalizer.durations import microseconds, read_time, show_time

if TYPE_CHECKING:  # loaded with SciPy by the first evaluation: a ranker starts without them
    from bandits.evaluation import Log, LoggedEvent
    from bandits.evaluation.policies import Policy

BIN = 5 * 60 * 1_000_000  # microseconds
EXPERIMENTS = (0.0, 0.05, 0.1)  # shares of exploration that an optimisation tries
NORMAL = 1.96  # of 95% intervals over time


class Sums(msgspec.Struct):
    """Over the events of a stretch of time; w is the ratio of the policies' probabilities, r the reward."""

    time: int  # microseconds since 1970, when it begins
    n: int = 0
    weight: float = 0.0  # Σ w
    reward: float = 0.0  # Σ w r
    squares: float = 0.0  # Σ (w r)²
    weight_squares: float = 0.0  # Σ w²
    products: float = 0.0  # Σ w² r
    possible: float = 0.0  # events with w > 0

    def add(self, other: Sums) -> None:
        for name in ("n", "weight", "reward", "squares", "weight_squares", "products", "possible"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def value(self) -> float:
        """Return the self-normalised estimate (SNIPS)."""
        return self.reward / self.weight if self.weight else 0.0

    def half_width(self) -> float:
        """Return half of the normal interval of that: Σ w² (r − v)² is its variance times (Σ w)²."""
        if not self.weight:
            return 0.0
        v = self.value()
        spread = self.squares - 2 * v * self.products + v * v * self.weight_squares
        return NORMAL * math.sqrt(max(spread, 0.0)) / self.weight


class PolicyValue(msgspec.Struct):
    """What a policy would have earned."""

    name: str
    arguments: str
    source: str  # Online, Baseline, Random, Custom, OfflineExperimentation
    value: float
    low: float
    high: float
    bins: list[Sums]


def baseline(event: LoggedEvent) -> list[float]:
    """Always take the first action."""
    return [1.0] + [0.0] * (len(event.actions) - 1)


def evaluate_policies(
    events: Iterable[dict[str, Any]], online: str, custom: Sequence[dict[str, str]], *, optimise: bool
) -> list[PolicyValue]:
    """Return the online policy, the baseline, uniform draws, custom policies, and others if they are to be found."""
    from bandits.evaluation import load_log
    from bandits.evaluation.reward_model import crossfit_rewards

    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        for event in events:
            file.write(encode(event) + b"\n")
        file.flush()
        log = load_log(file.name)
    wanted: list[tuple[str, str, str, str | Policy]] = [
        ("online", online, "Online", "logging"),
        ("baseline1", "", "Baseline", baseline),
        ("baselineRand", "", "Random", "uniform"),
    ]
    wanted += [(one["name"], one["arguments"], "Custom", _policy(one["arguments"])) for one in custom]
    if optimise:
        for epsilon in EXPERIMENTS:
            arguments = with_epsilon(DEFAULT_ARGUMENTS, epsilon)
            wanted.append((f"Hyper{epsilon:g}", arguments, "OfflineExperimentation", f"epsilon-greedy:{epsilon}"))
    # a model cannot be fitted to one event alone: all actions are worth the same then
    rewards = cache(lambda: crossfit_rewards(log, min(5, len(log))) if len(log) > 1 else np.zeros(log.action.size))
    times = np.array([microseconds(read_time(str(about[0]))) for about in log.about])
    return [_valued(log, times, rewards, *one) for one in wanted]


def _policy(arguments: str) -> str:
    """Return what is evaluated for arguments: the log's own reward model, exploring as they say."""
    words = arguments.replace("=", " ").split()
    epsilon = DEFAULT_EPSILON
    if "--epsilon" in words[:-1]:
        epsilon = float(words[words.index("--epsilon") + 1])
    return f"epsilon-greedy:{epsilon}"


def _valued(
    log: Log, times: Array, rewards: Any, name: str, arguments: str, source: str, policy: str | Policy
) -> PolicyValue:
    from bandits.evaluation import evaluate
    from bandits.evaluation.compare import LEAST_EVENTS
    from bandits.evaluation.policies import target_probabilities

    if policy == "logging":
        weight = np.ones(len(log))
    else:
        weight = target_probabilities(log, policy, rewards)[log.chosen] / log.propensity
    bins = _binned(times, weight, log.reward)
    if len(log) < LEAST_EVENTS:  # too few for an interval that means anything
        whole = total(bins)
        return PolicyValue(name, arguments, source, whole.value(), -1.0, 1.0, bins)
    row = evaluate(log, [policy], estimators=("snips",)).rows[-1]
    value, low, high = (0.0 if math.isnan(number) else number for number in (row.value, row.low, row.high))
    return PolicyValue(name, arguments, source, value, low, high, bins)


def _binned(times: Array, weight: Array, reward: Array) -> list[Sums]:
    starts, inverse = np.unique(times // BIN * BIN, return_inverse=True)

    def summed(values: Array) -> list[float]:
        found: list[float] = np.bincount(inverse, values, len(starts)).tolist()
        return found

    product = weight * reward
    columns = (weight, product, product**2, weight**2, weight * product, (weight > 0).astype(float))
    counts = np.bincount(inverse, minlength=len(starts)).tolist()
    names = ("weight", "reward", "squares", "weight_squares", "products", "possible")
    sums = dict(zip(names, map(summed, columns), strict=True))
    return [
        Sums(at, counts[k], **{name: column[k] for name, column in sums.items()})
        for k, at in enumerate(starts.tolist())
    ]


def total(bins: Sequence[Sums]) -> Sums:
    """Return the sums over all time."""
    whole = Sums(bins[0].time if bins else 0)
    for one in bins:
        whole.add(one)
    return whole


def best_policy(values: Sequence[PolicyValue]) -> str:
    """Return the name of the policy with the highest estimate; the online one wins ties."""
    return max(values, key=lambda one: one.value).name if values else ""


# as Azure's two families show them


def old_results(values: Sequence[PolicyValue], end: str) -> list[dict[str, Any]]:
    """Return the policy results of v1.x: sums for every five minutes and in total."""
    shown = []
    for one in values:
        summary = [_old_summary(bin_, show_time(bin_.time), "PT5M", bin_.half_width()) for bin_ in one.bins]
        whole = _old_summary(total(one.bins), end, "PT0S", (one.high - one.low) / 2)
        whole["averageReward"] = one.value
        shown.append(
            {
                "name": one.name,
                "arguments": one.arguments,
                "policySource": one.source,
                "summary": summary,
                "totalSummary": whole,
            }
        )
    return shown


def _old_summary(sums: Sums, at: str, window: str, half_width: float) -> dict[str, Any]:
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
    values: Sequence[PolicyValue], start: int, end: int, minutes: int, *, rolling: bool
) -> list[dict[str, Any]]:
    """Return the policy results of 2022: estimates of windows, or from the beginning to each, within a time."""
    return [
        {
            "name": one.name,
            "arguments": one.arguments,
            "slotId": "",
            "policySource": one.source,
            "summary": {"expectedReward": one.value, "confidenceInterval": [one.low, one.high]},
            "timeseries": {"data": _series(one.bins, start, end, minutes * 60_000_000, rolling=rolling)},
        }
        for one in values
    ]


def _series(bins: Sequence[Sums], start: int, end: int, width: int, *, rolling: bool) -> list[dict[str, Any]]:
    windows: dict[int, Sums] = {}
    for one in bins:
        at = one.time // width * width
        windows.setdefault(at, Sums(at)).add(one)
    so_far, shown = Sums(0), []
    for at, sums in windows.items():
        so_far.add(sums)
        seen = sums if rolling else so_far
        value, half = seen.value(), seen.half_width()
        if start <= at <= end:
            row = {
                "timeStamp": show_time(at),
                "expectedReward": value,
                "confidenceInterval": [value - half, value + half],
            }
            shown.append(row)
    return shown

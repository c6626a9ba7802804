"""How often the intervals of ``fedres evaluate`` hold the truth, and how wide they are: before, and now.

``python benchmarks/interval_coverage.py`` simulates logs of two actions and values ``constant:a``, whose mean reward
is the click rate; the other action is clicked half as often. Action a is taken with probability 1/W or 1/2, as chance
has it, so that weights are at most W; ``heavy`` draws the probability as U^.75, so that weights have no third moment.
Clicks depend on one feature, which the reward model sees. With several events a user, each user's clicks are
multiplied by an exponential number. ``--part looks`` looks at a log every day of 30, and counts logs whose intervals
were right on all of them. "Before" are the t intervals with a correction for skewness that these replace.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.special import stdtrit

from bandits.evaluation.compare import Row, evaluate
from bandits.evaluation.estimators import ESTIMATORS, sample
from bandits.evaluation.reward_model import crossfit_rewards
from bandits.evaluation.table import Log, SparseRows
from fedres.checks import Array

RATES = (0.002, 0.01, 0.05, 0.3)
WEIGHTS = ("2", "10", "100", "heavy")
NAMES = ("ips", "snips", "dr", "sndr")
SEGMENTS = np.array([0.5, 1.5])  # click rates of the two values of the feature, over the mean
OTHER = 0.5  # clicks of the other action, over those of the target's
DAYS = 30


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of log."""

    weights: str
    rate: float
    n: int
    per_user: int = 1

    def truths(self) -> tuple[float, float]:
        """Return the target's value, and its difference to the logging policy's."""
        taken = 1 / 1.75 if self.weights == "heavy" else (1 / float(self.weights) + 0.5) / 2  # E[p]
        value, other = (float(self._clicks(self.rate * share * SEGMENTS).mean()) for share in (1, OTHER))
        return value, (1 - taken) * (value - other)

    def _clicks(self, rate: Array) -> Array:
        """Return the mean over users of min(1, rate × an exponential number), or the rate if users have one event."""
        return rate if self.per_user == 1 else rate * (1 - np.exp(-1 / rate))

    def draw(self, rng: np.random.Generator) -> Log:
        n, user = self.n, np.arange(self.n) // self.per_user
        of_a = rng.random(n) ** 0.75 if self.weights == "heavy" else rng.choice([1 / float(self.weights), 0.5], n)
        action, segment = (rng.random(n) >= of_a).astype(np.int64), rng.integers(2, size=n)  # 0 is a
        effect = rng.exponential(size=n)[user] if self.per_user > 1 else 1.0
        click = rng.random(n) < self.rate * SEGMENTS[segment] * np.where(action == 0, 1.0, OTHER) * effect
        logging = np.column_stack([of_a, 1 - of_a])
        order = rng.permutation(n)  # users come in any order
        names = [f"u{u}" for u in user]
        return Log(
            tuple(map(str, range(n))),
            np.arange(0, 2 * n + 1, 2),
            np.tile([0, 1], n),
            ("a", "b"),
            np.arange(0, 2 * n, 2) + action[order],
            logging[np.arange(n), action][order],
            click[order].astype(float),
            logging[order].ravel(),
            SparseRows(("segment",), np.arange(n + 1), np.zeros(n, dtype=np.int64), segment[order].astype(float)),
            SparseRows((), np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)),
            np.zeros(2 * n, dtype=np.int64),
            tuple((None, names[i], None, None) for i in order),
            0,
            None,
        )


def first(log: Log, n: int) -> Log:
    """Return the log as it was after ``n`` events."""
    context = replace(log.context, starts=log.context.starts[: n + 1])
    pairs = {name: getattr(log, name)[: 2 * n] for name in ("action", "logging", "feature_row")}
    events = {name: getattr(log, name)[:n] for name in ("event_ids", "chosen", "propensity", "reward", "about")}
    return replace(log, offsets=log.offsets[: n + 1], context=context, **pairs, **events)


def before(log: Log) -> Iterator[tuple[str, tuple[float, float], tuple[float, float]]]:
    """Yield each estimator's intervals for value and difference as they were before these."""
    predicted, target = crossfit_rewards(log), np.tile([1.0, 0.0], len(log))
    pairs = {"chosen": log.chosen, "offsets": log.offsets, "target_all": target, "predicted_all": predicted}
    s = sample(log.reward, log.propensity, target[log.chosen], **pairs)
    for name in NAMES:
        contributions = ESTIMATORS[name](s)
        yield name, _skewed_t(contributions), _skewed_t(contributions - s.reward)


def _skewed_t(x: Array) -> tuple[float, float]:
    """Student's interval with both extremes counted once more, and its correction for skewness (Hall 1992)."""
    if np.isnan(x).any():
        return math.nan, math.nan
    more = np.concatenate([x, [x.min(), x.max()]])
    center, spread, n = float(more.mean()), float(more.std(ddof=1)), more.size
    if spread == 0:
        return center, center
    skewness = float(((more - center) ** 3).mean()) / spread**3
    half = float(stdtrit(n - 1, 0.975)) / math.sqrt(n)
    ends = [half, -half]
    if abs(skewness) >= 1e-6:
        roots = (float(np.cbrt(1 + skewness * (y - skewness / (6 * n)))) for y in (half, -half))
        ends += [3 / skewness * (root - 1) for root in roots]
    return center - spread * max(ends), center - spread * min(ends)


def now(log: Log, **options: Any) -> Iterator[tuple[str, tuple[float, float], tuple[float, float]]]:
    for row in rows(log, **options):
        yield row.estimator, (row.low, row.high), (row.difference_low, row.difference_high)


def rows(log: Log, **options: Any) -> tuple[Row, ...]:
    return evaluate(log, ["constant:a"], estimators=NAMES, **options).rows[1:]


def coverage(cell: Cell, n_logs: int, seed: int) -> dict[str, Any]:
    """Return for each estimator, before and now, how many intervals held the truth, and their median width."""
    rng, truths, found = np.random.default_rng(seed), cell.truths(), {}
    for _ in range(n_logs):
        log = cell.draw(rng)
        for when, intervals in (("before", before(log)), ("now", now(log))):
            for name, *both in intervals:
                for what, truth, (low, high) in zip(("value", "difference"), truths, both, strict=True):
                    found.setdefault((when, name, what), []).append((low <= truth <= high, high - low))
    summary = {" ".join(key): _summary(outcomes) for key, outcomes in found.items()}
    return {"weights": cell.weights, "rate": cell.rate, "n": cell.n, "per_user": cell.per_user, **summary}


def _summary(outcomes: list[tuple[bool, float]]) -> dict[str, float]:
    held, widths = zip(*outcomes, strict=True)
    return {"coverage": float(np.mean(held)), "width": float(np.nanmedian(widths)), "thinnest": float(np.nanmin(widths))}


def looks(cell: Cell, n_logs: int, seed: int) -> dict[str, Any]:
    """Return how many logs had the truth in all daily intervals, and the median width of the last."""
    rng, truths, found = np.random.default_rng(seed), cell.truths(), {}
    for _ in range(n_logs):
        log = cell.draw(rng)
        for kind in (False, True):
            right: dict[tuple[str, str], bool] = {}
            for day in range(1, DAYS + 1):
                for name, *both in now(first(log, cell.n * day // DAYS), time_uniform=kind):
                    for what, truth, (low, high) in zip(("value", "difference"), truths, both, strict=True):
                        right[name, what] = right.get((name, what), True) and low <= truth <= high
                        width = high - low
                        if day == DAYS:
                            key = ("uniform" if kind else "fixed", name, what)
                            found.setdefault(key, []).append((right[name, what], width))
    summary = {" ".join(key): _summary(outcomes) for key, outcomes in found.items()}
    return {"weights": cell.weights, "rate": cell.rate, "n": cell.n, "per_user": cell.per_user, **summary}

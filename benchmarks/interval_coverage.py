"""How often the intervals of ``fedres evaluate`` hold the truth, and how wide they are: before, and now.

``python benchmarks/interval_coverage.py`` prints the tables of docs/benchmarks/intervals.md, in an hour. It
simulates logs of two actions and values ``constant:a``, whose mean reward is the click rate; the other action is
clicked half as often. Action a is taken with probability 1/W or 1/2, as chance has it, so that weights are at most W;
``heavy`` draws the probability as U^0.75, so that weights have no third moment. Clicks depend on one feature, which the
reward model sees. With several events a user, each user's clicks are multiplied by an exponential number. ``--part
looks`` looks at each log on 30 days, and counts the logs whose intervals were right on all of them. "Before" are the t
intervals with a correction for skewness that these replace.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from bandits.evaluation.compare import evaluate
from bandits.evaluation.estimators import ESTIMATORS, sample
from bandits.evaluation.reward_model import crossfit_rewards
from bandits.evaluation.table import Log, SparseRows
from fedres.checks import Array

RATES = (0.002, 0.01, 0.05, 0.3)
WEIGHTS = ("2", "10", "100", "heavy")
NAMES = ("snips", "dr")
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
    for row in evaluate(log, ["constant:a"], estimators=NAMES, **options).rows[1:]:
        yield row.estimator, (row.low, row.high), (row.difference_low, row.difference_high)


class Count:
    """Whether intervals held the truth, and how wide they were, by a name for each kind."""

    def __init__(self, cell: Cell) -> None:
        self.truths, self.outcomes = dict(zip(("value", "difference"), cell.truths(), strict=True)), {}

    def add(self, when: str, looks: list[list[tuple[str, tuple[float, float], tuple[float, float]]]]) -> None:
        """Count one log, right if all looks at it were; its width is that of the last."""
        for at, (name, *_) in enumerate(looks[-1]):
            for position, (what, truth) in enumerate(self.truths.items(), 1):
                ends = [look[at][position] for look in looks]
                right = all(low <= truth <= high for low, high in ends)
                self.outcomes.setdefault(f"{when} {name} {what}", []).append((right, ends[-1][1] - ends[-1][0]))

    def summary(self) -> dict[str, tuple[float, float]]:
        """Return coverage and median width."""
        return {
            key: (
                float(np.mean([right for right, _ in outcomes])),
                float(np.nanmedian([width for _, width in outcomes])),
            )
            for key, outcomes in self.outcomes.items()
        }


def one_look(cell: Cell, n_logs: int, seed: int) -> dict[str, tuple[float, float]]:
    rng, count = np.random.default_rng(seed), Count(cell)
    for _ in range(n_logs):
        log = cell.draw(rng)
        count.add("before", [list(before(log))])
        count.add("now", [list(now(log))])
    return count.summary()


def daily_looks(cell: Cell, n_logs: int, seed: int) -> dict[str, tuple[float, float]]:
    rng, count = np.random.default_rng(seed), Count(cell)
    for _ in range(n_logs):
        log = cell.draw(rng)
        days = [first(log, cell.n * day // DAYS) for day in range(1, DAYS + 1)]
        count.add("one look", [list(now(day)) for day in days])
        count.add("time-uniform", [list(now(day, time_uniform=True)) for day in days])
    return count.summary()


EVENTS = [(Cell(*cell), 400 if cell[2] < 10_000 else 200) for cell in product(WEIGHTS, RATES, (100, 1000, 10_000))]
SIZES = ((1000, 10), (1000, 30), (1000, 100), (10_000, 10), (10_000, 100), (9000, 300))
USERS = [
    (Cell(weights, rate, *size), 200 if size[0] == 1000 else 100)
    for size, weights, rate in product(SIZES, ("2", "10"), RATES)
]
LOOKS = [
    (Cell("2", 0.01, 2000), 100),
    (Cell("2", 0.3, 2000), 100),
    (Cell("10", 0.05, 2000), 100),
    (Cell("2", 0.3, 2000, 20), 100),
]
LOOKS += [(Cell(weights, rate, 600), 100) for weights, rate in product(WEIGHTS, (0.01, 0.3))]  # 20 on the first day
LOOKS += [(Cell("2", rate, 600, 20), 100) for rate in (0.01, 0.3)]
PARTS = {
    "events": (one_look, EVENTS, ("before", "now")),
    "users": (one_look, USERS, ("before", "now")),
    "looks": (daily_looks, LOOKS, ("one look", "time-uniform")),
}
SHOWN = ("snips value", "dr value", "snips difference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="Which tables; all unless given.")
    parser.add_argument("--logs", type=int, help="Logs a cell.")
    parser.add_argument("--cells", type=int, help="Only that many cells of each table.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="Write all numbers to a file.")
    options = parser.parse_args()
    document = {}
    for part in options.part or PARTS:
        measure, cells, columns = PARTS[part]
        numbers = " | ".join(f"{shown}: {column}" for shown, column in product(SHOWN, columns))
        print(f"| weights | click rate | n | events a user | {numbers} |")
        print("|---" * (4 + len(SHOWN) * len(columns)) + "|")
        document[part] = []
        for cell, n_logs in cells[: options.cells]:
            coverage = measure(cell, options.logs or n_logs, options.seed)
            document[part].append(asdict(cell) | coverage)
            print(_line(cell, [coverage[f"{column} {shown}"] for shown, column in product(SHOWN, columns)]), flush=True)
        print()
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1))


def _line(cell: Cell, numbers: list[tuple[float, float]]) -> str:
    shown = [f"{coverage:.3f}, {width:.4f}" for coverage, width in numbers]
    about = [cell.weights, f"{cell.rate:.1%}", f"{cell.n:,}", str(cell.per_user)]
    return f"| {' | '.join(about + shown)} |"


if __name__ == "__main__":
    main()

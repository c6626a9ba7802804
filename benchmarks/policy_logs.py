"""What logs of each policy are good for: how often IPS of five other policies is within 3 standard errors of the truth.

    python benchmarks/policy_logs.py [--events 3000 30000] [--rollouts 20] [--policies optimistic-squarecb:floor=0.05]

Contexts of four numbers, five arms whose click rates are linear in them, one user; a policy at its defaults learns and
logs. The five targets do not learn: uniform, always the first arm, the best arm, the second best, and a softmax of the
true rates. For each policy and length of its log:

- within 3 s.e.: share of rollouts × targets whose IPS estimate is that close to the truth on the same contexts
- worst: the smallest such share of one target
- after warnings: the same share where ``fedres evaluate`` would not warn: an effective sample size of at least 50
  events and 5% of them, and no event with over 5% of all weight
- without: share of estimates that are left then
- least n: the smallest number of times that any arm was taken, on average
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bandits.evaluation.weights import weight_warning
from bandits.replay import Outcome, replay
from bandits.streams import Chunk, Layout
from fedres.checks import Array
from fedres.policies import POLICIES, Compiled, policy

ARMS, FEATURES, PIECE = 5, 4, 4_000
LAYOUT = Layout(FEATURES + 1, FEATURES + 1)
COLUMNS = ("within 3 s.e.", "worst", "after warnings", "without", "least n")
TARGETS = ("uniform", "first", "best", "second", "softmax")


@dataclass(frozen=True, slots=True)
class Clicks:
    """Click rates 0.05 to 0.95, linear in the context; a reward is a click."""

    n_rounds: int
    seed: int
    n_clients: int = 1
    n_actions: int = ARMS
    shared: Layout = LAYOUT
    private: Layout = LAYOUT

    def __iter__(self) -> Iterator[Chunk]:
        weights = np.random.default_rng([self.seed, 0]).normal(scale=0.15, size=(FEATURES, ARMS))
        for number, first in enumerate(range(0, self.n_rounds, PIECE)):
            rng, n = np.random.default_rng([self.seed, 1, number]), min(PIECE, self.n_rounds - first)
            x = rng.normal(size=(n, 1, FEATURES))
            rates = np.clip(0.3 + x @ weights, 0.05, 0.95)
            values = np.concatenate([x, np.ones((n, 1, 1))], axis=2)[:, :, None]
            yield Chunk(values, values, (rng.random(rates.shape) < rates).astype(np.float64), rates)


def targets(rates: Array) -> Array:
    """Return the probabilities of the five policies: (5, events, arms)."""
    n, k = rates.shape
    order = np.argsort(-rates, axis=1)
    each = np.eye(k)
    weights = np.exp(rates / 0.1)
    softmax = weights / weights.sum(axis=1, keepdims=True)
    return np.stack([np.full((n, k), 1 / k), np.tile(each[0], (n, 1)), each[order[:, 0]], each[order[:, 1]], softmax])


class Judged(NamedTuple):
    """One log, target by target."""

    distance: Array  # of IPS from the truth, in standard errors
    warned: Array  # True: an evaluation would warn
    least_taken: int


def judge(stream: Clicks, outcome: Outcome) -> Judged:
    rates = np.concatenate([chunk.expected[:, 0] for chunk in stream])
    action, chance, reward = outcome.action[:, 0], outcome.probability[:, 0], outcome.reward[:, 0]
    distance, warned = np.empty(len(TARGETS)), np.empty(len(TARGETS), bool)
    for k, target in enumerate(targets(rates)):
        weight = target[np.arange(len(action)), action] / chance
        terms, truth = weight * reward, (target * rates).sum(axis=1).mean()
        error = terms.std() / np.sqrt(len(terms))
        distance[k] = abs(terms.mean() - truth) / error if error else np.inf
        warned[k] = bool(weight_warning(weight, 0.0))
    return Judged(distance, warned, int(np.bincount(action, minlength=ARMS).min()))


def logged(chosen: Compiled, n_events: int, seed: int) -> Judged:
    stream = Clicks(n_events, seed)
    return judge(stream, replay(stream, chosen, "central", seed=seed))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=[3_000, 30_000])
    parser.add_argument("--rollouts", type=int, default=20)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    table = Table("policy", "floor", *(f"{n:,}: {column}" for n in options.events for column in COLUMNS))
    cells = [(name, n) for name in options.policies for n in options.events]
    rows: dict[str, list[str]] = {}
    for name, n in track(cells, transient=True):
        chosen = policy(name)
        assert isinstance(chosen, Compiled)
        logs = [logged(chosen, n, options.seed + k) for k in range(options.rollouts)]
        close = np.array([one.distance <= 3 for one in logs])
        clear = ~np.array([one.warned for one in logs])
        after = f"{close[clear].mean():.3f}" if clear.any() else "-"
        taken = np.mean([one.least_taken for one in logs])
        shares = (f"{close.mean():.3f}", f"{close.mean(axis=0).min():.2f}", after, f"{clear.mean():.2f}")
        rows.setdefault(name, [name, f"{chosen.floor:g}"]).extend([*shares, f"{taken:.1f}"])
    for row in rows.values():
        table.add_row(*row)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()

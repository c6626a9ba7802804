"""How right `fedres evaluate --policy fedres` is, on logs whose truth is known.

`python benchmarks/online_value.py [--logs N] [--events N] [--seed S]` simulates logs of two policies, uniform and one
that takes its favorite 6 times in 10. Visitors of two countries like different ones of three actions, and each visitor
likes one action better still. The true value is the mean of what the probabilities of `fedres` would have earned in the
events of the log; "played" is what the service's model and policy earn when they decide on such events themselves.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

import numpy as np

from bandits.evaluation import compare
from bandits.evaluation.logs import LoggedEvent
from bandits.evaluation.online import Played, hosted_policy, play
from bandits.evaluation.table import Log, table
from fedres.checks import Array
from fedres.progress import ignore_progress

IDS, USERS = ("a", "b", "c"), 40
LOGGING = {"uniform": (1 / 3, 1 / 3, 1 / 3), "favourite": (0.6, 0.2, 0.2)}
KINDS: dict[str, dict[str, Any]] = {
    "by user": {},
    "by event": {"by_user": False},
    "time-uniform": {"by_user": False, "time_uniform": True},
}


def world(n: int, logged: tuple[float, ...], rng: np.random.Generator) -> tuple[Log, Array]:
    """Return a log and the chance of every (event, action) pair."""
    tastes, events, chances = rng.integers(3, size=USERS), [], []
    for i in range(n):
        user, country = int(rng.integers(USERS)), int(rng.integers(2))
        chance = np.array([0.2, (0.1, 0.6)[country], (0.6, 0.1)[country]])
        chance[tastes[user]] += 0.3
        chosen = int(rng.choice(3, p=logged))
        reward, context = float(rng.random() < chance[chosen]), {f"country={country}": 1.0}
        about = (logged[chosen], reward, logged, None, f"u{user}")
        events.append(LoggedEvent(f"e{i}", context, IDS, ({},) * 3, chosen, *about))
        chances.append(chance)
    return table(events), np.concatenate(chances)


def played(log: Log, chances: Array, rng: np.random.Generator) -> float:
    """Return what is earned by deciding: each event of the log takes the action drawn, and its own reward."""
    pairs = chances.reshape(len(log), -1)

    def decide(i: int, probabilities: Array) -> tuple[int, float]:
        action = int(rng.choice(probabilities.size, p=probabilities / probabilities.sum()))
        return action, float(rng.random() < pairs[i, action])

    result = play(log, hosted_policy("fedres"), (0.0, 1.0), ignore_progress, decide)
    return float(log.per_event(result.probabilities * chances).mean())


def one_log(n: int, logging: str, seed: int) -> dict[str, Any]:
    """Return errors of the estimates, and whether intervals hold the truth."""
    rng = np.random.default_rng(seed)
    log, chances = world(n, LOGGING[logging], rng)
    result = play(log, hosted_policy("fedres"), (0.0, 1.0), ignore_progress)
    truth = float(log.per_event(result.probabilities * chances).mean())
    row: dict[str, Any] = {"true": truth, "played": played(log, chances, rng), "log": float(log.reward.mean())}
    for kind, options in KINDS.items():
        for estimate in _valued(log, result, options):
            row[f"{estimate.estimator} error"] = estimate.value - truth
            row[f"{estimate.estimator} {kind}"] = float(estimate.low <= truth <= estimate.high)
    return row


def _valued(log: Log, result: Played, options: dict[str, Any]) -> tuple[compare.Row, ...]:
    own, compare.play = compare.play, lambda *_: result  # once is enough
    try:
        return compare.evaluate(log, ["fedres"], estimators=["snips", "dr"], **options).rows[1:]
    finally:
        compare.play = own


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("logs", 200), ("events", 1000), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    arguments = parser.parse_args(words)
    print("| log | log earned | true | played | estimator | error | by user | by event | time-uniform |")
    print("|---|---|---|---|---|---|---|---|---|")
    for logging in LOGGING:
        columns = defaultdict(list)
        for k in range(arguments.logs):
            for name, value in one_log(arguments.events, logging, arguments.seed + k).items():
                columns[name].append(value)
        mean = {name: float(np.mean(values)) for name, values in columns.items()}
        for estimator in ("snips", "dr"):
            error = columns[f"{estimator} error"]
            shares = " | ".join(f"{mean[f'{estimator} {kind}']:.3f}" for kind in KINDS)
            spread = np.std(error) / np.sqrt(len(error))
            about = f"{mean['log']:.3f} | {mean['true']:.3f} | {mean['played']:.3f}"
            print(f"| {logging} | {about} | {estimator} | {np.mean(error):+.4f} ± {spread:.4f} | {shares} |")


if __name__ == "__main__":
    main()

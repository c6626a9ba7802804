"""A bandit in one process: three visitors with tastes of their own, learned within a few hundred visits.

    python examples/bandit.py

Rewards are learned at once. The bandit is saved halfway, and the rest is decided by the one that is loaded.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from bandits import Bandit, Kalman, OptimisticSquareCB, arms

TASTES = {"anna": 0, "ben": 1, "cleo": 2}  # the action that each visitor likes


def visit(bandit: Bandit, visitor: str, weather: float) -> float:
    decision = bandit.decide(visitor, arms([weather], n_actions=3))
    reward = float(decision.action == TASTES[visitor])  # decision.probability is what it was drawn with
    bandit.reward(decision, reward)
    return reward


def main() -> None:
    rng = np.random.default_rng(0)
    bandit = Bandit(Kalman(), OptimisticSquareCB(), seed=0)
    earned = [visit(bandit, visitor, rng.normal()) for _ in range(50) for visitor in TASTES]
    with tempfile.TemporaryDirectory() as folder:
        bandit.save(Path(folder) / "shop.bandit")
        bandit = Bandit.load(Path(folder) / "shop.bandit")
    earned += [visit(bandit, visitor, rng.normal()) for _ in range(50) for visitor in TASTES]
    print(f"first 30 visits {np.mean(earned[:30]):.2f}, last 30 {np.mean(earned[-30:]):.2f}")


if __name__ == "__main__":
    main()

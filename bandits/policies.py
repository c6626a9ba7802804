"""Policies over scored actions: how much to explore, and from which rounds to learn.

``code`` is what compiled code knows a policy by: its kind, its one number and its floor (see ``exploration.choose``). A
``floor`` f gives each of K allowed actions at least the probability f/K, whatever the models say. It is part of the
probability that a decision carries and a log keeps, so importance weights of a log are at most K/f.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from fedres import checks
from fedres.exploration import EPSILON_GREEDY, EXPLORE_EVERY, GREEDY, SQUARECB


@dataclass(frozen=True, slots=True)
class ExploreEvery:
    """Uniform on a client's every B-th decision, B = 1/ε, and learn from those only; greedy otherwise [FedRes, 5.1].

    Where B is no whole number, on the first decision at or after each multiple of it: a share ε of all, whatever ε.
    """

    epsilon: float = 0.1
    floor: float = 0.0

    def __post_init__(self) -> None:
        _in_unit("epsilon", self.epsilon)
        _in_unit("floor", self.floor)
        if self.epsilon == 0:
            raise ValueError("epsilon must be positive for explore-every, which learns only when it explores, got 0")

    @property
    def code(self) -> tuple[int, float, float]:
        every = 1 / self.epsilon  # B
        return (
            EXPLORE_EVERY,
            float(round(every)) if abs(every - round(every)) < 1e-9 * every else every,
            float(self.floor),
        )

    def learns(self, n: int) -> bool:
        return n % self.code[1] < 1


@dataclass(frozen=True, slots=True)
class EpsilonGreedy:
    """A random action with probability ε, the best otherwise; learns from every round."""

    epsilon: float = 0.02
    floor: float = 0.0

    def __post_init__(self) -> None:
        _in_unit("epsilon", self.epsilon)
        _in_unit("floor", self.floor)

    @property
    def code(self) -> tuple[int, float, float]:
        return EPSILON_GREEDY, float(self.epsilon), float(self.floor)

    def learns(self, n: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class SquareCB:
    """Inverse-gap weighting with γ = scale·√n, n a client's decisions so far; learns from every round."""

    scale: float = 100.0
    floor: float = 0.01  # without one, a log of it says next to nothing about other policies

    def __post_init__(self) -> None:
        checks.positive("scale", self.scale)
        _in_unit("floor", self.floor)

    @property
    def code(self) -> tuple[int, float, float]:
        return SQUARECB, float(self.scale), float(self.floor)

    def learns(self, n: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class LinUCB:
    """The best of mean + α·width of least squares with ``ridge``; learns from every round, and draws only between ties.

    With a ``half_life``, a reward counts half after that many more rewards of its client: for rewards that drift.

    [LiEtAl10] L. Li, W. Chu, J. Langford, R. Schapire. A Contextual-Bandit Approach to Personalized News Article
    Recommendation. 2010.
    """

    alpha: float = 0.5
    ridge: float = 0.5
    half_life: float = math.inf
    floor: float = 0.0

    def __post_init__(self) -> None:
        checks.not_negative("alpha", self.alpha)
        checks.positive("ridge", self.ridge)
        if self.half_life != math.inf:
            checks.positive("half_life", self.half_life)
        _in_unit("floor", self.floor)

    @property
    def code(self) -> tuple[int, float, float]:
        return GREEDY, 0.0, float(self.floor)

    def learns(self, n: int) -> bool:
        return True


Policy = ExploreEvery | EpsilonGreedy | SquareCB | LinUCB
POLICIES: dict[str, type[Policy]] = {
    "explore-every": ExploreEvery,
    "epsilon-greedy": EpsilonGreedy,
    "squarecb": SquareCB,
    "linucb": LinUCB,
}


def policy(name: str | Policy, **options: Any) -> Policy:
    """Return the policy of this name, e.g. ``policy("epsilon-greedy", epsilon=0.1)``; a policy is returned as it is."""
    if isinstance(name, Policy):
        if options:
            raise ValueError(f"{next(iter(options))} is no option beside a policy that is made already, {name}")
        return name
    checks.one_of("policy", name, POLICIES)
    known = [field.name for field in fields(POLICIES[name])]
    for key in options:
        if key not in known:
            raise ValueError(f"{key} is not an option of {name}, which has {', '.join(known)}")
    return POLICIES[name](**options)


def _in_unit(name: str, value: float) -> None:
    if not (isinstance(value, Real) and 0 <= value <= 1):
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")

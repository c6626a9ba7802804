"""The policies of this package, with their options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedres import checks
from fedres.policies import kernels
from fedres.policies.base import Compiled, in_unit


@dataclass(frozen=True)
class ExploreEvery(Compiled):
    """Uniform on a client's every B-th decision, B = 1/ε, and learn from those only; greedy otherwise [FedRes, 5.1].

    Where B is no whole number, on the first decision at or after each multiple of it: a share ε of all, whatever ε.
    """

    code = kernels.EXPLORE_EVERY
    stationary = False

    epsilon: float = 0.1
    floor: float = 0.0

    def __post_init__(self) -> None:
        in_unit("epsilon", self.epsilon)
        in_unit("floor", self.floor)
        if self.epsilon == 0:
            raise ValueError("epsilon must be positive for explore-every, which learns only when it explores, got 0")

    @property
    def amount(self) -> float:
        every = 1 / self.epsilon  # B
        return float(round(every)) if abs(every - round(every)) < 1e-9 * every else every

    def learns(self, n: int) -> bool:
        return n % self.amount < 1


@dataclass(frozen=True)
class EpsilonGreedy(Compiled):
    """A random action with probability ε, the best otherwise."""

    code = kernels.EPSILON_GREEDY
    hosted: ClassVar[dict[str, float]] = {"epsilon": 0.1}

    epsilon: float = 0.02
    floor: float = 0.0

    def __post_init__(self) -> None:
        in_unit("epsilon", self.epsilon)
        in_unit("floor", self.floor)

    @property
    def amount(self) -> float:
        return float(self.epsilon)


@dataclass(frozen=True)
class SquareCB(Compiled):
    """Inverse-gap weighting with γ·√n after n rewards; of decisions, n are those of a client."""

    code = kernels.SQUARECB
    hosted: ClassVar[dict[str, float]] = {"gamma": 10.0}

    gamma: float = 100.0
    floor: float = 0.01  # without one, a log hardly allows evaluating other policies

    def __post_init__(self) -> None:
        checks.not_negative("gamma", self.gamma)
        in_unit("floor", self.floor)

    @property
    def amount(self) -> float:
        return float(self.gamma)


@dataclass(frozen=True)
class OptimisticSquareCB(Compiled):
    """Inverse-gap weighting of max(mean, least reward) + width, with γ·√n over the range of the rewards.

    An estimate below the least reward is an error, and must not outweigh the width. 300 has worked for all streams.
    """

    code = kernels.OPTIMISTIC_SQUARECB
    needs_widths = True
    hosted: ClassVar[dict[str, float]] = {"gamma": 300.0, "floor": 0.002}

    gamma: float = 300.0
    floor: float = 0.002

    def __post_init__(self) -> None:
        checks.not_negative("gamma", self.gamma)
        in_unit("floor", self.floor)

    @property
    def amount(self) -> float:
        return float(self.gamma)


@dataclass(frozen=True)
class LinUCB(Compiled):
    """The best of mean + α·width; draws only between ties.

    ``ridge`` and ``half_life`` are of the model ``linucb``, least squares: with a half-life, a reward counts half after
    that many more rewards of its client, for rewards that drift.

    [LiEtAl10] L. Li, W. Chu, J. Langford, R. Schapire. A Contextual-Bandit Approach to Personalized News Article
    Recommendation. 2010.
    """

    code = kernels.LINUCB
    needs_widths = True

    alpha: float = 0.5
    ridge: float = 0.5
    half_life: float = math.inf
    floor: float = 0.0

    def __post_init__(self) -> None:
        checks.not_negative("alpha", self.alpha)
        checks.positive("ridge", self.ridge)
        if self.half_life != math.inf:
            checks.positive("half_life", self.half_life)
        in_unit("floor", self.floor)

    @property
    def amount(self) -> float:
        return float(self.alpha)


@dataclass(frozen=True)
class Greedy(Compiled):
    """The best action; draws only between ties."""

    code = kernels.GREEDY
    hosted: ClassVar[dict[str, float]] = {}

    floor: float = 0.0

    def __post_init__(self) -> None:
        in_unit("floor", self.floor)


@dataclass(frozen=True)
class Softmax(Compiled):
    """Probabilities in proportion to exp(mean / temperature), the temperature in units of the reward."""

    code = kernels.SOFTMAX

    temperature: float = 0.05
    floor: float = 0.0

    def __post_init__(self) -> None:
        checks.positive("temperature", self.temperature)
        in_unit("floor", self.floor)

    @property
    def amount(self) -> float:
        return 1 / float(self.temperature)

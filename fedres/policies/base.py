"""The interface of policies, which turn the expected rewards of actions into probabilities."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np

from fedres.checks import Array
from fedres.policies.kernels import explore

EVERYTHING = (-math.inf, math.inf)


@dataclass(frozen=True)
class Policy(ABC):
    """A policy; its options are the fields of a frozen dataclass.

    Packages may add one (docs/research/own-learner.md): ``probabilities`` is all it needs.
    """

    needs_widths: ClassVar[bool] = False  # True: the model must have standard deviations
    stationary: ClassVar[bool] = True  # True: probabilities follow from scores alone, so a log can evaluate it
    hosted: ClassVar[Mapping[str, float] | None] = None  # settings of loops that it has, and defaults; None: no loop's

    @abstractmethod
    def probabilities(self, means: Array, widths: Array, n: int) -> Array:
        """Return the probability of each action, from the expected rewards and their standard deviations.

        ``n`` is the number of rewards learned or of decisions: exploration may fade as it grows. Only allowed actions
        are among them.
        """

    def learns(self, n: int) -> bool:
        """Return whether models learn from the n-th decision of a client."""
        return True


class Compiled(Policy):
    """A policy that compiled code knows, by a rule of five numbers (``kernels.explore``).

    A ``floor`` f gives each of K allowed actions at least the probability f/K, whatever the models say. It is part of
    the probability that a decision carries and a log keeps, so importance weights of a log are at most K/f.
    """

    code: ClassVar[int]
    floor: float

    @property
    def amount(self) -> float:
        """The parameter that controls how much the policy explores."""
        return 0.0

    def rule(self, reward_range: tuple[float, float] = EVERYTHING) -> Array:
        """Return the read-only rule for compiled code; without a range, means are not clipped."""
        numbers = np.array([self.code, self.amount, self.floor, *reward_range], np.float64)
        numbers.flags.writeable = False
        return numbers

    def probabilities(self, means: Array, widths: Array, n: int) -> Array:
        out = np.empty(len(means))
        explore(self.rule(), n, n, np.asarray(means, float), np.asarray(widths, float), np.ones(out.size, bool), out)
        return out


def in_unit(name: str, value: float) -> None:
    if not (isinstance(value, Real) and 0 <= value <= 1):
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")

"""What scores actions and learns from rewards. Implementations need not import this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

from bandits.actions import Actions
from fedres.checks import Array
from fedres.exploration import choose

SCHEMES = ("independent", "central", "fedres")


# A rewarded decision: the client's slot, the action, features that hold at least that action's, shared (x^g) and
# private (x^l), and the reward in [0, 1]. A plain tuple, made in an eighth of the time: one a round is.
Sample = tuple[int, int, Actions, Actions, float]
Rule = tuple[int, float, float, int, int, int]  # a policy's code; which decision, the seed, and which client
Choice = tuple[int, float, Array]  # the action, its probability, and all scores


class Model(Protocol):
    """The shared and the personal models of clients, who have numbers ("slots") here."""

    def join(self, slot: int) -> None:
        """Give a new client an empty personal model."""

    def leave(self, slot: int) -> None:
        """Forget a client's personal model."""

    def scores(self, slot: int, shared: Actions, private: Actions) -> Array:
        """Return what to rank the actions by: their predicted rewards."""

    def decide(self, slot: int, shared: Actions, private: Actions, allowed: Array | None, rule: Rule) -> Choice:
        """Score the actions and draw one that is allowed; None allows all."""

    def play(self, samples: list[Sample]) -> None:
        """Close a round: learn from its samples, at most one per client, in order of slots."""

    @property
    def reusable(self) -> bool:
        """Whether a slot can be used again: nothing is left in it of a client that leaves."""

    @property
    def version(self) -> int:
        """How often the shared model has changed."""

    def close(self) -> None:
        """Free what the personal models hold."""


class Scored(ABC):
    """A model that decides by its scores."""

    @abstractmethod
    def scores(self, slot: int, shared: Actions, private: Actions) -> Array: ...

    def decide(self, slot: int, shared: Actions, private: Actions, allowed: Array | None, rule: Rule) -> Choice:
        scores, probabilities = self.scores(slot, shared, private), np.empty(shared.n)
        if not np.isfinite(scores).all():
            raise ValueError("predictions are no longer finite: the shared model diverged, give it a smaller step_size")
        allowed = np.ones(shared.n, dtype=np.bool_) if allowed is None else allowed
        code, setting, floor, n, seed, client = rule
        action = choose(code, setting, floor, scores, allowed, n, seed, client, probabilities)
        return action, float(probabilities[action]), scores

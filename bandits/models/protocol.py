"""What predicts rewards of actions and learns from them. Implementations need not import this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bandits.actions import Actions
from fedres.checks import Array
from fedres.policies import Policy, checked_probabilities
from fedres.policies.kernels import draw, explore, pick

NOBODY = -1  # the slot of decisions for no client: only the shared model predicts and learns
SCHEMES = ("independent", "central", "fedres")

# A rewarded decision: the client's slot, the action, features that hold at least that action's, shared (x^g) and
# private (x^l), and the reward in [0, 1]. Features are ``Actions``, or ``NamedActions`` for models that take names.
# It is a plain tuple because one is made in each round, in an eighth of the time of a named one.
Sample = tuple[int, int, Any, Any, float]
# The number of the decision, the seed, and the number of the client.
Draw = tuple[int, int, int]
Choice = tuple[int, float, Array, Array | None]  # the action, its probability, all means, and widths where known
Prediction = tuple[Array, Array | None]  # expected rewards, and standard deviations where the model knows any


class BanditModel(Protocol):
    """The shared and the personal models of clients, who have numbers ("slots") here."""

    def join(self, slot: int) -> None:
        """Give a new client an empty personal model."""

    def leave(self, slot: int) -> None:
        """Forget a client's personal model."""

    def predict(self, slot: int, shared: Actions, private: Actions) -> Prediction:
        """Return expected rewards of the actions and, where the model knows any, their widths."""

    def decide(
        self, slot: int, shared: Actions, private: Actions, allowed: Array | None, rule: Array, drawn: Draw
    ) -> Choice:
        """Predict, and draw an action that is allowed by the rule of a policy; None allows all."""

    def progress(self, slot: int, n: int) -> int:
        """Return how much was learned, for policies that explore less then; n counts the client's decisions."""

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


@runtime_checkable
class Stored(BanditModel, Protocol):
    """A model whose state is plain arrays and the messages under way (``waiting``): it can be saved and compared."""

    version: int
    waiting: deque[Any]

    def to_arrays(self) -> dict[str, Array]:
        """Return all that was learned."""

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Go on from what ``to_arrays`` of such a model returned; its clients have their slots again."""


class Predicting(ABC):
    """A model that decides by what it predicts."""

    @abstractmethod
    def predict(self, slot: int, shared: Actions, private: Actions) -> Prediction: ...

    def progress(self, slot: int, n: int) -> int:
        return n

    def decide(
        self, slot: int, shared: Actions, private: Actions, allowed: Array | None, rule: Array, drawn: Draw
    ) -> Choice:
        means, widths = self.predict(slot, shared, private)
        if not np.isfinite(means).all():
            raise ValueError("predictions are no longer finite: the shared model diverged, give it a smaller step_size")
        allowed = np.ones(shared.n, dtype=np.bool_) if allowed is None else allowed
        (n, seed, client), chances = drawn, np.empty(shared.n)
        spreads = np.zeros(shared.n) if widths is None else widths
        explore(rule, n, self.progress(slot, n), means, spreads, allowed, chances)
        action = pick(chances, draw(seed, client, n))
        return action, float(chances[action]), means, widths


def decide_by(
    policy: Policy, model: BanditModel, slot: int, shared: Actions, private: Actions, allowed: Array | None, drawn: Draw
) -> Choice:
    """Do so by a policy that compiled code does not know."""
    means, widths = model.predict(slot, shared, private)
    n, seed, client = drawn
    chances = checked_probabilities(policy, means, widths, allowed, model.progress(slot, n))
    action = pick(chances, draw(seed, client, n))
    return action, float(chances[action]), means, widths

"""The default model and policy without HTTP, as a player of streams of decisions.

A player chooses, and receives the reward of what it chose now or many decisions later:

    player = Player(seed=1)
    drinks = [{"id": "tea", "features": {"hot": True}}, {"id": "juice"}]
    index, token = player.decide("anna", {"weather": "cold"}, drinks)
    player.learn(token, 1.0)

Features are nested as in a request of the service. It uses the public interface of ``bandits`` only, so that anyone who
compares models on streams of their own depends on nothing inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bandits import Bandit


class Player:
    """One loop with the default settings; rewards are between 0 and 1."""

    def __init__(self, seed: int) -> None:
        self.bandit = Bandit(seed=seed, max_waiting=1_000_000)

    def decide(
        self, user: str | None, context: Mapping[str, Any], actions: Sequence[Mapping[str, Any]]
    ) -> tuple[int, int]:
        """Return the place of the chosen action, and a token for ``learn``."""
        decision = self.bandit.decide(user, context, actions)
        return decision.place, decision.id

    def learn(self, token: int, reward: float) -> None:
        """Learn the reward of a decision."""
        self.bandit.reward(token, reward)

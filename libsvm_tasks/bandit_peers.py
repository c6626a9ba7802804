"""Contextual bandits of other libraries, each driven the fastest way it documents: one decision, then one update.

A library is imported when its runner is made, so that none of them has to be installed. ε is 0.1 where a policy is
ε-greedy; everything else is left at the library's defaults, except where a comment says why not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from fedres.checks import Array

EPSILON = 0.1
VW_FLAGS = f"--cb_explore_adf --epsilon {EPSILON} -q ca --quiet"  # c, the context, crossed with a, the action


class Runner(Protocol):
    """A policy that is queried and updated, in turn."""

    def context(self, x: Array) -> Any:
        """Return ``x`` in the form the library reads; made before the clock starts."""

    def step(self, context: Any) -> int:
        """Return the action to take."""

    def learn(self, reward: float) -> None:
        """Learn from what the last action earned."""


class VWText:
    """VW reading text: a request is parsed once, predicted on, given its label, and learned from."""

    def __init__(self, n_actions: int, n_features: int) -> None:
        self._vw: Any = import_module("vowpalwabbit").Workspace(VW_FLAGS)
        self._actions, self._random = range(n_actions), random.Random(0)
        self._lines = "".join(f"\n|a {action}" for action in self._actions)

    def context(self, x: Array) -> str:
        return _shared_line(x)

    def step(self, context: str) -> int:
        self._examples = self._vw.parse(context + self._lines)
        probabilities = self._vw.predict(self._examples)
        self._action = self._random.choices(self._actions, probabilities)[0]
        self._probability = probabilities[self._action]
        return self._action

    def learn(self, reward: float) -> None:
        self._examples[1 + self._action].set_label_string(_label(reward, self._probability))
        self._vw.learn(self._examples)
        self._vw.finish_example(self._examples)


class VWPrepared:
    """VW on examples made beforehand: one per context, one per action, and one per action and label met so far."""

    def __init__(self, n_actions: int, n_features: int) -> None:
        self._vw: Any = import_module("vowpalwabbit").Workspace(VW_FLAGS)
        self._actions, self._random = range(n_actions), random.Random(0)
        self._unlabelled = [self._vw.example(f"|a {action}") for action in self._actions]
        self._labelled: dict[tuple[int, float, float], Any] = {}

    def context(self, x: Array) -> Any:
        return self._vw.example(_shared_line(x))

    def step(self, context: Any) -> int:
        self._examples = [context, *self._unlabelled]
        probabilities = self._vw.predict(self._examples)
        self._action = self._random.choices(self._actions, probabilities)[0]
        self._probability = probabilities[self._action]
        return self._action

    def learn(self, reward: float) -> None:
        key = self._action, reward, self._probability
        if key not in self._labelled:
            self._labelled[key] = self._vw.example(f"{_label(reward, self._probability)} |a {self._action}")
        self._examples[1 + self._action] = self._labelled[key]
        self._vw.learn(self._examples)


def _shared_line(x: Array) -> str:
    return "shared |c " + " ".join(f"{j}:{value:.9g}" for j, value in enumerate(x.tolist()))


def _label(reward: float, probability: float) -> str:
    return f"0:{-reward}:{probability}"


class RiverGreedy:
    """ε-greedy over one linear regression by SGD an arm; river's own ε-greedy policy reads no context."""

    def __init__(self, n_actions: int, n_features: int) -> None:
        linear_model = import_module("river.linear_model")
        self._models = [linear_model.LinearRegression() for _ in range(n_actions)]
        self._random = random.Random(0)

    def context(self, x: Array) -> dict[int, float]:
        return dict(enumerate(x.tolist()))

    def step(self, context: dict[int, float]) -> int:
        self._context = context
        if self._random.random() < EPSILON:
            self._action = self._random.randrange(len(self._models))
        else:
            scores = [model.predict_one(context) for model in self._models]
            self._action = scores.index(max(scores))
        return self._action

    def learn(self, reward: float) -> None:
        self._models[self._action].learn_one(self._context, reward)


class RiverLinUCB:
    def __init__(self, n_actions: int, n_features: int) -> None:
        self._policy = import_module("river.bandit").LinUCBDisjoint(seed=0)
        self._arms = list(range(n_actions))

    def context(self, x: Array) -> dict[int, float]:
        return dict(enumerate(x.tolist()))

    def step(self, context: dict[int, float]) -> int:
        self._context, self._action = context, int(self._policy.pull(self._arms, context))
        return self._action

    def learn(self, reward: float) -> None:
        self._policy.update(self._action, self._context, reward)


class Mabwiser:
    def __init__(self, n_actions: int, policy: str, **options: float) -> None:
        mab = import_module("mabwiser.mab")
        self._mab = mab.MAB(list(range(n_actions)), getattr(mab.LearningPolicy, policy)(**options), seed=0)
        self._fitted = False

    def context(self, x: Array) -> Array:
        return x[None]

    def step(self, context: Array) -> int:
        self._context = context
        self._action = int(self._mab.predict(context)) if self._fitted else 0  # it refuses to choose before a reward
        return self._action

    def learn(self, reward: float) -> None:
        self._mab.partial_fit([self._action], [reward], self._context)
        self._fitted = True


class ContextualBandits:
    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def context(self, x: Array) -> Array:
        return x[None]

    def step(self, context: Array) -> int:
        self._context, self._action = context, int(self._policy.predict(context)[0])
        return self._action

    def learn(self, reward: float) -> None:
        self._policy.partial_fit(self._context, np.array([self._action]), np.array([reward]))


def _contextualbandits_greedy(n_actions: int, n_features: int) -> ContextualBandits:
    model = import_module("contextualbandits.linreg").LinearRegression(method="sm")  # Sherman-Morrison, as its LinUCB
    policy = import_module("contextualbandits.online").EpsilonGreedy(
        model, n_actions, explore_prob=EPSILON, decay=None, batch_train=True, random_state=1, njobs=1
    )
    return ContextualBandits(policy)


def _contextualbandits_linucb(n_actions: int, n_features: int) -> ContextualBandits:
    return ContextualBandits(import_module("contextualbandits.online").LinUCB(n_actions, random_state=1, njobs=1))


class Coba:
    def __init__(self, learner: Any, actions: list[Any]) -> None:
        self._learner, self._actions = learner, actions

    def context(self, x: Array) -> list[float]:
        return list(x.tolist())

    def step(self, context: list[float]) -> int:
        self._context = context
        self._action, self._probability, *self._rest = self._learner.predict(context, self._actions)
        return self._actions.index(self._action)

    def learn(self, reward: float) -> None:
        extra = self._rest[0] if self._rest else {}
        self._learner.learn(self._context, self._action, reward, self._probability, **extra)


def _coba_vowpal(n_actions: int, n_features: int) -> Coba:
    linear = (1, "a", "ax")  # its default adds the squares of the context, which nobody else is given
    learner = import_module("coba.learners").VowpalEpsilonLearner(epsilon=EPSILON, features=linear)
    return Coba(learner, [str(action) for action in range(n_actions)])


def _coba_linucb(n_actions: int, n_features: int) -> Coba:
    return Coba(import_module("coba.learners").LinUCBLearner(), [tuple(row) for row in np.eye(n_actions).tolist()])


class Obp:
    def __init__(self, policy: str, n_actions: int, n_features: int, epsilon: float) -> None:
        make = getattr(import_module("obp.policy"), policy)
        self._policy = make(dim=n_features, n_actions=n_actions, epsilon=epsilon, random_state=0)

    def context(self, x: Array) -> Array:
        return x[None]

    def step(self, context: Array) -> int:
        self._context, self._action = context, int(self._policy.select_action(context)[0])
        return self._action

    def learn(self, reward: float) -> None:
        self._policy.update_params(self._action, reward, self._context)


PEERS: Mapping[str, tuple[str, Callable[[int, int], Runner]]] = {
    "VW cb_explore_adf, prepared examples": ("vowpalwabbit", VWPrepared),
    "VW cb_explore_adf, text": ("vowpalwabbit", VWText),
    "river ε-greedy, LinearRegression an arm": ("river", RiverGreedy),
    "river LinUCBDisjoint": ("river", RiverLinUCB),
    "obp LinEpsilonGreedy": ("obp", lambda n, d: Obp("LinEpsilonGreedy", n, d, EPSILON)),
    "obp LinUCB": ("obp", lambda n, d: Obp("LinUCB", n, d, 1.0)),  # α; its default, 0, does not explore
    "coba VowpalEpsilonLearner": ("coba", _coba_vowpal),
    "coba LinUCBLearner": ("coba", _coba_linucb),
    "contextualbandits EpsilonGreedy": ("contextualbandits", _contextualbandits_greedy),
    "contextualbandits LinUCB": ("contextualbandits", _contextualbandits_linucb),
    "mabwiser LinGreedy": ("mabwiser", lambda n, d: Mabwiser(n, "LinGreedy", epsilon=EPSILON)),
    "mabwiser LinUCB": ("mabwiser", lambda n, d: Mabwiser(n, "LinUCB")),
}
"""Title to the distribution it comes in, and how to make its runner from the numbers of actions and of features."""

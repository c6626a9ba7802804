"""Bandits of every kind, a problem for them, and clients who play it."""

import numpy as np

from bandits import FederatedBandit, rows

D, LOCAL = 3, 2
KINDS = {
    "compiled": {"local_learner": "linear"},
    "readable": {"local_learner": "linear", "uplink_delay": [0, 1, 2, 0], "capacity": 4},
    "vw": {"local_learner": "vw", "capacity": 4},
    "least squares": {"policy": "linucb"},
    "residual-kalman": {"policy": "optimistic-squarecb"},
}
PRIVATE = [kind for kind in KINDS if kind != "residual-kalman"]  # those whose personal models may see more


def bandit_of(kind, **options):
    return FederatedBandit(**{"policy": "epsilon-greedy", "seed": 3, **KINDS[kind], **options})


def problem(n, seed=0, n_actions=3):
    """Yield (shared rows, private rows, expected rewards) of n decisions; some actions are better than others."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        shared, private = rng.normal(size=(n_actions, D)), rng.normal(size=(n_actions, LOCAL))
        yield shared, private, 1 / (1 + np.exp(-2 * shared[:, 0] - private[:, 0]))


def decide(bandit, client, shared, private, exclude=()):
    """Let a client decide with features of both kinds."""
    return bandit.decide(client, shared, private=private, exclude=exclude)


def decide_first(bandit, client):
    """Let a client decide on the first decision of the problem."""
    shared, private, _ = next(problem(1))
    return decide(bandit, client, rows(shared), rows(private))


def play(bandit, n, seed=0, clients=("anna", "bob")):
    """Let clients decide in turn, rewarded at once; return the decisions as plain tuples."""
    rng, made = np.random.default_rng([seed, 1]), []
    for k, (shared, private, expected) in enumerate(problem(n, seed)):
        decision = bandit.decide(clients[k % len(clients)], rows(shared), private=rows(private))
        made.append((decision.action, decision.probability, tuple(decision.scores)))
        bandit.reward(decision.id, float(rng.random() < expected[decision.action]))
    return made

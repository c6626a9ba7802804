"""Compile what most tests call, once: pytest's processes find it in numba's cache, else each would compile it."""

import contextlib
import os
import tempfile

import numpy as np

from bandits import FederatedBandit, rows
from service.cli import app
from service.learn.warm_up import warm_up

COMMANDS = [
    "replay digits --clients 3 --rounds 20 --rollouts 1 --jobs 1",
    "replay digits --clients 3 --rounds 20 --rollouts 1 --jobs 1 --local-features all --timing on-arrival",
    "bandit digits --clients 3 --rounds 20 --rollouts 1 --jobs 1 --policy linucb",
    "bandit digits --clients 3 --rounds 20 --rollouts 1 --jobs 1 --policy squarecb",
]


def decide_and_learn(policy):
    bandit = FederatedBandit(policy, local_learner="linear", seed=0)
    for features in np.random.default_rng(0).normal(size=(3, 2, 2)):
        bandit.reward(bandit.decide("anna", rows(features), rows(features)).id, 1.0)


def main():
    warm_up()
    for policy in ("epsilon-greedy", "linucb"):
        decide_and_learn(policy)
    with tempfile.TemporaryDirectory() as cache, open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        os.environ["XDG_CACHE_HOME"] = cache
        for words in COMMANDS:
            app(words.split(), standalone_mode=False)


if __name__ == "__main__":
    main()

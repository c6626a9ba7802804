"""Compile what most tests call, once: pytest's processes find it in numba's cache, else each would compile it.

``compile_kernels.py service`` compiles what the service, and bandits and devices with its model need, ``experiments``
the rest; without a word, all.
"""

import contextlib
import os
import sys
import tempfile

import numpy as np

from bandits import FederatedBandit, arms, rows
from fedres import LinearLearner, Quantizer
from fedres.decisions.constants import START_EVENTS
from fedres.decisions.federated_kalman import DeviceKalman, KalmanExample
from fedres.decisions.residual_kalman import request_of
from service.cli import app
from service.roles.warm_up import warm_up

COMMANDS = [
    "replay digits --clients 3 --rounds 20 --rollouts 1 --jobs 1",
    "replay digits --clients 3 --rounds 20 --rollouts 1 --jobs 1 --local-features all --timing on-arrival",
    "bandit digits --clients 3 --rounds 20 --rollouts 1 --jobs 1 --policy linucb",
    "bandit digits --clients 3 --rounds 20 --rollouts 1 --jobs 1 --policy squarecb",
]


# Shared and private features, where there are private ones.
FORMS = (lambda x: (rows(x), rows(x)), lambda x: (rows(x), None), lambda x: (arms(x[0], 2), None))


def decide_and_learn(policy):
    for form in FORMS:
        bandit = FederatedBandit(policy, local_learner="linear", seed=0)
        for features in np.random.default_rng(0).normal(size=(3, 2, 2)):
            shared, private = form(features)
            decision = bandit.decide("anna", shared, private=private)
            bandit.reward(decision, 1.0)


def learn_alone():
    learner = LinearLearner(2)
    for features in ([1.0, 0.5], ([0], [1.0])):
        learner.learn(features, 1.0)
        learner.correct(features, 0.5)
        learner.predict(features)
        learner.score(features)


def quantize():
    quantizer, vector = Quantizer(3, 2), np.array([1.0, 0.5, 0.0])
    quantizer.decode(quantizer.encode(vector, np.random.default_rng(0)), 3)
    quantizer.variance(vector)


def learn_on_a_device():
    """Begin a device's model, which takes sixteen examples, and let it learn and decide."""
    device, row = DeviceKalman(), KalmanExample(*(np.ones(2, t) for t in (np.uint32, np.float32, np.uint32)), 1, 1, 1.0)
    device.relearn(None, [row] * START_EVENTS)
    device.part(row)
    device.learn(row)
    device.predict(request_of(([1], [1.0]), [([1], [1.0], [1])]), 1)


def service():
    warm_up()
    decide_and_learn("optimistic-squarecb")  # this and devices have the same model: most of it is compiled by now
    learn_on_a_device()


def experiments():
    for policy in ("epsilon-greedy", "linucb"):
        decide_and_learn(policy)
    learn_alone()
    quantize()
    with tempfile.TemporaryDirectory() as cache, open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        os.environ["XDG_CACHE_HOME"] = cache
        for words in COMMANDS:
            app(words.split(), standalone_mode=False)


PARTS = {"service": service, "experiments": experiments}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()

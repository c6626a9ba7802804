"""Devices of a loop with a dense global learner, and a real service."""

import numpy as np
import pytest
from network import Driven

HYPERPARAMETERS = {
    "fedres-sgd": {},
    "fedogd": {"n_clients": 2},
    "ofedavg": {"n_clients": 2, "participation": 0.5},
    "ofediq": {"n_clients": 2, "period": 2, "levels": 7},
    "fedomd": {"n_clients": 2, "sync": 3},
    "fedsea": {"n_clients": 2, "period": 3},
    "dynamic-fedavg": {"n_clients": 2, "buffer": 2, "period": 2},
}


@pytest.mark.parametrize("learner", HYPERPARAMETERS)
def test_devices_learn_with_every_global_learner_and_resume_to_the_bit(live, loop, tmp_path, learner):
    name = f"{loop}-{learner}"
    hyper = {"step_size": 0.01, **HYPERPARAMETERS[learner]}
    live.make_loop(name, model="adagrad", global_learner=learner, hyperparameters=hyper, bits=8, update_interval=0.005)
    with (
        Driven(live.url, tmp_path / "b", loop=name, client="b") as other,
        Driven(live.url, tmp_path / "a", loop=name) as device,
    ):
        for each in (device, other):
            each.sync()
        for first in range(0, 60, 12):
            for each in (device, other):
                each.play(first, first + 12)
                assert each.sync().trouble is None
            live.settle(name)
        assert device.sync().version == live.settle(name)
        scores = device.scores()
        assert sum(max(each, key=each.get) == "tea" for each in scores) > len(scores) / 2
        assert np.count_nonzero(live.weights(name)) > 5
        assert device.device.status().dropped == 0
    with Driven(live.url, tmp_path / "a", loop=name) as device:
        assert device.scores() == scores


def test_a_dense_loop_that_is_full_says_so(live, loop, tmp_path):
    live.make_loop(f"{loop}-dense", model="adagrad", global_learner="fedogd", hyperparameters={"n_clients": 1}, bits=4)
    with Driven(live.url, tmp_path / "a", loop=f"{loop}-dense", client="a") as first:
        assert first.sync().trouble is None
    with Driven(live.url, tmp_path / "b", loop=f"{loop}-dense", client="b") as second:
        assert "loop_full" in second.sync().trouble


def test_a_dense_learner_needs_the_model_on_the_device(live, loop, tmp_path):
    live.make_loop(f"{loop}-dense", model="adagrad", global_learner="fedogd", hyperparameters={"n_clients": 1}, bits=4)
    with Driven(live.url, tmp_path, loop=f"{loop}-dense", download=False) as device:
        assert device.sync().trouble == "download must be True in a loop with fedogd, got False"

"""Devices that share beside devices alone, without a network."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import device_sharing as bench

from fedres.decisions.kalman_state import LEARNED
from libsvm_tasks.decisions.suite import STREAMS, play


@pytest.mark.parametrize("network", [bench.Network(3), bench.Network(12, latency=30, loss=0.3)])
def test_every_reward_reaches_the_server_once(network):
    fleet = bench.Fleet(network, seed=0)
    play(STREAMS["news"], fleet, seed=0, events=150)
    learned = sum(len(phone.examples) for phone in fleet.phones.values())
    fleet.finish()
    assert fleet.server.shared.counts[LEARNED] == learned
    assert all(phone.model.shared.counts[LEARNED] == learned for phone in fleet.phones.values())


def test_devices_with_private_features_learn_their_tasks():
    assert bench.accuracy(bench.Network(5), seed=0, devices=3, rounds=60) > 0.8
    assert np.isfinite(bench.accuracy(None, seed=0, devices=2, rounds=20))

"""Logs of every policy with a floor of 0.1 value five other policies."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from fedres.policies import POLICIES


@pytest.fixture(scope="module")
def script():
    spec = spec_from_file_location("policy_logs", Path(__file__).parents[2] / "benchmarks" / "policy_logs.py")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", list(POLICIES))
def test_ips_of_five_policies_is_within_three_standard_errors(script, name):
    log = script.logged(POLICIES[name](floor=0.1), 2_000, seed=0)
    assert len(log.distance) == len(script.TARGETS) == 5
    assert log.distance.max() <= 3


def test_a_log_without_exploration_values_nothing(script):
    log = script.logged(POLICIES["greedy"](), 2_000, seed=0)
    assert (log.distance > 3).all()
    assert log.warned.all()

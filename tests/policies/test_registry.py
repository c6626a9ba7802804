"""Policies by name, and what they refuse."""

import math
from typing import get_args

import numpy as np
import pytest

from fedres.policies import (
    HOSTED,
    POLICIES,
    EpsilonGreedy,
    ExploreEvery,
    LinUCB,
    OptimisticSquareCB,
    SquareCB,
    loop_rule,
    policy,
)


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_policy_has_defaults_that_work_and_a_value_of_its_own(name):
    assert policy(name) == POLICIES[name]()
    assert policy(policy(name)) == policy(name)


def test_options_reach_the_policy():
    assert policy("epsilon-greedy", epsilon=0.3) == EpsilonGreedy(0.3)
    assert policy("linucb", alpha=2.0, ridge=0.1) == LinUCB(2.0, 0.1)
    assert policy("squarecb", gamma=5) == SquareCB(5)


def test_options_may_be_part_of_the_name():
    assert policy("epsilon-greedy:0.3") == EpsilonGreedy(0.3)
    assert policy("squarecb:gamma=5, floor=0.1") == SquareCB(5, floor=0.1)
    assert policy("squarecb:floor=0.1", gamma=5) == SquareCB(5, floor=0.1)


def test_only_explore_every_learns_from_some_rounds():
    assert [n for n in range(1, 13) if ExploreEvery(0.25).learns(n)] == [4, 8, 12]
    assert all(policy(name).learns(n) for name in POLICIES if name != "explore-every" for n in range(1, 5))


@pytest.mark.parametrize("epsilon", [0.4, 0.3, 0.7, 1 / 49, 1.0])
def test_explore_every_explores_a_share_epsilon_of_all_decisions(epsilon):
    learned = [n for n in range(1, 10_001) if ExploreEvery(epsilon).learns(n)]
    assert abs(len(learned) - 10_000 * epsilon) <= 1
    assert max(np.diff(learned)) <= math.ceil(1 / epsilon - 1e-9)
    if epsilon == 1 / 49:
        assert learned[:3] == [49, 98, 147]


def test_explore_every_with_epsilon_one_always_explores():
    assert all(ExploreEvery(1.0).learns(n) for n in range(1, 5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: policy("ucb"), "policy must be one of explore-every, .*, softmax, got 'ucb'"),
        (lambda: policy(3), "policy must be one of .*, got 3"),
        (lambda: policy("linucb", epsilon=0.1), "epsilon is not an option of linucb, which has alpha, ridge"),
        (lambda: policy(SquareCB(), gamma=3), "gamma is no option beside a policy that is made already"),
        (lambda: EpsilonGreedy(1.2), r"epsilon must be in \[0, 1\], got 1.2"),
        (lambda: EpsilonGreedy(-0.1), r"epsilon must be in \[0, 1\], got -0.1"),
        (lambda: EpsilonGreedy(float("nan")), r"epsilon must be in \[0, 1\], got nan"),
        (lambda: EpsilonGreedy("0.1"), r"epsilon must be in \[0, 1\], got '0.1'"),
        (lambda: ExploreEvery(1.2), r"epsilon must be in \[0, 1\], got 1.2"),
        (lambda: ExploreEvery(0.0), "epsilon must be positive for explore-every"),
        (lambda: SquareCB(-1.0), "gamma must be at least 0 and finite, got -1"),
        (lambda: policy("squarecb:gamma=5,0.1"), "policy must be NAME, NAME:VALUE or NAME:KEY=VALUE,KEY=VALUE"),
        (lambda: policy("softmax:cold"), "temperature must be positive and finite, got 'cold'"),
        (lambda: policy("softmax:heat=1"), "heat is not an option of softmax, which has temperature, floor"),
        (lambda: LinUCB(alpha=-1.0), "alpha must be at least 0 and finite, got -1"),
        (lambda: LinUCB(ridge=0.0), "ridge must be positive and finite, got 0"),
    ],
)
def test_bad_policies_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_loops_have_the_policies_that_say_so():
    from service.settings import Policy, Settings

    assert set(get_args(Policy)) == set(HOSTED)
    for name, settings in HOSTED.items():
        rule = loop_rule(Settings(policy=name, reward_range=(0.0, 2.0)))
        assert rule.tolist() == POLICIES[name](**{"floor": 0.0, **settings}).rule((0.0, 2.0)).tolist()
    own = loop_rule(Settings(policy="optimistic-squarecb", gamma=5.0, floor=0.1))
    assert own.tolist() == OptimisticSquareCB(5.0, 0.1).rule((0.0, 1.0)).tolist()

"""Drawing from very many actions: exact probabilities, each once, whatever the order of actions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedres.policies import EpsilonGreedy, Greedy, OptimisticSquareCB, SquareCB
from fedres.policies.kernels import FLOOR, HIGH, LOW, explore, weigh
from fedres.policies.shortlist import SHORTLIST, draw_one, ranked

HOSTED = [Greedy(), Greedy(floor=0.1), EpsilonGreedy(0.2), SquareCB(), OptimisticSquareCB(floor=0.02)]
LAST = 1 - 2.0**-53


def expected(policy, scores, allowed, learned):
    """Return the probabilities of all actions in plain NumPy: the best places of a list, ties sharing the last ones."""
    floor = policy.floor
    if isinstance(policy, EpsilonGreedy):
        floor, policy = 1 - (1 - floor) * (1 - policy.epsilon), Greedy()
    ids = np.flatnonzero(allowed)
    left = np.sort(scores[ids])[::-1][:SHORTLIST]
    rule, listed = policy.rule((0.0, 1.0)).copy(), np.empty(left.size)
    rule[FLOOR] = 0.0
    listed[:] = left
    weigh(rule, 0, learned, np.ones(left.size, bool), listed)
    probabilities = np.zeros(scores.size)
    for score in set(left):
        tied = ids[scores[ids] == score]
        probabilities[tied] = listed[left == score].sum() / tied.size
    return np.where(allowed, (1 - floor) * probabilities + floor / ids.size, 0.0)


def draws(policy, means, widths, allowed, learned, numbers, n=1):
    keys, count = np.arange(means.size, dtype=np.uint32), int(allowed.sum())
    ranking = ranked(policy.rule((0.0, 1.0)), means, widths, keys, allowed, n)
    return [draw_one(policy.rule((0.0, 1.0)), learned, *ranking, keys, allowed, count, u) for u in numbers]


scored = st.tuples(st.integers(1, 150), st.integers(1, 40), st.integers(0, 10**6), st.sampled_from(HOSTED))


@settings(max_examples=60, deadline=None)
@given(scored)
def test_every_action_is_drawn_with_the_probability_that_is_told_also_where_many_tie(drawn):
    n, n_levels, seed, policy = drawn
    rng = np.random.default_rng(seed)
    means, widths = rng.integers(n_levels, size=n) / n_levels, np.zeros(n)
    allowed = rng.random(n) < 0.8
    allowed[rng.integers(n)] = True
    chances = expected(policy, means, allowed, 400)
    numbers = np.linspace(0, 1, 1_001)[:-1]
    drawn_actions = draws(policy, means, widths, allowed, 400, [*numbers, LAST])
    actions, probabilities = np.array([action for action, _ in drawn_actions]), np.array([p for _, p in drawn_actions])
    assert allowed[actions].all()
    assert (probabilities > 0).all()
    assert np.abs(probabilities - chances[actions]).max() <= 1e-12
    share = np.bincount(actions[:-1], minlength=n) / numbers.size
    assert np.abs(share - chances).max() < 1.5 / numbers.size  # each has its part of [0, 1)


@pytest.mark.parametrize("policy", HOSTED)
def test_few_actions_have_the_probabilities_of_a_rank_call(policy):
    rng = np.random.default_rng(1)
    means, widths, allowed = rng.random(SHORTLIST), rng.random(SHORTLIST), rng.random(SHORTLIST) < 0.7
    if not isinstance(policy, OptimisticSquareCB):
        widths[:] = 0
    chances = np.empty(SHORTLIST)
    explore(policy.rule((0.0, 1.0)), 0, 90, means, widths, allowed, chances)
    for action, p in draws(policy, means, widths, allowed, 90, np.linspace(0, LAST, 500)):
        assert p == pytest.approx(chances[action], abs=1e-14)


@settings(max_examples=60, deadline=None)
@given(scored)
def test_a_page_has_no_action_twice_and_each_probability_is_that_among_those_left(drawn):
    n, n_levels, seed, policy = drawn
    rng = np.random.default_rng(seed)
    means, allowed = rng.integers(n_levels, size=n) / n_levels, np.ones(n, bool)
    keys = rng.permutation(n).astype(np.uint32)
    ranking = ranked(policy.rule((0.0, 1.0)), means, np.zeros(n), keys, allowed, 20)
    for place in range(min(20, n)):
        chances = expected(policy, means, allowed, 400)
        action, p = draw_one(policy.rule((0.0, 1.0)), 400, *ranking, keys, allowed, n - place, rng.random())
        assert allowed[action]
        assert p == pytest.approx(chances[action], abs=1e-12)
        allowed[action] = False


@settings(max_examples=60, deadline=None)
@given(scored)
def test_the_order_of_actions_changes_no_draw(drawn):
    n, n_levels, seed, policy = drawn
    rng = np.random.default_rng(seed)
    means, keys, order = rng.integers(n_levels, size=n) / n_levels, rng.permutation(n), rng.permutation(n)
    rule, drawn_actions = policy.rule((0.0, 1.0)), []
    for places in (np.arange(n), order):
        own, some = keys[places].astype(np.uint32), means[places]
        ranking = ranked(rule, some, np.zeros(n), own, np.ones(n, bool), 5)
        draws = [draw_one(rule, 400, *ranking, own, np.ones(n, bool), n, u) for u in np.linspace(0, LAST, 50)]
        drawn_actions.append([(own[action], p) for action, p in draws])
    assert drawn_actions[0] == drawn_actions[1]


@pytest.mark.parametrize("policy", HOSTED[1:3])
def test_actions_with_one_key_are_drawn_with_their_own_probabilities(policy):
    """CRC-32 gives some ids the same key: one of two such actions was never drawn, the other twice as often."""
    ids = np.array(["p", "q", "other", "z", "a"])
    keys, n = np.array([7, 7, 3, 9, 7], np.uint32), 5
    rule, chances = policy.rule((0.0, 1.0)), {}
    for order in (np.arange(n), np.array([4, 2, 1, 0, 3])):
        for means in (np.zeros(n), np.array([0.0, 0.0, 0.5, 0.0, 0.0])[order]):
            ranking = ranked(rule, means, np.zeros(n), keys[order], np.ones(n, bool), 1)
            numbers = np.linspace(0, 1, 2_001)[:-1]
            all_allowed = np.ones(n, bool), n
            drawn = [draw_one(rule, 400, *ranking, keys[order], *all_allowed, u, ids[order].tolist()) for u in numbers]
            shares = np.bincount([action for action, _ in drawn], minlength=n) / numbers.size
            told = dict(drawn)
            assert [told[action] for action in range(n)] == pytest.approx(shares.tolist(), abs=1.5 / numbers.size)
            names = [str(ids[order][action]) for action, _ in drawn]
            assert chances.setdefault(means.any(), names) == names


@settings(max_examples=60, deadline=None)
@given(scored, st.sampled_from([-1000.0, -1e-3, 0.0, 1e-3, 1000.0]))
def test_a_boost_counts_in_full_beyond_the_range_of_rewards(drawn, boost):
    n, n_levels, seed, policy = drawn
    rng = np.random.default_rng(seed)
    means = rng.integers(-n_levels, 2 * n_levels, size=n) / n_levels  # also below and above the range of rewards
    allowed = np.ones(n, bool)
    boosts = np.where(np.arange(n) == 0, boost, 0.0)
    rule = policy.rule((0.0, 1.0))
    keys = rng.permutation(n).astype(np.uint32)
    ranking = ranked(rule, means, np.zeros(n), keys, allowed, 1, boosts)
    most = rule[HIGH] if isinstance(policy, SquareCB) and not isinstance(policy, OptimisticSquareCB) else np.inf
    scores = np.clip(means, rule[LOW], most) + boosts
    chances = expected(policy, scores, allowed, 400)
    for u in np.linspace(0, LAST, 200):
        action, p = draw_one(rule, 400, *ranking, keys, allowed, n, u)
        assert p == pytest.approx(chances[action], abs=1e-12)
    if abs(boost) == 1000 and n > 1:
        assert (chances[0] == chances.max()) == (boost > 0 or np.ptp(chances) == 0)
        if policy.floor == 0 and isinstance(policy, Greedy):
            assert chances[0] == (boost > 0)

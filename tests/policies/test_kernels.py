"""From predicted rewards to probabilities, and to an action."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedres.policies import (
    POLICIES,
    EpsilonGreedy,
    ExploreEvery,
    Greedy,
    LinUCB,
    OptimisticSquareCB,
    Softmax,
    SquareCB,
)
from fedres.policies.kernels import draw, explore, explore_all, pick

LAST = 1 - 2.0**-53  # the largest number that is drawn
scored = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.3, 1.0]), st.booleans()), min_size=1, max_size=6).filter(
    lambda actions: any(allowed for _, allowed in actions)
)
EACH = st.sampled_from(list(POLICIES.values()))


def chances(policy, means, allowed=None, *, widths=None, n=1, learned=1, span=(0.0, 1.0)):
    out, means = np.full(len(means), np.nan), np.array(means, float)
    allowed = np.ones(len(means), bool) if allowed is None else np.array(allowed)
    widths = np.zeros(len(means)) if widths is None else np.array(widths, float)
    before = means.copy()
    explore(policy.rule(span), n, learned, means, widths, allowed, out)
    assert (means == before).all()
    return out


def test_epsilon_is_spread_and_the_rest_is_shared_among_the_best():
    assert chances(EpsilonGreedy(0.2), [0.1, 0.9, 0.9, 0.2]) == pytest.approx([0.05, 0.45, 0.45, 0.05])
    allowed = [True, False, True, True]
    assert chances(EpsilonGreedy(0.3), [0.1, 0.9, 0.8, 0.2], allowed) == pytest.approx([0.1, 0, 0.8, 0.1])


def test_epsilon_of_one_is_uniform():
    assert chances(EpsilonGreedy(1.0), [0.1, 0.9, 0.5]) == pytest.approx([1 / 3] * 3)


def test_squarecb_weighs_by_the_inverse_gap():
    scores = np.array([0.1, 0.7, 0.5])
    p = 1 / (3 + 40 * (0.7 - scores))
    p[1] = 1 - p[0] - p[2]
    assert chances(SquareCB(40.0, floor=0), scores) == pytest.approx(p, abs=1e-15)


def test_squarecb_counts_only_what_is_allowed_and_ties_share():
    p = 1 / (3 + 10 * 0.5)
    result = chances(SquareCB(10.0, floor=0), [0.2, 0.7, 0.9, 0.7], [True, True, False, True])
    assert result == pytest.approx([p, (1 - p) / 2, 0, (1 - p) / 2], abs=1e-15)


def test_squarecb_takes_predictions_for_rewards_within_their_range():
    plain, outside = (chances(SquareCB(10.0), means) for means in ([0.0, 1.0, 0.4], [-3.0, 1.5, 0.4]))
    assert outside.tolist() == plain.tolist()


def test_optimistic_squarecb_weighs_means_within_the_rewards_with_their_widths():
    scores = np.array([0.0 + 0.2, 0.5 + 0.4, 0.4 + 0.6])  # the first mean is less than any reward
    expected = chances(SquareCB(10.0, floor=0), scores)
    probabilities = chances(OptimisticSquareCB(10.0, floor=0), [-3.0, 0.5, 0.4], widths=[0.2, 0.4, 0.6])
    assert probabilities == pytest.approx(expected, abs=1e-15)


def test_optimistic_squarecb_moves_with_the_range_of_the_rewards():
    means, widths, chosen = np.array([-0.2, 0.5, 0.4]), np.array([0.2, 0.4, 0.6]), OptimisticSquareCB(10.0)
    moved = chances(chosen, 4 * means - 7, widths=4 * widths, span=(-7.0, -3.0))
    assert moved == pytest.approx(chances(chosen, means, widths=widths), abs=1e-15)


def test_linucb_takes_the_best_of_mean_and_width():
    assert chances(LinUCB(2.0), [0.5, -0.1, 0.7], widths=[0.2, 0.6, 0.0]).tolist() == [0, 1, 0]
    assert chances(LinUCB(0.0), [0.5, -0.1, 0.5], widths=[0.2, 0.6, 0.0]).tolist() == [0.5, 0, 0.5]


def test_softmax_weighs_by_the_exponential():
    scores = np.array([0.1, 0.7, 0.5])
    weights = np.exp(scores / 0.2)
    assert chances(Softmax(0.2), scores) == pytest.approx(weights / weights.sum(), abs=1e-15)
    assert chances(Softmax(1e-3), [0.1, 0.9, 0.9], [True, False, True]) == pytest.approx([0, 0, 1])


def test_greedy_shares_among_what_is_not_expected_to_earn_anything():
    assert chances(Greedy(), [-0.2, 0.0, -0.1]) == pytest.approx([1 / 3] * 3)


@given(scored, EACH, st.floats(0, 1), st.integers(0, 10**6))
def test_the_floor_is_under_every_action_that_is_allowed(actions, kind, floor, learned):
    means, allowed = zip(*actions, strict=True)
    p = chances(kind(floor=floor), means, allowed, widths=[0.1] * len(means), learned=learned)
    assert p.sum() == pytest.approx(1)
    assert (p[np.array(allowed)] >= floor / sum(allowed) * (1 - 1e-12)).all()
    assert (p[~np.array(allowed)] == 0).all()


def test_the_gap_counts_for_more_with_every_reward():
    """γ·√n."""
    p = 1 / (2 + 3 * np.sqrt(16) * 0.5)
    assert chances(SquareCB(3.0, floor=0), [0.0, 0.5], learned=16) == pytest.approx([p, 1 - p])


def test_every_b_th_decision_is_uniform_and_all_others_greedy():
    for n in range(1, 13):
        expected = [0.5, 0.5] if n % 4 == 0 else [0.0, 1.0]
        assert chances(ExploreEvery(0.25), [0.0, 0.5], n=n).tolist() == expected


def test_where_b_is_no_whole_number_the_decision_after_each_multiple_is_uniform():
    uniform = [n for n in range(1, 13) if chances(ExploreEvery(0.4), [0.0, 0.5], n=n)[0] > 0]
    assert uniform == [3, 5, 8, 10]


@given(scored, EACH, st.integers(1, 20))
def test_probabilities_add_up_and_leave_out_what_is_not_allowed(actions, kind, n):
    scores, allowed = zip(*actions, strict=True)
    p = chances(kind(), scores, allowed, n=n, learned=n)
    best = max(score for score, ok in actions if ok)
    tied = [p[a] for a, (score, ok) in enumerate(actions) if ok and score == best]
    assert p.sum() == pytest.approx(1)
    assert not p[~np.array(allowed)].any()
    assert min(tied) == max(tied) == p.max()


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_policy_asked_from_python_is_the_compiled_one(name):
    chosen, means, widths = POLICIES[name](), np.array([0.2, 0.9, 0.4, 0.9]), np.array([0.1, 0.2, 0.3, 0.2])
    compiled = chances(chosen, means, widths=widths, n=9, learned=9, span=(-np.inf, np.inf))
    assert chosen.probabilities(means, widths, 9).tolist() == compiled.tolist()


@pytest.mark.parametrize("name", ["epsilon-greedy", "squarecb", "greedy", "softmax"])
def test_many_decisions_at_once_have_the_probabilities_of_each(name):
    rng, offsets = np.random.default_rng(0), np.array([0, 3, 4, 9])
    means, out, chosen = rng.random(9), np.empty(9), POLICIES[name]()
    explore_all(chosen.rule(), 1, offsets, means, out)
    for first, last in itertools.pairwise(offsets):
        assert out[first:last].tolist() == chosen.probabilities(means[first:last], np.zeros(last - first), 1).tolist()


def test_a_number_falls_on_an_action_as_often_as_its_probability_says():
    p = np.array([0.0, 0.2, 0.5, 0.0, 0.3, 0.0])
    picked = [pick(p, u) for u in (np.arange(1000) + 0.5) / 1000]
    assert np.bincount(picked, minlength=6).tolist() == [0, 200, 500, 0, 300, 0]
    assert pick(p, 0.0) == 1


def test_the_largest_number_never_falls_on_an_action_of_probability_zero():
    assert pick(np.array([0.1] * 3 + [0.7 - 1e-16, 0.0]), LAST) == 3


def test_draws_are_uniform_over_decisions_clients_and_seeds():
    for numbers in (
        [draw(5, 3, n) for n in range(1, 4001)],
        [draw(5, client, 1) for client in range(4000)],
        [draw(seed, 3, 1) for seed in range(4000)],
    ):
        counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
        assert ((counts - 200) ** 2 / 200).sum() < 55  # χ² with 19 degrees: beaten once in 40,000 seeds
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 4.5 / np.sqrt(4000)


@given(scored, EACH, st.floats(0, 1))
def test_a_floor_is_spread_evenly_over_what_is_allowed(actions, kind, floor):
    scores, allowed = zip(*actions, strict=True)
    plain, floored = (chances(kind(floor=f), scores, allowed, n=4, learned=4) for f in (0.0, floor))
    even = np.array(allowed) / np.sum(allowed)
    assert floored == pytest.approx((1 - floor) * plain + floor * even)

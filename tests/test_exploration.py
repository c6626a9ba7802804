"""From predicted rewards to probabilities, and to an action."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedres.exploration import EPSILON_GREEDY, EXPLORE_EVERY, GREEDY, SQUARECB, choose, draw, optimistic_squarecb, pick
from fedres.exploration import epsilon_greedy as epsilon_greedy_into
from fedres.exploration import squarecb as squarecb_into

LAST = 1 - 2.0**-53  # the largest number that is drawn
scored = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.3, 1.0]), st.booleans()), min_size=1, max_size=6).filter(
    lambda actions: any(allowed for _, allowed in actions)
)


def distribution(rule, scores, setting, allowed=None):
    out = np.full(len(scores), np.nan)
    allowed = np.ones(len(scores), dtype=bool) if allowed is None else np.array(allowed)
    rule(np.array(scores), allowed, setting, out)
    return out


def probabilities(code, setting, scores, allowed, n, floor=0.0):
    out = np.full(len(scores), np.nan)
    choose(code, setting, floor, np.array(scores), np.array(allowed), n, 0, 0, out)
    return out


def test_epsilon_is_spread_and_the_rest_is_shared_among_the_best():
    assert distribution(epsilon_greedy_into, [0.1, 0.9, 0.9, 0.2], 0.2) == pytest.approx([0.05, 0.45, 0.45, 0.05])
    allowed = [True, False, True, True]
    assert distribution(epsilon_greedy_into, [0.1, 0.9, 0.8, 0.2], 0.3, allowed) == pytest.approx([0.1, 0, 0.8, 0.1])


def test_epsilon_of_one_is_uniform():
    assert distribution(epsilon_greedy_into, [0.1, 0.9, 0.5], 1.0) == pytest.approx([1 / 3] * 3)


def test_squarecb_weighs_by_the_inverse_gap():
    gamma, scores = 40.0, np.array([0.1, 0.7, 0.5])
    p = 1 / (3 + gamma * (0.7 - scores))
    p[1] = 1 - p[0] - p[2]
    assert distribution(squarecb_into, scores, gamma) == pytest.approx(p, abs=1e-15)


def test_squarecb_counts_only_what_is_allowed_and_ties_share():
    p = 1 / (3 + 10 * 0.5)
    result = distribution(squarecb_into, [0.2, 0.7, 0.9, 0.7], 10.0, [True, True, False, True])
    assert result == pytest.approx([p, (1 - p) / 2, 0, (1 - p) / 2], abs=1e-15)


def optimistic(means, widths, allowed, low=0.0, gamma=10.0, floor=0.0):
    out = np.full(len(means), np.nan)
    optimistic_squarecb(np.array(means), np.array(widths), np.array(allowed), low, gamma, floor, out)
    return out


def test_optimistic_squarecb_weighs_means_within_the_rewards_with_their_widths():
    scores = np.array([0.0 + 0.2, 0.5 + 0.4, 0.4 + 0.6])  # the first mean is less than any reward
    expected = distribution(squarecb_into, scores, 10.0)
    assert optimistic([-3.0, 0.5, 0.4], [0.2, 0.4, 0.6], [True] * 3) == pytest.approx(expected, abs=1e-15)


def test_optimistic_squarecb_moves_with_the_range_of_the_rewards():
    means, widths, all_three = np.array([-0.2, 0.5, 0.4]), np.array([0.2, 0.4, 0.6]), [True] * 3
    moved = optimistic(4 * means - 7, 4 * widths, all_three, low=-7.0, gamma=10.0 / 4)
    assert moved == pytest.approx(optimistic(means, widths, all_three), abs=1e-15)


@given(scored, st.floats(0, 1e6), st.floats(0, 1))
def test_the_floor_is_under_every_action_that_is_allowed(actions, gamma, floor):
    means, allowed = zip(*actions, strict=True)
    p = optimistic(means, [0.1] * len(means), allowed, gamma=gamma, floor=floor)
    assert p.sum() == pytest.approx(1)
    assert (p[np.array(allowed)] >= floor / sum(allowed) * (1 - 1e-12)).all()
    assert (p[~np.array(allowed)] == 0).all()


def test_the_gap_counts_for_more_with_every_decision():
    """γ = scale·√n."""
    p = 1 / (2 + 3 * np.sqrt(16) * 0.5)
    assert probabilities(SQUARECB, 3.0, [0.0, 0.5], [True, True], 16) == pytest.approx([p, 1 - p])


def test_every_b_th_decision_is_uniform_and_all_others_greedy():
    for n in range(1, 13):
        expected = [0.5, 0.5] if n % 4 == 0 else [0.0, 1.0]
        assert probabilities(EXPLORE_EVERY, 4.0, [0.0, 0.5], [True, True], n).tolist() == expected


def test_where_b_is_no_whole_number_the_decision_after_each_multiple_is_uniform():
    uniform = [n for n in range(1, 13) if probabilities(EXPLORE_EVERY, 2.5, [0.0, 0.5], [True, True], n)[0] > 0]
    assert uniform == [3, 5, 8, 10]


@given(scored, st.sampled_from([EXPLORE_EVERY, EPSILON_GREEDY, SQUARECB, GREEDY]), st.integers(1, 20))
def test_probabilities_add_up_and_leave_out_what_is_not_allowed(actions, code, n):
    scores, allowed = zip(*actions, strict=True)
    setting = {EXPLORE_EVERY: 3.0, EPSILON_GREEDY: 0.2, SQUARECB: 10.0, GREEDY: 0.0}[code]
    p = probabilities(code, setting, scores, allowed, n)
    best = max(score for score, ok in actions if ok)
    tied = [p[a] for a, (score, ok) in enumerate(actions) if ok and score == best]
    assert p.sum() == pytest.approx(1)
    assert not p[~np.array(allowed)].any()
    assert min(tied) == max(tied) == p.max()


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


@given(scored, st.sampled_from([EXPLORE_EVERY, EPSILON_GREEDY, SQUARECB, GREEDY]), st.floats(0, 1))
def test_a_floor_is_spread_evenly_over_what_is_allowed(actions, code, floor):
    scores, allowed = zip(*actions, strict=True)
    setting = {EXPLORE_EVERY: 3.0, EPSILON_GREEDY: 0.2, SQUARECB: 10.0, GREEDY: 0.0}[code]
    plain, floored = (probabilities(code, setting, scores, allowed, 4, floor=f) for f in (0.0, floor))
    even = np.array(allowed) / np.sum(allowed)
    assert floored == pytest.approx((1 - floor) * plain + floor * even)

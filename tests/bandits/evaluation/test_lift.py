"""Treatment against control."""

import math

import numpy as np
import pytest

from bandits.evaluation.lift import LEAST_REWARDED, LEAST_USERS, Arm, lift, sample_ratio_is_wrong


def arm(rng, n_users, rate, per_user=5, before=None):
    events = 1 + rng.poisson(per_user - 1, n_users)
    rewards = rng.binomial(events, rate).astype(float)
    return Arm(rewards, events, int(rewards.sum()), before)


def test_the_estimate_is_the_difference_of_rewards_per_event_and_the_interval_holds_it():
    control = Arm(np.array([1.0, 0, 2] * 10), np.array([4, 1, 5] * 10), 30)
    treatment = Arm(np.array([3.0, 1, 2] * 10), np.array([4, 2, 4] * 10), 60)
    result = lift(control, treatment)
    assert (result.control, result.treatment) == (0.3, 0.6)
    assert math.isclose(result.absolute.value, 0.3)
    assert math.isclose(result.relative.value, 1.0)
    assert result.absolute.low < 0.3 < result.absolute.high
    assert result.relative.low < 1.0 < result.relative.high


def test_the_width_is_that_of_users_not_of_events():
    rng = np.random.default_rng(0)
    rate = rng.random(200)
    events = np.full(200, 50)
    users = rng.binomial(events, rate).astype(float)
    alike = rng.binomial(events, 0.5, 200).astype(float)

    def width(rewards):
        half = [Arm(part, events[:100], int(part.sum())) for part in np.split(rewards, 2)]
        absolute = lift(*half).absolute
        return absolute.high - absolute.low

    assert 3 < width(users) / width(alike) < 6  # sqrt((1/12) / (1/4 / 50)) = 4.1


def test_earlier_rewards_narrow_the_interval_and_do_not_move_it_by_much():
    rng = np.random.default_rng(1)
    rates = [rng.beta(1, 4, 1_000) for _ in range(2)]
    plain = [arm(rng, 1_000, rate) for rate in rates]
    earlier = [np.where(rng.random(1_000) < 0.8, rng.binomial(50, rate) / 50, np.nan) for rate in rates]
    adjusted = [
        Arm(one.rewards, one.events, one.n_rewarded, before) for one, before in zip(plain, earlier, strict=True)
    ]
    wide, narrow = lift(*plain), lift(*adjusted)
    assert wide.variance_left == 1.0
    assert narrow.variance_left < 0.7
    assert narrow.absolute.high - narrow.absolute.low < 0.9 * (wide.absolute.high - wide.absolute.low)
    assert wide.absolute.low < narrow.absolute.value < wide.absolute.high


def test_earlier_rewards_that_nobody_has_change_nothing():
    rng = np.random.default_rng(2)
    plain = [arm(rng, 100, 0.3) for _ in range(2)]
    nobody = [Arm(one.rewards, one.events, one.n_rewarded, np.full(100, np.nan)) for one in plain]
    assert lift(*plain) == lift(*nobody)


def test_a_small_arm_in_which_something_rare_is_missing_by_chance_shows_nothing():
    events = np.ones(1_000)
    left = np.zeros(9_000)
    left[:20] = 1
    none = Arm(np.zeros(1_000), events, 20)  # 2.2 expected if arms are alike; none in 1 of 9 experiments
    absolute = lift(none, Arm(left, np.ones(9_000), 20)).absolute
    assert absolute.low < 0 < absolute.value < absolute.high
    many = np.zeros(9_000)
    many[:400] = 1
    assert lift(none, Arm(many, np.ones(9_000), 400)).absolute.low > 0  # 44 expected


def test_regulars_of_one_arm_do_not_hide_a_lift():
    """As in the demo: ten readers with a thousand decisions each, all of them with the policy."""
    rng = np.random.default_rng(3)
    control, treatment = arm(rng, 40, 0.3, per_user=17), arm(rng, 150, 0.85, per_user=17)
    regulars = rng.binomial(1_300, 0.85, 10).astype(float)
    rewards, events = np.append(treatment.rewards, regulars), np.append(treatment.events, [1_300] * 10)
    absolute = lift(control, Arm(rewards, events, int(rewards.sum()))).absolute
    assert absolute.low > 0.3
    assert absolute.high < 0.8


@pytest.mark.parametrize(
    ("n_users", "n_rewarded", "said"),
    [
        (LEAST_USERS - 1, 100, f"{LEAST_USERS - 1} users"),
        (LEAST_USERS, LEAST_REWARDED - 1, f"{LEAST_REWARDED - 1} rewarded"),
    ],
)
def test_too_little_data_has_no_interval_and_says_what_is_missing(n_users, n_rewarded, said):
    few = Arm(np.full(n_users, 1.0), np.full(n_users, 5), n_rewarded)
    enough = Arm(np.full(100, 1.0), np.full(100, 5), 100)
    for result in (lift(few, enough), lift(enough, few)):
        assert result.absolute is result.relative is None
        assert said in result.missing
        assert result.more_users(0.1) is None
    assert lift(enough, enough).missing is None


def test_nobody_at_all_has_no_mean():
    nobody = Arm(np.zeros(0), np.zeros(0), 0)
    result = lift(nobody, nobody)
    assert math.isnan(result.control)
    assert result.missing


def test_a_relative_lift_is_not_given_where_control_may_earn_nothing():
    one_user = Arm(np.array([20.0] + [0.0] * 39), np.full(40, 20), 20)
    result = lift(one_user, arm(np.random.default_rng(3), 40, 0.3))
    assert result.absolute is not None
    assert result.relative is None


def test_four_times_the_users_halve_the_interval():
    rng = np.random.default_rng(4)
    result = lift(arm(rng, 500, 0.3), arm(rng, 500, 0.3))
    half = (result.absolute.high - result.absolute.low) / 2
    assert abs(result.more_users(half / 2) - 3_000) <= 1
    assert result.more_users(2 * half) == 0


def test_all_looks_together_are_wrong_as_seldom_as_promised():
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(100):
        rewards, events = np.zeros(300), np.zeros(300)
        control = np.arange(300) % 2 == 0
        rate = rng.beta(1, 3, 300)
        alarms = False
        for _ in range(30):
            user = rng.integers(0, 300, 100)
            np.add.at(rewards, user, rng.random(100) < rate[user])
            np.add.at(events, user, 1)
            arms = [
                Arm(rewards[mine], events[mine], int(rewards[mine].sum()))
                for mine in ((control == which) & (events > 0) for which in (True, False))
            ]
            absolute = lift(*arms).absolute
            alarms |= absolute is not None and not absolute.low <= 0 <= absolute.high
        wrong += alarms
    assert wrong <= 5


def test_the_sample_ratio_alarm():
    assert not sample_ratio_is_wrong(0, 0, 0.1)
    assert not sample_ratio_is_wrong(1_030, 8_970, 0.1)
    assert sample_ratio_is_wrong(1_200, 8_800, 0.1)
    assert sample_ratio_is_wrong(0, 200, 0.1)


def test_the_sample_ratio_alarm_is_hardly_ever_false_however_often_one_looks():
    rng = np.random.default_rng(6)
    alarms = 0
    for _ in range(200):
        n = np.cumsum(rng.random(2_000) < 0.2)
        alarms += any(sample_ratio_is_wrong(int(k), at - int(k), 0.2) for at, k in enumerate(n, 1) if at % 50 == 0)
    assert alarms <= 2

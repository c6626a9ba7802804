"""Means over time agree with the estimators for a whole log."""

import numpy as np
import pytest

from bandits.evaluation.estimators import Sample, snips
from bandits.evaluation.over_time import SnipsSums, mean_change, snips_by_bucket, snips_so_far, snips_sums


def drawn(n=400, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random(n) < 0.3, rng.exponential(1.0, n), rng.integers(0, 40, n)


def test_one_bucket_is_snips_with_the_error_of_its_linearised_contributions():
    reward, weight, _ = drawn()
    reward = reward.astype(float)
    contributions = snips(Sample(reward, weight, np.zeros(400), np.zeros(400)))
    series = snips_by_bucket(np.zeros(400, int), reward, weight, np.arange(400), 1)
    assert series.mean[0] == pytest.approx(contributions.mean())
    error = contributions.std(ddof=1) / np.sqrt(400)
    assert series.high[0] - series.mean[0] == pytest.approx(1.96 * error)
    sums = sum(snips_sums(np.arange(400), 30, weight, reward), SnipsSums(0))
    assert sums.value() == pytest.approx(contributions.mean())
    assert sums.half_width() == pytest.approx(1.96 * error, rel=2e-3)  # without n / (n − 1)
    assert (sums.n, sums.possible) == (400, 400)


def test_the_events_of_a_user_are_one_observation():
    reward, weight, user = drawn()
    alone = snips_by_bucket(np.zeros(400, int), reward, weight, user, 1)
    twice = (np.tile(column, 2) for column in (np.zeros(400, int), reward, weight, user))
    again = snips_by_bucket(*twice, 1)
    assert again.high[0] - again.low[0] == pytest.approx(alone.high[0] - alone.low[0])


def test_buckets_stand_alone_and_points_so_far_take_in_all_before():
    reward, weight, user = drawn()
    bucket = np.arange(400) // 100
    series, so_far = snips_by_bucket(bucket, reward, weight, user, 5), snips_so_far(bucket, reward, weight, user, 5)
    assert series.events.tolist() == [100] * 4 + [0]
    assert np.isnan(series.mean[4])
    assert so_far.events.tolist() == [100, 200, 300, 400, 400]
    assert so_far.mean[1] == pytest.approx((weight * reward)[:200].sum() / weight[:200].sum())
    few = snips_so_far(bucket[:15], reward[:15], weight[:15], user[:15], 1)
    assert np.isnan(few.mean[0])
    assert snips_so_far(*np.zeros((4, 0), int), 0).events.size == 0


def test_a_change_of_means_has_the_error_of_two_independent_samples_where_users_differ():
    values = np.random.default_rng(1).normal(size=300)
    later = np.arange(300) >= 200
    change = mean_change(values, later, np.arange(300))
    assert change.later - change.earlier == pytest.approx(values[200:].mean() - values[:200].mean())
    assert change.error == pytest.approx(np.sqrt(values[200:].var() / 100 + values[:200].var() / 200))


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e-9, 1.0), (2e9, -1e9)])
@pytest.mark.parametrize("n_users", [1, 7, 400])
def test_every_point_so_far_is_snips_over_all_events_until_then(scale, shift, n_users):
    rng = np.random.default_rng(0)
    reward = shift + scale * rng.random(400)
    weight = rng.exponential(1.0, 400)
    user = rng.integers(0, n_users, 400)
    bucket = rng.integers(0, 9, 400)  # in any order
    series = snips_so_far(bucket, reward, weight, user, 10)
    for k in range(10):
        until = bucket <= k
        plain = snips_by_bucket(np.zeros(until.sum(), int), reward[until], weight[until], user[until], 1)
        assert series.events[k] == until.sum()
        for name in ("mean", "low", "high"):
            rounding = 1e-6 * scale + 1e-14 * abs(shift)
            assert getattr(series, name)[k] == pytest.approx(getattr(plain, name)[0], abs=rounding, nan_ok=True)

"""Intervals hold their level, and weights that cannot be trusted are called out."""

import math

import numpy as np
import pytest
from scipy import stats

from bandits.evaluation.estimators import ESTIMATORS, Sample
from bandits.evaluation.intervals import effective_sample_size, interval, t_quantile, weight_warning

LOGGING, TARGET = np.array([0.7, 0.2, 0.06, 0.04]), np.array([0.1, 0.2, 0.3, 0.4])  # weights from 1/7 to 10
MEAN_REWARD, PREDICTED = np.array([0.1, 0.2, 0.3, 0.6]), np.array([0.3, 0.1, 0.3, 0.4])


def simulated_logs(n_logs, n_events, seed):
    rng = np.random.default_rng(seed)
    for _ in range(n_logs):
        action = rng.choice(4, n_events, p=LOGGING)
        reward = (rng.random(n_events) < MEAN_REWARD[action]).astype(float)
        baseline = np.full(n_events, TARGET @ PREDICTED)
        yield Sample(reward, (TARGET / LOGGING)[action], PREDICTED[action], baseline)


@pytest.mark.parametrize("n_events", [300, 1000])
@pytest.mark.parametrize("name", ["ips", "snips", "dr", "sndr"])
def test_95_percent_intervals_hold_the_truth_95_times_in_100(name, n_events):
    n_logs, truth = 600, TARGET @ MEAN_REWARD
    found = [interval(ESTIMATORS[name](s)) for s in simulated_logs(n_logs, n_events, seed=n_events)]
    coverage = np.mean([low <= truth <= high for _, low, high in found])
    noise = 4 * math.sqrt(0.95 * 0.05 / n_logs)  # four binomial standard deviations
    assert coverage >= 0.94 - noise


def test_the_level_is_the_callers():
    truth = TARGET @ MEAN_REWARD
    found = [interval(ESTIMATORS["ips"](s), level=0.5) for s in simulated_logs(600, 1000, seed=3)]
    coverage = np.mean([low <= truth <= high for _, low, high in found])
    assert abs(coverage - 0.5) < 0.02 + 4 * math.sqrt(0.25 / 600)


def test_the_interval_holds_its_estimate_and_has_no_width_without_noise():
    skewed = np.append(np.zeros(30), 100.0)
    value, low, high = interval(skewed)
    assert low <= value <= high
    assert value == skewed.mean()
    assert interval(np.full(20, 0.3)) == pytest.approx((0.3, 0.3, 0.3))
    assert all(math.isnan(number) for number in interval(np.full(20, np.nan)))


@pytest.mark.parametrize(
    ("contributions", "level", "rule"),
    [
        (np.ones(9), 0.95, "contributions must be of at least 10 events, got 9"),
        (np.append(np.ones(9), np.inf), 0.95, "contributions must be finite, got inf"),
        (np.ones(10), 1.0, r"level must be in \(0, 1\), got 1.0"),
    ],
)
def test_an_interval_from_what_holds_none_is_refused(contributions, level, rule):
    with pytest.raises(ValueError, match=rule):
        interval(contributions, level)


@pytest.mark.parametrize("freedom", [11, 30, 1000])
@pytest.mark.parametrize("probability", [0.9, 0.975, 0.995])
def test_students_quantile_is_scipys(probability, freedom):
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), abs=1e-3)


def test_effective_sample_size_is_n_for_equal_weights_and_1_for_a_single_one():
    assert effective_sample_size(np.full(40, 2.5)) == pytest.approx(40)
    assert effective_sample_size(np.array([0.0, 3.0, 0.0])) == 1
    assert effective_sample_size(np.zeros(5)) == 0


def test_weights_that_can_be_trusted_raise_no_warning():
    weight = next(simulated_logs(1, 2000, seed=0)).weight
    assert weight_warning(weight) == ""
    assert weight_warning(np.ones(100)) == ""


@pytest.mark.parametrize(
    ("weight", "unsupported", "text"),
    [
        (np.ones(49), 0.0, "effective sample size 49.0 is below 50 events"),
        (np.append(np.zeros(1940), np.full(60, 2000 / 60)), 0.0, "size 60.0 is below 5% of 2000 events"),
        (np.append(np.full(999, 0.9), 101.0), 0.0, "one event carries 10.1% of all weight"),
        (np.tile([0.2, 0.8], 500), 0.0, "weights average 0.5 instead of 1"),
        (np.ones(100), 0.25, "25.0% of the target's choices are actions that the log never took"),
        (np.zeros(100), 0.0, "weights average 0 instead of 1"),
    ],
)
def test_weights_that_cannot_be_trusted_are_called_out(weight, unsupported, text):
    assert text in weight_warning(weight, unsupported)

"""Evidence against a mean of 0 or more, from numbers with a known bound."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from bandits.evaluation.evidence import bootstrap_score, fixed_time, log_wealth, time_uniform


def test_the_bootstraps_score_is_that_of_drawn_exponential_weights():
    rng = np.random.default_rng(0)
    z, largest = rng.normal(-0.3, 1.0, size=40).clip(max=2.0), 3.0
    draws = rng.exponential(size=(200_000, 41)) @ np.append(z, largest)
    assert ndtr(bootstrap_score(z, np.ones(40), largest)) == pytest.approx((draws < 0).mean(), abs=0.005)


def test_wealth_is_that_of_the_best_stake():
    z, count = np.array([-0.2, 0.8]), np.array([90.0, 10.0])
    stakes = np.linspace(0, 1 / 0.8, 100_001)[:-1]
    won = count @ np.log1p(-stakes * z[:, None])
    assert log_wealth(z, count, 0.8) == pytest.approx(won.max(), rel=1e-6)
    assert log_wealth(z, count, 1.0) == pytest.approx(won[stakes <= 1].max(), rel=1e-4)


@pytest.mark.parametrize("evidence", [bootstrap_score, log_wealth])
def test_nothing_speaks_against_numbers_whose_mean_is_0_or_more(evidence):
    assert evidence(np.array([-1.0, 1.0]), np.array([5.0, 5.0]), 1.0) == 0
    assert evidence(np.zeros(3), np.ones(3), 0.0) == 0


@pytest.mark.parametrize("evidence", [bootstrap_score, log_wealth])
@given(st.lists(st.floats(-1, 0.5), min_size=2, max_size=30), st.floats(0.5, 20), st.floats(1e-3, 1e6))
def test_evidence_knows_no_unit_and_falls_where_more_is_possible(evidence, numbers, largest, unit):
    z, count = np.array(numbers) - 0.1, np.ones(len(numbers))
    score = evidence(z, count, largest)
    assert evidence(z * unit, count, largest * unit) == pytest.approx(score, rel=1e-4, abs=1e-4)
    assert evidence(z, count, 2 * largest) <= score + 1e-6


def test_looking_every_day_needs_more_evidence_the_longer_one_looks():
    assert fixed_time(0.95).needed == pytest.approx(1.96, abs=1e-3)
    needed = [time_uniform(0.95, n).needed for n in (1, 100, 10_000)]
    assert needed[0] == pytest.approx(math.log(20) + math.log(2))
    assert needed[2] == pytest.approx(math.log(20) + 0.5 * math.log(math.pi * 10_000), rel=1e-4)
    assert needed == sorted(needed)

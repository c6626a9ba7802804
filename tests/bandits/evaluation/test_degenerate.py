"""Degenerate data: one user, one arm, equal or no rewards, tiny and huge ranges, certain actions.

Every number is finite or missing, every interval has its estimate in it, and nothing raises.
"""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bandits.evaluation import LoggedEvent, evaluate, table
from bandits.evaluation.estimators import ESTIMATORS
from bandits.evaluation.lift import Arm, lift, sample_ratio_is_wrong
from bandits.evaluation.over_time import SnipsSums, mean_change, snips_by_bucket, snips_so_far, snips_sums

RANGES = [(0.0, 1.0), (0.0, 1e-9), (-1e9, 1e9), (1e9 - 1, 1e9), (-1e-9, 0.0), (5.0, 5.0 + 1e-8)]
SHAPES = st.sampled_from(["equal", "low", "high", "ends", "one", "any"])


@st.composite
def rewards(draw, n, span):
    """Return ``n`` rewards of a range, often all equal, at its ends, or all equal but one."""
    low, high = span
    shape = draw(SHAPES)
    unit = st.floats(0, 1)
    if shape == "equal":
        column = np.full(n, draw(unit))
    elif shape in ("low", "high"):
        column = np.full(n, float(shape == "high"))
    elif shape == "ends":
        column = np.array(draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n)))
    elif shape == "one":
        column = np.eye(1, n, draw(st.integers(0, max(n - 1, 0))))[0]
    else:
        column = np.array(draw(st.lists(unit, min_size=n, max_size=n)))
    return np.clip(low + column * (high - low), low, high)


def is_sound(value, low, high):
    """Check an interval: its three numbers are finite, and in order."""
    assert math.isfinite(value + low + high), (value, low, high)
    assert low <= value <= high


@st.composite
def logs(draw):
    """Return a small log and the range of its rewards."""
    n = draw(st.integers(10, 40))
    span = draw(st.sampled_from(RANGES))
    n_users = draw(st.sampled_from([None, 1, 2, 7]))
    n_actions = draw(st.sampled_from([1, 2, 5]))
    certainty = draw(st.sampled_from([1.0, 1 - 1e-12, 0.9, 0.5, 1 / n_actions]))
    chosen = draw(st.lists(st.integers(0, n_actions - 1), min_size=n, max_size=n))
    others = (1 - certainty) / (n_actions - 1) if n_actions > 1 else 0.0
    events = []
    for k, reward in enumerate(draw(rewards(n, span))):
        shares = [others] * n_actions
        shares[0] = 1.0 if n_actions == 1 else certainty
        taken = chosen[k] if shares[chosen[k]] > 0 else 0
        user = None if n_users is None else f"u{k % n_users}"
        about = (f"e{k}", {}, tuple("abcde"[:n_actions]), ({},) * n_actions, taken, shares[taken])
        events.append(LoggedEvent(*about, float(reward), tuple(shares), user=user, time=k))
    return table(events), span


@given(logs(), st.booleans(), st.booleans())
@settings(max_examples=30, deadline=None)
def test_every_estimate_is_in_its_interval_or_missing(log_and_span, time_uniform, knows_range):
    log, span = log_and_span
    options = {"time_uniform": time_uniform, "reward_range": span if knows_range else None}
    evaluation = evaluate(log, ["uniform", "first", "likeliest"], estimators=["ips", "snips"], **options)
    for row in evaluation.rows:
        assert not math.isinf(row.value + row.low + row.high), row
        assert row.low <= row.high, row
        assert row.difference_low <= row.difference_high, row
        if not math.isnan(row.value):
            is_sound(row.value, row.low, row.high)
            is_sound(row.difference, row.difference_low, row.difference_high)
        assert math.isfinite(row.ess)


@given(logs())
@settings(max_examples=8, deadline=None)
def test_every_estimator_can_value_every_policy(log_and_span):
    log, _ = log_and_span
    for row in evaluate(log, ["uniform", "greedy"], estimators=[*ESTIMATORS], n_folds=2).rows:
        if not math.isnan(row.value):
            is_sound(row.value, row.low, row.high)
            is_sound(row.difference, row.difference_low, row.difference_high)


@st.composite
def arms(draw, span):
    n = draw(st.integers(0, 40))
    events = np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 50.0]), min_size=n, max_size=n)))
    sums = draw(rewards(n, span)) * events
    kind = draw(st.sampled_from(["none", "all", "some", "missing"]))
    before = {
        "none": None,
        "missing": np.full(n, np.nan),
        "all": sums,
        "some": np.where(np.arange(n) % 2, sums, np.nan),
    }
    return Arm(sums, events, draw(st.sampled_from([0, 20, 1_000])), before[kind])


EQUAL = Arm(np.ones(30), np.ones(30), 30)


@given(st.sampled_from(RANGES).flatmap(lambda span: st.tuples(arms(span), arms(span))))
@example((EQUAL, EQUAL))
@settings(max_examples=100, deadline=None)
def test_every_lift_is_in_its_interval_or_missing(both):
    measured = lift(*both)
    for arm, mean in zip(both, (measured.control, measured.treatment), strict=True):
        assert math.isfinite(mean) or arm.n_users == 0
    assert (measured.absolute is None) == (measured.missing is not None)
    for interval in (measured.absolute, measured.relative):
        if interval is not None:
            is_sound(*interval)
    assert math.isfinite(measured.variance_left)
    if measured.absolute is not None:
        half = (measured.absolute.high - measured.absolute.low) / 2
        for wanted in (half / 2, half, 0.0, 1e9):
            more = measured.more_users(wanted)
            assert more is None or more >= 0


def test_an_experiment_whose_rewards_are_all_equal_has_a_lift_of_0():
    measured = lift(EQUAL, EQUAL)
    assert tuple(measured.absolute) == (0, 0, 0)
    assert measured.more_users(0.0) is None


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.sampled_from([1e-300, 1e-9, 0.1, 0.95]))
def test_a_sample_ratio_is_right_or_wrong(n_control, n_treatment, share):
    assert sample_ratio_is_wrong(n_control, n_treatment, share) in (True, False)


@given(st.sampled_from(RANGES).flatmap(lambda span: rewards(30, span)), st.sampled_from([1, 2, 30]), st.data())
@settings(max_examples=100, deadline=None)
def test_series_are_finite_or_missing(reward, n_users, data):
    n = data.draw(st.integers(0, 30))
    reward = reward[:n]
    weight = np.array(data.draw(st.lists(st.sampled_from([0.0, 1e-12, 1.0, 1e12]), min_size=n, max_size=n)), float)
    user = np.arange(n) % n_users
    bucket = np.arange(n) // 10
    for series in (snips_by_bucket(bucket, reward, weight, user, 4), snips_so_far(bucket, reward, weight, user, 4)):
        for mean, low, high in zip(series.mean, series.low, series.high, strict=True):
            assert not math.isinf(mean)
            if math.isfinite(low):
                is_sound(mean, low, high)
    sums = sum(snips_sums(np.arange(n), 7, weight, reward), SnipsSums(0))
    assert math.isfinite(sums.value())
    assert math.isfinite(sums.half_width())
    if n >= 2:
        change = mean_change(reward, np.arange(n) >= n // 2, user)
        assert all(map(math.isfinite, change))


@pytest.mark.parametrize("reward", [0.0, 1.0, -1e9, 1e-9])
def test_one_user_who_always_gets_the_same_is_evaluated(reward):
    events = [LoggedEvent(f"e{k}", {}, ("a",), ({},), 0, 1.0, reward, (1.0,), user="u", time=k) for k in range(10)]
    for row in evaluate(table(events), ["uniform"], estimators=["snips"], time_uniform=True).rows:
        is_sound(row.value, row.low, row.high)

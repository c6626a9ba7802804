"""Schedules, and the theorems' steps against the bounds that they should minimise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedres import bounds, step_sizes
from fedres.step_sizes import Constant, InverseSqrt, InverseTime, as_schedule, stable_step

OFEDIQ = {"comparator_norm": 2.0, "sigma_diff2": 3.0, "smoothness": 0.5}
QUANTIZED = {"n_clients": 10, "period": 1, "p_min": 0.2, "p_sum": 2.0, "quantizer_variance": 0.7}
NEARBY = (0.5, 0.9, 0.99, 0.999, 1.001, 1.01, 1.1, 2.0)


def test_schedules_follow_their_formulas():
    assert [Constant(0.5)(t) for t in (1, 2, 9)] == [0.5, 0.5, 0.5]
    assert [InverseTime(6.0, shift=1)(t) for t in (1, 2, 5)] == [3.0, 2.0, 1.0]
    assert [InverseSqrt(6.0)(t) for t in (1, 4, 9)] == [6.0, 3.0, 2.0]


def test_a_number_is_a_constant_schedule_and_a_function_is_one_already():
    assert as_schedule(np.float64(0.3)) == Constant(0.3)
    schedule = InverseTime(2.0)
    assert as_schedule(schedule) is schedule


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan, "fast", lambda t: -1.0])
def test_steps_that_are_not_positive_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match="step_size"):
        as_schedule(wrong)


@pytest.mark.parametrize(("make", "name"), [(Constant, "value"), (InverseSqrt, "value"), (InverseTime, "numerator")])
def test_a_schedule_refuses_a_size_that_is_not_positive(make, name):
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        make(0.0)


def never_lower_nearby(bound, step_size, limit=math.inf):
    at_step = bound(step_size)
    assert all(bound(step_size * f) >= at_step * (1 - 1e-12) for f in NEARBY if step_size * f < limit)


@pytest.mark.parametrize("n_rounds", [1, 100, 10**6])  # at the limit, and inside it
def test_fedogd_and_ofedavg_steps_minimise_their_bounds(n_rounds):
    eta = step_sizes.fedogd(n_rounds=n_rounds, **OFEDIQ)
    never_lower_nearby(lambda e: bounds.fedogd(n_rounds=n_rounds, n_clients=10, **OFEDIQ, step_size=e), eta, 0.99)
    eta = step_sizes.ofedavg(n_rounds=n_rounds, p_min=0.2, **OFEDIQ)
    never_lower_nearby(
        lambda e: bounds.ofedavg(n_rounds=n_rounds, n_clients=10, **OFEDIQ, p_min=0.2, step_size=e),
        eta,
        0.198,
    )


@pytest.mark.parametrize("n_rounds", [1, 100, 10**6])
def test_ofediq_step_minimises_its_bound(n_rounds):
    eta = step_sizes.ofediq(n_rounds=n_rounds, **OFEDIQ, **QUANTIZED)
    limit = 0.99 * 0.2 / (4 * 0.5 * bounds.ofediq_spread(n_clients=10, p_min=0.2, p_sum=2.0, quantizer_variance=0.7))
    never_lower_nearby(lambda e: bounds.ofediq(n_rounds=n_rounds, **OFEDIQ, **QUANTIZED, step_size=e), eta, limit)


@pytest.mark.parametrize("n_rounds", [10, 10**4, 10**6])
def test_ofediq_step_with_a_longer_period_is_near_the_minimiser(n_rounds):
    constants = {**OFEDIQ, **QUANTIZED, "period": 5}
    eta = step_sizes.ofediq(n_rounds=n_rounds, **constants)
    limit = 0.2 / (4 * 0.5 * 5 * bounds.ofediq_spread(n_clients=10, p_min=0.2, p_sum=2.0, quantizer_variance=0.7))
    grid = [eta * f for f in np.geomspace(0.1, 10, 401) if eta * f < limit]
    best = min(bounds.ofediq(n_rounds=n_rounds, **constants, step_size=e) for e in grid)
    assert bounds.ofediq(n_rounds=n_rounds, **constants, step_size=eta) <= 1.02 * best


def test_fedomd_step_minimises_its_bound():
    constants = {"n_rounds": 500, "diameter": 3.0, "lipschitz": 2.0, "period": 7}
    eta = step_sizes.fedomd_convex(**constants)
    never_lower_nearby(lambda e: bounds.fedomd_convex(**constants, step_size=e), eta)


def test_strongly_convex_fedomd_step_is_two_over_sigma_t():
    schedule, sigma = step_sizes.fedomd_strongly_convex(0.4), 2 * 0.4
    assert [schedule(t) for t in (1, 7)] == pytest.approx([2 / sigma, 2 / (7 * sigma)])


@pytest.mark.parametrize("period", [1, 5])
def test_fedsea_step_minimises_its_bound_over_a_long_horizon(period):
    constants = {
        "n_rounds": 10**10,
        "n_clients": 4,
        "distance": 2.0,
        "smoothness": 1.5,
        "variance": 3.0,
        "temporal": 0.5,
    }
    eta = step_sizes.fedsea_convex(**constants, period=period)
    values = [bounds.fedsea_convex(**constants, spatial=1.0, period=period, step_size=eta * f) for f in (*NEARBY, 1.0)]
    assert values[-1] <= min(values) * (1 + 1e-4)


@pytest.mark.parametrize(("period", "limit"), [(1, 1 / 12), (5, 1 / (4 * math.sqrt(6) * 1.5 * 4))])
def test_fedsea_step_of_a_short_horizon_is_the_limit_of_lemma_4(period, limit):
    constants = {
        "n_rounds": 1,
        "n_clients": 4,
        "distance": 2.0,
        "smoothness": 1.5,
        "variance": 0.0,
        "temporal": 0.0,
    }
    assert step_sizes.fedsea_convex(**constants, period=period) == pytest.approx(limit)


@pytest.mark.parametrize("period", [1, 2, 10])
def test_strongly_convex_fedsea_steps_keep_within_the_limits_of_the_convex_case(period):
    mu, L = 0.2, 3.0
    first = step_sizes.fedsea_strongly_convex(mu, L, period)(1)
    assert first <= 1 / (8 * L)
    assert first * 4 * L * (period - 1) <= 1
    assert step_sizes.fedsea_strongly_convex(mu, L, period)(10**9) == pytest.approx(2 / (mu * 10**9), rel=1e-4)


@pytest.mark.parametrize(("period", "shift"), [(1, 16 * 4), (2, 18.6 * 8), (10, 18.6 * 8 * 9)])
def test_strongly_convex_fedsea_waits_longest_for_its_drift(period, shift):
    schedule = step_sizes.fedsea_strongly_convex(0.5, 2.0, period)
    assert (schedule.numerator, schedule.shift) == pytest.approx((4.0, shift))


@pytest.mark.parametrize("delay", [0, 3, 50])
@pytest.mark.parametrize("n_rounds", [10**2, 10**4, 10**7])
def test_fedres_steps_come_within_a_quarter_of_the_least_bound(delay, n_rounds):
    norms = np.array([0.5, 1.0, 2.0])
    constants = {
        "n_rounds": n_rounds,
        "global_norm": 1.5,
        "local_norms": norms,
        "smoothness": 2.0,
        "gradient_bound": 3.0,
    }
    eta, own = step_sizes.fedres_sgd(**constants, variance=9.0, delay=delay)

    def bound(shared: float, personal: float) -> float:
        steps = {"step_size": eta * shared, "local_step_sizes": own * personal}
        return bounds.fedres_sgd(**constants, **steps, variances=9.0, delays=delay, radius=0.0)

    factors = np.geomspace(0.02, 50, 61)
    best = min(bound(a, 1) for a in factors) + min(bound(1, b) for b in factors) - bound(1, 1)
    assert bound(1, 1) <= 1.25 * best


def test_fedres_step_is_the_smaller_of_its_two_formulas():
    constants = {"n_rounds": 100, "global_norm": 2.0, "local_norms": np.array([1.0, 3.0])}
    constants |= {"smoothness": 0.5, "gradient_bound": 2.0}
    eta, own = step_sizes.fedres_sgd(**constants, variance=4.0, delay=0)
    assert eta == pytest.approx(math.sqrt(4 / (100 * 2 * 4)))
    np.testing.assert_allclose(own, [1 / 20, 3 / 20])
    eta, own = step_sizes.fedres_sgd(**constants, variance=0.0, delay=5)
    assert eta == pytest.approx((4 / (0.5 * 8 * 4 * 25 * 100)) ** (1 / 3))
    np.testing.assert_allclose(own, np.cbrt(np.array([1.0, 9.0]) / (0.5 * 4 * 25 * 100)))
    with pytest.raises(ValueError, match="variance or delay must be positive"):
        step_sizes.fedres_sgd(**constants, variance=0.0, delay=0)


@pytest.mark.parametrize("drift", [1e-6, 0.01, 1.0, 100.0])
def test_dynamic_fedavg_step_minimises_the_mean_square_deviation(drift):
    mu = step_sizes.dynamic_fedavg(drift, 2.0)
    never_lower_nearby(lambda m: bounds.dynamic_fedavg_msd(step_size=m, noise=2.0, drift=drift), mu, 2.0)


def test_dynamic_fedavg_step_tends_to_the_root_of_drift_over_noise():
    assert step_sizes.dynamic_fedavg(1e-8, 4.0) == pytest.approx(math.sqrt(1e-8 / 4), rel=1e-4)


def last_swing_of_delayed_descent(step_size: float, curvature: float, delay: int) -> float:
    """The largest of the last models of w_{t+1} = w_t − ηλ w_{t−τ}, begun at 1."""
    window = 10 * (delay + 1)
    w = [1.0] * (delay + 1)
    for _ in range(100 * window):
        w.append(w[-1] - step_size * curvature * w[-1 - delay])
    return max(map(abs, w[-window:]))


@pytest.mark.parametrize("delay", [0, 1, 5, 50])
def test_delayed_descent_settles_just_below_the_stable_step_and_swings_out_above(delay):
    limit = stable_step(3.0, delay)
    assert last_swing_of_delayed_descent(0.98 * limit, 3.0, delay) < 0.01
    assert last_swing_of_delayed_descent(1.02 * limit, 3.0, delay) > 100


def test_stable_step_is_two_over_the_curvature_without_delay_and_small_at_fifty():
    assert stable_step(4.0, 0) == pytest.approx(0.5)
    assert stable_step(1.0, 50) == pytest.approx(0.0311, abs=1e-4)

"""Bounds against the papers' closed forms, enumeration, and runs that must stay under them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedres import bounds, step_sizes
from fedres.comparators import best_fixed
from fedres.heterogeneity import sigma_diff2
from fedres.losses import Squared
from fedres.regret import sum_regret

OFEDIQ = {"n_rounds": 100, "n_clients": 10, "comparator_norm": 2.0, "sigma_diff2": 3.0, "smoothness": 0.5}
FEDSEA = {"n_rounds": 1000, "n_clients": 4, "distance": 2.0, "smoothness": 1.5, "variance": 3.0}


def test_fedres_bound_adds_its_five_terms():
    bound = bounds.fedres_sgd(
        n_rounds=10,
        global_norm=2.0,
        local_norms=np.array([1.0, 3.0]),
        step_size=0.5,
        local_step_sizes=np.array([0.1, 0.2]),
        variances=np.array([2.0, 4.0]),
        delays=np.array([0, 3]),
        smoothness=0.3,
        gradient_bound=1.5,
        radius=4.0,
    )
    start = 4 / (2 * 0.5) + 1 / (2 * 0.1) + 9 / (2 * 0.2)
    noise = 10 * ((0.5 + 0.1) * 2 + (0.5 + 0.2) * 4)
    drift = 0.3 / 2 * 10 * ((1.5**2 + 0.15**2) * 1 + (1.5**2 + 0.3**2) * 10)
    ends = 15 * 4 * 1.5 * (1 + 4)
    assert bound == pytest.approx((start + noise + drift + ends) / 20)


FEDRES = {
    "global_norm": 2.0,
    "local_norms": np.array([1.0, 3.0]),
    "smoothness": 0.3,
    "gradient_bound": 1.5,
    "radius": 4.0,
}


def test_mini_batches_are_theorem_2_on_fewer_rounds_of_less_noise():
    """Section 4: T/b rounds, σ²/b, and delays of ⌈τ/b⌉ + 1 batches."""
    steps = {"step_size": 0.5, "local_step_sizes": 0.1}
    bound = bounds.fedres_sgd(n_rounds=1000, variances=6.0, delays=np.array([0, 7]), batch=5, **steps, **FEDRES)
    by_hand = bounds.fedres_sgd(n_rounds=200, variances=1.2, delays=np.array([1, 3]), **steps, **FEDRES)
    assert bound == pytest.approx(by_hand)


def test_batches_shorter_than_the_delay_cost_lower_order_terms_only():
    """At the steps for it, the bound with b = 20 and τ = 40 nears that without batches as T grows."""
    constants = {key: FEDRES[key] for key in ("global_norm", "local_norms", "smoothness", "gradient_bound")}
    ratio = []
    for T in (10**5, 10**9):
        both = []
        for b in (1, 20):
            eta, own = step_sizes.fedres_sgd(n_rounds=T, variance=2.0, delay=40, batch=b, **constants)
            steps = {"step_size": eta, "local_step_sizes": own}
            both.append(bounds.fedres_sgd(n_rounds=T, variances=2.0, delays=40, batch=b, **steps, **FEDRES))
        ratio.append(both[1] / both[0])
    assert abs(ratio[1] - 1) < 0.05
    assert abs(ratio[1] - 1) < abs(ratio[0] - 1)


def test_erm_rate_shares_the_global_dimensions_and_forgets_the_delay():
    constants = {"n_rounds": 10**8, "variance": 0.25, "smoothness": 1.0, "radius": 2.0}
    rate = bounds.fedres_erm_rate(global_dim=90, local_dims=np.full(9, 10), delay=0, **constants)
    alone = bounds.fedres_erm_rate(global_dim=0, local_dims=np.full(9, 100), delay=0, **constants)
    assert rate == pytest.approx(math.sqrt(180 * 0.25 / 9e8) + 180 / 1e8)
    assert rate / alone == pytest.approx(math.sqrt(180 / 900), rel=0.01)
    late = bounds.fedres_erm_rate(global_dim=90, local_dims=np.full(9, 10), delay=16, **constants)
    assert late - rate == pytest.approx(5 * (16 / 1e8) ** 0.75 + 5 * 16 / 1e8)


def test_bandit_bound_is_the_price_of_exploring_and_the_error_of_the_model():
    steps = {"step_size": 0.5, "local_step_sizes": 0.1, "variances": 2.0}
    bound = bounds.fedres_bandit(n_rounds=10_000, n_actions=3, period=10, delays=np.array([0, 25]), **steps, **FEDRES)
    error = bounds.fedres_sgd(n_rounds=1000, delays=np.array([0, 3]), **steps, **FEDRES)
    assert bound == pytest.approx(1 / 10 + 2 * 3 * math.sqrt(error))


def test_the_papers_period_is_the_least_of_three_whatever_the_delay():
    """With much noise B = (PT/(K⁴‖w‖²σ²))^(1/5); without any, one of the two that depend on γ, D and G."""
    constants = {**FEDRES, "variance": 50.0}
    period = step_sizes.fedres_bandit_period(n_rounds=10**9, n_actions=2, **constants)
    assert period == math.floor((2e9 / (16 * (4 + 1 + 9) * 50)) ** 0.2)
    assert step_sizes.fedres_bandit_period(n_rounds=2**20, n_actions=2, **{**constants, "variance": 0.0}) == math.floor(
        min(2**5 / (64 * 0.3 * 256 * 2.25) ** 0.125, 2 ** (20 / 3) / (4 * 4 * 1.5) ** (1 / 3))
    )
    assert step_sizes.fedres_bandit_period(n_rounds=10, n_actions=9, **constants) == 1


def test_at_their_best_step_the_ofediq_family_has_the_constants_of_corollary_1():
    T, K, norm, diff2 = 10**6, 10, 2.0, 3.0
    constants = {**OFEDIQ, "n_rounds": T}
    unit = norm**2 * K**2 * diff2 * T
    fedogd = bounds.fedogd(**constants, step_size=norm / math.sqrt(2 * diff2 * T))
    assert fedogd == pytest.approx(math.sqrt(2 * unit))
    ofedavg = bounds.ofedavg(**constants, p_min=0.2, step_size=math.sqrt(0.2 * norm**2 / (2 * diff2 * T)))
    assert ofedavg == pytest.approx(math.sqrt(2 / 0.2 * unit))
    R = 1 + 0.7 * (2 - 0.2 + 1) / K
    rest = {"period": 1, "p_min": 0.2, "p_sum": 2.0, "quantizer_variance": 0.7}
    ofediq = bounds.ofediq(**constants, **rest, step_size=math.sqrt(0.2 * norm**2 / (4 * diff2 * R * T)))
    assert ofediq == pytest.approx(math.sqrt(4 * R / 0.2 * unit))


def test_ofediq_pays_for_a_longer_period():
    rest = {"p_min": 0.5, "p_sum": 5.0, "quantizer_variance": 0.0, "step_size": 0.01}
    one, five = (bounds.ofediq(**OFEDIQ, period=period, **rest) for period in (1, 5))
    extra = 10 * 100 * 3.0 * (2 * 0.01 * 4 / 0.5 + 3 * 0.5 * 0.01**2 * 5 * 4)
    assert five - one == pytest.approx(extra)


@pytest.mark.parametrize(
    ("bound", "constants", "limit"),
    [
        (bounds.fedogd, {}, 1.0),
        (bounds.ofedavg, {"p_min": 0.2}, 0.2),
        (bounds.ofediq, {"period": 5, "p_min": 0.2, "p_sum": 2.0, "quantizer_variance": 0.0}, 0.02),
    ],
    ids=["fedogd", "ofedavg", "ofediq"],
)
def test_a_step_on_its_limit_is_refused(bound, constants, limit):
    assert bound(**OFEDIQ, **constants, step_size=limit * 0.999) > 0
    with pytest.raises(ValueError, match="step_size must be below"):
        bound(**OFEDIQ, **constants, step_size=limit)


def test_a_run_of_fedogd_stays_under_its_bound():
    rng = np.random.default_rng(1)
    T, K, step_size, loss = 400, 5, 0.02, Squared(0.5)
    features, label = rng.uniform(-1, 1, size=(T, K, 3)), rng.normal(size=(T, K))
    best = best_fixed(features.reshape(-1, 3), label.ravel(), loss)
    losses, w = np.empty((T, K)), np.zeros(3)
    for t in range(T):
        losses[t] = loss.value(features[t] @ w, label[t])
        w = w - step_size * (loss.slope(features[t] @ w, label[t])[:, None] * features[t]).mean(axis=0)
    bound = bounds.fedogd(
        n_rounds=T,
        n_clients=K,
        comparator_norm=float(np.linalg.norm(best)),
        sigma_diff2=sigma_diff2(features, label, best, loss),
        smoothness=float((features**2).sum(axis=2).max()),
        step_size=step_size,
    )
    assert sum_regret(losses, loss.value(features @ best, label))[-1] <= bound


def test_fedomd_bound_at_its_best_step_is_within_the_printed_one():
    T, D, L, period = 500, 3.0, 2.0, 7
    bound = bounds.fedomd_convex(
        n_rounds=T, diameter=D, lipschitz=L, period=period, step_size=D / (L * math.sqrt(5 * period * T))
    )
    assert bound == pytest.approx(2 * L * D * math.sqrt(5 * period * T))
    assert bound <= 5 * L * D * math.sqrt(period * T)  # [FedOMD, eq. 8]


@pytest.mark.parametrize("period", [1, 2, 20])
def test_strongly_convex_fedomd_bound_is_within_the_printed_one(period):
    bound = bounds.fedomd_strongly_convex(n_rounds=100, lipschitz=2.0, period=period, strong_convexity=0.5)
    printed = 17 * period * 4 * (1 + math.log(100)) / 0.5
    assert bound == pytest.approx(printed) if period == 1 else bound < printed


def test_fedsea_bound_without_local_steps_is_that_of_stochastic_gradient_descent():
    bound = bounds.fedsea_convex(**FEDSEA, spatial=9.0, temporal=0.5, period=1, step_size=0.05)
    start = 4 / (2 * 0.05) + 0.05 / 2 / 4 * 1000 * 3 + 2 * 0.05 * 1.5 * 1000 * 0.5
    assert bound == pytest.approx(start / (1 - 2 * 0.05 * 1.5))


def test_fedsea_bound_is_its_formula_with_local_steps():
    eta, L, T, local = 0.01, 1.5, 1000, 4
    wide = 1 + 2 * eta * L
    a = 2 * eta * L + 12 * eta**2 * L**2 * wide * local**2
    S = 4 / (2 * eta) + (eta / 8 + 2 * eta**2 * L * wide * local) * T * 3
    S = (S + 6 * eta**2 * L * wide * local**2 * T * 9 + a * T * 0.5) / (1 - a)
    lag = 2 * eta**2 * local * T * 3 + 6 * eta**2 * local**2 * (T * 9 + 2 * L * (S + T * 0.5))
    bound = bounds.fedsea_convex(**FEDSEA, spatial=9.0, temporal=0.5, period=5, step_size=eta)
    assert bound == pytest.approx(S + L / 2 * lag / (1 - 6 * eta**2 * local**2 * L**2))


@pytest.mark.parametrize(("period", "limit"), [(1, 1 / 12), (5, 1 / (4 * math.sqrt(6) * 1.5 * 4))])
def test_fedsea_step_beyond_lemma_4_is_refused(period, limit):
    constants = {**FEDSEA, "spatial": 1.0, "temporal": 0.0, "period": period}
    assert bounds.fedsea_convex(**constants, step_size=limit) > 0
    with pytest.raises(ValueError, match="step_size must be at most"):
        bounds.fedsea_convex(**constants, step_size=limit * 1.001)


STRONG = {"n_clients": 4, "distance": 2.0, "mu": 0.5, "smoothness": 1.5, "variance": 3.0}


def test_strongly_convex_fedsea_bound_grows_with_log_t_and_its_coefficient_only():
    """From T to 100 T: (σ²/M + 4LK²) ln(100)/μ, over 1 − a with a = 2Lη_1; spatial heterogeneity adds nothing."""
    at = [
        bounds.fedsea_strongly_convex(**STRONG, n_rounds=T, spatial=9.0, temporal=0.5, period=1) for T in (10**4, 10**6)
    ]
    a = 2 * 1.5 * 2 / (0.5 * (1 + 16 * 3))
    expected = (3 / 4 + 4 * 1.5 * 0.5) * math.log(100) / 0.5 / (1 - a)
    assert at[1] - at[0] == pytest.approx(expected, rel=0.01)
    rare = [
        bounds.fedsea_strongly_convex(**STRONG, n_rounds=T, spatial=z, temporal=0.5, period=5)
        for z in (0.0, 9.0)
        for T in (10**5, 10**6)
    ]
    assert rare[3] - rare[1] == pytest.approx(rare[2] - rare[0], rel=0.01)  # the same at both horizons
    assert rare[2] > rare[0]


def test_strongly_convex_fedsea_bound_without_local_steps_is_its_sum():
    T, shift = 50, 16 * 3
    eta = [2 / (0.5 * (t + shift)) for t in range(1, T + 1)]
    virtual = 0.5 * shift * 4 / 4 + sum(eta) / 2 * (3 / 4 + 4 * 1.5 * 0.7)
    bound = bounds.fedsea_strongly_convex(**STRONG, n_rounds=T, spatial=9.0, temporal=0.7, period=1)
    assert bound == pytest.approx(virtual / (1 - 2 * 1.5 * eta[0]))


@pytest.mark.parametrize(("mu", "period"), [(0.5, 1), (0.5, 5), (3.0, 5)])
def test_first_coefficient_of_the_strongly_convex_fedsea_bound_is_at_most_a_half(mu, period):
    """What the shift of the steps is for: with a large distance alone, S is μ t_s D²/4 over at least ½."""
    constants = {**STRONG, "mu": mu, "smoothness": 3.0, "variance": 0.0, "distance": 1e6}
    kappa, local = 3.0 / mu, period - 1
    shift = max(16 * kappa, 8 * kappa * local, 18.6 * kappa**1.5 * local)
    start = mu * shift * 1e12 / 4
    bound = bounds.fedsea_strongly_convex(**constants, n_rounds=10, spatial=0.0, temporal=0.0, period=period)
    assert start < bound < 2 * start * (1 + 3 / 2 * 12 * 3 / (16 * 9) / (1 - 6 / 16))


def test_excess_risk_of_fedomd_is_its_formula():
    bound = bounds.fedomd_excess_risk(
        n_rounds=400, n_clients=5, diameter=3.0, lipschitz=2.0, period=4, loss_bound=6.0, failure=0.1
    )
    assert bound == pytest.approx(5 * 2 * 3 * 0.1 + 2 * 6 * math.sqrt(2 / 400 * math.log(100)))


def test_gradient_noise_is_what_every_draw_of_clients_and_batches_gives_on_average():
    rng = np.random.default_rng(2)
    K, L, N, B, E = 3, 2, 3, 2, 2
    samples = rng.normal(size=(K, N, 2))  # the gradient of each sample
    mean = samples.mean(axis=1)
    batches = [samples[:, list(rows)].mean(axis=1) for rows in itertools.combinations(range(N), B)]
    draws = [np.mean(pair, axis=0) for pair in itertools.product(batches, repeat=E)]
    noise = [
        np.mean([one[clients[0]], other[clients[1]]], axis=0) - mean.mean(axis=0)
        for clients in itertools.combinations(range(K), L)
        for one, other in itertools.product(draws, repeat=L)
    ]
    variances = ((samples - mean[:, None]) ** 2).sum(axis=2).mean(axis=1)
    bound = bounds.dynamic_fedavg_noise(
        gradients=mean, variances=variances, participants=L, samples=N, batch=B, epochs=E
    )
    assert bound == pytest.approx((np.array(noise) ** 2).sum(axis=1).mean())


def test_all_clients_with_whole_buffers_make_no_gradient_noise():
    rng = np.random.default_rng(3)
    gradients, variances = rng.normal(size=(4, 2)), rng.uniform(1, 2, 4)
    noise = bounds.dynamic_fedavg_noise(gradients=gradients, variances=variances, participants=4, samples=8, batch=8)
    assert noise == 0


@pytest.mark.parametrize("step_size", [0.1, 0.5])
def test_mean_square_deviation_is_what_many_runs_settle_at(step_size):
    rng = np.random.default_rng(4)
    runs, K, L, drift = 40_000, 5, 2, 0.3
    centres = rng.normal(size=(K, 2))
    centres -= centres.mean(axis=0)  # w_k° - w°
    noise = bounds.dynamic_fedavg_noise(gradients=-centres, variances=np.zeros(K), participants=L, samples=1, batch=1)
    error = np.zeros((runs, 2))  # w_i - w_i°
    for _ in range(60):
        error = error - rng.normal(0, math.sqrt(drift / 2), size=error.shape)
        chosen = rng.permuted(np.tile(np.arange(K), (runs, 1)), axis=1)[:, :L]
        error = error - step_size * (error - centres[chosen].mean(axis=1))
    expected = bounds.dynamic_fedavg_msd(step_size=step_size, noise=noise, drift=drift)
    assert (error**2).sum(axis=1).mean() == pytest.approx(expected, rel=0.03)  # 5 or 6 standard errors


def test_constants_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"step_size must be in \(0, 2\)"):
        bounds.dynamic_fedavg_msd(step_size=2.0, noise=1.0, drift=1.0)
    with pytest.raises(ValueError, match="p_sum must be"):
        bounds.ofediq_spread(n_clients=10, p_min=0.5, p_sum=1.0, quantizer_variance=0.0)
    with pytest.raises(ValueError, match="participants must be from 1 to 2"):
        bounds.dynamic_fedavg_noise(
            gradients=np.zeros((2, 1)), variances=np.zeros(2), participants=3, samples=1, batch=1
        )

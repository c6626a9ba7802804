"""Online Federated Learning: section VII's figures, the rate for convex losses, and both bounds."""

import numpy as np
import pytest

from fedres import Ball, Federation, Logistic, Simplex, Squared, bounds, comparators, global_learner, regret, step_sizes
from fedres.federation import Example

M, HORIZON, SEEDS = 20, 8192, range(16)


def section_7(seed, period, participants=None, n_rounds=HORIZON):
    """Return the regret after every round: X = [−3, 3], losses ½(x ∓ a)² in turn, a ~ N(2, variance 5)."""
    rng = np.random.default_rng(seed)
    sign = np.where(np.arange(1, n_rounds + 1) % 2 == 0, 1.0, -1.0)
    target = sign[:, None] * rng.normal(2, np.sqrt(5), size=(n_rounds, M))
    learner = global_learner(
        "fedomd",
        dim=1,
        n_clients=M,
        loss=Squared(0.5),
        step_size=step_sizes.fedomd_strongly_convex(1.0),
        mirror_map=Ball(3.0),
        sync=period,
        participants=participants,
        seed=seed,
    )
    federation, one = Federation(learner), np.ones((M, 1))
    models = np.array([federation.play(Example(one, y)).weights[:, 0] for y in target])
    mean = target.mean(axis=1)  # ℓ_t(x) = ½(x − mean)² + what no x can change
    paid = np.cumsum(((models - mean[:, None]) ** 2).mean(axis=1) / 2)
    count, total, squares = np.arange(1, n_rounds + 1), np.cumsum(mean), np.cumsum(mean**2)
    best = np.clip(total / count, -3, 3)
    return paid - (count * best**2 - 2 * best * total + squares) / 2


@pytest.mark.slow
def test_regret_grows_with_the_logarithm_of_time_at_the_rate_of_theory():
    """τ = 1: dR/d ln T = ½(4 + 5/m) = 2.125."""
    curves = np.mean([section_7(seed, 1) for seed in SEEDS], axis=0)
    horizons = 2 ** np.arange(6, 14)
    slope = np.polyfit(np.log(horizons), curves[horizons - 1], 1)[0]
    assert slope == pytest.approx(2.125, rel=0.05)
    assert curves[-1] == pytest.approx(22.3, rel=0.05)


@pytest.mark.slow
def test_regret_increases_with_the_period_and_stays_under_its_bound():
    """Left half of figure 1, on the same losses for every τ."""
    final = {tau: np.mean([section_7(seed, tau)[-1] for seed in list(SEEDS)[:6]]) for tau in (1, 10, 50)}
    assert final[1] < final[10] < final[50]
    assert final[50] == pytest.approx(31.7, rel=0.1)
    for tau, value in final.items():  # |gradient| ≤ 3 + |a|, and |a| < 14 in all these draws
        bound = bounds.fedomd_strongly_convex(n_rounds=HORIZON, lipschitz=17, period=tau, strong_convexity=2)
        assert value < bound


@pytest.mark.slow
def test_regret_increases_as_fewer_clients_are_averaged():
    """Right half of figure 1: τ = 20 with only K of 20 clients in each average."""
    final = [np.mean([section_7(seed, 20, k)[-1] for seed in list(SEEDS)[:n]]) for k, n in ((20, 4), (1, 10))]
    assert final[1] > 1.25 * final[0]


def convex_run(n_rounds, seed, mirror_map, diameter, period=2, n_clients=10, dim=3):
    """Return regret and bound for separable logistic labels: convex, and the best model is on the boundary."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_rounds, n_clients, dim))
    features /= np.linalg.norm(features, axis=2, keepdims=True)
    label = np.where(features[:, :, 0] > 0, 1.0, -1.0)
    constants = {"n_rounds": n_rounds, "diameter": diameter, "lipschitz": 1.0, "period": period}
    eta = step_sizes.fedomd_convex(**constants)
    learner = global_learner(
        "fedomd", dim=dim, n_clients=n_clients, loss="logistic", step_size=eta, sync=period, mirror_map=mirror_map
    )
    federation = Federation(learner)
    models = np.array([federation.play(Example(x, y)).weights for x, y in zip(features, label, strict=True)])
    if isinstance(mirror_map, Ball):
        best = comparators.best_fixed(features.reshape(-1, dim), label.ravel(), Logistic(), radius=mirror_map.radius)
    else:
        best = np.eye(dim)[0]  # the vertex of the simplex that the labels follow
    final = regret.mean_regret(models, features, label, best, Logistic())[-1]
    return final, bounds.fedomd_convex(**constants, step_size=eta)


@pytest.mark.slow
def test_regret_of_convex_losses_grows_with_the_square_root_of_time():
    horizons = np.array([512, 1024, 2048, 4096])
    runs = np.array([[convex_run(n, seed, Ball(1.0), 1 / np.sqrt(2)) for n in horizons] for seed in range(6)])
    slope, _ = regret.log_log_slope(horizons, runs[:, :, 0].mean(axis=0))
    assert 0.4 < slope < 0.55
    assert (runs[:, :, 0] < runs[:, :, 1]).all()


def test_regret_on_the_simplex_stays_under_the_bound():
    """‖·‖₁ geometry: B(u, x_1) ≤ ln n and |gradient|_∞ ≤ 1."""
    measured, bound = convex_run(600, 0, Simplex(), np.sqrt(np.log(3)))
    assert 0 < measured < bound

"""Online Federated Learning: the rates for both kinds of losses, and the bounds; `fedres reproduce` has its figures."""

import numpy as np
import pytest
from side_by_side import Balls, HalfSquaredDistance, Itself, LogisticRisks

from fedres import (
    Ball,
    Federation,
    Linear,
    Logistic,
    Simplex,
    Squared,
    bounds,
    comparators,
    global_learner,
    regret,
    step_sizes,
)
from fedres.federation import Example

M = 20
HORIZON = 2048
PROBLEMS = 64


def targets(n_rounds):
    """Return ∓a of every round, client and problem: a ~ N(2, variance 5), its sign in turn."""
    sign = np.where(np.arange(1, n_rounds + 1) % 2 == 0, 1.0, -1.0)
    return sign[:, None, None] * np.random.default_rng(0).normal(2, np.sqrt(5), size=(n_rounds, M, PROBLEMS))


def section_7(model, loss, mirror_map, **hyperparameters):
    """Return the federation of section VII: X = [−3, 3], losses ½(x ∓ a)²."""
    step_size = step_sizes.fedomd_strongly_convex(1.0)
    return Federation(
        global_learner(
            "fedomd",
            model=model,
            loss=loss,
            mirror_map=mirror_map,
            n_clients=M,
            step_size=step_size,
            **hyperparameters,
        )
    )


def regrets():
    """Return each problem's regret after every round where all clients are averaged in each: (PROBLEMS, HORIZON)."""
    target, nothing = targets(HORIZON), np.zeros(M)
    federation = section_7(HalfSquaredDistance(PROBLEMS), Itself(), Balls(3.0), sync=1)
    mean = target.mean(axis=1)  # ℓ_t(x) = ½(x − mean)² + what no x can change
    models = (federation.play(Example(a, nothing)).weights for a in target)
    paid = np.cumsum([((x - centre) ** 2).mean(axis=0) / 2 for x, centre in zip(models, mean, strict=True)], axis=0)
    count, total, squares = np.arange(1, HORIZON + 1)[:, None], np.cumsum(mean, axis=0), np.cumsum(mean**2, axis=0)
    best = np.clip(total / count, -3, 3)
    return (paid - (count * best**2 - 2 * best * total + squares) / 2).T


def test_problems_side_by_side_are_each_what_they_are_alone():
    target, common = targets(60), {"sync": 10, "participants": 5}
    together = section_7(HalfSquaredDistance(PROBLEMS), Itself(), Balls(3.0), **common)
    alone = section_7(Linear(1), Squared(0.5), Ball(3.0), **common)
    for a in target:
        weights = together.play(Example(a, np.zeros(M))).weights
        expected = alone.play(Example(np.ones((M, 1)), a[:, 7])).weights
        assert weights[:, 7] == pytest.approx(expected[:, 0], abs=1e-12)


@pytest.mark.slow
def test_regret_grows_with_the_logarithm_of_time_at_the_rate_of_theory():
    """τ = 1: dR/d ln T = ½(4 + 5/m) = 2.125, under the bound."""
    curve = regrets().mean(axis=0)
    horizons = 2 ** np.arange(6, np.log2(HORIZON) + 1).astype(int)
    slope = np.polyfit(np.log(horizons), curve[horizons - 1], 1)[0]
    assert slope == pytest.approx(2.125, rel=0.05)
    assert curve[-1] == pytest.approx(22.3 - 2.125 * np.log(8192 / HORIZON), rel=0.05)
    steepest = 3 + np.abs(targets(HORIZON)).max()  # |gradient| ≤ 3 + |a|
    assert curve[-1] < bounds.fedomd_strongly_convex(n_rounds=HORIZON, lipschitz=steepest, period=1, strong_convexity=2)


def constants(n_rounds, diameter):
    return {"n_rounds": n_rounds, "diameter": diameter, "lipschitz": 1.0, "period": 2}


def separable(n_rounds, n_clients, problems, dim=3):
    """Return features (T, m, problems, dim) of length 1 and the labels that their first component gives."""
    features = np.random.default_rng(0).normal(size=(n_rounds, n_clients, problems, dim))
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    return features, np.where(features[..., 0] > 0, 1.0, -1.0)


def convex_regrets(n_rounds, n_clients=10, problems=4):
    """Return each problem's regret on separable logistic labels: convex, and the best model is on the boundary."""
    features, label = separable(n_rounds, n_clients, problems)
    learner = global_learner(
        "fedomd",
        model=LogisticRisks(problems, 3),
        n_clients=n_clients,
        loss=Itself(),
        step_size=step_sizes.fedomd_convex(**constants(n_rounds, 1 / np.sqrt(2))),
        sync=2,
        mirror_map=Balls(1.0, 3),
    )
    federation, signed = Federation(learner), (label[..., None] * features).reshape(n_rounds, n_clients, -1)
    models = np.array([federation.play(Example(x, np.zeros(n_clients))).weights for x in signed])
    models, mean_regrets = models.reshape(features.shape), []
    for p in range(problems):
        x, y = features[:, :, p], label[:, :, p]
        best = comparators.best_fixed(x.reshape(-1, 3), y.ravel(), Logistic(), radius=1.0)
        mean_regrets.append(regret.mean_regret(models[:, :, p], x, y, best, Logistic())[-1])
    return np.array(mean_regrets)


@pytest.mark.slow
def test_regret_of_convex_losses_grows_with_the_square_root_of_time():
    horizons = np.array([512, 1024, 2048])
    runs = np.array([convex_regrets(n) for n in horizons])
    slope, _ = regret.log_log_slope(horizons, runs.mean(axis=1))
    assert 0.4 < slope < 0.55
    for n_rounds, measured in zip(horizons, runs, strict=True):
        common = constants(n_rounds, 1 / np.sqrt(2))
        assert measured.max() < bounds.fedomd_convex(**common, step_size=step_sizes.fedomd_convex(**common))


def test_regret_on_the_simplex_stays_under_the_bound():
    """‖·‖₁ geometry: B(u, x_1) ≤ ln n and |gradient|_∞ ≤ 1."""
    features, label = (values[:, :, 0] for values in separable(600, 10, 1))
    common = constants(600, np.sqrt(np.log(3)))
    eta = step_sizes.fedomd_convex(**common)
    learner = global_learner(
        "fedomd", dim=3, n_clients=10, loss="logistic", step_size=eta, sync=2, mirror_map=Simplex()
    )
    federation = Federation(learner)
    models = np.array([federation.play(Example(x, y)).weights for x, y in zip(features, label, strict=True)])
    best = np.eye(3)[0]  # the vertex of the simplex that the labels follow
    measured = regret.mean_regret(models, features, label, best, Logistic())[-1]
    assert 0 < measured < bounds.fedomd_convex(**common, step_size=eta)


def test_average_predictor_has_the_excess_risk_of_theorem_3(run):
    """Samples c = ±1 drawn i.i.d., losses ½(x − c)² on [−1, 1]: the best x is E[c], and x̂_T is the mean of all x."""
    m, n_rounds, period, chance = 5, 2000, 4, 0.7
    samples = np.random.default_rng(5).choice([1.0, -1.0], size=(n_rounds, m), p=[chance, 1 - chance])
    constants = {"n_rounds": n_rounds, "diameter": np.sqrt(0.5), "lipschitz": 2.0, "period": period}
    learner = global_learner(
        "fedomd",
        model=Linear(1),
        loss=Squared(0.5),
        n_clients=m,
        step_size=step_sizes.fedomd_convex(**constants),
        sync=period,
        mirror_map=Ball(1.0),
    )
    average, models = regret.AverageIterate(), []
    for r in run(learner, [Example(np.ones((m, 1)), row) for row in samples])[0]:
        average.add(r.weights)
        models.append(r.weights)
    assert average.weights == pytest.approx(np.mean(models, axis=(0, 1)))
    excess = (average.weights[0] - (2 * chance - 1)) ** 2 / 2
    assert excess < bounds.fedomd_excess_risk(**constants, n_clients=m, loss_bound=2.0, failure=0.05)
    assert excess < 0.01  # the bound is 60 times larger, so it alone would show little
    with pytest.raises(ValueError, match="weights must be added"):
        _ = regret.AverageIterate().weights

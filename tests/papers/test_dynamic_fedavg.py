"""Dynamic FedAvg against the exact deviation on quadratic risks; `test_reproduce_theory` has the paper's figure 1.

[DynFed] E. Rizk, S. Vlaski, A. H. Sayed. Dynamic Federated Learning. 2020.
A risk with a vector as its target is a model whose prediction is the risk itself.
"""

import numpy as np
import pytest
from side_by_side import HalfSquaredDistance, Itself

from fedres import Example, Federation, Linear, Squared, bounds, global_learner, step_sizes

K, L, N, D, MU = 16, 4, 5, 32, 0.5  # risks P_k = ½‖w − w_k°‖²


def federation(model, loss, n_clients, **hyperparameters):
    learner = global_learner(
        "dynamic-fedavg",
        model=model,
        loss=loss,
        n_clients=n_clients,
        period=hyperparameters["buffer"],
        **hyperparameters,
    )
    return Federation(learner)


def iterate(server, samples):
    """Play one iteration on samples (N, K, d), and return w_i."""
    for features in samples:
        server.play(Example(features, np.zeros(features.shape[0])))
    return server.server.weights


def scatter(rng, variances):
    """Return deviations (N, K, D) with mean exactly 0 and mean square exactly Var_k."""
    deviations = rng.normal(size=(N, K, D))
    deviations -= deviations.mean(axis=0)
    return deviations * np.sqrt(variances / (deviations**2).sum(axis=2).mean(axis=0))[:, None]


def centres(rng, spread):
    """Return w_k° − w° (K, D), with mean 0 and mean square ``spread``."""
    offsets = rng.normal(size=(K, D))
    offsets -= offsets.mean(axis=0)
    return offsets * np.sqrt(spread / (offsets**2).sum(axis=1).mean())


def measured_msd(seed, offsets, variances, drift, n_iterations, **hyperparameters):
    """Return the mean of ‖w_i − w_i°‖² once the start is forgotten; w_i° walks at random."""
    rng = np.random.default_rng(seed)
    server = federation(HalfSquaredDistance(D), Itself(), K, buffer=N, seed=seed, **hyperparameters)
    minimiser, deviations = np.zeros(D), []
    for _ in range(n_iterations):
        minimiser = minimiser + np.sqrt(drift / D) * rng.normal(size=D)
        weights = iterate(server, minimiser + offsets + scatter(rng, variances))
        deviations.append(((weights - minimiser) ** 2).sum())
    return np.mean(deviations[50:])


def exact_msd(offsets, variances, drift, *, step_size, participants, batch, epochs):
    """Return the closed form; E epochs are one step of 1 − a^E with a = 1 − μ/E, and with damped batch noise."""
    a = 1 - step_size / epochs
    step = 1 - a**epochs
    damped = (step_size / epochs / step) ** 2 * (a ** (2 * np.arange(epochs))).sum()
    common = {"participants": participants, "samples": N, "batch": batch}
    models = bounds.dynamic_fedavg_noise(gradients=-offsets, variances=np.zeros(K), **common)
    data = bounds.dynamic_fedavg_noise(gradients=np.zeros((K, 1)), variances=variances, **common)
    return bounds.dynamic_fedavg_msd(step_size=step, noise=models + damped * data, drift=drift)


@pytest.mark.slow
def test_the_steady_deviation_on_quadratic_risks_is_the_exact_one():
    """With drift, noise of the batches, and L of K clients with minimisers of their own, in three epochs."""
    rng = np.random.default_rng(0)
    offsets, variances, drift = centres(rng, 1.0), rng.uniform(0.5, 1.5, size=K), 0.1
    settings = {"participants": L, "batch": 2, "epochs": 3, "step_size": MU}
    measured = measured_msd(0, offsets, variances, drift, 1000, **settings)
    assert measured == pytest.approx(exact_msd(offsets, variances, drift, **settings), rel=0.06)


def test_one_epoch_has_the_closed_form_of_the_library():
    rng = np.random.default_rng(1)
    offsets, variances = centres(rng, 2.0), rng.uniform(0.5, 1.5, size=K)
    noise = bounds.dynamic_fedavg_noise(gradients=-offsets, variances=variances, participants=L, samples=N, batch=2)
    ours = exact_msd(offsets, variances, 0.1, step_size=MU, participants=L, batch=2, epochs=1)
    assert bounds.dynamic_fedavg_msd(step_size=MU, noise=noise, drift=0.1) == pytest.approx(ours, rel=1e-12)


def test_many_epochs_of_a_small_step_have_the_noise_of_the_paper():
    """τ_s divides by E_k [DynFed, eq. 27]: exact as μ → 0."""
    mu, variances = 1e-4, np.ones(K)
    noise = bounds.dynamic_fedavg_noise(
        gradients=np.zeros((K, 1)), variances=variances, participants=L, samples=N, batch=2, epochs=7
    )
    ours = exact_msd(np.zeros((K, 1)), variances, 0.0, step_size=mu, participants=L, batch=2, epochs=7)
    assert bounds.dynamic_fedavg_msd(step_size=mu, noise=noise, drift=0.0) == pytest.approx(ours, rel=1e-3)


@pytest.mark.parametrize("epochs", [1, 4])
def test_full_batches_of_everybody_contract_to_the_minimiser_at_the_exact_rate(epochs):
    rng = np.random.default_rng(2)
    offsets, samples = centres(rng, 2.0), scatter(rng, np.ones(K))
    server = federation(HalfSquaredDistance(D), Itself(), K, buffer=N, step_size=MU, batch=N, epochs=epochs)
    goal = rng.normal(size=D)
    for i in range(1, 9):
        weights = iterate(server, goal + offsets + samples)
        assert weights - goal == pytest.approx(-goal * (1 - MU / epochs) ** (epochs * i), abs=1e-12)


@pytest.mark.parametrize("mu", [0.4, 0.04])
def test_unequal_epochs_lean_on_each_client_by_what_its_epochs_cover(mu):
    """μ/E_k makes the clients equal to first order in μ [DynFed, section II]; the rest is 1 − (1 − μ/E_k)^E_k."""
    rng = np.random.default_rng(3)
    epochs, offsets, samples = rng.integers(1, 11, size=K), centres(rng, 1.0), scatter(rng, np.ones(K))
    lean = 1 - (1 - mu / epochs) ** epochs
    limit = lean @ offsets / lean.sum()
    server = federation(
        HalfSquaredDistance(D), Itself(), K, buffer=N, step_size=mu, batch=N, epochs=epochs, start=limit
    )
    assert iterate(server, offsets + samples) == pytest.approx(limit, abs=1e-12)
    assert 0.001 * mu < np.linalg.norm(limit) < 0.2 * mu  # the minimiser is 0


def test_in_one_dimension_the_risk_is_half_the_squared_loss_of_a_constant_feature():
    common = {"buffer": N, "step_size": MU, "participants": 2, "batch": 2, "epochs": 3}
    linear = federation(Linear(1), Squared(0.5), K, **common)
    distance = federation(HalfSquaredDistance(1), Itself(), K, **common)
    for label in np.random.default_rng(4).normal(size=(10 * N, K)):
        linear.play(Example(np.ones((K, 1)), label))
        distance.play(Example(label[:, None], np.zeros(K)))
    assert linear.server.version == 10
    assert linear.server.weights == pytest.approx(distance.server.weights, abs=1e-12)


@pytest.mark.long
def test_the_step_chosen_for_drift_and_noise_beats_a_third_and_three_times_it():
    rng = np.random.default_rng(5)
    offsets, variances, drift = centres(rng, 2.0), np.ones(K), 0.02
    common = {"participants": L, "batch": 2}
    noise = bounds.dynamic_fedavg_noise(gradients=-offsets, variances=variances, samples=N, **common)
    best = step_sizes.dynamic_fedavg(drift, noise)
    low, middle, high = (
        measured_msd(5, offsets, variances, drift, 400, step_size=mu, **common) for mu in (best / 3, best, 3 * best)
    )
    assert middle < min(low, high)

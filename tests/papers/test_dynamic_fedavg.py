"""Dynamic FedAvg against the exact deviation on quadratic risks, and the shapes of the paper's figure 1.

[DynFed] E. Rizk, S. Vlaski, A. H. Sayed. Dynamic Federated Learning. 2020.
A risk with a regulariser, or with a vector as its target, is a model whose prediction is the risk itself.
"""

from functools import cache

import numpy as np
import pytest
from side_by_side import HalfSquaredDistance, Itself, LogisticRisks

from fedres import Example, Federation, Linear, Logistic, Squared, bounds, global_learner, step_sizes
from fedres.comparators import best_fixed

# --- quadratic risks, P_k = ½‖w − w_k°‖² ---

K, L, N, D, MU = 16, 4, 5, 32, 0.5


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


CASES = {
    "batches of everybody, and drift": {"spread": 1.0, "drift": 0.1, "participants": K},
    "L of K clients with one minimiser": {"spread": 0.0, "drift": 0.1},
    "L of K clients with minimisers of their own": {"spread": 2.0, "drift": 0.1},
    "noise without drift": {"spread": 2.0, "drift": 0.0},
    "drift without noise": {"spread": 0.0, "drift": 0.5, "participants": K, "batch": N},
    "three epochs": {"spread": 1.0, "drift": 0.1, "epochs": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_steady_deviation_on_quadratic_risks_is_the_exact_one(case):
    settings = {"participants": L, "batch": 2, "epochs": 1, **CASES[case]}
    rng = np.random.default_rng(0)
    offsets, variances = centres(rng, settings.pop("spread")), rng.uniform(0.5, 1.5, size=K)
    drift = settings.pop("drift")
    measured = measured_msd(0, offsets, variances, drift, 1000, step_size=MU, **settings)
    assert measured == pytest.approx(exact_msd(offsets, variances, drift, step_size=MU, **settings), rel=0.06)


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


@pytest.mark.slow
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


# --- the paper's experiment (section IV): regularised logistic risks of 2-dimensional features ---

AGENTS, ACTIVE, SAMPLES, RHO, PASSES = 20, 7, 20, 0.1, 32


def minimisers(samples):
    """Return w° of the mean risk of each problem, (PASSES, 2), from its γh."""
    count = SAMPLES * AGENTS
    share = np.full(count, 1 / count)
    problems = samples.reshape(count, PASSES, 2).swapaxes(0, 1)
    return np.array([best_fixed(x, np.ones(count), Logistic(), weights=share, ridge=2 * RHO) for x in problems])


class World:
    """The true parameters w*, walking, with c_k added for each agent, and the labelled features they give."""

    def __init__(self, c_variance):
        self.rng = np.random.default_rng(6)
        self.truth = self.rng.normal(size=(PASSES, 2))  # w_0*
        self.shifts = np.sqrt(c_variance) * self.rng.normal(size=(AGENTS, PASSES, 2))  # c_k
        scale = self.rng.uniform(0.5, 1.5, size=(AGENTS, 1, 1))
        self.features = scale * self.rng.normal(size=(SAMPLES, AGENTS, PASSES, 2))
        self.batch, self.epochs = self.rng.integers(10, 21, AGENTS), self.rng.integers(1, 11, AGENTS)

    def walk(self, q_variance):
        self.truth = self.truth + np.sqrt(q_variance) * self.rng.normal(size=self.truth.shape)  # [DynFed, eq. 17]

    def samples(self):
        """Return γh, (SAMPLES, AGENTS, 2·PASSES)."""
        sign = np.where((self.features * (self.truth + self.shifts)).sum(axis=-1) >= 0, 1, -1)
        return (sign[..., None] * self.features).reshape(SAMPLES, AGENTS, -1)


@cache
def deviations(mu, c_variance, q_variance, *, from_zero=False, n_iterations=60):
    """Return ln of each problem's mean ‖w_i − w_i°‖²: in the steady state, or of the last iteration from w_0 = 0."""
    world = World(c_variance)
    start = None if from_zero else minimisers(world.samples()).ravel()
    server = federation(
        LogisticRisks(PASSES, 2, RHO), Itself(), AGENTS, buffer=SAMPLES, step_size=mu, participants=ACTIVE,
        batch=world.batch, epochs=world.epochs, start=start, seed=6,
    )  # fmt: skip
    found = []
    for i in range(1, n_iterations + 1):
        world.walk(q_variance)
        weights = iterate(server, world.samples())
        if i == n_iterations or (i > 20 and i % 4 == 0 and not from_zero):
            found.append(((weights.reshape(PASSES, 2) - minimisers(world.samples())) ** 2).sum(axis=1))
    return np.log(np.mean(found, axis=0))


def rises(lower, higher):
    """Whether the mean over the problems rises, by more than two standard errors of the paired differences."""
    gain = higher - lower
    return gain.mean() > 2 * gain.std(ddof=1) / np.sqrt(PASSES)


@pytest.mark.slow
def test_a_larger_step_converges_faster_and_to_a_larger_deviation_when_nothing_moves():
    """Figure 1a."""
    early = [deviations(mu, 0.1, 0.0, from_zero=True, n_iterations=8) for mu in (0.2, 1.0)]
    late = [deviations(mu, 0.1, 0.0) for mu in (0.2, 1.0, 5.0)]
    assert rises(early[1], early[0])
    assert rises(late[0], late[1])
    assert rises(late[1], late[2])


@pytest.mark.slow
def test_under_drift_the_best_step_is_neither_the_smallest_nor_the_largest():
    """Figure 1b, at its variances."""
    low, middle, high = (deviations(mu, 0.1, 0.01) for mu in (0.2, 1.0, 5.0))
    assert rises(middle, low)
    assert rises(middle, high)


@pytest.mark.slow
def test_the_deviation_rises_with_how_much_agents_differ():
    """Figure 1c, at a step that needs fewer iterations than the paper's 0.01."""
    found = [deviations(1.0, variance, 0.0) for variance in (0.01, 0.1, 1.0)]
    assert rises(found[0], found[1])
    assert rises(found[1], found[2])


@pytest.mark.slow
def test_the_deviation_rises_with_the_drift():
    """Figure 1d."""
    found = [deviations(0.2, 0.1, variance) for variance in (1e-4, 1e-3, 1e-2)]
    assert rises(found[0], found[1])
    assert rises(found[1], found[2])

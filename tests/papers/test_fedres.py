"""Federated Residual Learning: appendix C, the rate of theorem 2, and its bound."""

import numpy as np
import pytest

from fedres import LocalLeastSquares, LocalSGD, Site, bounds, comparators, global_learner, regret, step_sizes
from fedres.federation import Example, delayed_sites

START = np.array([1.0, 0.0])


def appendix_c(n_rounds, seed):
    """One client; the best models are w^g = w^l = (0, 1), and all start at (1, 0)."""
    rng = np.random.default_rng(seed)
    a, b, noise = rng.normal(size=(3, n_rounds))
    shared, own = np.stack([a + 0.5 * noise, b], axis=1), np.stack([1 - a, 1 - b], axis=1)
    return [Example(shared[t : t + 1], np.ones(1), own[t : t + 1]) for t in range(n_rounds)]


def contender(name):
    """Return a learner and the site it plays with."""
    if name == "sgd":  # the paper's step of 1.0 diverges within ten rounds
        learner = global_learner("fedres-sgd", dim=2, start=START, step_size=0.02)
        return learner, Site(np.arange(1), local=LocalSGD(2, start=START, step_size=0.02))
    if name == "erm":
        return global_learner("fedres-erm", dim=2, local_dim=2, start=START, local_start=START), Site(np.arange(1))
    return global_learner("fictitious-play", dim=2, start=START), Site(
        np.arange(1), local=LocalLeastSquares(2, start=START)
    )


@pytest.mark.slow
def test_fictitious_play_gets_stuck_where_sgd_and_erm_find_the_optimum(run):
    """Figures 6 and 7 at T = 3,000, with most runs where they differ most: SGD's losses are within 3% of each other."""
    loss, model = {}, {}
    for name, n_runs in (("sgd", 2), ("erm", 3), ("fictitious play", 8)):
        losses, models = [], []
        for seed in range(n_runs):
            learner, site = contender(name)
            rounds, federation = run(learner, appendix_c(3000, seed), [site], local_timing="immediate")
            losses.append(np.mean([r.loss for r in rounds]))
            models.append(federation.server.weights)
        loss[name], model[name] = np.mean(losses), np.array(models)
    assert loss["sgd"] == pytest.approx(0.019, rel=0.15)
    assert loss["erm"] < loss["sgd"]
    assert loss["fictitious play"] > 5 * loss["sgd"]
    assert model["sgd"] == pytest.approx(np.tile([0, 1], (2, 1)), abs=0.05)
    assert model["erm"] == pytest.approx(np.tile([0, 1], (3, 1)), abs=1e-3)
    assert np.linalg.norm(model["fictitious play"] - [0, 1], axis=1).min() > 0.2


def test_the_papers_step_of_one_diverges_within_ten_rounds(run):
    learner = global_learner("fedres-sgd", dim=2, start=START, step_size=1.0)
    site = Site(np.arange(1), local=LocalSGD(2, start=START, step_size=1.0))
    losses = [r.loss[0] for r in run(learner, appendix_c(10, 0), [site])[0]]
    assert max(losses) > 1e6


def synthetic(n_rounds, n_clients, seed, noise=1.0, dim=5):
    """Return examples of a joint linear model with ‖w^g‖ = ‖w_i‖ = 1, and the labels it would have without noise."""
    rng = np.random.default_rng(seed)
    shared = np.ones(dim) / np.sqrt(dim)
    own = rng.normal(size=(n_clients, dim))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    features, local = rng.normal(size=(2, n_rounds, n_clients, dim)) / np.sqrt(dim)
    clean = features @ shared + np.einsum("tpd,pd->tp", local, own)
    label = clean + noise * rng.normal(size=clean.shape)
    return [Example(features[t], label[t], local[t]) for t in range(n_rounds)], (label - clean) ** 2


def average_regret(run, n_rounds, n_clients, seed, delay=0):
    examples, best = synthetic(n_rounds, n_clients, seed)
    learner = global_learner("fedres-sgd", dim=5, n_clients=n_clients, step_size=0.5 / np.sqrt(n_rounds * n_clients))
    sites = delayed_sites(n_clients, delay, delay, lambda who: LocalSGD(5, len(who), step_size=0.5 / np.sqrt(n_rounds)))
    losses = np.array([r.loss for r in run(learner, examples, sites)[0]])
    return regret.average_regret(losses, best)[-1]


@pytest.mark.slow
def test_average_regret_falls_with_the_square_root_of_time(run):
    """With 400 clients to average over, the slope's standard error is 0.01."""
    horizons = np.array([500, 1000, 2000, 4000])
    slope, _ = regret.log_log_slope(horizons, np.array([average_regret(run, n, 400, 0) for n in horizons]))
    assert slope == pytest.approx(-0.5, abs=0.05)


@pytest.mark.slow
def test_delay_costs_only_a_lower_order_term(run):
    """What a round trip of 40 adds to the average regret shrinks faster than the regret itself."""
    share = []
    for n_rounds in (500, 4000):
        plain, late = (average_regret(run, n_rounds, 20, 0, delay) for delay in (0, 20))
        share.append((late - plain) / plain)
    assert 0 < share[1] < 0.6 * share[0]


@pytest.mark.parametrize("delay", [0, 3])
def test_regret_stays_under_the_bound_of_theorem_2(run, delay):
    """Losses in [0, 1], as the theorem asks: features and labels are scaled down to |ŷ − y| ≤ 1."""
    n_rounds, n_clients, dim = 800, 5, 3
    rng = np.random.default_rng(0)
    shared, own = rng.normal(size=dim), rng.normal(size=(n_clients, dim))
    shared, own = 0.5 * shared / np.linalg.norm(shared), 0.5 * own / np.linalg.norm(own, axis=1, keepdims=True)
    features, local = rng.normal(size=(2, n_rounds, n_clients, dim))
    features, local = (x / np.linalg.norm(x, axis=2, keepdims=True) / 3 for x in (features, local))
    label = features @ shared + np.einsum("tpd,pd->tp", local, own) + rng.uniform(-0.2, 0.2, (n_rounds, n_clients))
    examples = [Example(features[t], label[t], local[t]) for t in range(n_rounds)]
    u, v = comparators.joint_minimiser(features, local, label)
    constants = {
        "n_rounds": n_rounds,
        "global_norm": float(np.linalg.norm(u)),
        "local_norms": np.linalg.norm(v, axis=1),
        "smoothness": 2 * 2 / 9,  # curvature times ‖(x^g, x^l)‖²
        "gradient_bound": 2 * np.sqrt(2) / 3,
    }
    eta, own_eta = step_sizes.fedres_sgd(**constants, variance=8 / 9, delay=2 * delay)
    learner = global_learner("fedres-sgd", dim=dim, n_clients=n_clients, step_size=eta, radius=1.0)
    sites = delayed_sites(n_clients, delay, delay, lambda who: LocalSGD(dim, len(who), step_size=own_eta, radius=1.0))
    losses = np.array([r.loss for r in run(learner, examples, sites)[0]])
    best = (features @ u + np.einsum("tpd,pd->tp", local, v) - label) ** 2
    limit = bounds.fedres_sgd(
        **constants, step_size=eta, local_step_sizes=own_eta, variances=8 / 9, delays=2 * delay, radius=1.0
    )
    assert 0 < regret.average_regret(losses, best)[-1] < limit

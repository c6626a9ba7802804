"""Federated Residual Learning: the rate of theorem 2, and its bound; `test_reproduce_theory` has appendix C."""

import numpy as np
import pytest

from fedres import LocalSGD, bounds, comparators, global_learner, regret, step_sizes
from fedres.federation import Example, delayed_sites


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
    horizons = np.array([250, 500, 1000])
    slope, _ = regret.log_log_slope(horizons, np.array([average_regret(run, n, 400, 0) for n in horizons]))
    assert slope == pytest.approx(-0.5, abs=0.05)


@pytest.mark.slow
def test_delay_costs_only_a_lower_order_term(run):
    """What a round trip of 40 adds to the average regret shrinks faster than the regret itself."""
    share = []
    for n_rounds in (300, 1200):
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

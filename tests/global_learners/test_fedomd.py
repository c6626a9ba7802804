"""FedOMD: averaging, delays and mirror maps."""

import numpy as np
import pytest

from fedres import global_learner
from fedres.federation import Example, delayed_sites
from fedres.mirror_maps import Ball, PNorm, Simplex

K, D, ETA = 5, 4, 0.2
MAPS = [Ball(), Ball(0.3), Simplex(), PNorm(1.3)]


@pytest.mark.parametrize("mirror_map", MAPS, ids=str)
@pytest.mark.parametrize("sync", [1, 4])
def test_clients_step_alone_and_meet_at_the_average(stream, run, mirror_map, sync):
    """Algorithm 1 written out, with the average taken where the map wants it."""
    examples = stream(24, K, D)
    learner = global_learner("fedomd", dim=D, n_clients=K, step_size=ETA, sync=sync, mirror_map=mirror_map)
    rounds, _ = run(learner, examples)
    x = np.tile(mirror_map.first(D), (K, 1))
    for t, (e, r) in enumerate(zip(examples, rounds, strict=True), start=1):
        assert r.weights == pytest.approx(x, abs=1e-10)
        gradient = 2 * ((x * e.features).sum(axis=1) - e.label)[:, None] * e.features
        states = mirror_map.advance(mirror_map.state(x), gradient, ETA)
        x = mirror_map.point(states)
        if t % sync == 0:
            mean = mirror_map.point(states.mean(axis=0)) if mirror_map.averages_states else x.mean(axis=0)
            x = np.tile(mean, (K, 1))


@pytest.mark.parametrize("mirror_map", MAPS, ids=str)
def test_under_delay_every_client_ends_at_the_servers_model(stream, run, mirror_map):
    """When the data stop, what was learned is all inside the shared model: nothing lost, nothing counted twice."""
    nobody = np.zeros(K, dtype=bool)
    examples = stream(60, K, D)
    quiet = [Example(np.zeros((K, D)), np.zeros(K), None, nobody)] * 40
    learner = global_learner("fedomd", dim=D, n_clients=K, step_size=0.05, sync=3, mirror_map=mirror_map)
    rounds, federation = run(learner, examples + quiet, delayed_sites(K, [0, 1, 5, 2, 9], [3, 0, 4, 7, 1]))
    assert rounds[-1].weights == pytest.approx(np.tile(federation.server.weights, (K, 1)), abs=1e-9)
    assert np.isfinite(federation.server.weights).all()


def test_under_delay_the_shared_model_is_the_sum_of_everybodys_progress(stream, run):
    examples = stream(30, K, D)
    quiet = [Example(np.zeros((K, D)), np.zeros(K), None, np.zeros(K, dtype=bool))] * 30
    learner = global_learner("fedomd", dim=D, n_clients=K, step_size=ETA, sync=3)
    rounds, federation = run(learner, examples + quiet, delayed_sites(K, [0, 1, 5, 2, 9], [3, 0, 4, 7, 1]))
    progress = np.zeros(D)
    for e, r in zip(examples, rounds, strict=False):
        progress -= ETA * (2 * (r.prediction - e.label) @ e.features) / K
    assert federation.server.weights == pytest.approx(progress, abs=1e-12)


def test_a_client_keeps_its_own_progress_while_it_waits(stream, run):
    """With a long delay a client's first rounds are those it would have had alone."""
    examples = stream(10, K, D)
    slow = run(global_learner("fedomd", dim=D, n_clients=K, step_size=ETA), examples, delayed_sites(K, 50, 50))[0]
    alone = run(global_learner("fedomd", dim=D, n_clients=K, step_size=ETA, sync=1000), examples)[0]
    for one, other in zip(slow, alone, strict=True):
        assert one.prediction == pytest.approx(other.prediction, abs=1e-12)


def test_who_is_not_chosen_takes_the_average_of_those_who_are(stream, run):
    learner = global_learner("fedomd", dim=D, n_clients=K, step_size=ETA, participants=2, seed=3)
    examples = stream(12, K, D)
    rounds, federation = run(learner, examples)
    x = np.zeros(D)
    for t, (e, r) in enumerate(zip(examples, rounds, strict=True), start=1):
        assert r.weights == pytest.approx(np.tile(x, (K, 1)), abs=1e-12)
        y = x - ETA * (2 * (e.features @ x - e.label))[:, None] * e.features
        x = y[learner.chosen(t)].mean(axis=0)
    assert federation.bits_up.sum() == 12 * 2 * 32 * D


def test_models_on_the_simplex_stay_there(stream, run):
    examples = stream(50, K, D)
    learner = global_learner("fedomd", dim=D, n_clients=K, step_size=0.5, sync=5, mirror_map=Simplex())
    for r in run(learner, examples, delayed_sites(K, 2, 3))[0]:
        assert r.weights.min() >= 0
        assert r.weights.sum(axis=1) == pytest.approx(np.ones(K))


def test_a_dual_average_keeps_what_the_theorems_need_where_a_plain_mean_does_not():
    """Assumption 2, B(u, average) ≤ mean B(u, z_j): always true in the dual, broken by plain means at p near 1."""
    rng = np.random.default_rng(0)
    norm, broken = PNorm(1.05), 0

    def psi(x):
        return np.linalg.norm(x, norm.p, axis=-1) ** 2 / (2 * (norm.p - 1))

    def divergence(u, state):
        z = norm.point(state)
        return psi(u) - psi(z) - ((u - z) * state).sum(axis=-1)

    for _ in range(500):
        u, states = rng.normal(size=4), norm.state(rng.normal(size=(3, 4)))
        mean = divergence(u, states).mean()
        assert divergence(u, states.mean(axis=0)) <= mean + 1e-9 * abs(mean)
        plain = norm.state(norm.point(states).mean(axis=0))
        broken += divergence(u, plain) > mean
    assert 10 < broken < 250

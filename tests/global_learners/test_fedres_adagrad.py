"""FedRes with AdaGrad at the server."""

import numpy as np
import pytest
import vowpalwabbit

from fedres import LinearLearner, global_learner
from fedres.federation import Example, delayed_sites
from fedres.local_learners.paced import PRIOR
from fedres.messages import Triplet, Up


def triplet(t, features, local_prediction, label, who=(0,)):
    body = Triplet(np.atleast_2d(features), np.atleast_1d(local_prediction), np.atleast_1d(label))
    return Up(t, np.array(who), "triplet", 0, body, 0)


def test_the_first_step_by_hand():
    """p = 0 and e = y: G_j = 4y²x_j² and w_j = 2yη·x_j/√G_j = η·sign(x_j)."""
    server = global_learner("fedres-adagrad", dim=3, learning_rate=0.25).server()
    server.receive(triplet(1, [2.0, -0.5, 0.0], 0.0, 0.8))
    assert server.step(1).weights == pytest.approx([0.25, -0.25, 0.0])
    assert server.step(2) is None


def test_steps_are_those_of_the_linear_learner_without_its_constant():
    """The learner is told an offset that takes its constant back."""
    rng, rate = np.random.default_rng(0), 0.3
    server, twin = global_learner("fedres-adagrad", dim=4, learning_rate=rate).server(), LinearLearner(4, rate)
    for t in range(1, 200):
        x, part, label = rng.normal(size=4) * (rng.random(4) < 0.8), 0.3 * rng.normal(), rng.normal()
        server.receive(triplet(t, x, part, label))
        server.step(t)
        twin.learn(x, label, offset=part - float(twin.weights[-1]))
        assert server.weights == pytest.approx(twin.weights[:-1], abs=1e-4)
    assert np.abs(server.weights).max() > 0.1


def test_a_residual_is_clamped_to_the_labels_seen():
    """A prediction past all labels is as good as the greatest of them: there is nothing to learn."""
    server = global_learner("fedres-adagrad", dim=1).server()
    server.receive(triplet(1, [1.0], 5.0, 1.0))
    assert server.step(1).weights.tolist() == [0.0]


def test_residuals_are_learned_in_the_order_of_arrival_with_the_newest_model():
    rng = np.random.default_rng(1)
    x, label = rng.normal(size=(3, 2)), rng.random(3)
    together, apart = (global_learner("fedres-adagrad", dim=2, n_clients=3).server() for _ in range(2))
    together.receive(triplet(1, x, np.zeros(3), label, (0, 1, 2)))
    for k in range(3):
        apart.receive(triplet(1, x[k], 0.0, label[k], (k,)))
    assert together.step(1).weights.tolist() == apart.step(1).weights.tolist()
    assert together.version == 1


def test_client_weights_are_vws_importance_weights(stream, run):
    """The server's model is the one of ``vw --adaptive --noconstant`` for examples "label weight offset | features"."""
    weights = np.array([1.0, 2.5, 0.3])
    ends = [Example(np.zeros((3, 2)), np.full(3, end)) for end in (-1e3, 1e3)]  # opens the range of predictions
    examples = stream(60, 3, 2)
    make = {"dim": 2, "n_clients": 3, "learning_rate": 0.3}
    weighted = run(global_learner("fedres-adagrad", client_weights=weights, **make), ends + examples)[1]
    plain = run(global_learner("fedres-adagrad", **make), ends + examples)[1]
    vw = vowpalwabbit.Workspace("--quiet --adaptive --noconstant -l 0.3 --min_prediction -1000 --max_prediction 1000")
    for e in examples:
        for x, y, weight in zip(e.features, e.label, weights, strict=True):
            label = " ".join(float(np.float32(number)).hex() for number in (y, weight))
            vw.learn(f"{label} | a:{float(np.float32(x[0])).hex()} b:{float(np.float32(x[1])).hex()}")
    vw_weights = [vw.predict(f"| {name}:1") for name in "ab"]
    vw.finish()
    assert weighted.server.weights == pytest.approx(vw_weights, abs=1e-6)
    assert np.abs(weighted.server.weights - plain.server.weights).max() > 1e-3


def test_a_client_of_weight_zero_does_not_even_widen_the_range():
    server = global_learner("fedres-adagrad", dim=1, n_clients=2, client_weights=[1.0, 0.0]).server()
    server.receive(triplet(1, [1.0], 0.0, 100.0, (1,)))
    server.receive(triplet(1, [1.0], 5.0, 1.0, (0,)))
    assert server.step(1).weights.tolist() == [0.0]


def test_delay_is_no_trouble(stream, run):
    examples = [Example(e.features, e.features.sum(axis=1)) for e in stream(400, 4, 3)]
    rounds = run(global_learner("fedres-adagrad", dim=3, n_clients=4), examples, delayed_sites(4, 10, 10))[0]
    losses = np.array([r.loss.mean() for r in rounds])
    assert losses[-50:].mean() < 0.01 * losses[:20].mean()


def heard(label_of, n, slower=15.0, seed=0):
    """Return a server of two paces after n residuals, with labels in [0, 1]."""
    rng = np.random.default_rng(seed)
    server = global_learner("fedres-adagrad", dim=3, learning_rate=1.0, slower=slower).server()
    for t in range(1, n + 1):
        x = rng.normal(size=3)
        server.receive(triplet(t, x, 0.5, label_of(rng, x)))
        server.step(t)
    return server


def test_with_two_paces_clients_get_weights_between_those_of_two_servers():
    rng = np.random.default_rng(2)
    both = global_learner("fedres-adagrad", dim=3, learning_rate=0.5, slower=10.0).server()
    quick, slow = (global_learner("fedres-adagrad", dim=3, learning_rate=rate).server() for rate in (0.5, 0.05))
    shares = []
    for t in range(1, 80):
        up = triplet(t, rng.normal(size=3), 0.2 * rng.random(), rng.random())
        for server in (both, quick, slow):
            server.receive(up)
            server.step(t)
        shares.append(both.evidence.ratio(PRIOR, PRIOR))
        between = shares[-1] * quick.weights + (1 - shares[-1]) * slow.weights
        assert both.weights == pytest.approx(between, abs=1e-9)
    assert min(shares) < 0.5 < max(shares)


def test_noise_leaves_the_weights_to_the_slow_pace_and_rules_to_the_quick_one():
    noisy = heard(lambda rng, x: float(rng.random() < 0.5 + 0.1 * np.tanh(x[0])), 1000)
    clear = heard(lambda rng, x: float(x[0] > 0.5 * x[1]), 1000)
    assert noisy.evidence.ratio(PRIOR, PRIOR) < 0.2
    assert clear.evidence.ratio(PRIOR, PRIOR) > 0.5

"""Where two algorithms are the same by mathematics, they must be the same in code, to 1e-12 at zero delay."""

import numpy as np
import pytest

from fedres import LocalSGD, Site, global_learner
from fedres.mirror_maps import Ball, PNorm

K, D, T, ETA = 6, 4, 120, 0.3


def learners(loss, **extra):
    common = {"n_clients": K, "loss": loss, **extra}
    return {
        "fedres-sgd": global_learner("fedres-sgd", **common, step_size=ETA / K),
        "fedogd": global_learner("fedogd", **common, step_size=ETA),
        "ofedavg": global_learner("ofedavg", **common, step_size=ETA, participation=1.0),
        "ofediq": global_learner("ofediq", **common, step_size=ETA),
        "fedomd": global_learner("fedomd", **common, step_size=ETA, sync=1),
        "fedsea": global_learner("fedsea", **common, step_size=ETA, period=1),
        "dynamic-fedavg": global_learner("dynamic-fedavg", **common, step_size=ETA),
    }


@pytest.mark.parametrize(
    ("loss", "extra"),
    [("squared", {"dim": D}), ("logistic", {"dim": D}), ("softmax", {"dim": D, "outputs": 3})],
)
def test_all_learners_are_gradient_descent_when_everybody_speaks_every_round(stream, run, loss, extra):
    examples = stream(T, K, D, loss=loss, outputs=extra.get("outputs", 0))
    models = {name: run(learner, examples)[1].server.weights for name, learner in learners(loss, **extra).items()}
    assert np.linalg.norm(models["fedogd"]) > 0.1
    for name, weights in models.items():
        assert weights == pytest.approx(models["fedogd"], abs=1e-12), name


def test_they_stay_the_same_inside_the_residual_host(stream, run):
    examples = stream(T, K, D, local_dim=3)
    rounds = {}
    for name, learner in learners("squared", dim=D).items():
        site = Site(np.arange(K), local=LocalSGD(3, K, step_size=0.05))
        rounds[name] = np.array([r.prediction for r in run(learner, examples, [site], local_timing="immediate")[0]])
    for name, predictions in rounds.items():
        assert predictions == pytest.approx(rounds["fedogd"], abs=1e-12), name


@pytest.mark.parametrize("timing", ["aligned", "on-arrival"])
def test_without_delay_the_timing_of_the_server_makes_no_difference(stream, run, timing):
    examples = stream(T, K, D)
    reference = run(global_learner("fedogd", dim=D, n_clients=K, step_size=ETA), examples)[1].server.weights
    learner = global_learner("fedres-sgd", dim=D, n_clients=K, step_size=ETA / K, timing=timing)
    assert run(learner, examples)[1].server.weights == pytest.approx(reference, abs=1e-12)


def test_ofediq_and_fedomd_share_server_models_at_period_5_and_predict_differently(stream, run):
    examples = stream(T, K, D)
    ofediq, first = run(global_learner("ofediq", dim=D, n_clients=K, step_size=ETA, period=5), examples)
    fedomd, second = run(global_learner("fedomd", dim=D, n_clients=K, step_size=ETA, sync=5), examples)
    assert first.server.weights == pytest.approx(second.server.weights, abs=1e-12)
    assert first.server.version == second.server.version == T // 5
    for one, other in zip(ofediq[::5], fedomd[::5], strict=True):  # just after a synchronisation
        assert one.prediction == pytest.approx(other.prediction, abs=1e-12)
    assert np.abs(ofediq[4].prediction - fedomd[4].prediction).max() > 1e-3


def test_a_set_of_sync_steps_is_the_period_it_spells_out(stream, run):
    examples = stream(T, K, D)
    period = run(global_learner("fedomd", dim=D, n_clients=K, step_size=ETA, sync=7), examples)
    spelled = run(
        global_learner("fedomd", dim=D, n_clients=K, step_size=ETA, sync={1 + 7 * k for k in range(40)}),
        examples,
    )
    assert spelled[1].server.weights.tolist() == period[1].server.weights.tolist()
    assert spelled[1].bits_up.tolist() == period[1].bits_up.tolist()


def test_p_norm_two_is_the_euclidean_map(stream, run):
    examples = stream(T, K, D)
    models = [
        run(
            global_learner("fedomd", dim=D, n_clients=K, step_size=ETA, sync=4, mirror_map=mirror_map),
            examples,
        )[1].server.weights
        for mirror_map in (Ball(), PNorm(2.0))
    ]
    assert models[0] == pytest.approx(models[1], abs=1e-12)


@pytest.mark.parametrize("name", ["fedres-sgd", "fedogd", "ofedavg", "ofediq", "fedomd", "fedsea", "dynamic-fedavg"])
def test_one_array_of_clients_is_as_many_single_clients(stream, run, name):
    """n = K in a simulation and n = 1 behind HTTP run the same code and must agree."""
    extra = {
        "ofedavg": {"participation": 0.4},
        "ofediq": {"participation": 0.4, "levels": 3, "blocks": 2, "period": 2},
        "fedomd": {"sync": 3, "participants": 2},
        "fedsea": {"period": 3},
        "dynamic-fedavg": {"participants": 2, "epochs": 2, "batch": 3, "buffer": 5},
    }
    learner = global_learner(name, dim=D, n_clients=K, step_size=0.2, **extra.get(name, {}))
    examples = stream(T, K, D)
    together = run(learner, examples)
    apart = run(learner, examples, [Site(np.array([k])) for k in range(K)])
    assert apart[1].server.weights == pytest.approx(together[1].server.weights, abs=1e-12)
    assert apart[1].bits_up.tolist() == together[1].bits_up.tolist()
    for one, other in zip(together[0], apart[0], strict=True):
        assert one.prediction == pytest.approx(other.prediction, abs=1e-12)


def test_the_two_erm_halves_apart_are_the_one_array(stream, run):
    learner = global_learner("fedres-erm", dim=D, n_clients=K, local_dim=3)
    examples = stream(60, K, D, local_dim=3)
    together, apart = run(learner, examples), run(learner, examples, [Site(np.array([k])) for k in range(K)])
    assert apart[1].server.weights == pytest.approx(together[1].server.weights, abs=1e-8)

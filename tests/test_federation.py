"""The host: what it takes in, what it keeps, and what it refuses."""

import numpy as np
import pytest

from fedres import (
    Channel,
    Each,
    Example,
    Faults,
    Federation,
    LinearLearner,
    LocalLeastSquares,
    LocalSGD,
    Logistic,
    Network,
    Site,
    Uniform,
    Up,
    delayed_sites,
    global_learner,
)

K = 3
ONES = np.ones((K, 2))


def federation(name="fedres-sgd", local=None, delay=0, **options):
    timing = options.pop("local_timing", "aligned")
    learner = global_learner(name, dim=2, n_clients=K, **options)
    return Federation(learner, delayed_sites(K, delay, 0, local), local_timing=timing)


def local_sgd(who):
    return LocalSGD(2, len(who))


def rounds(n, seed=0):
    rng = np.random.default_rng(seed)
    features, local = rng.normal(size=(2, n, K, 2))
    return [Example(x, x.sum(axis=1) - z[:, 0], z) for x, z in zip(features, local, strict=True)]


def test_a_sample_batch_is_not_taken_for_a_mini_batch():
    """Dynamic FedAvg's B_k says nothing about when a local model learns."""
    models = []
    for batch in (1, 4, np.array([1, 2, 3])):
        host = federation("dynamic-fedavg", local_sgd, step_size=1e-12, buffer=4, batch=batch)
        list(host.run(rounds(11)))
        models.append(host.parties[0].local.weights)
    assert models[0] == pytest.approx(models[1])
    assert models[0] == pytest.approx(models[2])


@pytest.mark.parametrize("timing", ["aligned", "immediate"])
@pytest.mark.parametrize(
    "bad",
    [
        Example(ONES, np.array([1, np.nan, 1]), ONES),
        Example(np.full((K, 2), np.inf), np.ones(K), ONES),
        Example(ONES, np.ones(K), np.full((K, 2), np.nan)),
        Example(ONES, np.ones(K - 1), ONES),
        Example(ONES, np.ones(K), ONES, np.ones(K)),
        Example(ONES, np.ones(K), None),
    ],
)
def test_an_example_that_is_refused_changes_nothing(timing, bad):
    good = rounds(12)
    host, untouched = (federation(local=local_sgd, delay=2, local_timing=timing, step_size=0.05) for _ in range(2))
    for t, example in enumerate(good):
        if t == 5:
            with pytest.raises(ValueError, match=r"must be|must have"):
                host.play(bad)
        assert host.play(example).prediction.tolist() == untouched.play(example).prediction.tolist()


@pytest.mark.parametrize("options", [{}, {"timing": "on-arrival", "batch": 4}, {"batch": 4}])
def test_a_caller_may_use_its_buffers_again(options):
    host, reusing = (federation(local=local_sgd, delay=2, step_size=0.02, **options) for _ in range(2))
    buffer = [np.empty((K, 2)), np.empty(K), np.empty((K, 2))]
    for example in rounds(20):
        for place, values in zip(buffer, (example.features, example.label, example.local_features), strict=True):
            place[:] = values
        assert reusing.play(Example(*buffer)).prediction.tolist() == host.play(example).prediction.tolist()
        for place in buffer:
            place[:] = 1e6


def test_a_local_model_must_descend_the_same_loss():
    with pytest.raises(ValueError, match="local must have the loss of the shared model, Logistic"):
        federation(local=local_sgd, loss="logistic")


@pytest.mark.parametrize("timing", ["aligned", "immediate"])
def test_vws_squared_loss_is_refused_beside_a_logistic_shared_model(timing):
    for group in (lambda who: Each([LinearLearner(2) for _ in who]), lambda who: LocalLeastSquares(2, len(who))):
        with pytest.raises(ValueError, match=r"local must have the loss of the shared model, Logistic.*got Squared"):
            federation(local=group, loss="logistic", local_timing=timing)
    federation(local=lambda who: LocalSGD(2, len(who), loss=Logistic()), loss="logistic", local_timing=timing)


def test_learners_of_different_losses_are_refused():
    class LogisticLearner(LinearLearner):
        loss = Logistic()

    with pytest.raises(ValueError, match="learners must descend one loss"):
        federation(local=lambda who: Each([LinearLearner(2), LogisticLearner(2), LinearLearner(2)]))


def test_client_weights_are_vws_importance_weights_for_local_learners():
    """Each client's own learner steps as one with that importance weight would, whenever it learns."""
    weights = np.array([0.5, 1.0, 4.0])
    for timing in ("aligned", "immediate"):
        learners = [LinearLearner(2) for _ in range(K)]
        host = federation(
            local=lambda _, own=learners: Each(own), client_weights=weights, step_size=1e-12, local_timing=timing
        )
        twins = [LinearLearner(2) for _ in range(K)]
        for twin, weight in zip(twins, weights, strict=True):
            twin.weigh(weight)
        for example in rounds(20):
            host.play(example)
            for twin, x, y in zip(twins, example.local_features, example.label, strict=True):
                twin.learn(x, y)
        host.known_to(0)  # delivers what the last round waits for
        weights_learned = np.array([learner.weights for learner in learners])
        assert weights_learned == pytest.approx(np.array([twin.weights for twin in twins]), rel=1e-4, abs=1e-5)


def test_what_was_heard_is_forgotten_once_no_copy_is_on_its_way():
    """Uploads come twice and overtake each other for 400 rounds: each counts once, and memory stays small."""
    rng = np.random.default_rng(0)
    faults = Faults(loss=0.1, duplication=0.5, rng=rng.spawn(1)[0])
    uplink = Channel(Uniform(0, 8, rng.spawn(1)[0]), faults=faults)
    learner = global_learner("fedogd", dim=2, n_clients=K, step_size=0.01)
    host, counted = Federation(learner, [Site(np.arange(K), uplink)]), []
    receive = host.server.receive
    host.server.receive = lambda up: (counted.append(up.t), receive(up))
    largest = 0
    for example in rounds(400):
        host.play(example)
        largest = max(largest, len(host.parties[0].heard))
    assert len(counted) == len(set(counted)) >= uplink.sent - uplink.lost - 9
    assert uplink.duplicated > 100
    assert largest <= 9  # no copy is more than 8 rounds late


def test_late_gradients_are_for_linear_local_models():
    start = Network((2, 4, 1)).start(np.random.default_rng(0))

    def network(who):
        return LocalSGD(Network((2, 4, 1)), len(who), start=start)

    with pytest.raises(ValueError, match="local_timing must be 'immediate' for a local model that is not linear"):
        federation(local=network)
    list(federation(local=network, local_timing="immediate").run(rounds(3)))


def test_progress_under_way_is_kept_when_another_client_is_averaged():
    """FedOMD with one of two clients per average, the second one slow: its own upload in flight stays in its model."""
    learner = global_learner("fedomd", dim=1, n_clients=2, step_size=0.1, participants=1)
    host = Federation(learner, delayed_sites(2, [0, 4], 0))
    one = Example(np.ones((2, 1)), np.ones(2))
    models = np.array([host.play(one).weights[:, 0] for _ in range(7)])
    assert [int(learner.chosen(t)[0]) for t in range(1, 7)] == [0, 1, 0, 0, 0, 1]  # client 1 uploads in round 2
    assert (np.diff(models[:, 1]) > 0).all()


MALFORMED = [
    Up(1, np.array([0]), "gradient", 0, np.ones((1, 5)), 32),
    Up(1, np.array([0]), "gradient", 0, np.full((1, 2), np.nan), 32),
    Up(1, np.array([0, 1]), "gradient", 0, np.ones((1, 2)), 32),
    Up(1, np.array([K]), "gradient", 0, np.ones((1, 2)), 32),
    Up(1, np.array([0]), "delta", 0, np.ones((1, 1)), 32),
]


@pytest.mark.parametrize("name", ["fedres-sgd", "fedogd", "ofedavg", "fedomd", "fedsea", "dynamic-fedavg"])
@pytest.mark.parametrize("up", MALFORMED)
def test_a_server_refuses_a_malformed_upload_and_goes_on(name, up):
    learner = global_learner(name, dim=2, n_clients=K)
    server = learner.server()
    with pytest.raises(ValueError, match=r"up must|who must"):
        server.receive(up)
    assert not server.covers.any()
    server.receive(learner.client().observe(1, ONES, 0.0, np.ones(K)))
    assert np.isfinite(server.step(1).weights).all()


@pytest.mark.parametrize(
    ("name", "local", "options"),
    [
        ("fedres-sgd", local_sgd, {}),
        ("fedres-sgd", lambda who: Each([LinearLearner(2) for _ in who]), {}),
        ("fictitious-play", lambda who: LocalLeastSquares(2, len(who)), {"local_timing": "immediate"}),
        ("fedres-erm", None, {"local_dim": 2}),
        ("fedogd", None, {"outputs": 2, "loss": "softmax"}),
    ],
)
def test_rows_without_data_may_hold_anything(name, local, options):
    host = federation(name, local, **options)
    present = np.array([True, False, True])
    label = np.array([1.0, 9.0, 1.0])
    for junk in (np.nan, 9.0):
        x = ONES.copy()
        x[1], label[1] = junk, junk
        host.play(Example(x, label, x, present))
    assert np.isfinite(host.play(Example(ONES, np.ones(K), ONES)).prediction).all()


def test_what_a_round_returns_can_be_written_to():
    host = federation("fedogd")
    host.play(Example(ONES, np.ones(K))).present[0] = False
    assert host.play(Example(ONES, np.ones(K))).present.all()


def test_what_is_written_to_a_round_reaches_no_upload():
    host, untouched = (federation(timing="on-arrival", batch=4, step_size=0.02) for _ in range(2))
    for example in rounds(20):
        happened = host.play(example)
        assert happened.prediction.tolist() == untouched.play(example).prediction.tolist()
        for written in (happened.label, happened.offset, happened.prediction):
            written[:] = 1e6
        happened.present[:] = False


def test_hyperparameters_are_copied():
    steps, chances, batches = np.full(K, 0.1), np.full(K, 0.5), np.ones(K, dtype=int)
    local = LocalSGD(2, K, step_size=steps)
    coins = global_learner("ofedavg", dim=2, n_clients=K, participation=chances)
    averaging = global_learner("dynamic-fedavg", dim=2, n_clients=K, batch=batches, buffer=2)
    steps[:], chances[:], batches[:] = -5, 0, 9
    assert local.step_size.tolist() == [0.1] * K
    assert coins.client().chance.tolist() == [0.5] * K
    assert averaging.client().batch.tolist() == [1] * K


def test_a_batch_is_fetched_once_however_its_uploads_arrive():
    learner = global_learner("fedres-sgd", dim=2, n_clients=4, batch=4, step_size=0.01)
    host = Federation(learner, delayed_sites(4, [0, 1, 2, 3], 0))
    for _ in range(40):
        host.play(Example(np.ones((4, 2)), np.ones(4)))
    assert host.bits_down.tolist() == [10 * 64] * 4


def test_sites_may_list_their_clients_in_any_order():
    learner = global_learner("fedogd", dim=2, n_clients=K)
    example = Example(np.arange(6.0).reshape(K, 2), np.arange(3.0))
    plain, turned = Federation(learner), Federation(learner, [Site(np.array([2, 0, 1]))])
    for _ in range(5):
        assert turned.play(example).prediction == pytest.approx(plain.play(example).prediction)

"""What every global learner must do, whatever its rule."""

from dataclasses import astuple

import numpy as np
import pytest

from fedres import Channel, Faults, Fixed, Quantizer, Site, Uniform, global_learner
from fedres.federation import Example, Federation, delayed_sites
from fedres.global_learners import GLOBAL_LEARNERS
from fedres.global_learners.base import ObservedRound
from fedres.messages import Down

K, D, LOCAL = 5, 3, 2
EXTRA = {
    "fedres-erm": {"local_dim": LOCAL},
    "ofedavg": {"participation": 0.5},
    "ofediq": {"participation": 0.5, "levels": 4, "blocks": 1, "period": 2},
    "fedomd": {"sync": 3},
    "fedsea": {"period": 3},
    "dynamic-fedavg": {"participants": 3, "epochs": 2, "batch": 2, "buffer": 4},
}
NAMES = list(GLOBAL_LEARNERS)
EVERY_ROUND = ("fedres-sgd", "fedres-adagrad", "fedres-erm", "fictitious-play", "fedogd")  # as set up here, all upload
STEPLESS = ("fedres-adagrad", "fedres-erm", "fictitious-play")  # they have no step_size


def learner_called(name, **more):
    return global_learner(name, dim=D, n_clients=K, **{**EXTRA.get(name, {}), **more})


def feed(client, t, features, label, present=None, local_prediction=0.0):
    """Observe one round, as the host does it: a client with a local model of its own learns it first."""
    n = len(features)
    if hasattr(client, "learn"):
        client.learn(np.ones((n, LOCAL)), label, np.zeros(n), np.ones(n, dtype=bool))
    return client.observe(t, features, local_prediction, label, present)


@pytest.mark.parametrize("name", NAMES)
def test_weights_have_a_row_per_client_and_start_at_zero(name):
    client = learner_called(name).client([4, 0])
    assert client.weights(1).shape == (2, D)
    assert not client.weights(1).any()


@pytest.mark.parametrize("name", NAMES)
def test_a_start_is_kept_and_copied(name):
    start = np.array([0.1, 0.2, 0.3])
    learner = learner_called(name, start=start)
    server = learner.server()
    start[:] = 9
    assert learner.client().weights(1)[0] == pytest.approx([0.1, 0.2, 0.3])
    assert server.weights == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize("name", NAMES)
def test_learning_brings_the_loss_down(stream, run, name):
    examples = stream(250, K, D, local_dim=LOCAL)
    examples = [Example(e.features, e.features.sum(axis=1), e.local_features) for e in examples]
    rounds, _ = run(learner_called(name), examples)
    losses = np.array([r.loss.mean() for r in rounds])
    assert losses[-50:].mean() < 0.1 * losses[:20].mean()


@pytest.mark.parametrize("name", NAMES)
def test_delay_and_disorder_slow_learning_but_do_not_break_it(stream, run, name):
    examples = stream(250, K, D, local_dim=LOCAL)
    examples = [Example(e.features, e.features.sum(axis=1), e.local_features) for e in examples]
    rng = np.random.default_rng(0)
    sites = [
        Site(np.array([k]), Channel(Uniform(0, 6, rng.spawn(1)[0])), Channel(Uniform(0, 6, rng.spawn(1)[0])))
        for k in range(K)
    ]
    extra = {} if name in STEPLESS else {"step_size": 0.05}
    rounds, _ = run(learner_called(name, **extra), examples, sites)
    losses = np.array([r.loss.mean() for r in rounds])
    assert losses[-50:].mean() < 0.3 * losses[:20].mean()


@pytest.mark.parametrize("name", NAMES)
def test_a_message_that_arrives_twice_counts_once(stream, run, name):
    examples = stream(60, K, D, local_dim=LOCAL)

    def sites(faults):
        return [Site(np.arange(K), Channel(Fixed(2), faults=faults), Channel(Fixed(1)))]

    plain = run(learner_called(name), examples, sites(None))
    twice = run(learner_called(name), examples, sites(Faults(duplication=1.0, rng=np.random.default_rng(0))))
    assert twice[1].server.weights.tolist() == plain[1].server.weights.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_client_without_data_sends_nothing_and_its_rows_are_not_looked_at(stream, run, name):
    examples = stream(30, K, D, local_dim=LOCAL)
    present = np.array([True, True, False, True, False])
    hidden = [
        Example(
            np.where(present[:, None], e.features, 1e9),
            np.where(present, e.label, -1e9),
            e.local_features,
            present,
        )
        for e in examples
    ]
    blank = [Example(e.features * present[:, None], e.label * present, e.local_features, present) for e in examples]
    (rounds, federation), (_, other) = run(learner_called(name), hidden), run(learner_called(name), blank)
    assert federation.server.weights.tolist() == other.server.weights.tolist()
    assert all(r.loss[~present].sum() == 0 for r in rounds)
    if name not in ("fedomd", "fedsea"):  # a model is averaged whether or not it has moved
        assert not federation.bits_up[~present].any()
    assert federation.bits_up[present].all()


@pytest.mark.parametrize("name", NAMES)
def test_what_a_host_has_checked_and_predicted_makes_the_same_uploads(name):
    learner, rng = learner_called(name, start=[0.5, -0.5, 1.0]), np.random.default_rng(3)
    client_itself, host, server = learner.client(), learner.client(), learner.server()
    for t in range(1, 13):
        present = rng.random(K) < 0.8
        features, label = rng.normal(size=(K, D)) * present[:, None], rng.normal(size=K) * present
        for client in (client_itself, host):
            if hasattr(client, "learn"):
                client.learn(np.ones((K, LOCAL)), label, np.zeros(K), present)
        offset = learner.model.predict(host.weights(t), features)
        up, same = (
            client_itself.observe(t, features, 0.0, label, present),
            host.update(t, ObservedRound(features, np.zeros(K), label, present, offset)),
        )
        assert (up is None) == (same is None)
        if up is not None:
            np.testing.assert_equal(astuple(same), astuple(up))
            server.receive(up)
        down = server.step(t)
        for client in (client_itself, host):
            if down is not None:
                client.receive(down)
    assert server.version > 2


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, {}) for name in NAMES),
        ("fedres-sgd", {"batch": 3}),
        ("fedres-sgd", {"batch": 3, "timing": "on-arrival"}),
        ("ofedavg", {"participation": [0.1, 0.3, 0.5, 0.9, 1.0]}),
        ("fedomd", {"participants": 2}),
        ("fedomd", {"sync": {3, 4, 11}, "participants": 2}),
        ("dynamic-fedavg", {"period": 4}),
    ],
)
def test_the_clients_that_upload_after_a_round_are_its_senders(name, change):
    learner, rng = learner_called(name, **change), np.random.default_rng(4)
    sites = delayed_sites(K, [0, 2, 2, 1, 0])
    federation, seen = Federation(learner, sites), set()
    for t in range(1, 61):
        federation.play(Example(rng.normal(size=(K, D)), rng.normal(size=K), np.ones((K, LOCAL))))
        sent = [party.up.who for party in federation.parties if party.up is not None]
        assert sorted({int(k) for who in sent for k in who}) == learner.senders(t).tolist()
        seen.add(len(learner.senders(t)))
    assert (seen == {K}) == (name in EVERY_ROUND and not change)


@pytest.mark.parametrize("name", NAMES)
def test_who_takes_part_is_decided_client_by_client(name):
    learner, who = learner_called(name), np.array([4, 1, 0])
    for t in range(1, 30):
        assert learner.takes_part(t, who).tolist() == np.isin(who, learner.senders(t)).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_nan_is_allowed_only_where_there_is_no_data(name):
    client = learner_called(name).client()
    features, label = np.ones((K, D)), np.ones(K)
    features[2], label[2] = np.nan, np.nan
    feed(client, 1, features, label, present=np.arange(K) != 2)
    with pytest.raises(ValueError, match="features must be finite, got nan"):
        feed(client, 2, features, np.ones(K))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("fedomd", "fedsea")])
def test_a_weight_of_zero_is_as_good_as_no_data(stream, run, name):
    examples = stream(40, K, D, local_dim=LOCAL)
    weights = np.array([1.0, 1, 0, 1, 1])
    absent = [Example(e.features, e.label, e.local_features, weights > 0) for e in examples]
    weighted = run(learner_called(name, client_weights=weights), examples)[1].server.weights
    assert weighted == pytest.approx(run(learner_called(name), absent)[1].server.weights, abs=1e-9)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "fedres-adagrad"])  # which clamps to the labels as they are
def test_client_weights_scale_the_clients_losses(stream, run, name):
    """λ = 2 on a squared loss is a client whose features and label are both larger by √2."""
    examples = stream(40, K, D, local_dim=LOCAL)
    root = np.sqrt(np.array([1.0, 2, 1, 3, 1]))
    scaled = [Example(e.features * root[:, None], e.label * root, e.local_features * root[:, None]) for e in examples]
    weighted = run(learner_called(name, client_weights=root**2), examples)[1].server.weights
    # ERM's own local fit carries the ridge, which does not scale with λ
    assert weighted == pytest.approx(run(learner_called(name), scaled)[1].server.weights, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_an_older_model_than_the_newest_known_changes_nothing(name):
    client = learner_called(name).client()
    covers = np.zeros(K, dtype=np.int64)
    client.receive(Down(2, covers, np.full(D, 0.2), 32 * D))
    before = client.weights(1).copy()
    client.receive(Down(1, covers, np.full(D, 0.7), 32 * D))
    client.receive(Down(2, covers, np.full(D, 0.8), 32 * D))
    assert client.weights(1).tolist() == before.tolist()
    assert before[0] == pytest.approx(np.full(D, 0.2))


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_heard_nothing_says_nothing(name):
    assert learner_called(name).server().step(1) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_server_refuses_an_upload_of_another_rule(name):
    other = "fedres-erm" if name != "fedres-erm" else "fedogd"
    up = feed(learner_called(other).client(), 1, np.ones((K, D)), np.ones(K))
    with pytest.raises(ValueError, match="up must"):
        learner_called(name).server().receive(up)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.ones((K, D + 1))}, r"features must have shape \(5, 3\), got \(5, 4\)"),
        ({"features": np.full((K, D), np.inf)}, "features must be finite, got inf"),
        ({"label": np.ones(K - 1)}, r"label must have shape \(5\), got \(4,\)"),
        ({"label": np.full(K, np.nan)}, "label must be finite, got nan"),
        ({"local_prediction": np.full(K, np.nan)}, "local_prediction must be finite, got nan"),
        ({"present": np.ones(K)}, "present must be 5 booleans"),
        ({"features": [["a"] * D] * K}, "features must be an array of numbers"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_by_name(name, change, message):
    client = learner_called(name).client()
    arguments = {"features": np.ones((K, D)), "label": np.ones(K), **change}
    with pytest.raises(ValueError, match=message):
        feed(client, 1, **arguments)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_clients": 0}, "n_clients must be an integer of at least 1, got 0"),
        ({"client_weights": [1, 1, 1, 1, -1]}, "client_weights must be at least 0, got -1"),
        ({"client_weights": [1, 2]}, r"client_weights must have shape \(5\), got \(2,\)"),
        ({"start": [0, 0]}, r"start must have shape \(3\), got \(2,\)"),
        ({"start": [0, 0, np.nan]}, "start must be finite, got nan"),
        ({"dim": 0}, "dim must be an integer of at least 1, got 0"),
        ({"dim": "3"}, "dim must be an integer of at least 1, got '3'"),
        ({"loss": 3}, "loss must have the methods value, slope, got 3"),
        ({"loss": "hinge"}, "loss must be one of squared, logistic, softmax, got 'hinge'"),
        ({"learning": 1}, "learning is not a hyperparameter of"),
        ({"model": 3, "dim": 3}, "dim and model must not both be given"),
    ],
)
def test_bad_hyperparameters_are_refused_by_name(name, change, message):
    with pytest.raises(ValueError, match=message):
        global_learner(name, **{"dim": D, "n_clients": K, **EXTRA.get(name, {}), **change})


@pytest.mark.parametrize("name", [n for n in NAMES if n not in STEPLESS])
@pytest.mark.parametrize("step_size", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_step_sizes_are_refused(name, step_size):
    with pytest.raises(ValueError, match="step_size must be positive"):
        learner_called(name, step_size=step_size)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("fedres-sgd", {"timing": "late"}, "timing must be one of aligned, on-arrival, got 'late'"),
        ("fedres-sgd", {"batch": 0}, "batch must be an integer of at least 1, got 0"),
        ("fedres-sgd", {"radius": -1.0}, "radius must be a positive number, got -1"),
        ("fedres-sgd", {"radius": "x"}, "radius must be a positive number, got 'x'"),
        ("fedogd", {"step_size": "x"}, "step_size must be a number or a function of t, got 'x'"),
        ("fedomd", {"mirror_map": "ball"}, "mirror_map must have the methods first, state, advance, point"),
        ("fedres-erm", {"local_dim": 0}, "local_dim must be an integer of at least 1, got 0"),
        ("fedres-erm", {"loss": "logistic"}, "loss must be squared and model linear for fedres-erm"),
        ("fedres-adagrad", {"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0"),
        ("fedres-adagrad", {"slower": 0.0}, "slower must be positive and finite, got 0"),
        ("fedres-adagrad", {"loss": "logistic"}, "loss must be squared and model linear for fedres-adagrad"),
        ("fictitious-play", {"ridge": 0.0}, "ridge must be positive and finite, got 0"),
        ("fictitious-play", {"ridge": None}, "ridge must be positive and finite, got None"),
        ("ofedavg", {"seed": 1.5}, "seed must be an integer of at least 0, got 1.5"),
        ("dynamic-fedavg", {"step_size": lambda t: 0.1}, "step_size must be positive and finite, got <function"),
        ("ofedavg", {"participation": 0.0}, r"participation must be in \(0, 1\], got 0"),
        ("ofedavg", {"participation": [0.5, 0.5]}, r"participation must have shape \(5\), got \(2,\)"),
        ("ofediq", {"levels": 0}, "levels must be an integer of at least 1, got 0"),
        ("ofediq", {"blocks": 4}, "blocks must be at most"),
        ("ofediq", {"period": 0}, "period must be an integer of at least 1, got 0"),
        ("ofediq", {"step_size": lambda t: 0.1}, "step_size must be one number"),
        ("fedomd", {"sync": 0}, "sync must be an integer of at least 1, got 0"),
        ("fedomd", {"sync": {1, 2.5}}, "sync must be an integer of at least 1, got 2.5"),
        ("fedomd", {"participants": 6}, "participants must be at most 5, got 6"),
        ("fedsea", {"period": 1.5}, "period must be an integer of at least 1, got 1.5"),
        ("dynamic-fedavg", {"batch": 5}, "batch must be at most buffer = 4, got 5"),
        ("dynamic-fedavg", {"epochs": [1, 2]}, "epochs must be one integer or 5 of them"),
        ("dynamic-fedavg", {"participants": 6}, "participants must be at most 5, got 6"),
    ],
)
def test_each_learner_refuses_its_own_nonsense(name, change, message):
    with pytest.raises(ValueError, match=message):
        learner_called(name, **change)


def test_a_model_must_be_one():
    with pytest.raises(ValueError, match="model must have the methods predict, gradient, got 3"):
        global_learner("fedogd", model=3)


def test_delays_are_one_number_or_one_for_each_client():
    with pytest.raises(ValueError, match=r"uplink_delay must be one number or 3, one per client, got \[1, 2\]"):
        delayed_sites(3, [1, 2])


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"name must be one of fedres-sgd, fedres-adagrad, .*, got 'fedavg'"):
        global_learner("fedavg", dim=3)


def test_a_learner_needs_to_know_the_number_of_features():
    with pytest.raises(ValueError, match="dim must be given for 'fedogd'"):
        global_learner("fedogd")


@pytest.mark.parametrize("who", [[5], [-1], [0.5], [], [[0]]])
def test_client_numbers_are_checked(who):
    with pytest.raises(ValueError, match="who must be client numbers"):
        learner_called("fedogd").client(who)


def test_bits_are_those_of_the_reals_that_would_travel(stream, run):
    """32 bits a real, both ways, per client."""
    examples = stream(12, K, D, local_dim=LOCAL)
    triplet = {"fedres-sgd": {"timing": "on-arrival"}}
    reals_up = {
        "fedres-sgd": 12 * (D + 2),
        "fictitious-play": 12 * (D + 2),
        "fedres-adagrad": 12 * (D + 2),
        "fedres-erm": 12 * (2 * D + 1),
        "fedogd": 12 * D,
        "fedomd": 4 * D,
        "fedsea": 4 * D,
    }
    for name, reals in reals_up.items():
        federation = run(learner_called(name, **triplet.get(name, {})), examples)[1]
        assert federation.bits_up.tolist() == [32 * reals] * K, name
        assert federation.bits_down.tolist() == [32 * D * (4 if name in ("fedomd", "fedsea") else 12)] * K, name


def test_an_aligned_residual_costs_one_real_less_than_the_triplet(stream, run):
    federation = run(learner_called("fedres-sgd"), stream(12, K, D))[1]
    assert federation.bits_up.tolist() == [32 * 12 * (D + 1)] * K


def test_quantised_bits_are_those_of_the_packed_norms_and_codes(stream, run):
    learner = learner_called("ofediq")
    client = learner.client()
    quantizer = Quantizer(learner.levels, learner.blocks)
    ups = [client.observe(t, e.features, 0.0, e.label) for t, e in enumerate(stream(40, K, D), start=1)]
    for up in filter(None, ups):
        assert [quantizer.payload_bits(data) for data in up.body] == up.bits.tolist()
        assert len(up.body) == len(up.who)


def test_sites_must_hold_every_client_once(run):
    with pytest.raises(ValueError, match="sites must hold each of the 5 clients once"):
        run(learner_called("fedogd"), [], delayed_sites(4))

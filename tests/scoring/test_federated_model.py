"""The shared model of the dense learners: fed with bytes, it is the one that ``fedres`` makes in one process."""

import zlib

import msgspec
import numpy as np
import pytest

from fedres import Federation, global_learner
from fedres.federation import Example, delayed_sites
from fedres.messages import Down, Up
from fedres.models import Factored
from fedres.scoring.federated import (
    DENSE,
    LARGEST,
    UPDATES,
    FederatedModel,
    NotChosenError,
    Pool,
    Wire,
    WrongKindError,
    as_features,
)

BITS, K = 4, 5
D = 2**BITS + 1
SETTINGS = {
    "fedres-sgd": {"step_size": 0.02},
    "fedogd": {"n_clients": K, "step_size": 0.05},
    "ofedavg": {"n_clients": K, "step_size": 0.05, "participation": 0.6, "seed": 3},
    "ofediq": {"n_clients": K, "step_size": 0.02, "participation": 0.7, "period": 2, "levels": 4, "blocks": 2},
    "fedomd": {"n_clients": K, "step_size": 0.05, "sync": 3, "participants": 3},
    "fedsea": {"n_clients": K, "step_size": 0.05, "period": 2, "radius": 0.5},
    "dynamic-fedavg": {"n_clients": K, "participants": 3, "epochs": 2, "batch": 2, "buffer": 4, "step_size": 0.05},
}
REWARDS, WEIGHTS, PENDING = 3, 6, 7  # where a state has them
EVERY_ROUND = {name: {"n_clients": K, "step_size": 0.05} for name in UPDATES}


def model_of(name, **change):
    return FederatedModel(name, BITS, {**SETTINGS[name], **change})


def some_example(rng, size=6):
    keys = rng.integers(2**32, size=size, dtype=np.uint32)
    return keys, rng.normal(size=size).astype(np.float32)


def some_body(rng, name):
    """Return what a client might upload: a vector, and its bytes."""
    wire, vector = Wire(name, BITS, SETTINGS[name]), rng.normal(size=D)
    if wire.quantizer is not None:
        return wire.quantizer.encode(vector, rng)
    return vector.astype("<f4").tobytes()


def uploads(name, rng, n):
    """Return ``n`` uploads of clients when they are chosen, in order."""
    wire, sent, t = Wire(name, BITS, SETTINGS[name]), [], 0
    while len(sent) < n:
        t += 1
        sent += [(int(k), t, 0, wire.kind, some_body(rng, name)) for k in wire.learner.senders(t)]
    return sent[:n]


class Served:
    """A server for ``Federation`` that hears of uploads one by one, as bytes, and sends 32-bit weights."""

    def __init__(self, model):
        self.model, self.covers, self.heard = model, np.zeros(K, dtype=np.int64), 0

    def receive(self, up):
        rows = up.body.rows() if isinstance(up.body, Factored) else up.body
        for k, row in zip(up.who, rows, strict=True):
            body = (row,) if isinstance(row, bytes) else row[None]
            one = Up(up.t, np.array([k]), up.kind, up.base_version, body, 0)
            self.model.receive(int(k), up.t, up.base_version, up.kind, self.model.wire.write(one))
            self.covers[k] = up.t
            self.heard += 1

    def step(self, t):
        return Down(self.heard, self.covers.copy(), self.model.weights.astype(float), 0) if self.heard else None


@pytest.mark.parametrize("name", [*UPDATES, "ofediq exact"])
def test_uploads_through_bytes_make_the_model_of_a_federation_without_delay(name):
    name, _, exact = name.partition(" ")
    rng, change = np.random.default_rng(0), {"levels": None} if exact else {}
    model = model_of(name, **change)
    here, served = Federation(model.learner), Federation(model.learner)
    served.server = Served(model)
    for _ in range(40):
        features = np.stack([as_features(some_example(rng), BITS) for _ in range(K)])
        example = Example(features, features.sum(axis=1) / 4)
        ours, theirs = here.play(example), served.play(example)
        assert theirs.prediction == pytest.approx(ours.prediction, rel=1e-5, abs=1e-5)
    assert model.weights == pytest.approx(here.server.weights, rel=1e-5, abs=1e-5)
    assert np.linalg.norm(model.weights) > 0.1
    assert model.newest == here.server.covers.max() > 30


@pytest.mark.parametrize("timing", ["aligned", "on-arrival"])
def test_late_residuals_make_the_model_of_a_federation_with_that_delay(timing):
    rng, delay, made = np.random.default_rng(1), 3, []
    model = model_of("fedres-sgd")
    learner = global_learner("fedres-sgd", dim=D, n_clients=K, timing=timing, **SETTINGS["fedres-sgd"])
    federation = Federation(learner, delayed_sites(K, delay))
    for t in range(60):
        example, k = some_example(rng), t % K  # clients take turns, so that each residual arrives alone
        features, present = np.zeros((K, D)), np.arange(K) == k
        features[k] = as_features(example, BITS)
        played = federation.play(Example(features, np.full(K, 0.7), present=present))
        made.append((example, 0.7, 0.0, float(played.offset[k]) if timing == "aligned" else None))
        if t >= delay:
            model.receive_residual(*made[t - delay])
        assert model.weights == pytest.approx(federation.server.weights, rel=1e-5, abs=1e-6)
    assert np.linalg.norm(model.weights) > 0.1
    assert model.reward_range == (0.0, pytest.approx(0.7))


@pytest.mark.parametrize("name", UPDATES)
def test_a_hosted_users_reward_is_one_clients_gradient(name):
    rng = np.random.default_rng(2)
    hosted, federated = (FederatedModel(name, BITS, EVERY_ROUND[name]) for _ in range(2))
    for t in range(1, 20):
        example, (reward, offset) = some_example(rng), rng.normal(size=2)
        hosted.learn(example, reward, offset)
        client = federated.learner.client([0])
        client.receive(Down(1, np.zeros(K, dtype=np.int64), federated.weights.astype(float), 0))
        up = client.observe(t, as_features(example, BITS)[None], np.array([offset]), np.array([reward]))
        assert federated.receive(0, t, 0, up.kind, federated.wire.write(up))
        assert hosted.weights == pytest.approx(federated.weights, rel=1e-4, abs=1e-5)
    assert (hosted.newest, federated.newest) == (0, 19)


SHARES = {"fedres-sgd": 1, "fedomd": 1 / 3, "dynamic-fedavg": 1 / 3}  # the others divide by all clients


@pytest.mark.parametrize("name", DENSE)
def test_a_hosted_step_by_hand(name):
    model, example = model_of(name), (np.array([0, 2**31, 2**31], np.uint32), np.array([0.5, 2, 1], np.float32))
    model.learn(example, 1.0, offset=0.25, weight=0.5)
    x = np.zeros(D)
    x[[0, D // 2, -1]] = 0.5, 3, 1
    step = SETTINGS[name]["step_size"] * SHARES.get(name, 1 / K)
    assert model.weights == pytest.approx(step * 0.5 * 2 * 0.75 * x, rel=1e-6)
    assert model.score(example) == pytest.approx(model.weights @ x, rel=1e-6)
    assert model.reward_range == (0.0, 1.0)


def test_a_joint_prediction_that_is_given_is_the_one_that_is_corrected():
    rng = np.random.default_rng(3)
    one, other, example = model_of("fedres-sgd"), model_of("fedres-sgd"), some_example(rng)
    one.receive_residual(example, 1.0, local=0.25, global_=0.5, weight=0.5)
    other.correct(example, 1.0, 0.75, weight=0.5)
    assert one.weights == pytest.approx(0.02 * 0.5 * 2 * 0.25 * as_features(example, BITS))
    assert np.array_equal(one.weights, other.weights)


@pytest.mark.parametrize("name", DENSE)
def test_a_model_that_is_restored_goes_on_to_the_bit(name):
    rng = np.random.default_rng(4)
    pool = Pool(4, lambda vectors: np.median(vectors, axis=0))
    model, restored = model_of(name), None
    for n, upload in enumerate(uploads(name, rng, 30) if name in UPDATES else [None] * 30):
        if n == 14:  # 14 = 3·4 + 2 uploads at most: some wait
            restored = FederatedModel.from_bytes(model.to_bytes())
        example, reward = some_example(rng), rng.normal()
        for one in [model, restored] if restored else [model]:
            one.learn(example, reward)
            if upload is not None:
                one.receive(*upload, pool=pool)
    assert restored.to_bytes() == model.to_bytes()
    assert np.array_equal(restored.weights, model.weights)
    assert (restored.newest, restored.reward_range) == (model.newest, model.reward_range)


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"number": K}, ValueError, r"number must be below n_clients = 5, got 5"),
        ({"number": -1}, ValueError, "number must be an integer of at least 0, got -1"),
        ({"t": 0}, ValueError, "t must be an integer of at least 1, got 0"),
        ({"t": 2**41}, ValueError, "t must be at most"),
        ({"kind": "triplet"}, WrongKindError, "kind must be '.*' for '.*', got 'triplet'"),
        ({"body": b""}, ValueError, "(body|data) must have"),
        ({"body": lambda body: body[:-4]}, ValueError, "(body|data) must"),
        ({"body": lambda body: body + body}, ValueError, "(body|data) must"),
    ],
)
def test_what_no_client_sends_is_refused_and_changes_nothing(name, change, error, message):
    (number, t, version, kind, body), other = uploads(name, np.random.default_rng(5), 2)
    model = model_of(name)
    model.receive(*other)
    arguments = {"number": number, "t": t, "kind": kind, "body": body}
    arguments |= {key: value(body) if callable(value) else value for key, value in change.items()}
    before = model.to_bytes()
    with pytest.raises(error, match=message):
        model.check(**arguments)
    with pytest.raises(error, match=message):
        model.receive(version=version, **arguments)
    assert model.to_bytes() == before
    model.check(number, t, kind, body)


@pytest.mark.parametrize("name", ["ofedavg", "ofediq", "fedomd", "fedsea", "dynamic-fedavg"])
def test_a_client_that_is_not_chosen_is_refused(name):
    model, body, seen = model_of(name), some_body(np.random.default_rng(6), name), set()
    for t in range(1, 13):
        for number in range(K):
            chosen = number in model.learner.senders(t)
            seen.add(chosen)
            if chosen:
                model.check(number, t, model.wire.kind, body)
                continue
            with pytest.raises(NotChosenError, match=f"t must be a round after which client {number} uploads, got {t}"):
                model.check(number, t, model.wire.kind, body)
    assert seen == {True, False}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bodies_that_are_not_finite_are_refused(value):
    model, vector = model_of("fedogd"), np.zeros(D, dtype="<f4")
    vector[3] = value
    with pytest.raises(ValueError, match=f"body must be finite, got {value}"):
        model.receive(0, 1, 0, "gradient", vector.tobytes())


def test_packed_bytes_that_were_tampered_with_are_refused():
    (number, t, version, kind, body), *_ = uploads("ofediq", np.random.default_rng(7), 1)
    for place in range(len(body)):
        damaged = bytearray(body)
        damaged[place] ^= 1
        with pytest.raises(ValueError, match="data must"):
            model_of("ofediq").receive(number, t, version, kind, bytes(damaged))


def test_residuals_and_updates_go_only_where_they_are_taken():
    rng = np.random.default_rng(8)
    with pytest.raises(WrongKindError, match="residuals are not what 'fedogd' takes"):
        model_of("fedogd").receive_residual(some_example(rng), 1.0, 0.0)
    with pytest.raises(WrongKindError, match=r"kind must be .* for 'fedres-sgd', got 'gradient'"):
        model_of("fedres-sgd").check(0, 1, "gradient", bytes(4 * D))


def test_uploads_are_clipped_or_dropped_on_the_way():
    upload = uploads("fedogd", np.random.default_rng(9), 1)[0]
    plain, halved, dropped = (model_of("fedogd") for _ in range(3))
    assert plain.receive(*upload)
    assert halved.receive(*upload, clip=lambda vector: vector / 2)
    before = dropped.to_bytes()
    assert not dropped.receive(*upload, clip=lambda vector: None)
    assert halved.weights == pytest.approx(plain.weights / 2)
    assert dropped.to_bytes() == before


@pytest.mark.parametrize("name", UPDATES)
def test_a_pool_that_takes_the_mean_changes_only_the_time(name):
    pool, rng = Pool(3, lambda vectors: np.mean(vectors, axis=0)), np.random.default_rng(10)
    plain, pooled = model_of(name), model_of(name)
    for upload in uploads(name, rng, 25):
        plain.receive(*upload)
        pooled.receive(*upload, pool=pool)
    last = uploads(name, rng, 1)[0]
    plain.receive(*last)
    pooled.receive(*last)  # without a pool nothing waits
    assert pooled.weights == pytest.approx(plain.weights, rel=1e-4, abs=1e-6)


def test_a_pool_waits_for_different_clients_and_one_of_them_cannot_move_a_median_far():
    model, pool = model_of("fedogd"), Pool(3, lambda vectors: np.median(vectors, axis=0))
    calm, wild = np.full(D, 1, "<f4").tobytes(), np.full(D, 1e6, "<f4").tobytes()
    for t in (4, 3, 2, 1):
        model.receive(0, t, 0, "gradient", wild, pool=pool)
    model.receive(1, 1, 0, "gradient", calm, pool=pool)
    assert not model.weights.any()
    assert model.newest == 0
    model.receive(2, 1, 0, "gradient", calm, pool=pool)
    assert model.weights == pytest.approx(np.full(D, -0.05 / K * 3 * 1))
    assert model.newest == 4


def test_a_pool_is_never_larger_than_all_clients():
    model, pool = model_of("fedogd"), Pool(100, lambda vectors: np.median(vectors, axis=0))
    for number in range(K):
        assert not model.weights.any()
        model.receive(number, 1, 0, "gradient", np.ones(D, "<f4").tobytes(), pool=pool)
    assert model.weights == pytest.approx(np.full(D, -0.05))


@pytest.mark.parametrize("name", DENSE)
def test_a_learner_that_runs_away_stops_at_the_last_model_that_is_finite(name):
    model, rng = model_of(name, step_size=1e6), np.random.default_rng(11)
    for _ in range(200):
        keys, values = some_example(rng)
        model.learn((keys, values * np.float32(1e10)), -1e9, 1e9)
    assert np.abs(model.weights).max() <= LARGEST
    assert FederatedModel.from_bytes(model.to_bytes()).to_bytes() == model.to_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state[:-1], "state must be undamaged"),
        (lambda state: state[:40] + b"x" + state[41:], "state must be undamaged"),
        (lambda state: b"FRS1" + state[4:], "state must start with b'FRF1'"),
    ],
)
def test_damaged_states_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        FederatedModel.from_bytes(change(model_of("fedomd").to_bytes()))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (PENDING, [(2, 1, bytes(8 * D))], "state must hold uploads of 2 clients"),
        (PENDING, [(-1, 1, bytes(8 * D))], "state must hold uploads of 2 clients"),
        (PENDING, [(0, 2**63, bytes(8 * D))], "state must hold uploads of 2 clients"),
        (REWARDS, (0.0, float("nan")), "state must hold a range of rewards"),
        (WEIGHTS, [np.full(D, 1e31).tobytes()], r"state must hold weights within ±1e\+30"),
    ],
)
def test_states_that_nobody_could_go_on_from_are_refused(field, value, message):
    state = FederatedModel("fedogd", BITS, {"n_clients": 2}).to_bytes()
    document = msgspec.msgpack.decode(state[4:-4])
    document[field] = value
    made = state[:4] + msgspec.msgpack.encode(document)
    with pytest.raises(ValueError, match=message):
        FederatedModel.from_bytes(made + zlib.crc32(made).to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("name", "bits", "hyperparameters", "message"),
    [
        ("fedres-erm", 4, {}, "global_learner must be one of .*, got 'fedres-erm'"),
        ("fedres-adagrad", 4, {}, "global_learner must be one of .*, got 'fedres-adagrad'"),
        ("fedogd", 15, {}, "bits must be at most 14 for 'fedogd', got 15"),
        ("fedogd", 0, {}, "bits must be an integer of at least 1, got 0"),
        ("fedogd", 4, {"dim": 3}, "hyperparameters must be numbers or null, and not dim, got dim = 3"),
        ("fedogd", 4, {"step_size": "x"}, "hyperparameters must be numbers or null, .* got step_size = 'x'"),
        ("fedogd", 4, {"sync": 3}, "sync is not a hyperparameter of 'fedogd'"),
        ("fedogd", 4, {"n_clients": 2**21}, "n_clients must be at most 1048576, got 2097152"),
        ("dynamic-fedavg", 4, {"n_clients": 2**31}, "n_clients must be at most 1048576, got 2147483648"),
        ("ofedavg", 4, {"seed": 2**63}, r"seed must be within ±2\^63, got 9223372036854775808"),
        ("fedres-sgd", 4, {"batch": 2}, "batch must be 1, got 2: every residual is learned from as it arrives"),
        ("ofediq", 4, {"levels": 4, "blocks": 18}, "blocks must be at most"),
    ],
)
def test_settings_that_no_learner_has_are_refused_by_name(name, bits, hyperparameters, message):
    with pytest.raises(ValueError, match=message):
        FederatedModel(name, bits, hyperparameters)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("value", [None, -1, 0, 0.5, 2, float("nan"), True])
def test_whatever_number_a_hyperparameter_is_given_nothing_but_a_value_error_comes_of_it(name, value):
    base = {"levels": 2} if name == "ofediq" else {}
    others = ("model", "loss", "client_weights", "start", "radius", "mirror_map", "outputs", "timing")
    for key in (*SETTINGS[name], *others):
        try:
            model = FederatedModel(name, 2, {**base, key: value})
        except ValueError:
            continue
        assert model.weights.size == 5

"""The shared side of a device against the shared model of a server, in one process and through bytes."""

import json
import zlib

import numpy as np
import pytest
import safetensors.numpy

from fedres import Federation
from fedres.client.global_side import LearnerSide, ResidualSide, RewardedDecision, global_side
from fedres.federation import Example, delayed_sites
from fedres.scoring.features import Preparer
from fedres.scoring.federated import UPDATES, FederatedModel, Wire, as_features
from fedres.scoring.model import SharedModel, expand, score

BITS, K = 4, 4
D = 2**BITS + 1
SETTINGS = {
    "fedogd": {"n_clients": K, "step_size": 0.05},
    "ofedavg": {"n_clients": K, "step_size": 0.05, "participation": 0.6, "seed": 3},
    "ofediq": {"n_clients": K, "step_size": 0.02, "participation": 0.7, "period": 3, "levels": 4, "blocks": 2},
    "fedomd": {"n_clients": K, "step_size": 0.05, "sync": 3, "participants": 2},
    "fedsea": {"n_clients": K, "step_size": 0.05, "period": 2, "radius": 0.5},
    "dynamic-fedavg": {"n_clients": K, "participants": 2, "epochs": 2, "batch": 2, "buffer": 4, "step_size": 0.05},
}


def payload(model, version, *, since=None, indices=None, newest=0, **change):
    """Return what the server sends: all weights, or those at ``indices``."""
    low, high = model.reward_range
    fields = {"version": version, "bits": model.bits, "low": low, "high": high, "newest": newest}
    fields["crc32"] = zlib.crc32(model.weights.tobytes())
    fields |= {} if since is None else {"since": since}
    tensors = {"weights": np.array(model.weights)}
    if indices is not None:
        at = np.array(indices, dtype=np.uint32)
        tensors = {"indices": at, "values": np.array(model.weights[at])}
    metadata = {key: str(value) for key, value in (fields | change).items() if value is not None}
    return safetensors.numpy.save(tensors, metadata)


def outcome(example, label, *, local=0.0, shared=0.0, version=0):
    return RewardedDecision({"n": 1}, {"id": "a", "features": {}}, example, version, shared, local, label)


def some_example(rng, size=6):
    return rng.integers(2**32, size=size, dtype=np.uint32), rng.normal(size=size).astype(np.float32)


class Server:
    """A log of uploads and the model made from it; devices hear of both as they would over a network."""

    def __init__(self, name):
        self.model, self.position = FederatedModel(name, BITS, SETTINGS[name]), 1

    def take(self, number, upload):
        self.position += 1
        self.model.receive(number, upload["t"], upload["version"], upload["kind"], upload["body"])
        return self.position

    def payload(self):
        return payload(self.model, self.position, newest=self.model.newest)


def device(name, number):
    return global_side(name, BITS, SETTINGS[name], number=number)


def some_round(rng):
    examples = [some_example(rng) for _ in range(K)]
    features = np.stack([as_features(example, BITS) for example in examples])
    return examples, Example(features, features.sum(axis=1) / 4)


@pytest.mark.parametrize("name", UPDATES)
def test_devices_in_step_are_a_federation_without_delay(name):
    rng, server = np.random.default_rng(0), Server(name)
    federation, sides = Federation(server.model.learner), [device(name, k) for k in range(K)]
    for _ in range(30):
        examples, rounds = some_round(rng)
        for side in sides:
            side.receive(server.payload())
        ours = [side.weights for side in sides]
        assert np.stack(ours) == pytest.approx(federation.play(rounds).weights, rel=1e-5, abs=1e-5)
        for k, side in enumerate(sides):
            upload = side.learn(outcome(examples[k], rounds.label[k]))
            if upload is not None:
                side.acknowledge(upload, server.take(k, upload))
    assert np.linalg.norm(server.model.weights) > 0.1


@pytest.mark.parametrize("name", UPDATES)
def test_devices_behind_a_slow_link_are_a_federation_with_that_delay(name):
    """Each upload is on its way for 2 rounds, and acknowledged when it arrives."""
    rng, server, delay = np.random.default_rng(1), Server(name), 2
    federation = Federation(server.model.learner, delayed_sites(K, delay))
    sides, on_the_way = [device(name, k) for k in range(K)], []
    for t in range(1, 41):
        examples, rounds = some_round(rng)
        for side in sides:
            side.receive(server.payload())
        assert np.stack([s.weights for s in sides]) == pytest.approx(federation.play(rounds).weights, abs=2e-5)
        made = [(t + delay, k, sides[k].learn(outcome(examples[k], rounds.label[k]))) for k in range(K)]
        on_the_way += [one for one in made if one[2] is not None]
        for due, k, upload in on_the_way:
            if due == t:
                sides[k].acknowledge(upload, server.take(k, upload))
    assert np.linalg.norm(server.model.weights) > 0.1


@pytest.mark.parametrize("name", UPDATES)
def test_a_restored_side_goes_on_to_the_bit(name):
    rng, server, made = np.random.default_rng(2), Server(name), 0
    steady, side = device(name, 1), device(name, 1)
    for t in range(1, 31):
        state, side = side.to_bytes(), device(name, 1)  # a fresh side in every round
        side.restore(state)
        assert side.to_bytes() == state
        rewarded = outcome(some_example(rng), rng.normal())
        upload = side.learn(rewarded)
        assert steady.learn(rewarded) == upload
        position = server.take(1, upload) if upload is not None and t % 5 else None  # some are lost
        for one in (steady, side):
            if t % 4 == 0:
                one.receive(server.payload())
            if position is not None:  # heard of after the model came
                one.acknowledge(upload, position)
        made += upload is not None
    assert made > 3
    assert (side.t, side.covered) == (30, steady.covered)
    assert side.covered > 10


def test_an_upload_is_inside_a_model_from_its_position_on():
    side, rng = device("fedsea", 0), np.random.default_rng(3)
    server = Server("fedsea")
    side.receive(server.payload())
    side.learn(outcome(some_example(rng), 1.0))
    upload = side.learn(outcome(some_example(rng), 1.0))
    own = side.weights
    side.acknowledge(upload, 7)
    side.receive(payload(server.model, 6))  # without it: progress stays on top of what came
    assert side.weights == pytest.approx(own, abs=1e-6)
    assert side.covered == 0
    side.receive(payload(server.model, 7))  # with it, whatever became of it there
    assert not side.weights.any()
    assert side.covered == upload["t"] == 2


@pytest.mark.parametrize("newest", [2, 3])
def test_who_was_not_chosen_drops_its_progress_once_that_rounds_average_is_there(newest):
    name = "fedomd"
    wire = Wire(name, BITS, SETTINGS[name])
    left_out = next(k for k in range(K) if k not in wire.learner.senders(3))
    side, rng = LearnerSide(wire, left_out), np.random.default_rng(4)
    assert [side.learn(outcome(some_example(rng), 1.0)) for _ in range(3)] == [None] * 3
    side.receive(payload(FederatedModel(name, BITS, SETTINGS[name]), 5, newest=newest))
    assert side.weights.any() == (newest < 3)


def test_a_learner_counts_rounds_by_what_it_learned():
    side, rng = device("fedogd", 2), np.random.default_rng(5)
    side.receive(payload(FederatedModel("fedogd", BITS), 9))
    uploads = [side.learn(outcome(some_example(rng), 1.0, local=0.5)) for _ in range(3)]
    assert [(u["t"], u["version"], u["kind"], len(u["body"])) for u in uploads] == [
        (t, 9, "gradient", 4 * D) for t in (1, 2, 3)
    ]


def test_the_gradient_is_that_of_what_the_local_part_leaves_over():
    side, example = device("fedogd", 0), some_example(np.random.default_rng(6))
    upload = side.learn(outcome(example, 1.0, local=0.25))
    expected = 2 * (0.25 - 1.0) * as_features(example, BITS)
    assert np.frombuffer(upload["body"], "<f4") == pytest.approx(expected, rel=1e-6)


def test_what_cannot_be_learned_from_does_not_count_as_a_round():
    side = device("fedogd", 0)
    with pytest.raises(ValueError, match="label must be finite, got nan"):
        side.learn(outcome(some_example(np.random.default_rng(7)), np.nan))
    assert side.t == 0


@pytest.mark.parametrize("name", ["fedres-adagrad", "fedogd"])
def test_scores_are_those_of_the_server(name):
    prepared = Preparer(crosses=True).prepare(b'{"hour": 9}', [("a", b'{"x": 1.5}'), ("b", b"{}")])
    model = SharedModel(BITS) if name == "fedres-adagrad" else FederatedModel(name, BITS)
    for reward in (1.0, 0.5):
        model.learn(expand(prepared, 0), reward)
    side = global_side(name, BITS, number=0)
    side.receive(payload(model, 3))
    assert side.scores(prepared).tolist() == score(prepared, model.weights)[0].tolist()
    assert side.scores(prepared)[0] != 0
    assert (side.version, side.reward_range) == (3, (0.0, 1.0))


@pytest.mark.parametrize("aligned", [False, True])
def test_residuals_say_what_the_protocol_asks_for_and_are_json(aligned):
    side = global_side("fedres-sgd", BITS, timing="aligned" if aligned else "on-arrival")
    upload = side.learn(outcome(some_example(np.random.default_rng(8)), 1.0, local=0.25, shared=0.5, version=4))
    expected = {"version": 4, "context": {"n": 1}, "action": {"id": "a", "features": {}}, "local": 0.25, "label": 1.0}
    assert json.loads(json.dumps(upload)) == expected | ({"global": 0.5} if aligned else {})
    side.acknowledge(upload, 5)
    assert side.route == "residuals"
    assert device("fedogd", 0).route == "updates"


def test_changes_since_a_version_lead_to_the_same_weights_as_the_whole_model():
    rng, model = np.random.default_rng(9), SharedModel(BITS)
    whole, stepwise, late = (ResidualSide(BITS) for _ in range(3))
    for version in range(1, 8):
        before = np.array(model.weights)
        model.learn(some_example(rng, size=2), rng.normal())
        changed = np.flatnonzero(model.weights != before)
        whole.receive(payload(model, version))
        stepwise.receive(payload(model, version, since=version - 1, indices=changed))
    late.receive(payload(model, 7, since=0, indices=np.flatnonzero(model.weights)))
    for side in (whole, stepwise, late):
        assert side.weights.tolist() == model.weights.tolist()


def test_changes_since_zero_replace_all_that_was_known():
    model, side = SharedModel(BITS), ResidualSide(BITS)
    model.learn(some_example(np.random.default_rng(10)), 1.0)
    side.receive(payload(model, 1))
    side.receive(payload(SharedModel(BITS), 2, since=0, indices=[]))
    assert not side.weights.any()


def test_an_older_model_changes_nothing():
    model, side = SharedModel(BITS), ResidualSide(BITS)
    side.receive(payload(model, 5))
    model.learn(some_example(np.random.default_rng(11)), 1.0)
    for version in (4, 5):
        side.receive(payload(model, version))
    assert (side.version, side.weights.any()) == (5, False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: b"", "payload must be a model as safetensors"),
        (lambda model: b"x" * 100, "payload must be a model as safetensors"),
        (lambda model: payload(model, 3)[:-1], "payload must be a model as safetensors"),
        (lambda model: safetensors.numpy.save({"weights": np.zeros(D)}), "payload must be a model as safetensors"),
        (lambda model: payload(model, 3, newest=None), "payload must be a model .*missing required field `newest`"),
        (lambda model: payload(model, "x"), "payload must be a model .*Expected `int`"),
        (lambda model: payload(model, 3, indices=[]).replace(b"indices", b"indexes"), "payload must hold weights, or"),
        (lambda model: payload(model, 3, bits=5), "payload must have 4 bits, got 5"),
        (lambda model: payload(SharedModel(5), 3, bits=4), "payload must hold 17 finite weights"),
        (lambda model: payload(model, 3, since=2, indices=[1]), "changes since 1 or before, got since 2"),
        (lambda model: payload(SharedModel(5), 3, since=1, indices=[17], bits=4), "indices below 17"),
        (
            lambda model: payload(model, 3, since=1, indices=[1], crc32=7),
            "changes of the model known as 1, got another",
        ),
    ],
)
@pytest.mark.parametrize("make_side", [lambda: ResidualSide(BITS), lambda: device("fedomd", 0)])
def test_a_payload_that_is_no_model_is_refused_and_changes_nothing(make_side, make, message):
    side = make_side()
    side.receive(payload(SharedModel(BITS), 1))
    before = side.to_bytes()
    with pytest.raises(ValueError, match=message):
        side.receive(make(SharedModel(BITS)))
    assert side.to_bytes() == before


def test_a_restored_residual_side_is_the_same():
    model, side, other = SharedModel(BITS), ResidualSide(BITS), ResidualSide(BITS)
    model.learn(some_example(np.random.default_rng(12)), 1.0)
    side.receive(payload(model, 6))
    other.restore(side.to_bytes())
    assert other.weights.tolist() == model.weights.tolist()
    assert (other.version, other.reward_range) == (6, (0.0, 1.0))


def test_a_side_is_restored_only_from_its_own_kind():
    with pytest.raises(ValueError, match="state must be of 4 bits, got 5"):
        ResidualSide(BITS).restore(ResidualSide(5).to_bytes())
    with pytest.raises(ValueError, match="state must be of client 1, got 2"):
        device("fedomd", 1).restore(device("fedomd", 2).to_bytes())


def test_a_learner_needs_its_number():
    with pytest.raises(ValueError, match="number must be given for 'fedogd'"):
        global_side("fedogd", BITS)
    with pytest.raises(ValueError, match="who must be client numbers below n_clients = 4"):
        device("fedogd", K)

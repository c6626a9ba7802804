"""The device in JavaScript beside the one in Python, in Node."""

import contextlib
import random

import numpy as np
import pytest
from javascript import MENU, Played, close_to, loop_of, opened, same, stream, teach, uploads
from needs import needs_node
from proxies import DROP, MUTE, PASS, REPEAT, TWICE, FaultyProxy

from fedres.client import DeviceClient
from fedres.draws import event_draw
from fedres.local_learners.linear import LinearLearner


@pytest.fixture
def played():
    with contextlib.closing(Played()) as device:
        yield device


@needs_node
@pytest.mark.parametrize("settings", [{}, {"policy": "squarecb"}, {"timing": "aligned", "crosses": False}])
def test_the_same_stream_is_decided_and_learned_as_by_the_python_device(live, played, tmp_path, settings):
    name = "-".join(["parity", *settings])
    python_loop, browser_loop = loop_of(live, f"{name}-py", **settings), loop_of(live, f"{name}-js", **settings)
    played("open", opened(live, browser_loop, "a"))
    options = {"loop": python_loop, "learner": "linear", "sync_seconds": None, "open_seconds": 0}
    with DeviceClient(live.url, "phone", tmp_path / "phone", **options) as device:
        for k, (request, liked) in enumerate(stream(60)):
            if k % 10 == 5:
                expected = device.sync()
                answer = played("sync")
                assert (answer["sent"], answer["trouble"], expected.trouble) == (expected.sent, None, None)
                live.settle(python_loop), live.settle(browser_loop)
                device.sync(), played("sync")
            answer = played("decide", request)
            private, event = request["private"], request["eventId"]
            expected = device.decide(request["context"], MENU, private=private, event_id=event)
            same(list(answer["scores"].values()), list(expected.scores.values()))
            assert answer["action"] == expected.action
            same(answer["probability"], expected.probability)
            assert (answer["modelVersion"] > 0) == (expected.model_version > 0) == (k >= 5)
            value = float(expected.action == liked)
            played("reward", {"eventId": event, "value": value})
            device.reward(event, value)
    same(live.weights(browser_loop).tolist(), live.weights(python_loop).tolist())
    assert np.count_nonzero(live.weights(browser_loop)) > 10


@needs_node
@pytest.mark.parametrize(
    ("n", "settings"), [(400, {}), (80, {"personal": False, "reward_range": [-1, 3], "policy": "epsilon-greedy"})]
)
def test_with_residual_kalman_too(live, played, tmp_path, n, settings):
    """The own model begins alone, learns its priors, goes on beside a shared one, and is opened again."""
    name = "-".join(["kalman", *settings])
    loops = [loop_of(live, f"{name}-{kind}", model="residual-kalman", **settings) for kind in ("py", "js")]
    how = {"url": live.url, "client": "phone", "loop": loops[1], "store": name}
    played("open", how)
    with DeviceClient(
        live.url, "phone", tmp_path / "phone", loop=loops[0], sync_seconds=None, open_seconds=0
    ) as device:
        for k, (request, liked) in enumerate(stream(n)):
            if k in (0, n * 3 // 4, n * 7 // 8, n - 10):  # offline at first
                for _ in range(2):
                    answer, expected = played("sync"), device.sync()
                    assert (answer["sent"], answer["trouble"], expected.trouble) == (expected.sent, None, None)
                    live.settle(loops[0]), live.settle(loops[1])
            if k in (n // 20, n * 9 // 10):
                played("crash"), played("open", how)
            request["context"] |= {f"tag-{k % 90}": 0.5 + k % 3}  # more coordinates than the core has
            prices = enumerate(MENU.items(), start=k)  # 0 now and then
            menu = request["actions"] = {name: {**of, "price": price % 4} for price, (name, of) in prices}
            answer, event = played("decide", request), request["eventId"]
            expected = device.decide(request["context"], menu, private=request["private"], event_id=event)
            close_to(list(answer["scores"].values()), list(expected.scores.values()))
            assert answer["action"] == expected.action
            close_to(answer["probability"], expected.probability)
            value = float(expected.action == liked)
            played("reward", {"eventId": event, "value": value})
            device.reward(event, value)
        assert (answer["modelVersion"] > 0) == (expected.model_version > 0) == True  # noqa: E712
        assert played("sync")["sent"] == device.sync().sent == 10
    for answer, expected in zip(uploads(live, loops[1]), uploads(live, loops[0]), strict=True):
        assert answer["context"] == expected["context"]
        close_to([answer["local"], answer["variance"]], [expected["local"], expected["variance"]])
        close_to(answer["slopes"], expected["slopes"])


@needs_node
def test_in_a_new_loop_both_draw_by_the_loop_and_the_event(live, played, tmp_path):
    live.make_loop("new-draws", model="adagrad", epsilon=1.0)
    prefix = live.engine.settings("new-draws")[1].draw_prefix("new-draws")
    assert prefix == "new-draws\0"
    ids = [f"event {k}" for k in range(40)]
    expected = [list(MENU)[int(event_draw(name, prefix) * 3)] for name in ids]
    assert expected != [list(MENU)[int(event_draw(name) * 3)] for name in ids]
    played("open", opened(live, "new-draws", "new-draws"))
    played("sync")
    options = {"loop": "new-draws", "learner": "linear", "sync_seconds": None, "open_seconds": 0}
    with DeviceClient(live.url, "phone 2", tmp_path / "phone", **options) as device:
        device.sync()
        assert [device.decide({}, MENU, event_id=name).action for name in ids] == expected
        device.reward(ids[0], 1.0)
    requests = [{"context": {}, "actions": MENU, "eventId": name} for name in ids]
    assert [played("decide", request)["action"] for request in requests] == expected
    with DeviceClient(live.url, "phone 2", tmp_path / "phone", **options) as device:
        # The rule is kept on the device.
        action = device.decide({}, MENU, event_id="later").action
        assert action == list(MENU)[int(event_draw("later", prefix) * 3)]


@needs_node
def test_a_device_of_the_wrong_learner_is_told_so_and_a_folder_keeps_its_learner(live, played):
    how = opened(live, loop_of(live, "other-model"), "other-model", learner="residual-kalman")
    played("open", how)
    assert "409 no_device_model" in played("sync")["trouble"]
    with pytest.raises(
        ValueError, match="learner must be residual-kalman, which this device was made with, got linear"
    ):
        played("open", {**how, "learner": "linear"})
    with pytest.raises(ValueError, match="learner must be one of residual-kalman, linear, got vw"):
        played("open", {**how, "learner": "vw"})


@needs_node
@pytest.mark.parametrize("learner", ["residual-kalman", "linear"])
def test_what_is_to_be_private_is_clipped_noisy_and_rounded(live, played, learner):
    loop = loop_of(live, f"privacy-{learner}", model="adagrad" if learner == "linear" else learner)
    privacy = {"clip": 0.1, "step": 0.25, "noise": "laplace", "scale": 0.5}
    played("open", opened(live, loop, f"privacy-{learner}", learner=learner, privacy=privacy))
    for request, _ in stream(40):
        played("reward", {"eventId": played("decide", request)["eventId"], "value": 1})
    assert played("sync")["sent"] == 40
    released = [upload["local"] for upload in uploads(live, loop)]
    assert all(value % 0.25 == 0 for value in released)
    assert len(set(released)) > 3  # without noise, all would be 0
    if learner == "residual-kalman":  # nothing else that depends on what is private
        assert {(upload["variance"], *upload["slopes"]) for upload in uploads(live, loop)} == {(0.51,)}
    for wrong in (
        {"noise": "laplace"},
        {"clip": -1},
        {"scale": 1},
        {"noise": "pink", "clip": 1, "scale": 1},
        {"epsilon": 1},
    ):
        with pytest.raises(ValueError, match="privacy"):
            played("open", opened(live, loop, "wrong", privacy=wrong))


@needs_node
def test_nothing_private_is_uploaded_and_a_crash_loses_nothing(live, played):
    loop = loop_of(live, "crash")
    how = opened(live, loop, "kept")
    played("open", how)
    for request, liked in stream(20):
        decision = played("decide", request)
        played("reward", {"eventId": decision["eventId"], "value": float(decision["action"] == liked)})
    probe = {"context": {"hour": 3}, "private": {"mood": 0.5}, "actions": MENU}
    before = played("decide", {**probe, "eventId": "before"})
    played("crash")
    assert played("open", how)["queued"] == 20
    assert played("decide", {**probe, "eventId": "after"})["scores"] == before["scores"]
    played("reward", {"eventId": "before", "value": 1})
    assert played("sync")["sent"] == 21
    sent = [entry.body for entry in live.engine.logged(loop) if entry.kind == "residual"]
    assert len(sent) == 21
    assert not any(b"mood" in body for body in sent)
    played("close")
    with pytest.raises(ValueError, match="closed"):
        played("decide", probe)


@needs_node
def test_offline_it_decides_and_keeps_its_uploads_and_says_what_is_wrong(live, played):
    played("open", opened(live, "nowhere", "off", url="http://127.0.0.1:1", queueLimit=3))
    for request, _ in stream(5):
        played("reward", {"eventId": played("decide", request)["eventId"], "value": 1})
    synced = played("sync")
    assert "does not answer" in synced["trouble"]
    assert played("status") | {"trouble": None} == {
        "modelVersion": 0,
        "waiting": 0,
        "queued": 3,
        "dropped": 2,
        "trouble": None,
    }
    for request, message in [
        ({"actions": []}, "actions must hold at least one action"),
        ({"actions": ["a"], "context": {"private": 1}}, "context must not hold 'private'"),
        ({"actions": ["a"], "context": {"x": [1, "b"]}}, "numbers alone or strings alone"),
    ]:
        with pytest.raises(ValueError, match=message):
            played("decide", request)
    with pytest.raises(ValueError, match="waits for its reward"):
        played("reward", {"eventId": "unknown", "value": 1})


@needs_node
def test_an_upload_that_the_service_refuses_is_dropped_and_the_others_are_sent(live, played):
    loop = loop_of(live, "refusing")
    played("open", opened(live, loop, "refused"))
    for (request, _), value in zip(stream(5), [1, 1, 500, 0, 1], strict=True):  # the range is not known here yet
        played("reward", {"eventId": played("decide", request)["eventId"], "value": value})
    synced = played("sync")
    assert (synced["sent"], synced["dropped"], synced["trouble"]) == (4, 1, None)


@needs_node
def test_through_a_faulty_network_no_upload_is_lost_and_none_doubled(live, played):
    loop, rng = loop_of(live, "faulty"), random.Random(11)
    fault = lambda request: rng.choices([PASS, DROP, MUTE, TWICE, REPEAT], [4, 2, 2, 1, 1])[0]  # noqa: E731
    with FaultyProxy(live.address, fault) as proxy:
        played("open", opened(live, loop, "faulty", url=proxy.url))
        troubles = 0
        for k, (request, _) in enumerate(stream(40)):
            played("reward", {"eventId": played("decide", request)["eventId"], "value": 1})
            if k % 4 == 3:
                troubles += played("sync")["trouble"] is not None
        while played("status")["queued"]:
            troubles += played("sync")["trouble"] is not None
    assert [upload["context"] for upload in uploads(live, loop)] == [request["context"] for request, _ in stream(40)]
    assert troubles > 3


def examples(n):
    rng = np.random.default_rng(3)
    for _ in range(n):
        indices = rng.integers(0, 40, size=rng.integers(1, 30))
        values = (rng.normal(size=indices.size) * 10.0 ** rng.integers(-3, 3)).astype(np.float32)
        values[rng.random(indices.size) < 0.1] = 0
        yield indices, values, float(rng.normal()), float(np.float32(rng.normal()))


SMALLEST_SQUARE = np.float32(1.084202e-19) * np.float32(1.084202e-19)  # VW's


class Twin:
    """The step in plain 32-bit NumPy, each product and each sum rounded by itself."""

    def __init__(self, dim, rate):
        self.weights, self.squares = np.zeros(dim + 1, np.float32), np.zeros(dim + 1, np.float32)
        self.rate, self.low, self.high = np.float32(rate), np.float32(0), np.float32(0)

    def joint(self, indices, values, offset):
        total = np.float32(offset)
        for j, x in zip(indices, values, strict=True):
            total = self.weights[j] * x + total
        return total + self.weights[-1]

    def learn(self, indices, values, label, offset):
        label = np.float32(label)
        self.low, self.high = min(self.low, label), max(self.high, label)
        error = label - np.clip(self.joint(indices, values, offset), self.low, self.high)
        if not error * error > 0:
            return
        slope, pull = np.float32(4) * error * error, np.float32(2) * error * self.rate
        pairs = [(j, x) for j, x in zip(indices, values, strict=True) if x != 0] + [(-1, np.float32(1))]
        for j, x in pairs:
            self.squares[j] = slope * max(x * x, SMALLEST_SQUARE) + self.squares[j]
        for j, x in pairs:
            self.weights[j] = pull * (x * (np.float32(1) / np.sqrt(self.squares[j]))) + self.weights[j]


@needs_node
def test_the_personal_model_is_that_of_a_twin_that_rounds_twice_to_the_bit(played):
    last = 2**18 - 1
    twin, learner = Twin(last, 0.5), LinearLearner(last, 0.5)
    played("model", {"rate": 0.5})
    for indices, values, label, offset in examples(150):
        how = {"indices": indices.tolist(), "values": values.astype(float).tolist(), "label": label, "offset": offset}
        score = played("learn", how)
        assert score == float(twin.joint(indices, values, 0))
        same(score, learner.score((indices, values)))
        twin.learn(indices, values, label, offset)
        learner.learn((indices, values), label, offset)


@needs_node
@pytest.mark.parametrize("model", ["adagrad", "residual-kalman"])
def test_the_first_decision_after_opening_knows_what_others_taught(live, played, tmp_path, model):
    loop = loop_of(live, f"taught-js-{model}", model=model)
    learner = "linear" if model == "adagrad" else model
    teach(live, loop, tmp_path, learner)
    how = {"url": live.url, "loop": loop, "client": "new", "learner": learner, "store": model}
    played("open", {**how, "openSeconds": 60})
    first = played("decide", {"actions": MENU})
    played("sync")
    later = played("decide", {"actions": MENU})
    assert (first["scores"], first["modelVersion"]) == (later["scores"], later["modelVersion"])
    assert (first["modelVersion"] > 0, max(first["scores"], key=first["scores"].get)) == (True, "tea")
    played("crash")
    played("open", {**how, "url": "http://127.0.0.1:1", "openSeconds": 60})  # the stored model is the fallback
    assert played("decide", {"actions": MENU})["scores"] == first["scores"]

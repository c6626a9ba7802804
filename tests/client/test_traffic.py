"""What leaves a device, byte for byte."""

import threading

import msgspec
import pytest
from network import MENU, Driven
from waiting import LIMIT

from fedres.client import Privacy

SECRETS = [{"illness": "none", "age": 33}, {"illness": "flu", "age": 81, "salary": [1.5, 2.5]}, None]


@pytest.fixture
def local_part(monkeypatch):
    """Let the local model predict what the test says, whatever it was told and has learned."""
    prediction = {}

    def score(self, example):
        return prediction["local"]

    monkeypatch.setattr("fedres.client.local.LocalModel.score", score)
    return lambda number: prediction.update(local=number)


def on_the_wire(request):
    """Return a request as it leaves the device, but for the port, which is the system's choice."""
    lines = [b"%s: %s" % (name.lower(), value) for name, value in request.headers.raw if name.lower() != b"host"]
    return b"\r\n".join([f"{request.method} {request.url.raw_path.decode()}".encode(), *lines, b"", request.read()])


def traffic(start_service, folder, private, settings=(), **options):
    """Return all bytes that a device sends in a life with restarts, lost answers and syncs."""
    sent = []
    folder.mkdir(exist_ok=True)
    with start_service(folder) as live:
        live.engine.paused = True  # it learns when it is settled
        live.make_loop("other", model="adagrad", largest_number=1e15, **dict(settings))
        for life in range(2):
            faults = [None, None, "unanswered", None, "lost"]
            made = Driven(live.url, folder / "phone", faults, loop="other", clock=lambda: 1e9, **options)
            with made as device:
                device.network.before = live.settle  # else versions depend on who is faster
                device.sync()
                for i in range(18):
                    name = f"{life}-{i}"
                    decision = device.decide({"day": f"d{i % 7}"}, MENU, private, event_id=name)
                    device.device.reward(name, float(decision.action == "tea"))
                    if i % 6 == 5:
                        device.sync(tries=5)
            sent += [on_the_wire(request) for request in device.network.sent]
    return sent


@pytest.mark.parametrize("options", [{}, {"download": False}, {"timing": "aligned", "gzip": False}])
def test_private_features_change_no_byte_that_leaves_the_device(start_service, tmp_path, local_part, options):
    local_part(0.25)
    runs = [traffic(start_service, tmp_path / str(k), secret, **options) for k, secret in enumerate(SECRETS)]
    assert runs[0] == runs[1] == runs[2]
    assert sum(b"/residuals" in request for request in runs[0]) >= 6
    assert not any(b"flu" in request or b"illness" in request for request in runs[1])


@pytest.mark.parametrize("learner", ["fedogd", "ofediq", "fedomd"])
def test_private_features_change_no_byte_of_an_update_either(start_service, tmp_path, local_part, learner):
    local_part(0.25)
    extra = {"ofediq": {"levels": 3, "blocks": 2}, "fedomd": {"sync": 3}}.get(learner, {})
    rule = {"global_learner": learner, "bits": 6, "hyperparameters": {"n_clients": 2, **extra}}
    runs = [traffic(start_service, tmp_path / str(k), secret, rule) for k, secret in enumerate(SECRETS[:2])]
    assert runs[0] == runs[1]
    assert sum(b"/updates" in request for request in runs[0]) >= 6
    local_part(0.26)
    assert traffic(start_service, tmp_path / "control", None, rule) != runs[0]


def test_the_comparison_sees_it_when_local_predictions_differ(start_service, tmp_path, local_part):
    local_part(0.25)
    one = traffic(start_service, tmp_path / "a", None)
    local_part(0.26)
    other = traffic(start_service, tmp_path / "b", None)
    assert one != other


def test_private_features_do_change_local_predictions_when_nobody_fixes_them(start_service, tmp_path):
    one, other = (traffic(start_service, tmp_path / str(k), SECRETS[k]) for k in (0, 1))
    assert one != other


def test_what_privacy_releases_is_uploaded_once_and_again_the_same(start_service, tmp_path, local_part):
    local_part(0.61)
    privacy = Privacy(clip=0.5, step=0.125)
    sent = traffic(start_service, tmp_path, {"age": 3}, privacy=privacy, gzip=False)
    posts = [request.split(b"\r\n\r\n")[1] for request in sent if request.startswith(b"POST")]
    assert {item["local"] for body in posts for item in msgspec.json.decode(body)["residuals"]} == {0.5}
    assert len(set(posts)) < len(posts)  # an answer was lost


def test_noise_is_drawn_once_for_an_upload_however_often_it_is_sent(start_service, tmp_path, local_part):
    local_part(0.0)
    privacy = Privacy(clip=1.0, noise="laplace", scale=1.0)
    sent = traffic(start_service, tmp_path, None, privacy=privacy, gzip=False)
    posts = [request.split(b"\r\n\r\n")[1] for request in sent if request.startswith(b"POST")]
    items = [item for body in posts for item in msgspec.json.decode(body)["residuals"]]
    noise = {item["seq"]: item["local"] for item in items}
    assert len(items) > len(noise) == len(set(noise.values()))
    assert all(noise[item["seq"]] == item["local"] for item in items)


def test_no_thread_is_left_behind(start_service, tmp_path):
    before = set(threading.enumerate())
    traffic(start_service, tmp_path, None)
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in left)

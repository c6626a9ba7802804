"""Whatever a device sends, it is refused or answered, and never with a 5xx."""

import asyncio
import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
from waiting import LIMIT

from service.http.request import Limits

JSON = {"Content-Type": "application/json"}
MSGPACK = {"Content-Type": "application/msgpack"}
ACTION = {"id": "tea", "features": {"hot": True}}
ADAGRAD = {"model": "adagrad"}
FEDOGD = {**ADAGRAD, "global_learner": "fedogd", "bits": 4, "hyperparameters": {"n_clients": 2, "step_size": 0.1}}


def error(reply):
    """Return status and code, and check the shape."""
    body = reply.json()
    assert body["error"].keys() == {"code", "message", "target"}
    return reply.status_code, body["error"]["code"]


@pytest.fixture(scope="module")
def live(tmp_path_factory, live_service):
    """A service whose loop takes devices."""
    with live_service(tmp_path_factory.mktemp("service"), **ADAGRAD) as running:
        yield running


def version_of(client, prefix="/v1"):
    return client.get(f"{prefix}/federated/round").json()["version"]


def residual(version, /, **fields):
    return {"seq": 1, "version": version, "context": {}, "action": ACTION, "local": 0.0, "label": 1.0, **fields}


def upload(client, *residuals, name="phone", prefix="/v1"):
    return client.post(f"{prefix}/federated/residuals", json={"client": name, "residuals": residuals})


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"version": 0}, 409),
        ({"version": 10**9}, 409),
        ({"version": -1}, 422),
        ({"version": 2**70}, 422),
        ({"version": 1.5}, 422),
        ({"label": 1.01}, 422),
        ({"label": -1e-9}, 422),
        ({"label": 1e300}, 422),
        ({"label": None}, 422),
        ({"local": 2e9}, 422),
        ({"local": -1e308}, 422),
        ({"local": "0"}, 422),
        ({"seq": 0}, 422),
        ({"seq": -1}, 422),
        ({"seq": 2**53 + 1}, 422),
        ({"seq": 10**30}, 422),
        ({"context": {"x": {"y": [[1]]}}}, 422),
        ({"context": {f"x{i}": 1 for i in range(1001)}}, 422),
        ({"context": {"x" * 1001: 1}}, 422),
        ({"context": 3}, 422),
        ({"action": {"id": ""}}, 422),
        ({"action": {"id": "x" * 201, "features": {}}}, 422),
        ({"action": None}, 422),
        ({"number": 3}, 422),
    ],
)
def test_a_residual_that_breaks_a_rule_is_refused_and_takes_its_batch_along(client, fields, status):
    good, bad = residual(version_of(client), seq=2), residual(version_of(client), **fields)
    before = client.get("/v1/status").json()["position"]
    refused = upload(client, good, bad)
    assert error(refused)[0] == status
    assert client.get("/v1/status").json()["position"] == before


def test_a_loop_with_aligned_errors_needs_the_shared_part_of_a_prediction(client):
    made = client.post("/v1/loops", json={"name": "aligned", "settings": {**ADAGRAD, "timing": "aligned"}})
    assert made.status_code == 201
    for number, status in ((None, 422), (1e10, 422), (-1e308, 422), (0.5, 200)):
        one = residual(version_of(client, "/v1/loops/aligned"), **{"global": number})
        assert upload(client, one, prefix="/v1/loops/aligned").status_code == status


def test_a_refusal_says_which_residual_and_what_of_it(client):
    good = residual(version_of(client))
    reply = upload(client, good, {**good, "seq": 2, "label": 7})
    assert reply.json()["error"]["target"] == "residuals[1].label"
    assert error(upload(client, {**good, "version": 10**9})) == (409, "unknown_version")


GIVEN = b'{"client": "phone", "residuals": [{"seq": 1, "version": 1, "context": {}, "action": {"id": "a"}, %s}]}'


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (GIVEN % b'"label": NaN, "local": 0', 400),
        (GIVEN % b'"label": 1, "local": -Infinity', 400),
        (GIVEN % b'"label": 1, "local": 1e400', 422),
        (GIVEN % b'"label": 1, "local": 0, "colour": "red"', 422),
        (GIVEN.replace(b"{}", b'{"x": NaN}') % b'"label": 1, "local": 0', 400),
        (GIVEN.replace(b"{}", b'{"x": 1e400}') % b'"label": 1, "local": 0', 422),
        (GIVEN.replace(b"{}", b'{"x": 1, "x": 1}') % b'"label": 1, "local": 0', 422),
        (GIVEN.replace(b"{}", b'{"x": "\\ud800"}') % b'"label": 1, "local": 0', 400),
        (GIVEN.replace(b"{}", b'{"x": "\xff"}') % b'"label": 1, "local": 0', 422),
        (GIVEN.replace(b"{}", b"[" * 50_000 + b"]" * 50_000) % b'"label": 1, "local": 0', 400),
        (GIVEN.replace(b"phone", b"\\udfff!") % b'"label": 1, "local": 0', 400),
        (GIVEN.replace(b"phone", b"") % b'"label": 1, "local": 0', 422),
        (b'{"client": "phone", "residuals": []}', 422),
        (b"", 400),
        (b"[" * 100_000, 422),
    ],
)
def test_a_body_is_read_strictly(client, body, status):
    body = body.replace(b'{"id": "a"}', b'{"id": "a", "features": {}}')
    assert error(client.post("/v1/federated/residuals", content=body, headers=JSON))[0] == status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"actions": []}, 422),
        ({"actions": [ACTION, ACTION]}, 422),
        ({"actions": [ACTION], "context": {"x": [[]]}}, 422),
        ({"actions": [{"id": str(i), "features": {}} for i in range(501)]}, 422),
        ({"actions": [ACTION], "client": "phone"}, 422),
    ],
)
def test_scores_of_what_cannot_be_ranked_are_refused(client, body, status):
    assert error(client.post("/v1/federated/scores", json=body))[0] == status


@pytest.mark.parametrize("query", ["since=-1", "since=x", f"since={10**30}", "since=1.5", "since="])
def test_a_model_since_nonsense_is_refused(client, query):
    assert error(client.get(f"/v1/federated/model?{query}"))[0] == 422


@pytest.mark.parametrize("query", ["t=0", "t=x", f"t={2**40 + 1}", "client=", f"client={'x' * 201}"])
def test_a_round_of_nonsense_is_refused(client, query):
    assert error(client.get(f"/v1/federated/round?{query}"))[0] == 422


def test_too_many_at_once_and_too_large_bodies_are_refused(client):
    one = residual(version_of(client))
    many = upload(client, *[{**one, "seq": seq} for seq in range(1, 502)])
    assert error(many) == (422, "too_many_residuals")
    large = b" " * 1_000_001
    assert error(client.post("/v1/federated/residuals", content=large, headers=JSON)) == (413, "body_too_large")
    bomb = gzip.compress(bytes(20_000_000))
    for path, kind in (("residuals", JSON), ("updates", MSGPACK), ("scores", JSON)):
        headers = {**kind, "Content-Encoding": "gzip"}
        reply = client.post(f"/v1/federated/{path}", content=bomb, headers=headers)
        assert error(reply) == (413, "body_too_large")


def test_the_limits_can_be_set_and_are_in_the_document(start):
    limits = Limits(residuals=1, updates=1, update_bytes=300)
    with start(limits=limits, **ADAGRAD) as live, live.client() as client:
        one = residual(version_of(client))
        assert error(upload(client, one, {**one, "seq": 2})) == (422, "too_many_residuals")
        assert error(send(client, "/v1", update(1), update(1))) == (422, "too_many_updates")
        assert error(send(client, "/v1", update(1, body=bytes(300)))) == (413, "body_too_large")
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
        assert schemas["Residuals"]["properties"]["residuals"]["maxItems"] == 1
        assert schemas["Updates"]["properties"]["updates"]["maxItems"] == 1


@pytest.fixture(scope="module")
def dense(client):
    """The prefix of a loop whose learner takes gradients of 17 numbers, with the device "phone" in it."""
    assert client.post("/v1/loops", json={"name": "dense", "settings": FEDOGD}).status_code == 201
    assert send(client, "/v1/loops/dense").json()["number"] == 0
    return "/v1/loops/dense"


def update(version, /, **fields):
    return {"seq": 1, "t": 1, "version": version, "kind": "gradient", "body": bytes(68), **fields}


def send(client, prefix, *updates, name="phone"):
    body = msgspec.msgpack.encode({"client": name, "updates": updates})
    return client.post(f"{prefix}/federated/updates", content=body, headers=MSGPACK)


def numbers(*values):
    return np.resize(np.array(values, dtype="<f4"), 17).tobytes()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"version": 0}, 409),
        ({"version": 10**9}, 409),
        ({"version": -1}, 422),
        ({"version": 2**64 - 1}, 422),
        ({"kind": "delta"}, 409),
        ({"kind": "nonsense"}, 409),
        ({"kind": ""}, 422),
        ({"body": b""}, 422),
        ({"body": bytes(67)}, 422),
        ({"body": bytes(72)}, 422),
        ({"body": numbers(0, np.nan)}, 422),
        ({"body": numbers(0, np.inf)}, 422),
        ({"t": 0}, 422),
        ({"t": 2**40 + 1}, 422),
        ({"seq": 0}, 422),
    ],
)
def test_an_update_that_breaks_a_rule_is_refused_and_takes_its_batch_along(client, dense, fields, status):
    version, before = version_of(client, dense), client.get("/v1/status").json()["position"]
    assert error(send(client, dense, update(version, seq=2, t=2), update(version, **fields)))[0] == status
    assert client.get("/v1/status").json()["position"] == before


def test_updates_and_residuals_go_to_loops_that_take_them(client, dense):
    assert error(send(client, dense, update(version_of(client, dense)), name="stranger")) == (409, "not_joined")
    assert error(send(client, "/v1", update(version_of(client)))) == (409, "wrong_upload")
    assert error(upload(client, residual(version_of(client, dense)), prefix=dense)) == (409, "wrong_upload")
    as_json = client.post(f"{dense}/federated/updates", json={"client": "phone", "updates": []})
    assert error(as_json) == (415, "unsupported_media_type")


def test_huge_numbers_leave_a_model_of_finite_weights(client, dense):
    huge = update(version_of(client, dense), body=numbers(3e38, -3e38))
    assert send(client, dense, huge).status_code in (200, 422)
    assert upload(client, residual(version_of(client), local=1e9, context={"x": 1e30})).status_code in (200, 422)
    body = {"actions": [ACTION], "context": {"x": 1}}
    for prefix in ("/v1", dense):
        client.get(f"{prefix}/model")
        [one] = client.post(f"{prefix}/federated/scores", json=body).json()["scores"]
        assert one["score"] is not None
        assert np.isfinite(one["score"])


def test_a_replay_is_answered_as_the_first_in_one_request_too(client):
    one = residual(version_of(client), seq=7)
    first = upload(client, one, {**one, "label": 0}, name="replaying").json()["positions"]
    assert first[0] == first[1]
    assert upload(client, {**one, "local": 0.5}, name="replaying").json()["positions"] == first[:1]


def test_a_flood_is_told_to_come_back_and_others_are_not(start, monkeypatch):
    with start(**ADAGRAD) as live, live.client() as client, ThreadPoolExecutor(2) as senders:
        one, sent = residual(version_of(client)), []
        with holding(live, monkeypatch) as held:
            for batch in range(2):
                flood = [{**one, "seq": 500 * batch + seq} for seq in range(1, 501)]
                sent.append(senders.submit(upload, client, *flood, name="flood"))
            held.wait_for(1000)
            refused = upload(client, {**one, "seq": 1001}, name="flood")
            assert error(refused) == (429, "too_many_uploads")
            assert refused.headers["retry-after"] == "1"
            sent.append(senders.submit(upload, client, one, name="patient"))
        assert [len(reply.result().json()["positions"]) for reply in sent] == [500, 500, 1]
        assert upload(client, {**one, "seq": 1001}, name="flood").status_code == 200


class Held:
    """A log that stores nothing of what comes in until it is let go."""

    def __init__(self, log):
        self._append, self._waiting, self._changed = log.append, [], threading.Condition()

    def append(self, groups, futures=None):
        futures = futures or [asyncio.get_running_loop().create_future() for _ in groups]
        with self._changed:
            self._waiting.append((groups, futures))
            self._changed.notify()
        return futures

    def wait_for(self, n):
        with self._changed:
            assert self._changed.wait_for(lambda: sum(len(groups) for groups, _ in self._waiting) >= n, timeout=LIMIT)

    def let_go(self):
        for groups, futures in self._waiting:
            self._append(groups, futures)


@contextmanager
def holding(live, monkeypatch):
    """Keep the log from storing what comes in."""
    held = Held(live.engine.context.log)
    with monkeypatch.context() as patch:
        patch.setattr(live.engine.context.log, "append", held.append)
        yield held
    live.loop.call_soon_threadsafe(held.let_go)


def test_a_key_of_one_device_speaks_for_no_other(start):
    with start(**ADAGRAD) as live:
        bound, admin = live.keys.add("device", client="phone"), live.keys.add("admin")
        with live.client(admin) as owner:
            version = version_of(owner)
            assert owner.post("/v1/loops", json={"name": "dense", "settings": FEDOGD}).status_code == 201
            assert upload(owner, residual(version), name="tablet").status_code == 200
        with live.client(bound) as device:
            assert upload(device, residual(version)).status_code == 200
            assert send(device, "/v1/loops/dense").status_code == 200
            assert device.get("/v1/federated/round", params={"client": "phone"}).status_code == 200
            forged = [
                upload(device, residual(version), name="tablet"),
                upload(device, residual(version), name="phone "),
                send(device, "/v1/loops/dense", name="tablet"),
                device.get("/v1/federated/round", params={"client": "tablet"}),
            ]
            assert {error(reply) for reply in forged} == {(403, "forged_client")}
            for path in ("model", "round"):
                assert device.get(f"/v1/federated/{path}").status_code == 200
            assert device.get("/v1/settings").status_code == 403


def test_a_body_with_all_that_may_be_in_it_fits(client):
    one = residual(version_of(client), context={f"feature-{i}": i / 7 for i in range(40)})
    whole = {"client": "large", "residuals": [{**one, "seq": seq} for seq in range(1, 501)]}
    assert 500_000 < len(json.dumps(whole)) < 1_000_000
    assert len(client.post("/v1/federated/residuals", json=whole).json()["positions"]) == 500

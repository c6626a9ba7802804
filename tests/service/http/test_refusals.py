"""Whatever is wrong with a request, the answer is a 4xx in the one shape of all failures."""

import asyncio
import gzip
import json

import httpx
import pytest

from service.admin.admin import Admin
from service.http.request import Limits
from service.log.client import WriterClient
from service.rank.ranker import Ranker

JSON = {"Content-Type": "application/json"}
ONE = b'{"id": "a", "features": {}}'


def error(reply):
    """Return status and code, and check the shape."""
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "message", "target"}
    assert body["error"]["message"]
    return reply.status_code, body["error"]["code"]


def rank_with(**fields):
    return json.dumps({"actions": [{"id": "a", "features": {}}], **fields}).encode()


BODIES = {
    "nothing": (b"", 400, "invalid_json"),
    "half": (b'{"actions": [', 400, "invalid_json"),
    "an array": (b"[]", 422, "invalid_request"),
    "NaN": (b'{"actions": [%s], "context": {"x": NaN}}' % ONE, 400, "invalid_json"),
    "Infinity": (b'{"actions": [%s], "context": {"x": Infinity}}' % ONE, 400, "invalid_json"),
    "1e400": (b'{"actions": [%s], "context": {"x": 1e400}}' % ONE, 422, "invalid_features"),
    "1e400 of an action": (b'{"actions": [{"id": "a", "features": {"x": -1e400}}]}', 422, "invalid_features"),
    "a lone surrogate": (b'{"actions": [%s], "context": {"x": "\\ud800"}}' % ONE, 400, "invalid_json"),
    "a lone surrogate as user": (b'{"actions": [%s], "user": "\\udfff!"}' % ONE, 400, "invalid_json"),
    "no UTF-8": (b'{"actions": [%s], "context": {"x": "\xff"}}' % ONE, 422, "invalid_features"),
    "no UTF-8 as user": (b'{"actions": [%s], "user": "\xff"}' % ONE, 400, "invalid_json"),
    "nesting": (b'{"actions": [%s], "context": %s}' % (ONE, b'{"a":' * 9 + b"1" + b"}" * 9), 422, "invalid_features"),
    "endless nesting": (b'{"actions": [%s], "context": %s' % (ONE, b'{"a":' * 40_000), 400, "nesting_too_deep"),
    "a feature twice": (b'{"actions": [%s], "context": {"x": 1, "x": 2}}' % ONE, 422, "invalid_features"),
    "a name unknown": (rank_with(colour="red"), 422, "invalid_request"),
    "no actions": (b'{"actions": []}', 422, "invalid_request"),
    "an action twice": (b'{"actions": [%s, %s]}' % (ONE, ONE), 422, "invalid"),
    "a long user": (rank_with(user="x" * 201), 422, "too_long"),
    "a long name": (rank_with(context={"x" * 1001: 1}), 422, "invalid_features"),
    "too many features": (rank_with(context={f"x{i}": 1 for i in range(1001)}), 422, "invalid_features"),
    "too much excluded": (rank_with(exclude=["x"] * 501), 422, "too_many_excluded"),
    "too many actions": (
        json.dumps({"actions": [{"id": str(i)} for i in range(501)]}).encode(),
        422,
        "too_many_actions",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_wrong_rank_call_is_refused(client, name):
    body, status, code = BODIES[name]
    assert error(client.post("/v1/rank", content=body, headers=JSON)) == (status, code)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"value": NaN}', 400, "invalid_json"),
        (b'{"value": 1e400}', 422, "invalid_request"),
        (b'{"value": "1"}', 422, "invalid_request"),
        (b'{"value": true}', 422, "invalid_request"),
        (b'{"value": 2}', 422, "invalid"),
        (b"{}", 422, "invalid"),  # whether a value is missing depends on the loop
    ],
)
def test_a_wrong_reward_is_refused(client, body, status, code):
    assert error(client.post("/v1/events/e/reward", content=body, headers=JSON)) == (status, code)


def test_of_a_name_that_comes_twice_the_last_one_counts(client):
    body = b'{"actions": [{"id": "a", "id": "b"}], "event_id": "first", "event_id": "last", "actions": [{"id": "c"}]}'
    decided = client.post("/v1/rank", content=body, headers=JSON).json()
    assert (decided["event_id"], decided["action"]) == ("last", "c")


@pytest.mark.parametrize("path", ["/v1/settings", "/v1/actions", "/v1/loops", "/v1/evaluations", "/v1/rank/batch"])
@pytest.mark.parametrize(
    "body", [b'{"x": NaN}', b'{"x": "\\ud800"}', b"[" * 100_000, b'{"settings": 1, "settings": 1}']
)
def test_other_bodies_are_read_as_strictly(client, path, body):
    method = "PUT" if path in ("/v1/settings", "/v1/actions") else "POST"
    assert error(client.request(method, path, content=body, headers=JSON))[0] in (400, 422)


def test_a_large_body_is_refused_whether_its_length_is_declared_or_not(client):
    large = b" " * 20_000_000
    assert error(client.post("/v1/rank", content=large, headers=JSON)) == (413, "body_too_large")
    chunks = (large[:100_000] for _ in range(200))
    assert error(client.post("/v1/rank", content=chunks, headers=JSON)) == (413, "body_too_large")
    assert client.get("/healthz").status_code == 200


def test_a_gzip_bomb_is_refused(client):
    headers = {**JSON, "Content-Encoding": "gzip"}
    bomb = gzip.compress(bytes(500_000_000), compresslevel=1)[:900_000]
    assert error(client.post("/v1/rank", content=bomb, headers=headers)) == (413, "body_too_large")


def test_other_types_and_encodings_are_refused(client):
    assert error(client.post("/v1/rank", content=rank_with())) == (415, "unsupported_media_type")
    assert error(client.post("/v1/rank", data={"a": "b"})) == (415, "unsupported_media_type")
    brotli = {**JSON, "Content-Encoding": "br"}
    assert error(client.post("/v1/rank", content=b"", headers=brotli)) == (415, "unsupported_encoding")


def test_unknown_paths_and_methods_are_refused(client):
    assert error(client.get("/v1/nowhere")) == (404, "unknown_path")
    assert error(client.get("/v1/rank/")) == (404, "unknown_path")
    for path in ("/rank", "/v1/nowhere/rank", "/v1/loops/rank", "/v1/loops/a/b/rank", "/v1/rank/rank", "//v1/rank"):
        wrong = client.post(path, content=rank_with(), headers=JSON)
        assert error(wrong) == ((404, "unknown_path") if path != "/v1/loops/rank" else (405, "method_not_allowed"))
    wrong = client.delete("/v1/rank")
    assert error(wrong) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST, OPTIONS"
    assert error(client.post("/v1/loops/none/rank", content=rank_with(), headers=JSON)) == (404, "unknown_loop")
    assert error(client.get("/v1/users/nobody/model")) == (404, "unknown_user")


@pytest.mark.parametrize(
    "query", ["after=x", "after=-1", "limit=0", "after=1e3", "limit=", f"after={10**30}", f"limit={10**30}"]
)
def test_wrong_queries_are_refused(client, query):
    assert error(client.get(f"/v1/events?{query}")) == (422, "invalid_request")


def test_a_key_that_asks_too_often_is_told_when_to_come_back(start):
    with start(limits=Limits(requests_per_second=0.5)) as live, live.client() as client:
        assert client.get("/v1/status").status_code == 200
        refused = client.get("/v1/status")
        assert error(refused) == (429, "too_many_requests")
        assert refused.headers["retry-after"] == "2"
        assert client.get("/healthz").status_code == 200


def test_a_rank_call_has_a_limit_of_its_own_and_a_batch_has_it_for_each_request(start):
    context = b'{"text": "%b"}' % (b"x" * 262_144)
    body = b'{"context": %b, "actions": [{"id": "a", "features": {}}]}' % context
    with start() as live, live.client() as client:
        assert error(client.post("/v1/rank", content=body, headers=JSON)) == (413, "body_too_large")
        batch = b'{"requests": [%b]}' % body
        assert error(client.post("/v1/rank/batch", content=batch, headers=JSON)) == (422, "body_too_large")
        assert error(client.put("/v1/actions", content=body, headers=JSON))[0] == 422


def test_limits_can_be_set(start):
    limits = Limits(body_bytes=200, rank_bytes=200, actions=2, batch=1)
    with start(limits=limits) as live, live.client() as client:
        assert error(client.post("/v1/rank", content=b" " * 201, headers=JSON)) == (413, "body_too_large")
        three = {"actions": [{"id": str(i)} for i in range(3)]}
        assert error(client.post("/v1/rank", json=three)) == (422, "too_many_actions")
        two = {"requests": [{"actions": [{"id": "a"}]}] * 2}
        assert error(client.post("/v1/rank/batch", json=two)) == (422, "too_many_requests_in_batch")
        document = client.get("/openapi.json").json()["components"]["schemas"]
        assert document["RankRequest"]["properties"]["actions"]["maxItems"] == 2


def test_what_nobody_foresaw_is_logged_and_not_shown(start, monkeypatch, caplog):
    with start() as live, live.client() as client:
        monkeypatch.setattr(Ranker, "activate", lambda *_: 1 / 0)
        monkeypatch.setattr(Admin, "loops", lambda *_: 1 / 0)
        for reply in (client.post("/v1/events/e/activate"), client.get("/v1/loops")):
            assert error(reply) == (500, "internal")
            assert "ZeroDivision" not in reply.text
        assert caplog.text.count("ZeroDivisionError: division by zero") == 2


def test_an_export_that_breaks_off_is_no_whole_reply(start, monkeypatch, caplog):
    async def events(*_):
        yield b'{"event_id": "first"}\n'
        raise ZeroDivisionError

    monkeypatch.setattr(Admin, "events", events)
    with start() as live, live.client() as client, pytest.raises(httpx.RemoteProtocolError):
        client.get("/v1/events")
    assert "a reply broke off" in caplog.text


def test_a_store_that_is_closed_answers_503(start):
    with start() as live, live.client() as client:
        live.engine.context.closed = True
        for path in ("/v1/rank", "/v1/loops/default/rank"):
            assert error(client.post(path, content=rank_with(), headers=JSON)) == (503, "store_closed")


def test_what_the_log_does_not_take_is_answered_503(start, tmp_path):
    client = WriterClient(tmp_path / "no socket")
    with start() as live, live.client() as http:
        live.engine.context.log = client
        for path, body in (("/v1/rank", rank_with()), ("/v1/events/e/reward", b'{"value": 1}')):
            assert error(http.post(path, content=body, headers=JSON)) == (503, "store_gone")
        assert error(http.get("/readyz")) == (503, "not_ready")
        asyncio.run(client.close())
        assert error(http.post("/v1/rank", content=rank_with(), headers=JSON)) == (503, "store_closed")


@pytest.mark.parametrize("name", ["Authorization", "Ocp-Apim-Subscription-Key"])
def test_credentials_that_come_twice_are_refused(start, name):
    with start() as live:
        key = live.keys.add("admin")
        value = f"Bearer {key}" if name == "Authorization" else key
        with live.client() as client:
            reply = client.get("/v1/status", headers=[(name, value), (name, value)])
            assert error(reply) == (400, "repeated_header")

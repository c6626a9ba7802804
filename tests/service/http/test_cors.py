"""Pages of origins that were allowed may call from a browser; they need a key as everybody does."""

import pytest
from live import run_service

from service.http.hosts import Hosts

PAGE, OTHER = "http://localhost:5173", "https://evil.example"
RANK = {"actions": [{"id": "a", "features": {}}]}


@pytest.fixture(scope="module")
def allowed(tmp_path_factory):
    with run_service(tmp_path_factory.mktemp("service"), hosts=Hosts(origins=[PAGE])) as running:
        yield running


def test_a_page_that_is_allowed_may_ask_and_read_the_answer(allowed):
    with allowed.client() as client:
        preflight = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x"}
        reply = client.options("/v1/rank", headers=preflight)
        assert reply.status_code == 204
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert "POST" in reply.headers["access-control-allow-methods"]
        for name in ("authorization", "content-type", "x-request-id"):
            assert name in reply.headers["access-control-allow-headers"]
        for answer, status in (
            (client.post("/v1/rank", json=RANK, headers={"Origin": PAGE, "Sec-Fetch-Site": "same-site"}), 200),
            (client.post("/v1/rank", json={}, headers={"Origin": PAGE}), 422),
            (client.get("/v1/status", headers={"Origin": PAGE}), 200),
            (client.get("/nowhere", headers={"Origin": PAGE}), 404),
        ):
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
            assert answer.headers["vary"] == "origin"
            assert "access-control-allow-credentials" not in answer.headers


def test_other_pages_may_not(allowed):
    with allowed.client() as client:
        for origin in (OTHER, "null", "http://localhost:5174", f"{PAGE}.evil.example"):
            reply = client.options("/v1/rank", headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
            assert "access-control-allow-origin" not in reply.headers
            refused = client.post("/v1/rank", json=RANK, headers={"Origin": origin})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_origin")
            assert "access-control-allow-origin" not in refused.headers


def test_a_page_that_is_allowed_needs_a_key_too(start):
    with start(hosts=Hosts(origins=[PAGE])) as live:
        key = live.keys.add("rank")
        with live.client() as nobody, live.client(key) as somebody:
            refused = nobody.post("/v1/rank", json=RANK, headers={"Origin": PAGE})
            assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
            assert somebody.post("/v1/rank", json=RANK, headers={"Origin": PAGE}).status_code == 200


def test_without_the_option_nothing_is_said_about_origins(client):
    assert not [name for name in client.get("/v1/status").headers if name.startswith(("access-", "vary"))]


@pytest.mark.parametrize("name", ["*", "null", "", "shop.example", "https://*.example", "https://a/b", "ftp://a"])
def test_what_is_no_origin_cannot_be_allowed(name):
    with pytest.raises(ValueError, match="allowed-origin must be like https://shop"):
        Hosts(origins=[name])

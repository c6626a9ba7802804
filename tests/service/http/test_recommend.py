"""Recommendations over real HTTP."""

import json

import pytest

from service.http.request import Limits

FILMS = [{"id": f"f{k}", "features": {"genre": "war" if k % 2 else "noir", "price": k}} for k in range(8)]


@pytest.fixture(scope="module")
def films(client):
    """A loop with a catalogue."""
    assert client.post("/v1/loops", json={"name": "films"}).status_code == 201
    assert client.put("/v1/loops/films/actions", json={"put": FILMS}).status_code == 204
    return "/v1/loops/films"


def test_a_page_is_answered_rewarded_activated_and_exported_place_by_place(client, films):
    page = client.post(
        f"{films}/recommend",
        json={"event_id": "page 1/2", "user": "u", "n": 3, "context": {"hour": 9}, "filter": {"genre": "war"},
              "exclude": ["f1"], "defer": True, "explain": True},
    ).json()  # fmt: skip
    assert page.keys() == {"event_id", "items", "candidates", "model_version", "explanations"}
    assert [item.keys() for item in page["items"]] == [{"id", "event_id", "score", "probability"}] * 3
    assert (page["candidates"], {item["id"] for item in page["items"]}) == (3, {"f3", "f5", "f7"})
    assert [why["id"] for why in page["explanations"]] == [item["id"] for item in page["items"]]
    assert client.post(f"{films}/events/page%201%2F2~1/activate").status_code == 204
    assert client.post(f"{films}/events/page%201%2F2~1/reward", json={"value": 1}).status_code == 204
    events = map(json.loads, client.get(f"{films}/events").text.splitlines())
    first, second, _ = (event for event in events if event["event_id"].startswith("page 1/2~"))
    assert (first["status"], first["reward"], second["status"]) == ("rewarded", 1.0, "deferred")
    assert (first["place"], first["candidates"], first["context"]) == (1, 3, {"hour": 9})
    story = client.get(f"{films}/events/page%201%2F2~1").json()
    assert story["event"]["action"] == page["items"][0]["id"]


@pytest.mark.parametrize(
    ("body", "code", "target"),
    [
        ({"n": 0}, "invalid_request", None),
        ({"n": 101}, "invalid_request", None),
        ({"n": "3"}, "invalid_request", None),
        ({"items": []}, "invalid_request", None),
        ({"filter": "war"}, "invalid_request", None),
        ({"exclude_seen": -1}, "invalid_request", None),
        ({"exclude_seen": True}, "invalid", "exclude_seen"),
        ({"filter": {"gender": "x"}}, "unknown_attribute", "filter.gender"),
        ({"filter": {"price": {"min": 50}}}, "no_candidates", "filter"),
        ({"context": {"a": [{}]}}, "invalid_features", "context"),
        ({"context": 3}, "invalid_features", "context"),
        ({"user": ""}, "invalid_request", None),
        ({"user": "a\0b"}, "invalid", "user"),
        ({"event_id": "x" * 191}, "too_long", "event_id"),
        ({"exclude": ["x"] * (Limits().excluded + 1)}, "too_many_excluded", "exclude"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused_with_a_reason(client, films, body, code, target):
    answer = client.post(f"{films}/recommend", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, code), error
    assert error["message"]
    if target is not None:
        assert error["target"] == target


def test_an_empty_catalogue_says_how_to_fill_it(client):
    client.post("/v1/loops", json={"name": "bare"})
    error = client.post("/v1/loops/bare/recommend", json={}).json()["error"]
    assert error["code"] == "no_candidates"
    assert "PUT /v1/actions" in error["message"]


def test_feedback_is_answered_with_counts_and_refused_with_a_reason(client, films):
    events = [{"event_id": "h1", "user": "u", "action": "f1", "reward": 1, "time": 1.7e9},
              {"event_id": "h2", "action": {"id": "f2", "features": {"a": 1}}, "reward": 0.5}]  # fmt: skip
    assert client.post(f"{films}/feedback", json={"events": events}).json() == {"stored": 2, "repeated": 0}
    assert client.post(f"{films}/feedback", json={"events": events}).json() == {"stored": 0, "repeated": 2}
    story = client.get(f"{films}/events/h1").json()
    assert (story["event"]["status"], story["event"]["reward"], story["ranking"]) == ("feedback", 1.0, [])
    many = [{"action": "f1", "reward": 1}] * (Limits().feedback + 1)
    for wrong, status, code, target in [
        ({"events": []}, 422, "invalid_request", "events"),
        ([], 422, "invalid_request", "body"),
        ({"events": many}, 422, "too_many_events", "events"),
        ({"events": [{"action": "f1"}]}, 422, "invalid_request", "events[0]"),
        ({"events": [{"action": "f1", "reward": 1, "item": 3}]}, 422, "invalid_request", "events[0]"),
        ({"events": [{"action": 3, "reward": 1}]}, 422, "invalid_request", "events[0].action"),
        ({"events": [{"action": "f1", "reward": 7}]}, 422, "invalid", "events[0].reward"),
        ({"events": [{"event_id": "h1", "action": "f1", "reward": 0}]}, 409, "event_exists", "event_id"),
    ]:
        answer = client.post(f"{films}/feedback", json=wrong)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["target"]) == (status, code, target), error


def test_popular_items_are_listed(client, films):
    page = client.get(f"{films}/popular", params={"n": 3}).json()
    assert page.keys() == {"items", "events"}
    assert [item.keys() for item in page["items"]] == [{"id", "score", "events"}] * 3
    assert client.get(f"{films}/popular", params={"n": 0}).status_code == 422
    assert client.get(f"{films}/popular", params={"m": 1}).json()["error"]["code"] == "unknown_parameter"


def test_similar_items_are_listed(client, films):
    page = client.get(f"{films}/similar/f1", params={"n": 3}).json()
    assert page.keys() == {"id", "items", "by"}
    assert {item["id"] for item in page["items"]} == {"f3", "f5", "f7"}
    answer = client.get(f"{films}/similar/no%2Fne")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["target"]) == (404, "unknown_item", "item")
    assert "PUT /v1/actions" in error["message"]
    for n in (0, 101, "x"):
        assert client.get(f"{films}/similar/f1", params={"n": n}).status_code == 422


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            {"_expires": "soon"},
            "_expires must be seconds since 1970 or a time such as 2026-12-24T18:00:00Z, got 'soon'",
        ),
        ({"expires": True}, "expires must be seconds since 1970"),
        ({"_expires": [1]}, "_expires must be seconds since 1970"),
        ({"_expires": 10**400}, "_expires must be seconds since 1970"),
        ({"_available": "no"}, "_available must be true or false, got 'no'"),
        ({"available": 0}, "available must be true or false, got '0'"),
        ({"_boost": "high"}, "_boost must be a number within"),
        ({"_boost": True}, "_boost must be a number within"),
        ({"boost": 10**400}, "must be"),
        ({"_boost": 2e9}, "_boost must be a number within"),
    ],
)
def test_an_attribute_with_a_meaning_that_cannot_be_read_is_refused(client, films, features, message):
    before = client.get(f"{films}/actions").json()
    put = [{"id": "fine", "features": {"_boost": 1}}, {"id": "bad", "features": features}]
    answer = client.put(f"{films}/actions", json={"put": put})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["target"]) == (422, "invalid_features", "put[1]")
    assert message in error["message"]
    assert client.get(f"{films}/actions").json() == before


def test_attributes_without_a_value_and_those_behind_an_underscored_one_do_not_matter(client, films):
    good = [{"_expires": None, "_available": None, "boost": None}, {"_available": True, "available": "from May on"},
            {"_expires": 4e9, "_boost": -3}, {"_expires": "2099-01-01"}]  # fmt: skip
    put = [{"id": f"good{k}", "features": features} for k, features in enumerate(good)]
    assert client.put(f"{films}/actions", json={"put": put}).status_code == 204
    page = client.post(f"{films}/recommend", json={"n": 100}).json()
    assert {f"good{k}" for k in range(4)} <= {item["id"] for item in page["items"]}
    assert client.put(f"{films}/actions", json={"retire": [item["id"] for item in put]}).status_code == 204


def test_a_catalogue_comes_in_lines_too(client):
    client.post("/v1/loops", json={"name": "lines"})
    path, lines = "/v1/loops/lines/actions", {"Content-Type": "application/x-ndjson; charset=utf-8"}
    body = "\n".join(json.dumps(film) for film in FILMS) + "\n\n"
    assert client.put(path, content=body, headers=lines).status_code == 204
    assert client.get(path).json()["actions"] == FILMS
    for wrong, status, code in [('{"id": 1}', 422, "invalid_request"), ("{", 400, "invalid_json")]:
        refused = client.put(path, content=f"{json.dumps(FILMS[0])}\n{wrong}", headers=lines)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (status, code)
        assert error["message"].startswith("line 2: ")
    assert client.get(path).json()["actions"] == FILMS
    sizes = client.get("/v1/status").json()["loops"]["lines"]
    assert sizes["catalogue_actions"] == len(FILMS)
    assert sizes["catalogue_bytes"] == sum(len(film["id"]) + len(json.dumps(film["features"])) for film in FILMS)
    assert 0 < sizes["shared_model_bytes"] < 64e6
    assert client.put(path, content=body, headers={"Content-Type": "text/csv"}).status_code == 415
    assert client.post("/v1/loops/lines/rank", content=body, headers=lines).status_code == 415

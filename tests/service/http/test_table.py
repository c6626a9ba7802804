"""Which route a path belongs to, and what its parameters are."""

from urllib.parse import quote

import pytest

from service.app import declared_routes
from service.errors import ApiError
from service.http.pages import docs_routes
from service.http.request import Limits
from service.http.router import RouteTable

ROUTES = [*declared_routes(None, None, Limits()), *docs_routes("", dict)]
TABLE = RouteTable(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_is_found_by_its_own_path(route):
    raw = route.path.replace("{", "").replace("}", "").encode()
    entry, parameters = TABLE.find(raw)
    assert entry.path == route.path
    assert entry.routes[route.method] is route
    assert parameters == {name: name for name in entry.names}


@pytest.mark.parametrize(
    ("quoted", "event_id"),
    [
        ("a%2Fb", "a/b"),
        ("%2e%2e", ".."),
        ("a%20b+c", "a b+c"),
        ("%C3%A9", "é"),
        ("100%", "100%"),
        ("a%3Fb%23c", "a?b#c"),
    ],
)
def test_quoted_characters_belong_to_the_id(quoted, event_id):
    entry, parameters = TABLE.find(f"/v1/events/{quoted}/reward".encode())
    assert entry.path == "/v1/events/{event_id}/reward"
    assert parameters == {"event_id": event_id}


@pytest.mark.parametrize("prefix", ["", "/multislot"])
@pytest.mark.parametrize(
    "event_id", ["a/b", "a//b", "/a", "a/", "reward", "a/reward", "reward/reward", "x/events/y", "é/1"]
)
def test_azures_event_ids_may_have_slashes_that_are_not_quoted(prefix, event_id):
    for version in ("", "/v1.0", "/v1.1-preview.3"):
        for place in ("", "/loops/shop"):
            path = f"{place}/personalizer{version}{prefix}/events/{quote(event_id)}/reward"
            entry, parameters = TABLE.find(path.encode())
            assert entry.path.endswith(f"{prefix}/events/{{event_id}}/reward")
            assert parameters["event_id"] == event_id
            assert parameters.get("version", "") == version[1:]


@pytest.mark.parametrize(
    "path", ["/personalizer/v1.0/events//reward", "/personalizer/v1.0/events/a/b", "/v1/events/a/b/reward"]
)
def test_what_has_no_event_or_no_call_is_unknown(path):
    with pytest.raises(ApiError) as caught:
        TABLE.find(path.encode())
    assert caught.value.status == 404


@pytest.mark.parametrize("path", [b"/v1", b"/v1/rank/", b"//v1/rank", b"/v1/events//reward", b"/v2/rank", b"/v1/\xff"])
def test_other_paths_are_unknown(path):
    with pytest.raises(ApiError) as caught:
        TABLE.find(path)
    assert (caught.value.status, caught.value.code) == (404, "unknown_path")


def test_an_id_that_is_no_unicode_is_refused():
    with pytest.raises(ApiError) as caught:
        TABLE.find(b"/v1/events/%FF/reward")
    assert (caught.value.status, caught.value.code) == (400, "invalid_path")


def test_a_route_belongs_to_a_loop_or_to_the_service():
    loops = {b"/v1/rank": "default", b"/v1/loops/x/rank": "x", b"/v1/loops/x": "x", b"/v1/loops": None}
    for path, loop in loops.items():
        entry, parameters = TABLE.find(path)
        assert {parameters.get("loop", route.default_loop) for route in entry.routes.values()} == {loop}


def test_allow_lists_what_can_be_asked():
    assert TABLE.find(b"/v1/model")[0].allowed() == "GET, PUT, HEAD, OPTIONS"
    assert TABLE.find(b"/v1/rank")[0].allowed() == "POST, OPTIONS"

"""Which route a path belongs to, and what its parameters are."""

import pytest

from service.errors import ApiError
from service.http.table import ROUTES, Table

TABLE = Table()


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_is_found_by_its_own_path(path):
    raw = path.replace("{", "").replace("}", "").encode()
    route, parameters = TABLE.find(raw)
    assert route.path == path
    assert parameters == {name: name for name in route.names}


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
    route, parameters = TABLE.find(f"/v1/events/{quoted}/reward".encode())
    assert route.path == "/v1/events/{event_id}/reward"
    assert parameters == {"event_id": event_id}


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
    assert TABLE.find(b"/v1/rank")[0].loop({}) == "default"
    assert TABLE.find(b"/v1/loops/x/rank")[0].loop({"loop": "x"}) == "x"
    assert TABLE.find(b"/v1/loops/x")[0].loop({"loop": "x"}) == "x"
    assert TABLE.find(b"/v1/loops")[0].loop({}) is None


def test_allow_lists_what_can_be_asked():
    assert TABLE.find(b"/v1/model")[0].allowed() == "GET, PUT, HEAD, OPTIONS"
    assert TABLE.find(b"/v1/rank")[0].allowed() == "POST, OPTIONS"

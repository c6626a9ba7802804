"""Routes are declared once: router, roles and the OpenAPI document all follow."""

import json
import re
import subprocess
import sys
from collections import Counter

import pytest

from service.app import declared_routes
from service.http.keys import ROLES
from service.http.openapi import OF_KEYS
from service.http.pages import docs_routes
from service.http.request import Limits
from service.http.routes import ADMIN, DEVICE, JSON, OPEN, PREFIXES, RANK, READ

ROUTES = declared_routes(None, None, Limits())
NATIVE = {"decide", "manage", "evaluate", "devices", "operate"}  # tags; the others are Azure's API and pages
BODIES = {"POST", "PUT", "PATCH"}
OF_ALL_LOOPS = {
    "DELETE /v1/users/{user}",
    "GET /v1/users/{user}/events",
}  # of all loops where none is named


def name(route):
    return f"{route.method} {route.path}"


def needs_key(route):
    """Return whether a route needs a key; that about the key itself takes one of any role."""
    return route.roles is not OPEN or route.path == OF_KEYS


@pytest.fixture(scope="module")
def document(client):
    return client.get("/openapi.json").json()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory, live_service):
    """A service to ask, and a key of each role for all loops."""
    with live_service(tmp_path_factory.mktemp("declared")) as live:
        keys = {role: live.keys.add(role) for role in ROLES}
        with live.asking() as ask:
            yield ask, keys


def test_no_route_is_declared_twice():
    assert [one for one, n in Counter(map(name, [*ROUTES, *docs_routes("", dict)])).items() if n > 1] == []


def test_what_is_a_loops_is_there_for_the_default_loop_and_for_any():
    first, second = (
        [name(route) for route in ROUTES if route.of_loop and rest_of(route, prefix)] for prefix in PREFIXES
    )
    assert len(second) > 20
    both = [one for one in first if "{loop}" not in one]
    assert set(both) == {one.replace(PREFIXES[1], PREFIXES[0]) for one in second} - OF_ALL_LOOPS


def rest_of(route, prefix):
    """Return what follows the prefix and a slash."""
    return route.path.removeprefix(f"{prefix}/") if route.path.startswith(f"{prefix}/") else ""


def test_the_document_has_exactly_the_declared_routes(document):
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}
    ids = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(ids)) == len(ids)


def test_the_document_says_of_a_route_what_was_declared(document):
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        assert operation["summary"] == route.summary
        azure = [{"subscription_key": []}] if route.takes_subscription_key else []
        assert operation["security"] == ([{"key": []}, *azure] if needs_key(route) else [])
        assert str(route.status) in operation["responses"]
        assert ("401" in operation["responses"]) == needs_key(route)
        assert ("403" in operation["responses"]) == (route.roles is not OPEN)
        in_path = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
        assert in_path == {part[1:-1] for part in route.path.split("/") if part.startswith("{")}
        if route.body is None:
            assert "requestBody" not in operation
        else:
            assert route.method in BODIES
            assert [*operation["requestBody"]["content"]] == [route.body_type or JSON]
        if route.reply is None:
            assert "content" not in operation["responses"][str(route.status)]


def test_a_role_gets_403_unless_it_was_declared(keyed):
    ask, keys = keyed
    for route in ROUTES:
        assert route.roles in (OPEN, RANK, DEVICE, READ, ADMIN)
        path = route.path.replace("{loop}", "none").replace("{event_id}", "e").replace("{user}", "u")
        for role, key in keys.items():
            reply = ask(route.method, path, Authorization=f"Bearer {key}")
            is_refused = route.roles is not OPEN and role not in route.roles
            assert (reply.status == 403) == is_refused, f"{role}: {name(route)}"
        assert (ask(route.method, path).status == 401) == needs_key(route), name(route)


def methods_by_id(path):
    """Return the methods of the path as that of an event whose id is the name of the route."""
    named = path.replace("/events/rewards", "/events/{event_id}")
    return {"HEAD", *(route.method for route in ROUTES if route.path == named)} if named != path else set()


def test_other_methods_get_405_and_options_names_those_that_were_declared(live):
    with live.asking() as ask:
        for path in sorted({route.path for route in ROUTES}):
            declared = {route.method for route in ROUTES if route.path == path}
            real = path.replace("{", "").replace("}", "")
            allowed = declared | {"OPTIONS"} | ({"HEAD"} if "GET" in declared else set())
            others = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - allowed - methods_by_id(path)
            replies = {method: ask(method, real) for method in [*others, "OPTIONS"]}
            statuses = {method: reply.status for method, reply in replies.items()}
            assert statuses == {**dict.fromkeys(others, 405), "OPTIONS": 204}, path
            assert all(set(reply.headers["allow"].split(", ")) == allowed for reply in replies.values()), path


def test_every_route_has_a_tag_and_the_first_is_rank(document):
    operations = [(path, one) for path, methods in document["paths"].items() for one in methods.values()]
    assert {tag for _, one in operations for tag in one["tags"]} == {tag["name"] for tag in document["tags"]}
    assert operations[0][0] == "/v1/rank"


def test_the_page_with_the_api_shows_each_route_once(client, document):
    shown = client.get("/docs/openapi.json").json()["paths"]
    assert "docs/openapi.json" in client.get("/docs").text
    assert "/v1/rank" in shown
    assert "/v1/loops/{loop}/rank" not in shown
    assert "/dashboard.js" not in shown
    assert {"/v1/loops/{loop}", "/v1/users/{user}"} <= set(shown)
    named = {(method, path) for path, methods in shown.items() for method in methods}
    every = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert {
        (method, path.replace("/v1/loops/{loop}/", "/v1/")) for method, path in every if path.startswith("/v1/")
    } == {(method, path.replace("/v1/loops/{loop}/", "/v1/")) for method, path in named if path.startswith("/v1/")}


def native_operations(document):
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if NATIVE.intersection(operation["tags"])
    ]


def native_types(document):
    """Return the names of all types that native routes take or return."""
    todo = re.findall(r"#/components/schemas/(\w+)", json.dumps(native_operations(document)))
    names = set()
    while todo:
        name = todo.pop()
        if name not in names:
            names.add(name)
            todo += re.findall(r"#/components/schemas/(\w+)", json.dumps(document["components"]["schemas"][name]))
    return names


def test_every_native_type_and_field_has_a_description(document):
    names = native_types(document)
    assert len(names) > 70
    for name in names:
        schema = document["components"]["schemas"][name]
        assert schema.get("description"), name
        lacking = [field for field, kind in schema.get("properties", {}).items() if not kind.get("description")]
        assert lacking == [], name


def test_the_document_is_made_without_sources(tmp_path):
    """As in a zipapp, or in an image that has compiled files only."""
    code = """
import inspect, json, sys
def gone(*_): raise OSError("could not get source code")
inspect.getsource = inspect.getsourcelines = gone
from types import SimpleNamespace
from service.app import create_app
keys = SimpleNamespace()
document = create_app(SimpleNamespace(), SimpleNamespace(), keys=keys).openapi()
print(document["components"]["schemas"]["Settings"]["properties"]["floor"]["description"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("optimistic-squarecb: share of the probability"), done.stderr

"""Who may do what: every route, every role, a key for all loops, for this loop, for another loop, and none.

Keys that were revoked or have expired open nothing, whatever their role.
"""

import re

import pytest

from service.app import declared_routes
from service.http.keys import ROLES
from service.http.pages import docs_routes
from service.http.request import Limits
from service.plugins.reports.page import ASSETS

OPEN_TO = {  # what each role may do; admin may do everything
    "rank": {
        "POST /rank",
        "POST /rank/batch",
        "POST /rank/slots",
        "POST /recommend",
        "POST /feedback",
        "GET /popular",
        "GET /similar/{item}",
        "POST /events/{event_id}/reward",
        "POST /events/rewards",
        "POST /events/{event_id}/activate",
        "POST /personalizer/rank",
        "POST /personalizer/events/{event_id}/reward",
        "POST /personalizer/events/{event_id}/activate",
        "POST /personalizer/multislot/rank",
        "POST /personalizer/multislot/events/{event_id}/reward",
        "POST /personalizer/multislot/events/{event_id}/activate",
    },
    "device": {
        "GET /model",
        "GET /federated/model",
        "POST /federated/scores",
        "POST /federated/residuals",
        "POST /federated/updates",
        "GET /federated/round",
    },
    "read": {
        *("GET /lift", "GET /report", "GET /personal", "POST /what-if"),
        *("GET /state", "GET /experiments", "GET /actions/report"),
    },
}
PAGES = {
    ("GET", path)
    for path in ("/docs", "/docs/openapi.json", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/openapi.json")
}
NO_KEY = {
    "GET /",
    "GET /demo",
    *(f"GET /{name}" for name in ASSETS),
    "GET /healthz",
    "GET /readyz",
    *(f"{method} {path}" for method, path in PAGES),
}
ADMIN_OF_A_LOOP = {
    "GET /events",
    "GET /events/{event_id}",
    "GET /users/{user}/decisions",
    "GET /devices",
    "GET /rewards/unmatched",
    "GET /actions",
    "PUT /actions",
    "GET /settings",
    "PUT /settings",
    "PATCH /settings",
    "GET /settings/schema",
    "POST /hold",
    "POST /resume",
    "PUT /model",
    "GET /users/{user}/model",
    "POST /evaluations",
    "GET /personalizer/configurations/service",
    "PUT /personalizer/configurations/service",
    "GET /personalizer/configurations/policy",
    "PUT /personalizer/configurations/policy",
    "DELETE /personalizer/configurations/policy",
    "POST /personalizer/configurations/applyFromEvaluation",
    "GET /personalizer/model",
    "PUT /personalizer/model",
    "DELETE /personalizer/model",
    "GET /personalizer/model/properties",
    "GET /personalizer/logs/properties",
    "DELETE /personalizer/logs",
    "POST /personalizer/logs/interactions",
    "POST /personalizer/logs/observations",
    "GET /personalizer/evaluations",
    "POST /personalizer/evaluations",
    "GET /personalizer/evaluations/{evaluation_id}",
    "PUT /personalizer/evaluations/{evaluation_id}",
    "DELETE /personalizer/evaluations/{evaluation_id}",
    "GET /personalizer/featureImportances",
    "GET /personalizer/featureImportances/{importance_id}",
    "PUT /personalizer/featureImportances/{importance_id}",
    "DELETE /personalizer/featureImportances/{importance_id}",
}
READ = {"GET /v1/loops", "GET /v1/status", "GET /v1/overview", "GET /metrics"}
ANY_KEY = "GET /v1/key"  # about the key itself
ADMIN_OF_THE_SERVICE = {
    "POST /v1/loops",
    *READ,
    "DELETE /v1/users/{user}",
    "GET /v1/users/{user}/events",
}
ADMIN_OF_ITSELF = {
    "DELETE /v1/loops/{loop}",
    "DELETE /v1/loops/{loop}/users/{user}",
    "GET /v1/loops/{loop}/users/{user}/events",
}

ROUTES = [*declared_routes(None, None, Limits()), *docs_routes("", dict)]
OPERATIONS = [(route.method, route.path) for route in ROUTES]
WHO = ["none", *(f"{role} of {loops}" for role in ROLES for loops in ("all", "this", "other"))]
ENDED = [f"{how} {role}" for how in ("revoked", "expired") for role in ROLES]


def below(path):
    """Return a path without its loop and the version of Azure's clients.

    None if it is not a loop's, or if it is there for one loop and for all of them.
    """
    if re.search(r"/users/\{user\}(/events)?$", path):
        return None
    match = re.fullmatch(r"(?:/loops/\{loop\})?(/personalizer)(?:/\{version\})?(/.*)", path)
    if match:
        return match[1] + match[2]
    match = re.fullmatch(r"/v1(?:/loops/\{loop\})?(/(?!loops|status|overview|key).*)", path)
    return match and match[1]


def real(path):
    """Return the path with something in place of its parameters."""
    values = {
        "loop": "shop",
        "item": "i",
        "event_id": "e",
        "user": "u",
        "version": "v1.0",
        "evaluation_id": "v",
        "importance_id": "i",
    }
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], path)


def expected(method, path, who):
    """Return 401, 403 or 0, which is neither."""
    if f"{method} {path}" in NO_KEY:
        return 0
    if who == "none":
        return 401
    if f"{method} {path}" == ANY_KEY:
        return 0
    role, loops = who.split(" of ")
    of_loop = below(path)
    if of_loop is None and f"{method} {path}" not in ADMIN_OF_ITSELF:
        assert f"{method} {path}" in ADMIN_OF_THE_SERVICE
        allowed = ("admin", "read") if f"{method} {path}" in READ else ("admin",)
        return 0 if role in allowed and loops == "all" else 403
    if loops == "other" and not path.startswith("/personalizer"):  # there, the key says which loop is meant
        return 403
    return 0 if role == "admin" or f"{method} {of_loop}" in OPEN_TO.get(role, ()) else 403


@pytest.fixture(scope="module")
def keyed(tmp_path_factory, live_service):
    """A service, and a key of every kind; "this" is the loop that the path names."""
    with live_service(tmp_path_factory.mktemp("access")) as live:
        with live.client() as client:
            for name in ("shop", "other"):
                client.post("/v1/loops", json={"name": name})
        keys = {}
        for who in WHO[1:]:
            role, loops = who.split(" of ")
            for loop in ("shop", "default"):
                keys[who, loop] = live.keys.add(role, {"all": None, "this": loop, "other": "other"}[loops])
        for who in ENDED:
            how, role = who.split()
            keys[who] = live.keys.add(role, seconds=1e-9 if how == "expired" else None)
            if how == "revoked":
                live.keys.revoke(keys[who].split("_")[1])
        with live.asking() as ask:
            yield ask, keys


@pytest.mark.parametrize("who", WHO)
def test_a_key_opens_what_its_role_and_loop_allow(keyed, who):
    ask, keys = keyed
    for method, path in OPERATIONS:
        loop = "shop" if "{loop}" in path else "default"
        reply = ask(method, real(path), **({} if who == "none" else {"Authorization": f"Bearer {keys[who, loop]}"}))
        status = reply.status if reply.status in (401, 403) else 0
        assert status == expected(method, path, who), f"{method} {path}"
        if reply.status == 401:
            assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("who", ENDED)
def test_a_key_that_has_ended_opens_nothing(keyed, who):
    ask, keys = keyed
    for method, path in OPERATIONS:
        reply = ask(method, real(path), Authorization=f"Bearer {keys[who]}")
        assert (reply.status == 401) == (f"{method} {path}" not in NO_KEY), f"{method} {path}"


def test_every_route_has_a_row_and_every_row_a_route(client):
    of_loops = {f"{method} {below(path)}" for method, path in OPERATIONS if below(path)}
    others = {f"{method} {path}" for method, path in OPERATIONS if not below(path)}
    assert of_loops == ADMIN_OF_A_LOOP.union(*OPEN_TO.values())
    assert others == NO_KEY | ADMIN_OF_THE_SERVICE | ADMIN_OF_ITSELF | {ANY_KEY}
    documented = {
        (method.upper(), path)
        for path, methods in client.get("/openapi.json").json()["paths"].items()
        for method in methods
    }
    assert documented == set(OPERATIONS) - PAGES

"""The OpenAPI document: what it says of the hot routes is what they take, and no route does what it does not say."""

import json

import jsonschema_rs
import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from waiting import LIMIT

from service.app import declared_routes
from service.errors import ApiError
from service.http.hot import Batch, Reward, RewardBatch
from service.http.request import Limits, decode
from service.plugins.devices.routes import Residuals, Scoring, Updates
from service.plugins.reports.page import ASSETS
from service.rank.requests import RankRequest
from service.rank.slots import SlotsRequest

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
TAKE_NOTHING = (
    "/",
    "/demo",
    *(f"/{name}" for name in ASSETS),
    "/v1/key",
    "/healthz",
    "/readyz",
)  # nothing can be wrong with such a request
RARELY_RIGHT = (  # it takes more than the type
    *("/model", "/evaluations", "/what-if", "/loops/{loop}", "/residuals", "/updates"),
    "/lift",  # a control group
    "/events/{event_id}",  # an event that was decided
    "/recommend",  # a filter by what is in the catalogue
    "/similar/{item}",  # an item of the catalogue
    "/rank/slots",  # different ids, and more actions than slots
    *("/multislot/rank", "/configurations/policy", "/configurations/service"),  # texts in formats of their own
    *("/applyFromEvaluation", "/{evaluation_id}", "/{importance_id}"),  # events within a time, and what is there
    *("/logs/interactions", "/logs/observations"),  # always refused
)
NO_DEVICES = "/v1/federated/"  # the loop ``default`` has no model for them
DONE = {200, 201, 204}
RIGHT, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
OPERATIONS = [
    (route.method, route.path)
    for route in declared_routes(None, None, Limits())
    if not route.path.startswith(("/loops/", "/personalizer/{version}"))  # they have the endpoints of /personalizer
]
PATHS = {path for _, path in OPERATIONS}


def by_name(operations):
    """Return routes as parameters: those that are another's for a loop by name, one declaration of both, as long."""
    is_named = [path.replace("/v1/loops/{loop}/", "/v1/", 1) in PATHS - {path} for _, path in operations]
    return [
        pytest.param(*one, marks=pytest.mark.long) if named else one
        for one, named in zip(operations, is_named, strict=True)
    ]


@schemathesis.serializer("application/msgpack")
def as_msgpack(_, value):
    return msgspec.msgpack.encode(packable(value))


def packable(value):
    """Return the value with bytes for what the generator calls binary, and no integers that msgpack does not have."""
    if isinstance(value, dict):
        return {name: packable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [packable(one) for one in value]
    if isinstance(value, int) and abs(value) >= 2**63:
        return str(value)
    return getattr(value, "data", value)


@pytest.fixture(scope="module")
def described(live):
    live.make_loop("phones", model="adagrad")
    return schemathesis.openapi.from_url(f"{live.url}/openapi.json")


@pytest.fixture(scope="module")
def session():
    """One connection for all requests, and no look at the environment before each."""
    with requests.Session() as made:
        made.trust_env = False
        yield made


def statuses(operation, session, mode, n):
    """Return the statuses of ``n`` generated requests, each checked; where the request is right, the loop exists."""
    seen = set()

    @settings(max_examples=n, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers(case):
        if mode is RIGHT and "{loop}" in operation.path:
            case.path_parameters["loop"] = "phones" if "/federated/" in operation.path else "default"
        seen.add(case.call_and_validate(session=session, checks=CHECKS, timeout=LIMIT).status_code)

    answers()
    return seen


def few(path, n):
    """Return fewer requests for other names of a route, and for Azure's API, whose tests send hundreds of their own."""
    return max(1, n // 4) if path.startswith(("/personalizer", "/v1/loops/{loop}/")) else n


@pytest.mark.parametrize("n", [4, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize(("method", "path"), by_name(OPERATIONS))
def test_what_is_asked_by_the_document_is_answered_by_it(described, session, method, path, n):
    rarely = path.endswith(RARELY_RIGHT) or path.startswith(NO_DEVICES)
    for examples in (few(path, n), 20, 200):  # few are right by chance at some routes
        seen = statuses(described[path][method], session, RIGHT, examples)
        if seen & DONE or rarely:
            return
    pytest.fail(f"none was right: {seen}")


@pytest.mark.parametrize("n", [4, pytest.param(30, marks=pytest.mark.long)])
@pytest.mark.parametrize(("method", "path"), by_name([(m, p) for m, p in OPERATIONS if p not in TAKE_NOTHING]))
def test_what_is_wrong_by_the_document_is_answered_by_it(described, session, method, path, n):
    assert not statuses(described[path][method], session, WRONG, few(path, n)) & {500, 501, 502, 504}


FEATURES = st.sampled_from([{}, {"x": 1}, None])
ANYTHING = st.sampled_from([None, True, 0, 1.5, "", "x", "x" * 200, "x" * 201, [], ["x"], [""], [1], {}])
ACTIONS = st.lists(
    st.fixed_dictionaries({}, optional={"id": ANYTHING, "features": FEATURES, "other": ANYTHING}), max_size=3
)
RANKS = st.fixed_dictionaries(
    {},
    optional={
        "actions": ACTIONS | ANYTHING,
        "context": FEATURES,
        **dict.fromkeys(["user", "exclude", "event_id", "defer", "explain", "other"], ANYTHING),
    },
)
RIGHT_RANKS = st.fixed_dictionaries(
    {"actions": st.just([{"id": "a", "features": {}}])},
    optional={"context": FEATURES, "user": st.just("u"), "exclude": st.just(["b"]), "defer": st.booleans()},
)
BATCHES = st.fixed_dictionaries({}, optional={"requests": st.lists(RANKS | RIGHT_RANKS, max_size=2) | ANYTHING})
SLOTS = st.lists(
    st.fixed_dictionaries({"id": st.just("s") | ANYTHING}, optional={"features": FEATURES, "exclude": ANYTHING}),
    max_size=2,
)
RIGHT_SLOTS = st.fixed_dictionaries(
    {"actions": st.just([{"id": "a"}]), "slots": SLOTS}, optional={"event_id": ANYTHING, "other": ANYTHING}
)
RIGHT_SCORINGS = st.fixed_dictionaries({"actions": st.just([{"id": "a"}])}, optional={"context": FEATURES})
RIGHT_RESIDUAL = {"seq": 1, "version": 1, "context": {}, "action": {"id": "a"}, "local": 0, "label": 1.5}
RESIDUALS = st.fixed_dictionaries(
    {}, optional={"context": FEATURES, **dict.fromkeys(["seq", "action", "global", "other"], ANYTHING)}
).map(lambda changed: {**RIGHT_RESIDUAL, **changed})
UPLOADS = st.fixed_dictionaries(
    {"client": st.just("a") | ANYTHING}, optional={"residuals": st.lists(RESIDUALS, max_size=2), "other": ANYTHING}
)
REWARDS = st.fixed_dictionaries({}, optional={"value": ANYTHING, "id": ANYTHING, "other": ANYTHING})


@pytest.mark.parametrize(
    ("kind", "bodies"),
    [
        (RankRequest, RANKS | RIGHT_RANKS),
        (Batch, BATCHES),
        (SlotsRequest, RANKS | RIGHT_SLOTS),
        (Reward, REWARDS),
        (Scoring, RANKS | RIGHT_SCORINGS),
        (Residuals, UPLOADS),
    ],
    ids=["RankRequest", "Batch", "SlotsRequest", "Reward", "Scoring", "Residuals"],
)
def test_the_document_allows_exactly_what_is_read(client, kind, bodies):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    validator = jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{kind.__name__}", "components": {"schemas": schemas}}
    )
    decoder = msgspec.json.Decoder(kind)
    seen = set()

    @settings(max_examples=100)
    @given(bodies | ANYTHING)
    def agrees(body):
        allowed = validator.is_valid(body)
        seen.add(allowed)
        assert allowed == is_read(decoder, body)

    agrees()
    assert seen == {True, False}


def is_read(decoder, body):
    try:
        decode(decoder, json.dumps(body).encode())
    except ApiError:
        return False
    return True


HOT = {
    "/rank": RankRequest,
    "/rank/batch": Batch,
    "/rank/slots": SlotsRequest,
    "/events/{event_id}/reward": Reward,
    "/events/rewards": RewardBatch,
    "/federated/residuals": Residuals,
}


def test_hot_routes_refer_to_the_types_they_read(client):
    paths = client.get("/openapi.json").json()["paths"]
    for prefix in ("/v1", "/v1/loops/{loop}"):
        for path, kind in HOT.items():
            body = paths[prefix + path]["post"]["requestBody"]["content"]["application/json"]
            assert body["schema"] == {"$ref": f"#/components/schemas/{kind.__name__}"}


def test_updates_are_described_as_msgpack_and_a_model_as_one_that_may_not_have_changed(client):
    paths = client.get("/openapi.json").json()["paths"]
    content = paths["/v1/federated/updates"]["post"]["requestBody"]["content"]
    assert content.keys() == {"application/msgpack"}
    assert content["application/msgpack"]["schema"] == {"$ref": f"#/components/schemas/{Updates.__name__}"}
    replies = paths["/v1/federated/model"]["get"]["responses"]
    assert "application/octet-stream" in replies["200"]["content"]
    assert "content" not in replies["304"]
    assert "ETag" in replies["200"]["headers"].keys() & replies["304"]["headers"].keys()

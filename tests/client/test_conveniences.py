"""Names, errors, loops and test doubles of the hosted clients, without a service."""

import inspect
import os
import platform
import stat
import sys
import tomllib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import forked
import httpx
import pydantic
import pytest
from needs import lacks

from fedres_client import (
    AsyncClient,
    Client,
    KeyRefusedError,
    LimitError,
    NoAnswerError,
    RefusedError,
    ServiceError,
)
from fedres_client.testing import FakeRequest, FakeService
from fedres_client.transport import VERSION

ROOT = Path(__file__).parents[2]
ACTIONS = ["tea", "juice"]
DECIDED = {"event_id": "e", "action": "tea", "probability": 1.0, "model_version": 1, "ranking": []}


def answering(status, requests, body=None):
    """Return a transport that always gives the same answer, and keeps the requests."""

    def handle(request):
        requests.append(request)
        error = {"error": {"code": "no", "message": "no", "target": None}}
        return httpx.Response(status, json=error if body is None else body)

    return httpx.MockTransport(handle)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, KeyRefusedError),
        (403, KeyRefusedError),
        (404, RefusedError),
        (422, RefusedError),
        (429, LimitError),
        (503, ServiceError),
    ],
)
def test_each_kind_of_error_has_a_class_and_the_id_of_its_request(status, kind):
    requests = []
    transport = answering(status, requests)
    client = Client("http://a", transport=transport, timeout=0.05, fallback=None)
    with closing(client), pytest.raises(ServiceError) as caught:
        client.rank(actions=ACTIONS)
    assert type(caught.value) is kind
    assert caught.value.request_id == requests[0].headers["x-request-id"]
    assert caught.value.as_dict()["request_id"] == caught.value.request_id


def test_without_an_answer_the_error_is_of_the_class_for_that():
    service = FakeService()
    service.is_away = True
    with service.client(timeout=0.05) as client:
        error = client.rank(actions=ACTIONS).error
    assert type(error) is NoAnswerError
    assert error.request_id is not None


def test_requests_name_the_client_and_its_version():
    requests = []
    with Client("http://a", transport=answering(200, requests, DECIDED)) as client:
        client.rank(actions=ACTIONS)
    assert requests[0].headers["user-agent"] == f"fedres-client/{VERSION} python/{platform.python_version()}"
    project = tomllib.loads((ROOT / "clients" / "python" / "pyproject.toml").read_text())
    assert project["project"]["version"] == VERSION


def test_clients_of_several_loops_share_the_queue():
    service = FakeService()
    with service.client() as client:
        offers = client.with_loop("offers")
        client.rank(actions=ACTIONS).reward(1)
        offers.rank(actions=ACTIONS).reward(0.5)
        assert [(each.loop, each.value) for each in service.rewards()] == [("default", 1.0), ("offers", 0.5)]
        assert client.reward_status() == offers.reward_status()
        with pytest.raises(ValueError, match="loop must be a name"):
            client.with_loop("")
    with pytest.raises(RuntimeError, match="closed"):
        offers.rank(actions=ACTIONS)


@pytest.mark.anyio
async def test_async_clients_of_several_loops_share_the_connections():
    service = FakeService()
    async with service.async_client() as client:
        offers = client.with_loop("offers")
        for each in (client, offers, client):
            assert (await each.rank(actions=ACTIONS)).action == "tea"
        assert offers._connected() is client._connected()
    assert [decision.loop for decision in service.decisions] == ["default", "offers", "default"]


def test_a_fake_service_decides_as_a_test_determines():
    service = FakeService(choose=lambda request: request.actions[-1], catalogue={"a": {}, "b": {}, "c": {}})
    with service.client(loop="menu") as client:
        decision = client.rank(user=7, context={"hour": 9}, actions=ACTIONS)
        assert (decision.action, decision.probability, decision.fallback) == ("juice", 1.0, False)
        decision.reward(outcomes={"click": 1}, id="twice")
        decision.reward(outcomes={"click": 1}, id="twice")
        decision.activate()
        assert [each.outcomes for each in service.rewards()] == [{"click": 1.0}]
        made = service.decisions[0]
        assert (made.loop, made.event_id, made.user) == ("menu", decision.event_id, "7")
        page = client.slots(["top", "side"], actions=ACTIONS)
        assert [(each.slot, each.action) for each in page] == [("top", "juice"), ("side", "tea")]
        assert [item.id for item in client.recommend(2, exclude=["c"])] == ["b", "a"]
        service.choose = "wine"
        assert client.rank(actions=ACTIONS).error.code == "not_offered"
        with pytest.raises(ServiceError, match="decisions and rewards only"):
            client.lift()
    assert FakeRequest(None, {}, ["a"]).slot is None


def test_features_and_actions_may_be_models():
    class Weather(pydantic.BaseModel):
        sky: str

    class Offer(pydantic.BaseModel):
        id: str
        features: dict[str, bool]

    @dataclass
    class Plain:
        id: str

    service = FakeService()
    with service.client() as client:
        offers = [Offer(id="tea", features={"hot": True}), Plain("juice")]
        client.rank(context=Weather(sky="grey"), actions=offers)
        with pytest.raises(TypeError, match="dataclasses, structs of msgspec, and models of pydantic or attrs"):
            client.rank(context={"x": object()}, actions=ACTIONS)
    assert [decision.context for decision in service.decisions] == [{"sky": "grey"}]


def test_features_may_be_classes_of_attrs():
    try:
        import attrs
    except ImportError:
        lacks("attrs", "pip install attrs")

    @attrs.define
    class Hour:
        hour: int

    service = FakeService()
    with service.client() as client:
        client.rank(context=Hour(9), actions=ACTIONS)
    assert service.decisions[0].context == {"hour": 9}


def test_a_spool_is_readable_by_its_user_alone(tmp_path):
    service = FakeService()
    before = os.umask(0o022)
    try:
        with service.client(spool=tmp_path) as client:
            client.reward("e", 1)
            modes = [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()]
    finally:
        os.umask(before)
    assert len(modes) >= 2
    assert set(modes) == {0o600}


def test_the_types_of_settings_and_reports_are_those_of_the_service():
    command = [sys.executable, str(ROOT / "clients" / "python" / "generate_types.py"), "--check"]
    assert forked.run(command).returncode == 0, "run generate_types.py"


def test_both_clients_have_the_same_calls():
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_"):
            other = getattr(AsyncClient, name)
            assert list(inspect.signature(other).parameters.values()) == list(
                inspect.signature(method).parameters.values()
            ), name
            assert inspect.getdoc(other) == inspect.getdoc(method), name


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_former_names_are_refused_with_the_new_ones(kind):
    with pytest.raises(TypeError, match="it is timeout"):
        kind("http://a", deadline=1)
    with pytest.raises(TypeError, match="it is admin_timeout"):
        kind("http://a", admin_deadline=1)
    with pytest.raises(TypeError, match="has no argument 'timout'"):
        kind("http://a", timout=1)

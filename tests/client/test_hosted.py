"""The clients of a hosted service, against a real one."""

import asyncio
import concurrent.futures
import copy
import dataclasses
import datetime
import gc
import json
import logging
import math
import pickle
import subprocess
import sys
import textwrap
import threading
import uuid
from contextlib import closing
from decimal import Decimal
from fractions import Fraction

import fastapi
import httpx
import numpy as np
import pytest
from proxies import no_service
from waiting import LIMIT

from fedres.client import AsyncClient, Client, RankRequest, ServiceError, Slot
from fedres_client.fallbacks import check
from fedres_client.transport import headers

MENU = {"tea": {"hot": True}, "juice": {"hot": False}, "milk": {}}


@pytest.fixture
def loop(live, request):
    """A loop of the test's own."""
    name = f"loop-{abs(hash(request.node.nodeid))}"
    live.make_loop(name)
    return name


def test_the_client_in_a_few_lines(live, loop):
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        decision = client.rank(user="anna", context={"weather": "cold"}, actions=MENU)
        decision.reward(1.0)
        assert client.flush()
        [event] = client.events()
    assert (decision.action in MENU, decision.fallback, decision.error) == (True, False, None)
    assert (event.event_id, event.user, event.reward) == (decision.event_id, "anna", 1.0)
    assert event.probability == decision.probability
    assert [place.id for place in decision.ranking if place.probability == decision.probability]


def test_the_async_client_does_the_same(live, loop):
    async def run():
        async with AsyncClient(live.url, loop=loop, timeout=LIMIT) as client:
            decisions = await asyncio.gather(*(client.rank(user=f"u{k}", actions=MENU) for k in range(10)))
            for decision in decisions:
                decision.reward(0.5)
            assert await client.flush()
            return decisions, [event async for event in client.events()]

    decisions, events = asyncio.run(run())
    assert {event.event_id for event in events} == {decision.event_id for decision in decisions}
    assert [event.reward for event in events] == [0.5] * 10


def test_many_requests_go_in_one_call_and_each_may_be_refused(live, loop):
    calls = []
    with Client(live.url, loop=loop, timeout=LIMIT, observe=calls.append) as client:
        good = RankRequest(actions=MENU, user="ben", exclude=["tea"])
        taken = client.rank(actions=MENU).event_id
        decisions = client.rank_many([good, good, RankRequest(actions=MENU, user="ben", event_id=taken)])
    assert [decision.fallback for decision in decisions] == [False, False, True]
    assert decisions[0].action != "tea"
    assert decisions[0].event_id != decisions[1].event_id
    assert decisions[2].error.code == "event_exists"
    assert [call.name for call in calls] == ["rank", "rank_many"]


def test_slots_are_filled_each_with_a_decision_of_its_own(live, loop):
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        slots = [Slot("top", {"size": 3}), Slot("side", exclude=["milk"])]
        top, side = client.slots(slots, actions=MENU, user="anna")
        side.reward(1.0)
        assert client.flush()
        rewards = {event.event_id: event.reward for event in client.events()}
    assert (top.slot, side.slot) == ("top", "side")
    assert top.action != side.action != "milk"
    assert rewards == {top.event_id: None, side.event_id: 1.0}


def test_items_are_recommended_each_with_an_event_of_its_own(live, loop):
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        client.put_actions(MENU)
        hot, *others = client.recommend(3, user="anna", filter={"hot": {"exists": True}}, exclude=["juice"])
        hot.reward(1.0)
        assert client.flush()
        [event] = client.events()
        again = client.recommend(user="anna", exclude_seen=True)
    assert (hot.id, hot.probability, others, hot.fallback) == ("tea", 1.0, [], False)
    assert (event.event_id, event.action, event.reward, event.candidates) == (hot.event_id, "tea", 1.0, 1)
    assert {item.id for item in again} == {"juice", "milk"}


MAY = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)


def test_feedback_is_stored_once_and_not_evaluated(live, loop):
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        client.put_actions(MENU)
        events = [
            {"action": "tea", "reward": True, "user": 7, "event_id": "a", "time": MAY},
            {"action": {"id": "juice", "features": {"hot": False}}, "reward": 0.5, "context": {"hour": 9}},
        ]
        assert client.feedback(events) == {"stored": 2, "repeated": 0}
        assert client.feedback(events[:1]) == {"stored": 0, "repeated": 1}
        first, second = client.events()
        assert [item["id"] for item in client.popular(1, seconds=9e6)] == ["juice"]  # the rating of tea is older
        assert {item["id"] for item in client.similar("tea")} == {"juice", "milk"}
        with pytest.raises(ServiceError, match="'te/a' is not in the catalogue"):
            client.similar("te/a", 3)
        with pytest.raises(TypeError, match=r"events\[0\] must have action, .*, got 'item'"):
            client.feedback([{"item": "tea", "reward": 1}])
        with pytest.raises(ServiceError, match=r"events\[0\].reward must be in"):
            client.feedback([{"action": "tea", "reward": 2}])
    assert (first.event_id, first.action, first.reward, first.user, first.status) == ("a", "tea", 1.0, "7", "feedback")
    assert (first.probability, first.happened, second.context) == (None, 1714521600.0, {"hour": 9})


def test_the_async_client_recommends_the_same(live, loop):
    async def run():
        async with AsyncClient(live.url, loop=loop, timeout=LIMIT, fallback=None) as client:
            await client.put_actions(MENU)
            page = await client.recommend(2, user="anna", event_id="p")
            assert await client.recommend(2, user="anna", event_id="p") == page
            with pytest.raises(ServiceError, match="'heat'"):
                await client.recommend(filter={"heat": True})
            sent = await client.feedback([{"action": "tea", "reward": 1, "user": "anna"}])
            assert sent == {"stored": 1, "repeated": 0}
            assert len(await client.popular(2)) == len(await client.similar("tea", 2)) == 2
            return page

    assert [item.event_id for item in asyncio.run(run())] == ["p~1", "p~2"]


def test_without_a_service_the_items_of_a_fallback_are_recommended(live):
    with no_service() as url, Client(url, timeout=0.1) as client:
        page = client.recommend(2, fallback=["a", "b", "c"])
        assert client.recommend() == []
        page[0].reward(1.0)
        assert client.reward_status().queued == 0
    assert [(item.id, item.fallback, item.error.code) for item in page] == [(n, True, "no_answer") for n in "ab"]
    with no_service() as url, Client(url, timeout=0.1, fallback=None) as client, pytest.raises(ServiceError):
        client.recommend(fallback=["a"])


def test_a_deferred_decision_waits_until_it_is_activated(live, loop):
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        shown, hidden = (client.rank(actions=MENU, defer=True) for _ in range(2))
        shown.activate()
        assert client.flush()
        status = {event.event_id: event.status for event in client.events()}
    assert status == {shown.event_id: "waiting", hidden.event_id: "deferred"}


def test_rewards_of_one_event_count_once_by_id_and_else_each(live, loop):
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        client.replace_settings({"aggregation": "sum", "reward_range": [0, 1]})
        client.change_settings(reward_range=[0, 10])
        decision = client.rank(actions=MENU)
        for value, name in ((1.0, "click"), (1.0, "click"), (1.0, None), (1.0, None)):
            decision.reward(value, id=name)
        assert client.flush()
        settings = client.settings()
        [event] = client.events()
    assert (event.reward, settings["aggregation"]) == (None, "sum")  # it waits for more
    rewards = [entry for entry in live.engine.logged(loop) if entry.kind == "reward"]
    assert len({entry.example for entry in rewards}) == 3


def test_named_outcomes_make_the_reward(live):
    live.make_loop("outcomes", outcomes={"click": 600, "purchase": 600}, formula="click + purchase / 100")
    with Client(live.url, loop="outcomes", timeout=LIMIT, fallback=None) as client:
        decision = client.rank(actions=MENU)
        decision.reward(outcomes={"click": 1})
        client.reward(decision.event_id, outcomes={"purchase": 50})
        with pytest.raises(ValueError, match="a value or outcomes, got neither"):
            decision.reward()
        assert client.flush(LIMIT)
        assert client.reward_status().refused == 0
    rewards = [json.loads(entry.body) for entry in live.engine.logged("outcomes") if entry.kind == "reward"]
    assert [(reward["outcome"], reward["value"]) for reward in rewards] == [("click", 1), ("purchase", 50)]


def test_the_catalogue_users_and_evaluation(live, loop):
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        client.put_actions(MENU, retire=["milk"])
        assert client.catalogue() == {"tea": {"hot": True}, "juice": {"hot": False}}
        users = ["anna", *(f"user-{k}" for k in range(11))]
        for k, user in enumerate(users):
            client.rank(user=user, actions=["tea", "juice"]).reward(k % 2)
        assert client.flush()
        once, daily = (client.evaluate(["uniform"], time_uniform=t)["rows"][0] for t in (False, True))
        assert daily["low"] < once["low"]
        with pytest.raises(ServiceError, match="has no control group"):
            client.lift()
        client.change_settings(control={"share": 0.5, "experiment": "autumn"})
        assert client.lift()["experiment"] == "autumn"
        assert client.status()["loops"][loop]["ranks"] >= 0
        client.erase("anna")
        assert sorted(event.user for event in client.events()) == sorted(users[1:])
        assert client.unmatched() == []


def test_an_export_goes_on_page_by_page(live, loop, monkeypatch):
    monkeypatch.setattr("fedres_client.client.PAGE", 3)
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        made = [client.rank(actions=MENU).event_id for _ in range(8)]
        events = list(client.events())
        assert [event.event_id for event in events] == made
        assert [event.event_id for event in client.events(after=events[4].position)] == made[5:]


def test_what_is_no_decision_raises_what_the_service_says(live):
    with Client(live.url, loop="nowhere") as client:
        with pytest.raises(ServiceError, match="does not exist") as refused:
            client.settings()
        assert (refused.value.status, refused.value.code, refused.value.target) == (404, "unknown_loop", "loop")


def test_without_a_service_the_first_allowed_action_is_taken_and_its_reward_is_not_sent():
    with no_service() as url, Client(url, timeout=0.2) as client:
        decision = client.rank(actions=MENU, exclude=["tea"])
        decision.reward(1.0)
        decision.activate()
        top, side = client.slots(["top", "side"], actions=MENU)
        assert [one.action for one in client.rank_many([RankRequest(actions=MENU)])] == ["tea"]
        assert client.reward_status().queued == 0
    assert (decision.action, decision.fallback, decision.probability) == ("juice", True, None)
    assert (decision.error.status, decision.error.code) == (0, "no_answer")
    assert (top.action, side.action) == ("tea", "juice")


def test_a_function_can_fall_back_and_what_it_gets_wrong_is_the_first_action(caplog):
    def newest(request):
        return list(request.actions)[-1]

    def fails(request):
        raise LookupError

    with no_service() as url:
        for fallback, action in ((newest, "milk"), (fails, "tea"), (lambda request: "wine", "tea")):
            with Client(url, timeout=0.1, fallback=fallback) as client:
                assert client.rank(actions=MENU).action == action
    assert "the fallback failed" in caplog.text
    assert "got 'wine'" in caplog.text


def test_who_wants_an_error_gets_one():
    with no_service() as url, Client(url, timeout=0.1, fallback=None) as client:
        with pytest.raises(ServiceError):
            client.rank(actions=MENU)
        with pytest.raises(ServiceError):
            client.slots(["top"], actions=MENU)


def test_a_refused_request_falls_back_and_is_logged(live, loop, caplog):
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        decision = client.rank(actions=MENU, user="u" * 300)
        assert (decision.action, decision.fallback, decision.error.status) == ("tea", True, 422)
    assert [record.levelno for record in caplog.records].count(logging.ERROR) >= 1


ITSELF = {}
ITSELF["again"] = ITSELF


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"context": {"a": object()}}, "context.a must be JSON"),
        ({"context": {"at": datetime.datetime(2026, 1, 1)}}, "such as its hour and weekday"),
        ({"context": {"price": math.nan}}, "context.price must be a finite number, got nan"),
        ({"context": {"price": [1, Decimal("inf")]}}, r"context.price\[1\] must be a finite number"),
        ({"context": ITSELF}, "must not hold itself"),
        ({"context": {"a": "\ud800"}}, "must be JSON"),
        ({"context": [1]}, "context must be a mapping"),
        ({"actions": {"tea": {"image": b"png"}}}, r"actions\['tea'\].image must be JSON, got b'png'"),
        ({"actions": [("tea", {"hot": True})]}, r"\[{\"id\": .*, a mapping, .* or a list of ids, .*; got \('tea'"),
        ({"actions": [{"id": "tea", "feature": {}}]}, "with 'feature'"),
        ({"actions": "tea"}, "actions must be a list of mappings"),
        ({"actions": [1.5]}, "actions must be"),
        ({"actions": [True]}, "actions must be"),
        ({"actions": ["1", 1]}, "actions must have different ids, got 1 twice"),
        ({"actions": []}, "actions must hold at least one action, got none"),
        ({"exclude": "tea"}, "exclude must be a list of ids"),
        ({"user": 1.5}, "user must be text, a whole number or a UUID, got 1.5"),
        ({"user": True}, "user must be text"),
        ({"event_id": b"e"}, "event_id must be text"),
        ({"event_id": "fallback-mine"}, "event_id must not begin with 'fallback-'"),
        ({"deadline": 1}, "rank has no argument 'deadline': it is timeout"),
    ],
)
def test_what_can_never_be_sent_is_refused_at_the_call(request_, message):
    with no_service() as url, Client(url) as client, pytest.raises((TypeError, ValueError), match=message):
        client.rank(**{"actions": MENU, **request_})


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "1", b"1", [1], {"click": 1}, 10**400, Decimal("nan")])
def test_a_reward_that_is_no_number_is_refused_at_the_call(value):
    with no_service() as url, Client(url, timeout=0.1) as client:
        for reward in (client.rank(actions=MENU).reward, lambda value: client.reward("event", value)):
            with pytest.raises((TypeError, ValueError), match="value"):
                reward(value)
            with pytest.raises((TypeError, ValueError), match="outcomes"):
                reward(None) if value is None else client.reward("event", outcomes={"click": value})
        assert client.reward_status().queued == 0


def test_rewards_of_any_type_of_number_are_stored(live, loop):
    values = [True, False, 1, Decimal("0.5"), np.float32(0.5), np.int64(1), np.bool_(True), Fraction(1, 2)]
    with Client(live.url, loop=loop, timeout=LIMIT, fallback=None) as client:
        for value in values:
            client.rank(actions=MENU).reward(value)
        assert client.flush(LIMIT)
        assert [event.reward for event in client.events()] == [float(value) for value in values]


def test_actions_come_in_three_forms_or_one_by_one(live, loop):
    listed = [{"id": "tea", "features": {"hot": True}}, {"id": "juice", "features": {"hot": False}}, {"id": "milk"}]
    with Client(live.url, loop=loop, timeout=LIMIT, fallback=None) as client:
        client.put_actions(listed)
        assert client.catalogue() == MENU
        client.put_actions([], retire=["milk"])
        for actions in (listed, MENU, list(MENU), iter(listed), (name for name in MENU)):
            assert client.rank(actions=actions, timeout=LIMIT).action in MENU
        stored = [[each["features"] for each in event.actions] for event in client.events()]
    assert stored == [list(MENU.values())] * 5


def test_ids_may_be_numbers_and_uuids_and_come_back_as_they_were_given(live, loop):
    identity = uuid.UUID(int=7)
    with Client(live.url, loop=loop, timeout=LIMIT, fallback=None) as client:
        for ids in ([1042, 17, 3], [np.int64(1042), np.int64(17)], [identity, 3]):
            decision = client.rank(actions=ids, user=42, exclude=ids[1:], explain=True)
            assert (decision.action, type(decision.action)) == (ids[0], type(ids[0]))
            assert {place.id for place in decision.ranking} == {why["id"] for why in decision.explanations} == set(ids)
        [top] = client.slots([0], actions={1: {}, 2: {}}, user=identity)
        assert (top.slot, top.action in (1, 2)) == (0, True)
        events = list(client.events())
    assert [event["user"] for event in events] == ["42", "42", "42", str(identity)]
    assert [each["id"] for each in events[2]["actions"]] == [str(identity)]
    with no_service() as url, Client(url, timeout=0.1, fallback=lambda request: "17") as client:
        assert client.rank(actions=[1042, 17]).action == 17


@pytest.mark.parametrize("user", [None, ""])
def test_a_visitor_who_is_not_logged_in_is_nobody(live, loop, user):
    with Client(live.url, loop=loop, timeout=LIMIT, fallback=None) as client:
        client.rank(user=user, actions=MENU)
        assert [event.user for event in client.events()] == [None]
        with pytest.raises(ValueError, match="user must have"):
            client.erase("")


def test_features_are_stored_as_numbers_where_they_are_numbers(live, loop):
    context = {"price": Decimal("9.99"), "n": np.int32(3), "taste": np.array([0.5, 2]), "id": uuid.UUID(int=1)}
    with Client(live.url, loop=loop, timeout=LIMIT, fallback=None) as client:
        client.rank(context=context, actions=MENU)
        [event] = client.events()
    assert event.context == {"price": 9.99, "n": 3, "taste": [0.5, 2.0], "id": str(uuid.UUID(int=1))}
    assert dict(event)["context"] == event.context
    with pytest.raises(KeyError):
        event["nothing"]


def test_a_slot_has_a_baseline_and_an_event_its_arm(live):
    live.make_loop("baselines", control={"share": 0.5, "baseline": "first", "experiment": "page"})
    with Client(live.url, loop="baselines", timeout=LIMIT, fallback=None) as client:
        users = (f"user-{k}" for k in range(100))
        user = next(user for user in users if client.rank(actions=MENU, user=user).arm == "control")
        slots = [Slot("top", baseline="milk"), Slot("side", baseline="tea")]
        assert [decision.action for decision in client.slots(slots, actions=MENU, user=user)] == ["milk", "tea"]
        assert {event.arm for event in client.events() if event.user == user} == {"control"}


def test_an_explanation_has_the_width_of_the_score(live):
    live.make_loop("widths", model="residual-kalman")
    with Client(live.url, loop="widths", timeout=LIMIT, fallback=None) as client:
        decision = client.rank(actions=MENU, explain=True)
    assert all(why.width > 0 for why in decision.explanations)


def test_a_reward_by_the_id_of_a_fallback_is_not_sent(live, loop):
    with no_service() as url, Client(url, timeout=0.1) as client:
        event_id = client.rank(actions=MENU).event_id
    assert event_id.startswith("fallback-")
    with Client(live.url, loop=loop) as client:  # another process of the same shop
        client.reward(event_id, 1.0)
        client.activate(event_id)
        assert client.reward_status().queued == 0
        assert client.unmatched() == []


def test_address_and_key_are_those_of_the_environment(live, loop, monkeypatch):
    monkeypatch.setenv("FEDRES_URL", live.url)
    with Client(loop=loop, timeout=LIMIT, fallback=None) as client:
        client.rank(actions=MENU)
    monkeypatch.setenv("FEDRES_KEY", "schlüssel")
    with pytest.raises(ValueError, match="key must be"):
        Client()
    monkeypatch.setenv("FEDRES_KEY", "")
    assert "Authorization" not in headers(None)
    monkeypatch.setenv("FEDRES_KEY", "secret")
    assert headers(None)["Authorization"] == "Bearer secret"
    assert headers("mine")["Authorization"] == "Bearer mine"


def test_the_wrong_kind_of_with_names_the_right_client(live):
    async def mixed():
        async with Client(live.url):
            pass

    with pytest.raises(TypeError, match="take AsyncClient"):
        asyncio.run(mixed())
    with pytest.raises(TypeError, match="take Client"), AsyncClient(live.url):
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # connections of a loop that is closed
def test_an_async_client_goes_on_in_a_second_event_loop_once_the_first_is_closed(live, loop):
    _use_in_three_event_loops(AsyncClient(live.url, loop=loop, timeout=LIMIT, fallback=None))
    gc.collect()  # warns of the connections here, not in a later test


def _use_in_three_event_loops(client):
    async def rank():
        return await client.rank(actions=MENU)

    async def elsewhere():
        await rank()
        with concurrent.futures.ThreadPoolExecutor(1) as other, pytest.raises(RuntimeError, match="one event loop"):
            other.submit(asyncio.run, rank()).result()
        await client.close()

    assert [asyncio.run(rank()).fallback for _ in range(2)] == [False, False]
    asyncio.run(elsewhere())


def test_there_is_no_fallback_without_an_action():
    with no_service() as url, Client(url) as client:
        for actions, exclude in (([], ()), (MENU, list(MENU)), ("tea", ())):
            with pytest.raises((TypeError, ValueError), match="must"):
                client.rank(actions=actions, exclude=exclude)
        with pytest.raises(ValueError, match="slots must"):
            client.slots([], actions=MENU)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"admin_timeout": math.inf},
        {"fallback": "last"},
        {"queue_limit": 0},
        {"loop": ""},
        {"key": "ä"},
        {"key": ""},
        {"key": "secret "},
    ],
)
def test_wrong_arguments_are_named(options):
    [name] = options
    with pytest.raises(ValueError, match=name):
        Client("http://127.0.0.1:1", **options)


@pytest.mark.parametrize("url", ["127.0.0.1:1", "http://", "http://a..b", "http://a:port", "http://[::1", "http://a\n"])
def test_an_address_that_cannot_be_asked_is_refused_at_once(url):
    with pytest.raises(ValueError, match="url must"):
        Client(url)


def test_every_call_is_observed(live, loop):
    seen = []
    with Client(live.url, loop=loop, timeout=LIMIT, observe=seen.append) as client:
        client.rank(actions=MENU).reward(1.0)
        assert client.flush()
    assert sorted((one.name, one.status, one.error) for one in seen) == [("rank", 200, None), ("rewards", 200, None)]


def plain(decision):
    """Check that a decision is data that other libraries can copy, write and send."""
    for copied in (copy.copy(decision), copy.deepcopy(decision), pickle.loads(pickle.dumps(decision))):
        assert (dict(copied)["event_id"], copied.action) == (decision.event_id, decision.action)
        with pytest.raises(RuntimeError, match=r"client.reward\(decision.event_id"):
            copied.reward(1.0)
    assert dataclasses.asdict(decision)["probability"] == decision.probability
    written = json.loads(json.dumps(decision.as_dict()))
    app = fastapi.FastAPI()
    app.get("/")(lambda: decision)

    async def fetch():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as http:
            return (await http.get("/")).json()

    answer = asyncio.run(fetch())
    assert (answer["action"], answer["probability"]) == (written["action"], written["probability"])
    assert (answer["ranking"], answer["error"]) == (written["ranking"], written["error"])
    decision.reward(1.0)


def test_decisions_and_fallbacks_are_plain_data(live, loop):
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        client.put_actions(MENU)
        decision = client.rank(actions=MENU)
        assert decision.probability > 0
        plain(decision)
        assert client.recommend(1)[0].as_dict()["id"] in MENU
        assert client.flush(LIMIT)
    with no_service() as url, Client(url, timeout=0.1) as client:
        fallback = client.rank(actions=MENU)
        plain(fallback)
        assert fallback.as_dict()["error"]["code"] == "no_answer"
        assert client.recommend(fallback=["tea"])[0].as_dict()["score"] is None


def test_a_closed_client_raises_at_every_call(live):
    client = Client(live.url)
    client.close()
    client.close()
    for call in (lambda: client.rank(actions=MENU), client.settings, lambda: client.reward("e", 1.0)):
        with pytest.raises(RuntimeError, match="the client is closed"):
            call()

    async def run():
        async with AsyncClient(live.url) as other:
            pass
        with pytest.raises(RuntimeError, match="the client is closed"):
            await other.rank(actions=MENU)

    asyncio.run(run())


@pytest.mark.parametrize("event_id", ["", "x" * 70_000])
def test_a_reward_under_an_id_that_no_event_has_is_refused_before_it_is_queued(event_id):
    with no_service() as url, Client(url) as client:
        with pytest.raises(ValueError, match="event_id must have 1 to 200 characters"):
            client.reward(event_id, 1.0)
        with pytest.raises(ValueError, match="event_id"):
            client.activate(event_id)
        assert client.reward_status().queued == 0


def test_two_threads_that_call_first_share_connections_and_leave_none_open(monkeypatch):
    made, both = [], threading.Barrier(2)

    def slow(client):
        http = connect(client)
        made.append(http)
        both.wait(LIMIT)
        return http

    connect = Client._new_http
    with no_service() as url, closing(Client(url, timeout=0.2)) as client:  # `with` would connect at once
        monkeypatch.setattr(Client, "_new_http", slow)
        threads = [threading.Thread(target=client.rank, kwargs={"actions": MENU}) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert sorted(http.is_closed for http in made) == [False, True]


def run(code, *words):
    done = subprocess.run(
        [sys.executable, "-c", f"LIMIT = {LIMIT}\n{textwrap.dedent(code)}", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_rewards_are_sent_before_the_program_ends(live, loop):
    code = """
        import sys
        from fedres.client import Client
        client = Client(sys.argv[1], loop=sys.argv[2], timeout=LIMIT, fallback=None)
        for _ in range(20):
            decision = client.rank(actions=["a", "b"])
            decision.reward(1.0)
    """
    run(code, live.url, loop)
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        assert [event.reward for event in client.events()] == [1.0] * 20


def test_a_forked_process_has_connections_and_rewards_of_its_own(live, loop):
    code = """
        import os, sys
        from fedres.client import Client
        client = Client(sys.argv[1], loop=sys.argv[2], fallback=None, timeout=LIMIT)
        client.rank(actions=["a", "b"]).reward(1.0)
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                for _ in range(3):
                    client.rank(actions=["a", "b"]).reward(1.0)
                client.close()
                os._exit(0)
            children.append(child)
        client.rank(actions=["a", "b"]).reward(1.0)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        client.close()
        print(client.reward_status().sent)
    """
    assert run(code, live.url, loop) == ["2"]
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        assert [event.reward for event in client.events()] == [1.0] * 8


def test_a_forked_process_waits_for_none_of_its_parents_rewards_and_a_closed_client_stays_closed():
    code = """
        import os
        from fedres.client import Client
        client = Client("http://127.0.0.1:1")
        client.reward("event", 1.0)
        child = os.fork()
        if child == 0:
            os._exit(0 if client.flush(0) and client.reward_status().queued == 0 else 1)
        print(os.waitpid(child, 0)[1])
        client.close(0)
        child = os.fork()
        if child == 0:
            try:
                client.reward("event", 1.0)
            except RuntimeError:
                os._exit(0)
            os._exit(1)
        print(os.waitpid(child, 0)[1])
    """
    assert run(code) == ["0", "0"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1:1"])
def test_no_thread_imports_or_makes_tls_settings_whose_locks_a_fork_would_copy(url):
    code = """
        import ssl, sys
        from fedres.client import Client

        def made(*_, **__):
            print("TLS settings")
            raise OSError

        client = Client(sys.argv[1], timeout=LIMIT, fallback=None)
        loaded, ssl.SSLContext = set(sys.modules), made
        client.reward("event", 1.0)
        assert not client.flush(0.5)  # a first try at least
        print(*sorted(set(sys.modules) - loaded))
        client.close(0)
    """
    assert run(code, url) == []


def test_a_fork_while_other_threads_send_rewards_leaves_the_child_no_lock(tmp_path):
    code = """
        import os, signal, sys, threading
        from fedres.client import Client
        client = Client("http://127.0.0.1:1", spool=sys.argv[1], queue_limit=100)
        ended = threading.Event()

        def send():
            while not ended.is_set():
                client.reward("event", 1.0)

        threads = [threading.Thread(target=send) for _ in range(2)]
        for thread in threads:
            thread.start()
        children = 0
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                sent = client.flush(0)
                client.reward("event", 1.0)
                os._exit(0 if sent else 1)
            children += os.waitpid(child, 0)[1]
        ended.set()
        for thread in threads:
            thread.join()
        client.close(0)
        print(children)
    """
    assert run(code, str(tmp_path)) == ["0"]


def test_a_client_loads_neither_the_server_nor_numpy(live, loop):
    code = """
        import sys
        from fedres.client import Client
        with Client(sys.argv[1], loop=sys.argv[2], fallback=None, timeout=LIMIT) as client:
            client.rank(actions=["a", "b"]).reward(1.0)
        print([name for name in ("numpy", "numba", "vowpalwabbit", "service", "bandits") if name in sys.modules])
    """
    assert run(code, live.url, loop) == ["[]"]


def test_what_is_at_its_default_is_not_sent():
    body = check(RankRequest(actions=["a", {"id": "b", "features": {"x": 1}}], event_id="e")).body()
    assert body == {"event_id": "e", "actions": [{"id": "a"}, {"id": "b", "features": {"x": 1}}]}
    options = {"user": "u", "context": {"hour": 9}, "exclude": ["a"], "defer": True, "explain": True}
    full = check(RankRequest(actions=["a", "b"], event_id="e", **options)).body()
    assert full == {"event_id": "e", "actions": [{"id": "a"}, {"id": "b"}], **options}


def test_opening_a_client_loads_what_connects_so_that_the_first_decision_has_its_whole_deadline():
    with Client("http://127.0.0.1:1") as client:
        assert client._engines

    async def opened():
        async with AsyncClient("http://127.0.0.1:1") as client:
            return client._connection.http

    assert asyncio.run(opened()) is not None

"""The clients of a hosted service behind a network with faults: nothing lost, nothing doubled, nobody kept waiting."""

import asyncio
import contextlib
import gc
import json
import math
import random
import subprocess
import sys
import textwrap
import threading

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxies import DROP, HANG, MUTE, PASS, REPEAT, TRICKLE, TWICE, FaultyProxy, answering, no_service, reply
from waiting import LIMIT

from fedres.client import AsyncClient, Client, ServiceError
from fedres_client.calls import Calls
from fedres_client.rewards import Rewards
from fedres_client.spool import Spool
from fedres_client.transport import ask
from fedres_client.wire import Answer, Request

MENU = {"tea": {"hot": True}, "juice": {"hot": False}}
N = 60


@pytest.fixture
def loop(live, request):
    name = f"loop-{abs(hash(request.node.nodeid))}"
    live.make_loop(name, reward_range=[0, N], aggregation="sum")
    return name


def stored(live, loop):
    """Return the decisions and the rewards in the log, repeats and all."""
    entries = live.engine.logged(loop)
    ranks = [entry.event for entry in entries if entry.kind == "rank"]
    return ranks, [(entry.event, entry.example) for entry in entries if entry.kind == "reward"]


def faults(seed):
    """Return a fault for each request: four of ten fail in some way."""
    rng = random.Random(seed)
    return lambda request: rng.choices([PASS, DROP, MUTE, TWICE, REPEAT], [6, 1, 1, 1, 1])[0]


def check(live, loop, decided):
    """Every decision is stored once under the id that the caller knows, with its one reward."""
    ranks, rewards = stored(live, loop)
    assert sorted(ranks) == sorted(decided)
    assert len(set(rewards)) == N  # a reward that came twice has the same id twice
    live.settle(loop)
    with Client(live.url, loop=loop) as client:
        assert client.unmatched() == []
        events = {event.event_id: event for event in client.events()}
    assert {name: event.action for name, event in events.items()} == {
        name: decision.action for name, decision in decided.items()
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_through_a_faulty_network_nothing_is_lost_and_nothing_doubled(live, loop, seed):
    options = {"loop": loop, "timeout": LIMIT, "fallback": None}
    with FaultyProxy(live.address, faults(seed)) as proxy, Client(proxy.url, **options) as one:
        decided = {}
        for k in range(N):
            decision = one.rank(user=f"u{k % 5}", context={"k": k}, actions=MENU)
            decision.reward(1.0)
            decided[decision.event_id] = decision
        assert one.flush(LIMIT)
        assert one.reward_status().sent == N
    assert set(proxy.seen) == {PASS, DROP, MUTE, TWICE, REPEAT}
    check(live, loop, decided)


def test_the_async_client_is_as_careful(live, loop):
    async def run(url):
        async with AsyncClient(url, loop=loop, timeout=LIMIT, fallback=None) as client:
            decisions = await asyncio.gather(*(client.rank(context={"k": k}, actions=MENU) for k in range(N)))
            for decision in decisions:
                decision.reward(1.0)
            assert await client.flush(LIMIT)
        return {decision.event_id: decision for decision in decisions}

    with FaultyProxy(live.address, faults(3)) as proxy:
        decided = asyncio.run(run(proxy.url))
    check(live, loop, decided)


@pytest.mark.parametrize("fault", [MUTE, TWICE])
def test_a_loop_whose_first_answer_was_lost_is_there_and_ours(live, fault):
    first = iter([fault])
    name = f"made-{fault}"
    with FaultyProxy(live.address, lambda request: next(first, PASS)) as proxy, Client(proxy.url) as client:
        assert client.create_loop(name, {"epsilon": 0.25})["epsilon"] == 0.25
        with pytest.raises(ServiceError, match="exists with other settings") as refused:
            client.create_loop(name, {"epsilon": 0.5})
    assert refused.value.status == 409


def test_an_export_through_a_faulty_network_has_every_event_once(live, loop, monkeypatch):
    monkeypatch.setattr("fedres_client.client.PAGE", 4)
    with Client(live.url, loop=loop, timeout=LIMIT, fallback=None) as client:
        made = [client.rank(actions=MENU).event_id for _ in range(20)]
    with FaultyProxy(live.address, faults(4)) as proxy, Client(proxy.url, loop=loop) as client:
        assert [event.event_id for event in client.events()] == made


GIVEN_UP = "ignore::pytest.PytestUnraisableExceptionWarning"  # sockets of connections given up while they were made


@pytest.mark.filterwarnings(GIVEN_UP)
@pytest.mark.parametrize("fault", [HANG, TRICKLE])
def test_a_reply_that_never_ends_keeps_nobody_waiting(live, loop, fault):
    """Without a bound on the whole call, this would never return."""
    with FaultyProxy(live.address, lambda request: fault) as proxy:
        client = Client(proxy.url, loop=loop, timeout=0.2)
        decisions = []
        callers = [threading.Thread(target=lambda: decisions.append(client.rank(actions=MENU))) for _ in range(40)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(LIMIT)
        assert [decision.fallback for decision in decisions] == [True] * 40
        client.close(0)
    gc.collect()


@pytest.mark.filterwarnings(GIVEN_UP)
@pytest.mark.parametrize("fault", [HANG, TRICKLE])
def test_nor_with_the_async_client(live, loop, fault):
    async def run(url):
        async with AsyncClient(url, loop=loop, timeout=0.2) as client:
            return await asyncio.gather(*(client.rank(actions=MENU) for _ in range(40)))

    with FaultyProxy(live.address, lambda request: fault) as proxy:
        assert all(decision.fallback for decision in asyncio.run(run(proxy.url)))
    gc.collect()


def test_a_decision_that_came_too_late_gets_no_reward_for_the_action_that_was_shown(live, loop):
    with FaultyProxy(live.address, lambda request: HANG) as proxy:
        client = Client(proxy.url, loop=loop, timeout=0.5)
        decision = client.rank(actions=MENU, event_id="visit")
        decision.reward(1.0)
        client.reward(decision.event_id, 1.0)  # a caller that did not look goes to an event that nobody has
        assert (decision.fallback, decision.event_id != "visit") == (True, True)
        client.close(0)
    ranks, rewards = stored(live, loop)
    assert set(ranks) <= {"visit"}
    assert all(event != "visit" for event, _ in rewards)


def test_while_the_service_is_away_a_call_is_tried_once_and_when_it_is_back_it_decides(live, loop):
    away = threading.Event()
    away.set()
    with FaultyProxy(live.address, lambda request: DROP if away.is_set() else PASS) as proxy:
        client = Client(proxy.url, loop=loop, timeout=0.5)
        assert client.rank(actions=MENU).fallback
        for n_tries in range(len(proxy.seen), len(proxy.seen) + 3):
            while len(proxy.seen) == n_tries:  # a call during the rest after a slow try is not tried
                assert client.rank(actions=MENU).fallback
            assert len(proxy.seen) == n_tries + 1
        away.clear()
        while client.rank(actions=MENU, timeout=LIMIT).fallback:
            pass
        client.close()


@pytest.mark.filterwarnings(GIVEN_UP)
def test_while_a_service_hangs_one_call_waits_and_all_others_fall_back_at_once(live, loop):
    with FaultyProxy(live.address, lambda request: HANG) as proxy:
        client = Client(proxy.url, loop=loop, timeout=0.3)
        assert client.rank(actions=MENU).fallback
        tries = len(proxy.seen)
        decisions = [client.rank(actions=MENU) for _ in range(200)]
        assert all(decision.fallback for decision in decisions)
        assert decisions[-1].error.message.startswith("the service is away: ")
        assert len(proxy.seen) <= tries + 2  # not 200: a try takes the whole deadline, and then all rest
        client.close(0)
    gc.collect()


@pytest.mark.filterwarnings(GIVEN_UP)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_first_try_has_the_whole_deadline_and_a_repeat_goes_beside_it(live, loop, kind):
    """The reply to the first try is withheld; that to the repeat decides, and the event is stored once."""
    faults_left = iter([HANG])
    with FaultyProxy(live.address, lambda request: next(faults_left, PASS)) as proxy:
        if kind == "sync":
            client = Client(proxy.url, loop=loop, timeout=4)
            decision = client.rank(actions=MENU)
            client.close(0)
        else:

            async def run():
                async with AsyncClient(proxy.url, loop=loop, timeout=4) as client:
                    return await client.rank(actions=MENU)

            decision = asyncio.run(run())
        assert not decision.fallback
        assert proxy.seen == [HANG, PASS]
    assert stored(live, loop)[0] == [decision.event_id]
    gc.collect()


SLOW = reply(
    b'{"event_id":"e","action":"tea","probability":1.0,"model_version":1,"ranking":[]}',
    headers=b"Content-Type: application/json\r\n",
)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_reply_in_the_second_half_of_the_deadline_decides(kind):
    """A service that takes 0.6 of the deadline for each reply decides, and is not asked again and again."""
    with answering(SLOW, seconds=1.2) as url:
        if kind == "sync":
            client = Client(url, timeout=2)
            decisions = [client.rank(actions=MENU) for _ in range(2)]
            client.close(0)
        else:

            async def run():
                async with AsyncClient(url, timeout=2) as client:
                    return await asyncio.gather(*(client.rank(actions=MENU) for _ in range(2)))

            decisions = asyncio.run(run())
    assert [decision.error for decision in decisions] == [None, None]


def test_a_call_that_is_in_more_haste_than_the_client_does_not_make_the_service_look_away(caplog):
    with answering(SLOW, seconds=0.3) as url, Client(url, timeout=LIMIT) as client:
        assert client.rank(actions=MENU, timeout=0.01).fallback
        assert not client.rank(actions=MENU).fallback
    assert "does not decide" not in caplog.text


def test_rewards_never_block_and_the_oldest_are_dropped_when_there_are_too_many():
    with no_service() as url:
        client = Client(url, queue_limit=100)
        for k in range(1000):
            client.reward(f"event-{k}", 1.0)
        status = client.reward_status()
        assert status.queued + status.dropped == 1000
        assert status.queued <= 101  # one is under way
        assert not client.flush(0)
        client.close(0)
        assert client.reward_status().dropped == 1000


def test_a_reward_that_is_refused_is_counted_and_the_next_one_is_sent(live, loop, caplog):
    with Client(live.url, loop=loop) as client:
        client.reward("a", N + 1.0)
        client.reward("b", 1.0)
        assert client.flush(LIMIT)
        status = client.reward_status()
    assert (status.sent, status.refused) == (1, 1)
    assert f"value must be in [0, {N}]" in caplog.text


IDS = [
    *(
        ".",
        "..",
        "../..",
        "..;/",
        "a/b",
        "/",
        "//",
        "\\",
        "%2e%2e",
        "%2F",
        "%00",
        "a\0b",
        "rewards",
        "activate",
        "?x=1",
        "#",
        " ",
        "+",
    ),
    *(
        "é",
        "e\u0301",
        "😀",
        "\ud800",
        "\u202e",
        "\r\nX: y",
        "a\tb",
        "<script>",
        "' OR 1=1",
        '"',
        "{}",
        "null",
        "x" * 200,
        "x" * 201,
        "",
    ),
]


@pytest.mark.parametrize("strange", IDS, ids=ascii)
def test_no_id_however_strange_changes_what_happens_to_the_next_call(live, loop, strange):
    """An id is sent as it is, or refused at the call; the reward behind it is stored, and the next call decides."""
    with Client(live.url, loop=loop, timeout=LIMIT) as client:
        calls = [
            lambda: client.reward(strange, 1.0),
            lambda: client.reward("event", 1.0, id=strange),
            lambda: client.reward("event", outcomes={strange: 1.0}),
            lambda: client.activate(strange),
            lambda: client.rank(actions=[strange, "b"]),
            lambda: client.rank(actions=MENU, user=strange, exclude=[strange]),
            lambda: client.rank(actions=MENU, event_id=strange).reward(1.0),
            lambda: client.similar(strange),
            lambda: client.erase(strange) if len(strange) < 3 else None,
        ]
        for call in calls:
            with contextlib.suppress(ValueError, ServiceError):
                call()
            decision = client.rank(actions=MENU)
            assert not decision.fallback
            decision.reward(1.0)
        assert client.flush(LIMIT)
        status = client.reward_status()
        assert (status.queued, status.dropped, status.sent >= len(calls)) == (0, 0, True)
        rewarded = {event for event, _ in stored(live, loop)[1]}
        assert decision.event_id in rewarded
    with contextlib.suppress(ValueError):
        Client(live.url, loop=strange).close()


@settings(max_examples=100)
@given(st.lists(st.text(st.characters(), min_size=1, max_size=8), max_size=20))
def test_no_event_id_is_changed_or_lost_on_its_way(events):
    """Whatever their ids, rewards arrive once, in their order."""
    received = []

    @contextlib.contextmanager
    def connect():
        yield take

    def take(request):
        events = [reward["event_id"] for reward in json.loads(request.body)["rewards"]]
        received.extend(events)
        return Answer(200, json.dumps({"results": [{"event_id": event} for event in events]}).encode(), {})

    calls = Calls("default", timeout=1.0, admin_timeout=1.0, fallback="first", feedback=None)
    rewards = Rewards(connect, limit=1_000)
    sendable = []
    for event in events:
        try:
            request = calls.reward(event, 1.0, None, None)
        except ValueError:  # half of a surrogate pair
            continue
        sendable.append(event)
        rewards.put(request)
    assert rewards.flush(LIMIT)
    rewards.close()
    assert received == sendable


STRANGE = [b"<html>", b"", b"null", b"[]", b"{}", b'{"event_id":"\xff"}', b'{"x":' + b"[" * 100_000]


@pytest.mark.parametrize("body", STRANGE, ids=lambda body: repr(body[:10]))
@pytest.mark.parametrize("status", [200, 400])
def test_whatever_a_proxy_answers_a_decision_falls_back_and_other_calls_raise_a_service_error(body, status):
    with answering(reply(body, status=status)) as url, Client(url, timeout=LIMIT) as client:
        assert client.rank(actions=MENU).fallback
        calls = [client.settings, client.catalogue, client.unmatched, lambda: list(client.events())]
        for call in calls if body or status == 400 else calls[:3]:  # an export may be empty
            with pytest.raises(ServiceError):
                call()


@pytest.mark.parametrize("deadline", [1e10, 1e300, math.inf])
def test_a_deadline_may_be_as_long_as_one_likes(deadline):
    refused = reply(b"{}", status=422)
    with answering(refused) as url, Client(url, admin_timeout=min(deadline, 1e300)) as client:
        assert client.rank(actions=MENU, timeout=deadline).error.status == 422
        with pytest.raises(ServiceError):
            client.settings()
        client.reward("event", 1.0)
        assert client.flush(deadline)


def test_an_async_call_whose_client_is_closed_between_two_tries_falls_back():
    async def run(url):
        client = AsyncClient(url, timeout=LIMIT)

        async def close(_):
            await client.close()

        client._connected().event_hooks["response"].append(close)
        return await client.rank(actions=MENU)

    with answering(reply(b"", status=503)) as url:
        assert asyncio.run(run(url)).error.message == "the client is closed"


def test_a_reply_without_end_is_given_up_and_keeps_no_thread(monkeypatch):
    ended = threading.Event()

    def endless(request):
        return httpx.Response(200, content=iter(lambda: b"" if ended.wait(0.01) else b"a", b""))

    def threads():
        return [thread for thread in threading.enumerate() if thread.name in ("fedres call", "fedres rewards")]

    monkeypatch.setattr(
        Client, "_new_http", lambda _: httpx.Client(transport=httpx.MockTransport(endless), base_url="http://a")
    )
    monkeypatch.setattr("fedres_client.rewards.TRY_SECONDS", 0.1)
    others = threads()
    client = Client(timeout=0.2)
    assert client.rank(actions=MENU).fallback
    client.reward("event", 1.0)
    client.close(0)
    ours = [thread for thread in threads() if thread not in others]
    for thread in ours:
        thread.join(LIMIT)
    alive = [thread.name for thread in ours if thread.is_alive()]
    ended.set()
    assert alive == []


def test_a_redirect_to_no_address_is_a_failure():
    moved = reply(b"", status=302, headers=b"Location: mailto:a\r\n")
    with answering(moved) as url, httpx.Client(base_url=url) as http:
        assert ask(http, Request("GET", "/")).reason.startswith("InvalidURL")


# the spool


def test_what_could_not_be_sent_is_sent_by_the_next_client(live, loop, tmp_path):
    with no_service() as url:
        client = Client(url, loop=loop, spool=tmp_path)
        for k in range(5):
            client.reward(f"event-{k}", float(k))
        client.close(0)
    assert len(list(tmp_path.glob("*.db"))) == 1
    with Client(live.url, loop=loop, spool=tmp_path) as client:
        assert client.flush(LIMIT)
    assert [event for event, _ in stored(live, loop)[1]] == [f"event-{k}" for k in range(5)]
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_had_is_sent_once_by_one_of_the_next(live, loop, tmp_path):
    code = """
        import os, sys
        from fedres.client import Client
        client = Client("http://127.0.0.1:1", loop=sys.argv[1], spool=sys.argv[2])
        for k in range(50):
            client.reward(f"event-{k}", 1.0, id=f"click-{k}")
        os._exit(1)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), loop, str(tmp_path)], check=False, timeout=LIMIT)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(live.url, loop=loop, spool=tmp_path)) for _ in range(3)]
        assert all(client.flush(LIMIT) for client in clients)
        assert sum(client.reward_status().sent for client in clients) == 50
    assert sorted(event for event, _ in stored(live, loop)[1]) == sorted(f"event-{k}" for k in range(50))


def test_the_file_of_a_client_that_lives_is_left_alone(tmp_path):
    one, other = Spool(tmp_path), Spool(tmp_path)
    one.add("/v1/events/a/reward", b"{}")
    assert other.take_over() == []
    one.close()
    assert [path for _, path, _ in other.take_over()] == ["/v1/events/a/reward"]
    other.close()


def test_rewards_that_a_full_disk_has_no_room_for_wait_in_memory(live, loop, tmp_path, caplog):
    with no_service() as url:
        client = Client(url, loop=loop, spool=tmp_path)
        client._rewards._spool._db.execute("PRAGMA max_page_count = 4")
        for k in range(100):
            client.reward(f"event-{k}", 1.0)
        assert client.reward_status().queued == 100
        client.close(0)
    kept, lost = client.reward_status().queued, client.reward_status().dropped
    assert (kept + lost, kept > 0, lost > 0) == (100, True, True)
    assert caplog.text.count("database or disk is full") == 1
    with Client(live.url, loop=loop, spool=tmp_path) as client:
        assert client.flush(LIMIT)
        assert client.reward_status().sent == kept


def test_a_reward_that_was_sent_and_cannot_be_forgotten_does_not_stop_the_next(live, loop, tmp_path):
    with Client(live.url, loop=loop, spool=tmp_path) as client:
        with client._rewards._changed:  # none is sent before all are on disk
            for k in range(3):
                client.reward(f"event-{k}", 1.0)
            client._rewards._spool._db.execute("PRAGMA query_only = ON")
        assert client.flush(LIMIT)
        assert client.reward_status().sent == 3


WRONG_KEY = reply(b'{"error":{"code":"unauthorized","message":"no such key","target":null}}', status=401)
FORBIDDEN = reply(b'{"error":{"code":"forbidden","message":"not this loop","target":null}}', status=403)
NO_LOOP = reply(
    b'{"error":{"code":"unknown_loop","message":"loop must be one that exists","target":"loop"}}', status=404
)
PROXY = reply(b"<html>400 plain HTTP request was sent to HTTPS port</html>", status=400)
MOVED = reply(b"", status=301, headers=b"Location: https://elsewhere/\r\n")


@pytest.mark.parametrize(
    "answer", [WRONG_KEY, FORBIDDEN, NO_LOOP, PROXY, MOVED], ids=["401", "403", "404", "400", "301"]
)
def test_rewards_outlive_the_mistakes_of_operators(live, loop, tmp_path, caplog, answer):
    with answering(answer) as url, Client(url, loop=loop, spool=tmp_path) as client:
        for k in range(5):
            client.reward(f"event-{k}", float(k))
        assert not client.flush(0.2)
        status = client.reward_status()
        assert (status.queued, status.refused, status.dropped) == (5, 0, 0)
    assert caplog.text.count("the service takes no rewards") == 1
    with Client(live.url, loop=loop, spool=tmp_path) as client:
        assert client.flush(LIMIT)
    assert [event for event, _ in stored(live, loop)[1]] == [f"event-{k}" for k in range(5)]


def test_a_loop_that_is_made_later_gets_the_rewards_that_waited_in_order(live, monkeypatch):
    monkeypatch.setattr("fedres_client.rewards.HELD_SECONDS", 0.01)
    seen, tried = threading.Event(), []

    def observe(call):
        tried.append(call.status)
        if tried.count(404) == 3:
            seen.set()

    with Client(live.url, loop="later", observe=observe) as client:
        for k in range(5):
            client.reward(f"event-{k}", 1.0)
        assert seen.wait(LIMIT)
        assert client.reward_status().queued == 5
        live.make_loop("later")
        assert client.flush(LIMIT)
        assert client.reward_status().sent == 5
    assert [event for event, _ in stored(live, "later")[1]] == [f"event-{k}" for k in range(5)]


def test_rewards_of_a_loop_that_is_gone_hold_up_no_others_and_have_no_more_room_than_they(live, loop, tmp_path):
    with no_service() as url, Client(url, loop="gone", spool=tmp_path) as client:
        for k in range(9):
            client.reward(f"event-{k}", 1.0)
        client.close(0)
    with Client(live.url, loop=loop, spool=tmp_path, queue_limit=10) as client:
        for k in range(30):
            client.reward(f"event-{k}", 1.0)
            while client.reward_status().sent <= k:
                threading.Event().wait(0.001)
        assert client.reward_status().queued == 9
        assert not client.flush(0)
    assert len(list(tmp_path.glob("*.db"))) == 1


def test_a_damaged_file_in_the_folder_is_left_where_it_is(live, loop, tmp_path, caplog):
    damaged = tmp_path / "rewards-A.db"
    damaged.write_bytes(b"no database" * 1000)
    with Client(live.url, loop=loop, spool=tmp_path) as client:
        client.reward("event", 1.0)
        assert client.flush(LIMIT)
    assert damaged.read_bytes() == b"no database" * 1000
    assert "cannot be taken over" in caplog.text

"""The short way of rank answers as the usual one does, and leaves to it all that is not plain."""

import asyncio
import json
import socket
import threading

import pytest

from service.app import create_app
from service.engine import Engine
from service.http import lane as lanes
from service.http import protocol
from service.http.heads import Found, Heads, Way
from service.http.keys import Keys
from service.http.limits import Buckets, Limits
from service.store import StoreUnavailable

SOON = 30  # seconds after which an answer is not waited for any more
BODY = b'{"actions":[{"id":"a","features":{}},{"id":"b","features":{}}]}'
WAY = Way("/v1/rank", "default", None)


def request(body=BODY, *more):
    lines = [b"POST /v1/rank HTTP/1.1", b"Host: a", b"Content-Type: application/json", *more]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


def with_event(event, body=BODY):
    return body[:-1] + b',"event_id":"%b"}' % event


class Talk:
    """A connection of the test's own."""

    def __init__(self, live):
        self._socket = socket.create_connection(live.address)
        self._socket.settimeout(SOON)
        self._file = self._socket.makefile("rb")

    def send(self, data):
        self._socket.sendall(data)

    def answer(self):
        """Return status, headers and body of the next answer, no status if there is none."""
        status = self._file.readline().split()
        headers = {}
        while (line := self._file.readline()).strip():
            name, _, value = line.decode().partition(": ")
            headers[name] = value.strip()
        body = self._file.read(int(headers.get("content-length", 0)))
        return (int(status[1]) if status else None), headers, json.loads(body) if body else None

    def ask(self, data):
        self.send(data)
        return self.answer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()
        self._socket.close()


@pytest.fixture
def taken(monkeypatch):
    """Whether each whole request with a known head was taken."""
    seen, take = [], lanes.Lane.take

    def noted(self, found, data, connection):
        whole = len(data) == found.start + found.length
        if whole:
            seen.append(take(self, found, data, connection))
        return whole and seen[-1]

    monkeypatch.setattr(lanes.Lane, "take", noted)
    return seen


@pytest.fixture
def held(live, monkeypatch):
    """Let commits wait for ``go``; ``begun`` says that one does."""
    go, begun, append = threading.Event(), threading.Event(), live.engine._log.append

    def wait(records):
        begun.set()
        assert go.wait(SOON)
        return append(records)

    monkeypatch.setattr(live.engine._log, "append", wait)
    go.begun = begun
    yield go
    go.set()


def test_what_comes_again_is_taken_and_answered_as_before(live, taken):
    with Talk(live) as talk:
        first, second = [talk.ask(request(BODY, b"X-New: 1")) for _ in range(2)]
        longer = talk.ask(request(with_event(b"longer"), b"X-New: 1"))
    assert taken == [True, True]
    assert first[0] == second[0] == longer[0] == 200
    assert list(first[1]) == list(second[1])
    assert list(first[2]) == list(second[2])
    assert first[2]["event_id"] != second[2]["event_id"]
    assert longer[2]["event_id"] == "longer"
    stored = [entry.event for entry in live.engine._log.read(limit=10_000)]
    assert {first[2]["event_id"], second[2]["event_id"], "longer"} <= set(stored)


def test_a_repeated_event_is_answered_the_same_and_another_with_its_id_refused(live, taken):
    other = BODY.replace(b'"b"', b'"c"')
    with Talk(live) as talk:
        talk.ask(request())
        answers = [talk.ask(request(with_event(b"again"))) for _ in range(3)]
        refused = talk.ask(request(with_event(b"again", other)))
    assert taken.count(False) == 0
    assert answers[0][2] == answers[1][2] == answers[2][2]
    assert (refused[0], refused[2]["error"]["code"]) == (409, "event_exists")


def test_features_that_are_stored_apart_are_exported_and_known_again_on_both_ways(live, client, taken):
    actions = [{"id": name, "features": {"kind": f"kind of {name}"}} for name in ("x", "y")]
    users = [f"user-{k % 3}" for k in range(9)]  # the first request of each waits for a personal model
    bodies = [
        json.dumps({"actions": actions, "user": user, "event_id": f"apart-{k}"}, separators=(",", ":")).encode()
        for k, user in enumerate(users)
    ]
    with Talk(live) as talk:
        answers = [talk.ask(request(body)) for body in bodies]
        assert [talk.ask(request(body))[2] for body in bodies] == [answer[2] for answer in answers]
        assert talk.ask(request(bodies[-1].replace(b"kind of y", b"kind of z")))[0] == 409
    assert all(taken[-9:])
    lines = map(json.loads, client.get("/v1/events").text.splitlines())
    exported = [line["actions"] for line in lines if line["event_id"].startswith("apart-")]
    assert exported == [actions] * 9
    stored = [entry.body for entry in live.engine._log.read(limit=10_000) if (entry.event or "").startswith("apart-")]
    assert [b"given" in body for body in stored] == [False] * 2 + [True] * 7


def test_requests_that_come_while_one_is_under_way_are_answered_in_order(live, held, taken):
    held.set()
    with Talk(live) as talk:
        talk.ask(request())
        held.clear()
        held.begun.clear()
        talk.send(request(with_event(b"p0")))
        assert held.begun.wait(SOON)
        talk.send(request(with_event(b"p1")) + request(with_event(b"p2"))[:50])
        talk.send(request(with_event(b"p2"))[50:] + request(with_event(b"p3")))
        held.set()
        assert [talk.answer()[2]["event_id"] for _ in range(4)] == ["p0", "p1", "p2", "p3"]
        assert talk.ask(request())[0] == 200
    assert taken[-1]


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", "invalid_json"), (b'{"actions":[]}', "invalid_request"), (BODY[:-1] + b',"x":1}', "invalid_request")],
)
def test_what_breaks_a_rule_is_refused_as_usual(live, taken, body, code):
    with Talk(live) as talk:
        talk.ask(request())
        assert talk.ask(request(body))[2]["error"]["code"] == code
        assert talk.ask(request())[0] == 200
    assert taken[-1]


class Told:
    """A connection that notes what it is told."""

    def __init__(self):
        self.said = asyncio.get_running_loop().create_future()

    def answer_json(self, body):
        self.said.set_result(json.loads(body)["event_id"])

    def ask_again(self, data):
        self.said.set_result(data)


def test_of_requests_in_one_turn_only_those_that_break_a_rule_go_the_usual_way(tmp_path):
    broken, nowhere = request(b"{"), Way("/v1/loops/{loop}/rank", "nowhere", None)
    good = [request(with_event(b"e%d" % k)) for k in range(3)]

    async def take(lane, data, way=WAY):
        told = Told()
        head = data.index(b"\r\n\r\n") + 4
        assert lane.take(Found(way, head, len(data) - head), data, told)
        return told

    async def story():
        engine, store = Engine.open(tmp_path / "store.db"), tmp_path / "store.db"
        app = create_app(engine, keys=Keys(store), limits=Limits(requests_per_second=2.5))
        taken = [await take(app.lane, data) for data in (good[0], broken, good[1])]
        taken += [await take(app.lane, good[2], nowhere), await take(app.lane, good[2])]
        said = [await told.said for told in taken]
        later = await take(app.lane, request(with_event(b"later")))
        said.append(await later.said)
        await engine.close()
        return said

    assert asyncio.run(story()) == ["e0", broken, "e1", good[2], "e2", "later"]


class Broken(Told):
    def answer_json(self, body):
        raise RuntimeError("a broken connection")


def test_one_connection_that_breaks_keeps_no_other_from_its_answer(tmp_path, caplog):
    async def story():
        engine, store = Engine.open(tmp_path / "store.db"), tmp_path / "store.db"
        lane = create_app(engine, keys=Keys(store), limits=Limits()).lane
        connections = [Broken(), Told(), Broken(), Told()]
        for k, connection in enumerate(connections):
            data = request(with_event(b"e%d" % k))
            head = data.index(b"\r\n\r\n") + 4
            assert lane.take(Found(WAY, head, len(data) - head), data, connection)
        said = [await connection.said for connection in connections[1::2]]
        await engine.close()
        return said

    assert asyncio.run(story()) == ["e1", "e3"]
    assert [entry.getMessage() for entry in caplog.records] == ["an answer was lost"] * 2


def test_a_head_that_is_not_plain_is_never_taken(live, taken):
    with Talk(live) as talk:
        for more in (b"Content-Encoding: identity", b"Upgrade: h2c", b"Expect: 100-continue"):
            talk.send(request(BODY, more) * 2)
            for _ in range(2):
                status = talk.answer()[0]
                assert (talk.answer()[0] if status == 100 else status) == 200
    assert taken == []


@pytest.fixture
def arrived(monkeypatch):
    """Is released for every part of a request that the service got."""
    parts, receive = threading.Semaphore(0), protocol.Protocol.data_received

    def noted(self, data):
        receive(self, data)
        parts.release()

    monkeypatch.setattr(protocol.Protocol, "data_received", noted)
    return parts


def sent_in_parts(talk, arrived, data, *cuts):
    """Return the answer to a request of which the service got one part after the other."""
    for first, last in zip((0, *cuts), (*cuts, len(data)), strict=True):
        talk.send(data[first:last])
        assert arrived.acquire(timeout=SOON)
    return talk.answer()


def test_a_request_that_comes_in_parts_is_taken_too(live, taken, arrived):
    data = request(BODY, b"X-Parts: 1")
    head = len(data) - len(BODY)
    with Talk(live) as talk:
        answers = [
            sent_in_parts(talk, arrived, data, *cuts) for cuts in ([head], [head], [head + 5, head + 9], [10, head])
        ]
        pipelined = sent_in_parts(talk, arrived, data * 2, head), talk.answer()
    assert [answer[0] for answer in (*answers, *pipelined)] == [200] * 6
    assert taken[:2] == [True, True]


def test_who_may_not_ask_is_refused_by_the_head_alone(start):
    with start(limits=Limits(body_bytes=1_000)) as live:
        key = live.keys.add("rank")
        head = request(BODY, f"Authorization: Bearer {key}".encode())[: -len(BODY)]
        with Talk(live) as talk:
            assert talk.ask(head + BODY)[0] == 200
            assert talk.ask(head + BODY)[0] == 200
        with Talk(live) as talk:
            assert talk.ask(head.replace(b"th: %d" % len(BODY), b"th: 1001"))[0] == 413
        live.keys.revoke(key.split("_")[1])
        with Talk(live) as talk:
            assert talk.ask(head)[0] == 401


def test_a_request_that_is_never_finished_is_closed_on_this_way_too(start, taken):
    with start(limits=Limits(request_seconds=0.5)) as live, Talk(live) as talk:
        talk.ask(request())
        talk.ask(request())
        assert talk.ask(request()[:-1])[2]["error"]["code"] == "request_timeout"
    assert taken == [True]


def test_keys_and_limits_hold_for_what_is_taken(start):
    with start(limits=Limits(requests_per_second=2)) as live:
        key = live.keys.add("rank")
        asked = request(BODY, f"Authorization: Bearer {key}".encode())
        with Talk(live) as talk:
            assert [talk.ask(asked)[0] for _ in range(4)] == [200] * 4
            status, headers, _ = talk.ask(asked)
            assert (status, headers["retry-after"]) == (429, "1")
            live.keys.revoke(key.split("_")[1])
            assert talk.ask(asked)[2]["error"]["code"] == "unauthenticated"
            assert talk.ask(request())[0] == 401


def test_a_store_that_fails_is_said_to_and_nothing_is_acknowledged(live, taken, monkeypatch):
    def fail(records):
        raise StoreUnavailable("full", "the disk is full")

    with Talk(live) as talk:
        talk.ask(request())
        with monkeypatch.context() as broken:
            broken.setattr(live.engine._log, "append", fail)
            status, _, body = talk.ask(request(with_event(b"unstored")))
        assert (status, body["error"]["code"]) == (503, "store_full")
        assert talk.ask(request(with_event(b"unstored")))[0] == 200
    assert taken.count(False) == 0


def test_a_service_that_stops_answers_what_it_took(start, monkeypatch):
    go, begun = threading.Event(), threading.Event()
    with start() as live:
        append = live.engine._log.append

        def wait(records):
            begun.set()
            assert go.wait(SOON)
            return append(records)

        with Talk(live) as talk:
            talk.ask(request())
            monkeypatch.setattr(live.engine._log, "append", wait)
            talk.send(request())
            assert begun.wait(SOON)
            live.loop.call_soon_threadsafe(live.server.stop)
            threading.Timer(0.5, go.set).start()
            status, headers, _ = talk.answer()
            assert (status, headers["connection"]) == (200, "close")
            assert talk.answer()[0] is None


def test_a_client_that_goes_away_disturbs_nobody(live, held, taken):
    held.set()
    with Talk(live) as stays, Talk(live) as goes:
        stays.ask(request())
        held.clear()
        held.begun.clear()
        goes.send(request(with_event(b"gone")))
        stays.send(request(with_event(b"here")))
        assert held.begun.wait(SOON)
        goes._socket.shutdown(socket.SHUT_RDWR)
        held.set()
        assert stays.answer()[2]["event_id"] == "here"


def test_a_head_is_known_whatever_the_length_of_the_body():
    heads = Heads()
    heads.keep(request(), WAY)
    for body in (BODY, b"x", b"y" * 100_000):
        found = heads.find(request(body))
        assert (found.way, request(body)[found.start :], found.length) == (WAY, body, len(body))


@pytest.mark.parametrize(
    "data",
    [
        request(BODY, b"X-More: 1"),
        request().replace(b"POST", b"PUT"),
        request()[:60],
        request().replace(b"Content-Length: ", b"Content-Length: +"),
        request().replace(b"Content-Length: ", b"X-Length: 5\r\nContent-Length: "),
        request(BODY, b"Content-Length: 5"),
        request(BODY, b"Transfer-Encoding: chunked"),
        b"",
        b"\r\n\r\n",
    ],
)
def test_any_other_head_is_not_known(data):
    heads = Heads()
    heads.keep(request(), WAY)
    assert heads.find(data) is None


def test_a_length_that_is_another_headers_is_not_learned():
    heads, data = Heads(), request().replace(b"Host: a", b"Wave-Length: %d" % len(BODY))
    heads.keep(data, WAY)
    assert heads.find(data) is None


def test_a_token_that_is_given_back_can_be_taken_again():
    buckets = Buckets(0.5, clock=lambda: 0.0)
    assert buckets.take("k") == 0
    buckets.give_back("k", 1)
    assert buckets.take("k") == 0
    assert buckets.take("k") > 0

import asyncio
import json

import msgspec
import pytest

from service.engine import Engine
from service.engine.deciding import Action, Offer, RankRequest
from service.errors import ApiError
from service.http import offers
from service.http.offers import Offers
from service.http.protocol import Joined
from service.http.wire import Rank

ACTIONS = '[{"id":"a","features":{"x":1}},{"id":"b"}]'


def body(more=""):
    return f'{{"actions":{ACTIONS}{more}}}'.encode()


@pytest.fixture
def known():
    known = Offers(10)
    for _ in range(2):
        known.keep(body(), msgspec.json.decode(body(), type=Rank))
    return known


@pytest.mark.parametrize(
    "more",
    ["", ',"user":"u"', ',"context":{"h":9},"event_id":"e","exclude":["a","c"]', ',"defer":true,"explain":true'],
)
def test_known_actions_give_the_same_request_as_reading_all_of_it(known, more):
    fast, whole = known.read(body(more)), msgspec.json.decode(body(more), type=Rank)
    assert isinstance(fast.actions, Offer)
    assert list(fast.actions) == whole.actions
    fields = ("context", "user", "exclude", "event_id", "defer", "explain")
    assert [getattr(fast, name) for name in fields] == [getattr(whole, name) for name in fields]


@pytest.mark.parametrize(
    "more",
    [
        ',"user":"u","user":"v"',
        ',"user":"u","user":"u"',
        ',"actions":' + ACTIONS,
        ',"user":7',
        ',"unknown":1',
        ',"user":""',
        ',"defer":false',
        ',"context":"\\ud800" ',
    ],
)
def test_what_is_not_plain_is_left_to_the_careful_way(known, more):
    assert known.read(body(more)) is None


def test_actions_that_are_not_known_byte_for_byte_are_left_to_the_careful_way(known):
    assert known.read(body().replace(b'"x":1', b'"x":2')) is None
    assert known.read(b'{"actions":[]}') is None
    assert known.read(b"[") is None


def test_lists_and_actions_that_were_not_used_for_long_are_forgotten(monkeypatch):
    monkeypatch.setattr(offers, "ROOM", 6 * len(ACTIONS))
    monkeypatch.setattr(offers, "ROOM_OF_ACTIONS", 8 * offers.AROUND)
    known, (first, *others) = Offers(10), [body().replace(b'"x":1', b'"x":%d' % k) for k in range(10)]
    known.keep(first, msgspec.json.decode(first, type=Rank))
    for text in others:
        known.keep(text, msgspec.json.decode(text, type=Rank))
        assert known.read(first) is not None
    assert known.read(others[-1]) is not None
    assert known.read(others[0]) is None


def test_a_list_is_kept_if_it_comes_again_before_many_others(monkeypatch):
    monkeypatch.setattr(offers, "SEEN", 4 * offers.AROUND)
    known, texts = Offers(10), [body().replace(b'"x":1', b'"x":%d' % k) for k in range(10)]
    for text in (*texts, *texts, texts[-1]):
        known.keep(text, msgspec.json.decode(text, type=Rank))
    assert known.read(texts[-1]).actions is known.read(texts[-1]).actions
    assert len(known._offers.newer) == 1


def test_a_new_list_of_known_actions_gives_the_same_request_as_reading_all_of_it(known):
    other = b'{"actions":[{"id":"c","features":{"y":[1,2]}}]}'
    known.keep(other, msgspec.json.decode(other, type=Rank))
    for actions in (b'[{"id":"c","features":{"y":[1,2]}},{"id":"a","features":{"x":1}}]', b'[{"id":"b"}]'):
        text = b'{"actions":%b,"user":"u"}' % actions
        first, second, third = (known.read(text).actions for _ in range(3))
        assert list(first) == list(second) == msgspec.json.decode(text, type=Rank).actions
        assert first is not second
        assert second is third


@pytest.mark.parametrize(
    "text",
    [
        b'{"actions":[{"id":"b"},{"id":"c"}]}',
        b'{"actions":[{"id":"b"},{"id":"b","id":"b"}]}',
        b'{"actions":[]}',
        b'{"actions":[ {"id":"b"} ]}',
        b'{"actions":[x"id":"b"}]}',
        b'{"actions":[{"id":"b"},,{"id":"a","features":{"x":1}}]}',
        b'{"actions":[{"id":"b"}}]}',
        b'{"actions":[{"id":"b"}',
        b'{"actions":[%b]}' % b",".join([b'{"id":"b"}'] * 11),
        b'{"actions":[{"id":"b"}],"exclude":[%b]}' % b",".join([b'"x"'] * 11),
    ],
)
def test_a_list_that_is_not_plainly_one_of_known_actions_is_left_to_the_careful_way(known, text):
    assert known.read(text) is None


def test_a_new_list_with_an_action_twice_is_refused(known):
    with pytest.raises(ApiError, match="actions must have different ids, got 'b' twice"):
        known.read(b'{"actions":[{"id":"b"},{"id":"b"}]}')


LONG = f'[{{"id":"a","features":{{"x":"{"y" * offers.BEGINNING}"}}}},{{"id":"b"}}]'


@pytest.fixture
def known_long():
    known, long = Offers(10), body().replace(ACTIONS.encode(), LONG.encode())
    for _ in range(2):
        known.keep(long, msgspec.json.decode(long, type=Rank))
    return known


@pytest.mark.parametrize(
    "written",
    [
        '{"actions":LONG}',
        '{"user":"u","actions":LONG,"context":{"h":9}}',
        '{"context":{"action":LONG},"actions":LONG}',
    ],
)
def test_a_long_list_is_found_wherever_it_stands(known_long, written):
    text = written.replace("LONG", LONG).encode()
    fast, whole = known_long.read(text), msgspec.json.decode(text, type=Rank)
    assert list(fast.actions) == whole.actions
    assert (fast.context, fast.user) == (whole.context, whole.user)


@pytest.mark.parametrize(
    "written",
    [
        '{"actions":LONG,"actions":LONG}',
        '{"actions":LONG,"actions":[]}',
        '{"context":{"actions":LONG},"actions":LONG}',
        '{"context":{"actions":LONG},"actions":[]}',
        '{"context":{"actions":LONG},"actions":[1]}',
        '{"actions":LONG }',
        '{"actions":LONG,"user":7}',
        '{"actions":LONG',
    ],
)
def test_a_long_list_where_something_else_is_wrong_is_left_to_the_careful_way(known_long, written):
    assert known_long.read(written.replace("LONG", LONG).encode()) is None


@pytest.mark.parametrize("rest", ["", "y" * offers.BEGINNING])
def test_lists_that_differ_in_any_one_byte_are_told_apart(rest):
    known, ids = Offers(10), ["a" * k + "b" + "a" * (offers.STEP - k) for k in range(offers.STEP + 1)]
    bodies = {name: b'{"actions":[{"id":"%b","features":{"x":"%b"}}]}' % (name.encode(), rest.encode()) for name in ids}
    for text in [*bodies.values()] * 2:
        known.keep(text, msgspec.json.decode(text, type=Rank))
    for name, text in [*bodies.items()] * 2:
        assert [action.id for action in known.read(text).actions] == [name]


def test_an_offer_is_checked_as_any_list_of_actions_is():
    twice = msgspec.json.decode(b'{"actions":[{"id":"a"},{"id":"a"}]}', type=RankRequest)
    with pytest.raises(ApiError, match="actions must have different ids, got 'a' twice"):
        Offer(twice.actions)


def test_a_known_offer_is_decided_and_logged_as_an_unknown_one(tmp_path, known):
    async def rank_both():
        engine = Engine.open(tmp_path / "store.db")
        await engine.put_actions("default", [Action("b", msgspec.Raw(b'{"y":2}'))])
        for request in (known.read(body()), msgspec.json.decode(body(), type=Rank)):
            await engine.rank("default", request)
        logged = [json.loads(entry.body) for entry in engine._log.read() if entry.kind == "rank"]
        await engine.close()
        return logged

    first, second = asyncio.run(rank_both())
    assert [first[name] for name in ("actions", "scores", "probabilities")] == [
        second[name] for name in ("actions", "scores", "probabilities")
    ]


class Wire:
    """A transport that notes what was written to it."""

    def __init__(self):
        self.written = []
        self.closed = False

    def write(self, data):
        self.written.append(data)

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("writes", "written"),
    [
        ([HEAD, b"body"], [HEAD + b"body"]),
        ([HEAD, b""], [HEAD]),
        ([HEAD, b"one", b"two"], [HEAD + b"one", b"two"]),
        ([HEAD, HEAD], [HEAD + HEAD]),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"], [b"HTTP/1.1 100 Continue\r\n\r\n"]),
        ([HEAD], []),
    ],
)
def test_a_head_goes_out_with_what_follows_it(writes, written):
    wire = Wire()
    joined = Joined(wire)
    for data in writes:
        joined.write(data)
    assert wire.written == written


@pytest.mark.parametrize("end", ["flush", "close"])
def test_a_head_that_nothing_follows_goes_out_at_the_end(end):
    wire = Wire()
    joined = Joined(wire)
    joined.write(HEAD)
    getattr(joined, end)()
    assert wire.written == [HEAD]
    assert wire.closed == joined.is_closing() == (end == "close")

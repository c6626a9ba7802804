"""Bodies: limits before and after decompression, types, and JSON that is refused."""

import asyncio
import gzip
import tracemalloc

import msgspec
import pytest

from service.errors import ApiError
from service.http.request import Disconnected, check_media_type, decode, decode_msgpack
from service.http.router import read_headers, read_request
from service.http.routes import ADMIN, Route
from service.plugins.devices.routes import Updates


def receiving(*chunks):
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages[-1]["more_body"] = False
    waiting = iter(messages)

    async def receive():
        return next(waiting, {"type": "http.disconnect"})

    return receive


ANY_BODY = Route(method="POST", path="/", roles=ADMIN, endpoint=None)


async def read_body(receive, headers, limit):
    return await read_request(ANY_BODY, headers, receive, limit)


def read(headers, *chunks, limit=1000):
    return asyncio.run(read_body(receiving(*chunks), headers, limit))


def refused(call):
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.status, caught.value.code


def test_a_body_comes_back_whole_however_it_is_cut():
    assert read({}, b"abc") == b"abc"
    assert read({b"content-length": b"3"}, b"a", b"", b"bc") == b"abc"
    assert read({b"content-encoding": b"gzip"}, gzip.compress(b"abc")) == b"abc"


def test_a_declared_length_is_refused_before_anything_is_read():
    async def nothing():
        raise AssertionError("read")

    for length in (b"1001", b"9" * 5000, b"-1", b"x"):
        assert refused(lambda n=length: asyncio.run(read_body(nothing, {b"content-length": n}, 1000)))[0] == 413


def test_an_undeclared_body_is_refused_as_soon_as_it_is_too_long():
    receive = receiving(b"x" * 600, b"x" * 600, b"never read")
    assert refused(lambda: asyncio.run(read_body(receive, {}, 1000))) == (413, "body_too_large")
    assert asyncio.run(receive())["body"] == b"never read"


def test_a_gzip_bomb_is_refused_at_the_limit():
    bomb = gzip.compress(bytes(20_000_000))
    tracemalloc.start()
    try:
        assert refused(lambda: read({b"content-encoding": b"gzip"}, bomb, limit=100_000)) == (413, "body_too_large")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def compressed(data):
    """Return the same bytes at any time: a test's name must not change with the clock."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    "body", [b"", b"plain", compressed(b"abc")[:-1], compressed(b"a") + b"more", compressed(b"a") * 2]
)
def test_what_is_no_whole_gzip_is_refused(body):
    assert refused(lambda: read({b"content-encoding": b"gzip"}, body)) == (400, "invalid_gzip")


@pytest.mark.parametrize("encoding", [b"br", b"deflate", b"gzip, gzip", b"zstd"])
def test_other_encodings_are_refused(encoding):
    assert refused(lambda: read({b"content-encoding": encoding}, b"abc")) == (415, "unsupported_encoding")


def test_a_client_that_goes_away_is_no_request():
    async def gone():
        return {"type": "http.disconnect"}

    with pytest.raises(Disconnected):
        asyncio.run(read_body(gone, {}, 1000))


def test_the_type_of_a_body_must_be_said():
    json = b"application/json"
    for media_type in (json, b"Application/JSON; charset=utf-8"):
        check_media_type(media_type, json)
    for media_type in (None, b"", b"text/plain", b"application/x-www-form-urlencoded"):
        assert refused(lambda g=media_type: check_media_type(g, json)) == (415, "unsupported_media_type")


def test_of_a_header_that_comes_twice_the_last_counts_but_credentials_come_once():
    assert read_headers([(b"accept", b"a"), (b"authorization", b"b"), (b"accept", b"c")]) == {
        b"accept": b"c",
        b"authorization": b"b",
    }
    for name in (b"authorization", b"ocp-apim-subscription-key", b"host"):
        assert refused(lambda name=name: read_headers([(name, b"a"), (name, b"a")])) == (400, "repeated_header")


ANY = msgspec.json.Decoder()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b'{"a": NaN}', 400, "invalid_json"),
        (b'{"a": -Infinity}', 400, "invalid_json"),
        (b'{"a": 1e400}', 422, "invalid_request"),
        (b'{"a": "\\ud800"}', 400, "invalid_json"),
        (b'{"a": "\\ud800 and more"}', 400, "invalid_json"),
        (b'{"a": "\xff"}', 400, "invalid_json"),
        (b"[" * 100_000 + b"]" * 100_000, 400, "nesting_too_deep"),
        (b'{"a": 1} {}', 400, "invalid_json"),
        (b"\xef\xbb\xbf{}", 400, "invalid_json"),
    ],
)
def test_json_is_read_strictly(body, status, code):
    assert refused(lambda: decode(ANY, body)) == (status, code)


def test_json_that_is_right_is_read():
    assert decode(ANY, b'{"a": [1, 2.5, "\xc3\xa9", {"a": null}]}') == {"a": [1, 2.5, "é", {"a": None}]}


def test_of_a_name_that_comes_twice_in_an_object_the_last_one_counts():
    assert decode(ANY, b'{"a": 1, "b": {"c": 1, "\\u0063": 2}}') == {"a": 1, "b": {"c": 2}}


UPDATES = msgspec.msgpack.Decoder(Updates)
ONE = {"seq": 1, "t": 1, "version": 1, "kind": "gradient", "body": b"1234"}
GIVEN = msgspec.msgpack.encode({"client": "a", "updates": [ONE]})
UP_TO = b"\x82\xa6client\xa1a\xa7updates"


def with_one(**fields):
    return msgspec.msgpack.encode({"client": "a", "updates": [{**ONE, **fields}]})


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_msgpack"),
        (b"\xc1", 400, "invalid_msgpack"),
        (GIVEN + b"\xc0", 400, "invalid_msgpack"),
        (b"{}", 422, "invalid_request"),
        (b"\x92\xa1a\x90", 422, "invalid_request"),
        (b"\x91" * 1_000_000, 422, "invalid_request"),
        (b"\x83" + UP_TO[1:] + b"\x90\xa1x" + b"\x91" * 1_000_000, 422, "invalid_request"),
        (b"\x83\xa6client\xa1b" + UP_TO[1:] + b"\x90", 400, "invalid_msgpack"),
        (UP_TO + b"\xdc\x00\x00", 400, "invalid_msgpack"),
        (UP_TO + b"\xdd\xff\xff\xff\xff", 400, "invalid_msgpack"),
        (b"\xdf\xff\xff\xff\xff", 400, "invalid_msgpack"),
        (b"\x82\xa6client\xdb\xff\xff\xff\xff", 400, "invalid_msgpack"),
        (UP_TO + b"\x91\x85\xa4body\xc6\xff\xff\xff\xff", 400, "invalid_msgpack"),
        (b"\x82\xa6client\xa1\xff\xa7updates\x90", 400, "invalid_msgpack"),
        (b"\x82\xa6client\xa3\xed\xa0\x80\xa7updates\x90", 400, "invalid_msgpack"),
        (with_one(seq=float("nan")), 422, "invalid_request"),
        (with_one(seq=1.0), 422, "invalid_request"),
        (with_one(seq=0), 422, "invalid_request"),
        (with_one(seq=2**64 - 1), 422, "invalid_request"),
        (with_one(t=2**53 + 1), 422, "invalid_request"),
        (with_one(body="text"), 422, "invalid_request"),
        (with_one(colour="red"), 422, "invalid_request"),
        (with_one(kind="x" * 201), 422, "too_long"),
    ],
)
def test_msgpack_is_read_strictly(body, status, code):
    assert refused(lambda: decode_msgpack(UPDATES, body)) == (status, code)


def test_msgpack_that_is_cut_anywhere_is_refused():
    for n in range(len(GIVEN)):
        assert refused(lambda n=n: decode_msgpack(UPDATES, GIVEN[:n])) == (400, "invalid_msgpack")


def test_msgpack_that_is_right_is_read_in_any_order():
    turned = dict(reversed(ONE.items()))
    body = msgspec.msgpack.encode({"updates": [ONE, turned], "client": "a"})
    read = decode_msgpack(UPDATES, body)
    assert read.client == "a"
    assert read.updates == [msgspec.convert(ONE, type(read.updates[0]))] * 2

"""HTTP as no good client would send it: pipelined, with trailers, upgrades and odd heads."""

import json
import resource
import socket

import pytest
from waiting import LIMIT

from service.http.protocol import HEAD_BYTES, MOST_PIPELINED, SLICE_BYTES, CountingTransport
from service.http.request import Limits

BODY = b'{"actions": [{"id": "a", "features": {}}]}'
PAGE = b"GET / HTTP/1.1\r\n\r\n"
CLOSE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def rank(*headers, body=BODY, path=b"/v1/rank"):
    lines = [b"POST %b HTTP/1.1" % path, b"host: localhost", b"content-type: application/json", *headers]
    if not any(header.lower().startswith((b"content-length", b"transfer-encoding")) for header in headers):
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", b""]) + body


def exchange(live, *parts):
    """Return the replies to what is sent, as (status, body)."""
    with socket.create_connection(live.address) as connection:
        connection.settimeout(LIMIT)
        for part in parts:
            connection.sendall(part)
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
    return list(replies(received))


def replies(received):
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        length = next((int(line.split()[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length")), 0)
        yield int(head.split()[1]), rest[:length]
        received = rest[length:]


def code(reply):
    return reply[0], json.loads(reply[1])["error"]["code"]


# pipelining


def test_requests_that_are_sent_at_once_are_answered_in_order(live):
    answers = exchange(live, rank() * 40 + PAGE * 3 + CLOSE)
    assert [status for status, _ in answers] == [200] * 44
    events = [json.loads(body)["event_id"] for _, body in answers[:40]]
    assert len(set(events)) == 40
    assert answers[-1][1] == b'{"status":"ok"}'


def test_a_large_body_in_the_middle_of_many_requests_is_read_to_its_end(live):
    large = BODY[:-1] + b', "context": {"x": "%b"}}' % (b"y" * 900)
    padded = large + b" " * 40 * SLICE_BYTES
    answers = exchange(live, PAGE * 60 + rank(body=padded) + PAGE * 60 + CLOSE)
    assert [status for status, _ in answers] == [200] * 122


def test_requests_with_bodies_of_one_long_line_are_answered_in_order_and_within_their_limits(live):
    whole = [
        rank(body=BODY[:-1] + b', "context": {"x": "%b"}}' % (b"y" * 900) + b" " * n) for n in (3_000, 50_000, 100)
    ]
    too_large = rank(body=BODY + b" " * 300_000)
    answers = exchange(live, b"".join(whole), *whole, CLOSE)
    assert [status for status, _ in answers] == [200] * 7
    assert code(exchange(live, whole[0] + too_large)[1]) == (413, "body_too_large")


def test_no_more_than_a_few_requests_of_a_connection_are_in_memory(live):
    """Twenty connections with 252 KB of the shortest requests each, none of which reads a reply."""
    protocols, most = live.server.server_state.connections, 0

    def waiting():
        return max((len(one.pipeline) for one in protocols), default=0)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    connections = [socket.create_connection(live.address) for _ in range(20)]
    try:
        for connection in connections:
            connection.settimeout(LIMIT)
            connection.sendall(PAGE * 14_000)
        with live.client() as client:
            for _ in range(20):
                assert client.get("/healthz").status_code == 200
                most = max(most, live.run(waiting))
    finally:
        for connection in connections:
            connection.close()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KB
    assert most <= MOST_PIPELINED + SLICE_BYTES // len(PAGE)
    assert grown < 100_000


def test_connections_are_bounded(start):
    with start(limits=Limits(connections=3)) as live:
        held = [socket.create_connection(live.address) for _ in range(3)]
        try:
            for connection in held:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert code(exchange(live)[0]) == (503, "too_many_connections")
        finally:
            for connection in held:
                connection.close()


# heads, trailers and upgrades


def test_trailers_are_no_headers(start):
    with start() as live:
        key = live.keys.add("rank").encode()
        chunked = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
        authorization = b"authorization: Bearer %b\r\n" % key
        good = rank(b"transfer-encoding: chunked", authorization[:-2], b"connection: close", body=chunked + b"\r\n")
        assert [status for status, _ in exchange(live, good)] == [200]
        bad = rank(b"transfer-encoding: chunked", b"connection: close", body=chunked + authorization + b"\r\n")
        assert code(exchange(live, bad)[0]) == (401, "unauthenticated")


UPGRADES = {
    "h2c": (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAAP__"),
    "websocket": (b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-key: x"),
}


@pytest.mark.parametrize("headers", UPGRADES.values(), ids=UPGRADES)
def test_a_request_that_offers_another_protocol_is_answered_in_this_one(live, headers):
    request = rank(*headers)
    assert [status for status, _ in exchange(live, request + rank() + CLOSE)] == [200] * 3
    apart = [request[at : at + 7] for at in range(0, len(request), 7)]
    assert [status for status, _ in exchange(live, *apart, CLOSE)] == [200] * 2
    chunked = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])
    answers = exchange(live, rank(*headers, b"transfer-encoding: chunked", body=chunked) + CLOSE)
    assert [status for status, _ in answers] == [200] * 2


def test_nobody_is_connected_to_another_host(live):
    assert code(exchange(live, b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\n")[0]) == (
        400,
        "invalid_http",
    )


def test_blanks_behind_a_length_are_no_part_of_it(live):
    requests = rank(b"content-length: %d " % len(BODY)) + rank(b"content-length:\t%d\t" % len(BODY))
    answers = exchange(live, requests + CLOSE)
    assert [status for status, _ in answers] == [200] * 3


@pytest.mark.parametrize("line", [b"x-long: y\r\n", b"x-long: %b\r\n" % (b"y" * 2_000)], ids=["many", "few lines"])
def test_a_head_that_is_too_long_is_refused_however_it_arrives(live, line):
    lines = line * ((HEAD_BYTES + 5_000) // len(line))
    long = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + lines + b"\r\n"
    assert HEAD_BYTES + SLICE_BYTES < len(long) < 71_000
    assert code(exchange(live, long)[0]) == (431, "head_too_large")
    assert code(exchange(live, long[:50_000], long[50_000:])[0]) == (431, "head_too_large")


@pytest.mark.parametrize("path", [b"/rank", b"/v2/rank", b"/v1/loops/a/b/rank", b"/v1/loops//rank", b"//rank"])
def test_a_post_to_an_unknown_path_is_answered(live, path):
    assert code(exchange(live, rank(path=path) + CLOSE)[0]) == (404, "unknown_path")


def test_a_refusal_is_the_same_however_often_the_actions_were_seen(live):
    bad = b'{"actions": [{"id": "a", "features": {"x": [[[[[[[[[1]]]]]]]]]}}]}'
    good = b'{"actions": [{"id": "a", "features": {"x": 1}}], "context": {"x": "%b"}}' % (b"y" * 2_000)
    expected = [exchange(live, rank(body=body) + CLOSE)[0] for body in (bad, good)]
    for _ in range(3):
        exchange(live, rank(body=b'{"actions": [{"id": "a", "features": {"x": 1}}]}') + CLOSE)
        assert [exchange(live, rank(body=body) + CLOSE)[0] for body in (bad, good)] == expected


@pytest.mark.parametrize(("headers", "closes"), [((), False), ((b"connection: close",), True)])
def test_a_reply_that_is_written_at_once_has_all_headers(live, headers, closes):
    with socket.create_connection(live.address) as connection:
        connection.settimeout(LIMIT)
        connection.sendall(rank(b"x-request-id: mine", *headers))
        head, _, body = connection.recv(1 << 16).partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        fields = dict(line.split(b": ", 1) for line in lines)
        assert first == b"HTTP/1.1 200 OK"
        assert len(fields) == len(lines)
        assert fields.pop(b"date").endswith(b" GMT")
        assert fields.pop(b"connection", None) == (b"close" if closes else None)
        assert fields == {
            b"content-type": b"application/json",
            b"content-security-policy": b"frame-ancestors 'none'",
            b"x-content-type-options": b"nosniff",
            b"x-request-id": b"mine",
            b"content-length": b"%d" % len(body),
        }
        if closes:
            assert connection.recv(1) == b""


def test_nothing_is_written_to_a_client_that_has_gone():
    class Closed:
        """A transport as uvloop's after its end."""

        def is_closing(self):
            return True

        def write(self, data):
            raise RuntimeError("the handler is closed")

    transport = CountingTransport(Closed())
    transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
    transport.write(b"body")


def test_a_host_comes_once(live):
    two = CLOSE.replace(b"host: localhost", b"host: evil.example\r\nhost: localhost")
    assert code(exchange(live, two)[0]) == (400, "repeated_header")


def test_a_transfer_encoding_that_is_not_undone_is_refused(live):
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    for coding in (b"gzip, chunked", b"x-odd, chunked"):
        request = rank(b"transfer-encoding: " + coding, b"connection: close", body=chunked)
        assert code(exchange(live, request)[0]) == (415, "unsupported_encoding")
    good = rank(b"transfer-encoding: Chunked", b"connection: close", body=chunked)
    assert [status for status, _ in exchange(live, good)] == [200]


@pytest.mark.parametrize("options", [b"upgrade, close", b"close, Upgrade, HTTP2-Settings", b"close"])
def test_a_connection_that_is_to_be_closed_is_closed_although_an_upgrade_is_ignored(live, options):
    request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: %b\r\nupgrade: h2c\r\n\r\n" % options
    assert [status for status, _ in exchange(live, request)] == [200]


def test_an_error_repeats_little_of_what_was_sent(live, client):
    sent = {"filter": {"x": {"exists": "y" * 200_000}}}
    for path, body in (("/v1/recommend", sent), ("/v1/rank", {"actions": [{"id": "a"}], "z" * 200_000: 1})):
        reply = client.post(path, json=body)
        assert reply.status_code == 422
        assert len(reply.content) < 5_000
        assert reply.json()["error"]["message"]

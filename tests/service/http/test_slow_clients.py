"""Connections that never finish or begin a request, or never read the reply, are closed."""

import json
import select
import socket
import time

import pytest
from waiting import LIMIT, until

from service.http.protocol import HEAD_BYTES
from service.http.request import Limits

PATIENCE = 0.5
LONGER = 3.0  # where a test must be in time itself, also on a busy machine

RANK = b'{"actions": [{"id": "a", "features": {}}]}'
HEAD = b"POST /v1/rank HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
HEAD += b"content-length: %d\r\n\r\n" % len(RANK)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory, live_service):
    with live_service(tmp_path_factory.mktemp("slow"), limits=Limits(request_seconds=PATIENCE)) as running:
        yield running


def all_of(connection):
    """Return what comes until the service closes the connection."""
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


def parsed(received):
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def connected(live):
    connection = socket.create_connection(live.address)
    connection.settimeout(LIMIT)
    return connection


@pytest.mark.parametrize(
    "begun",
    [b"", b"POST /v1/rank HT", b"POST /v1/rank HTTP/1.1\r\nhost: localhost\r\nx-half", HEAD, HEAD + RANK[:10]],
    ids=["nothing", "half a line", "half a head", "no body", "half a body"],
)
def test_a_request_that_is_never_finished_is_closed(impatient, begun):
    with connected(impatient) as connection:
        connection.sendall(begun)
        assert parsed(all_of(connection)) == (408, "request_timeout")


def test_trickling_bytes_do_not_buy_time(impatient):
    with connected(impatient) as connection:
        connection.settimeout(PATIENCE / 10)
        received = None
        connection.sendall(HEAD)
        for byte in RANK[:30] + b" " * 1000:
            try:
                connection.sendall(bytes([byte]))
                received = connection.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:
                received = b""
            break
        assert received is not None
        if received:
            assert parsed(received) == (408, "request_timeout")


def test_a_second_request_on_a_connection_must_be_finished_too(impatient):
    def first_in_time():
        with connected(impatient) as connection:
            connection.sendall(HEAD + RANK)
            if not connection.recv(65536).startswith(b"HTTP/1.1 200"):
                return False  # this process had to wait for a processor
            connection.sendall(HEAD + RANK[:5])
            assert b"408" in all_of(connection)
            return True

    until(first_in_time)


def test_the_service_is_well_after_many_of_them(impatient):
    connections = [connected(impatient) for _ in range(50)]
    for connection in connections:
        connection.sendall(HEAD)
    with impatient.client() as client:
        assert client.get("/healthz").status_code == 200
    for connection in connections:
        assert parsed(all_of(connection)) == (408, "request_timeout")
        connection.close()


def test_a_head_without_end_is_refused(live):
    begun = b"GET / HTTP/1.1\r\nx-long: "
    with connected(live) as connection:
        connection.sendall(begun + b"x" * (HEAD_BYTES + 1 - len(begun)))
        assert parsed(all_of(connection)) == (431, "head_too_large")


def test_a_long_body_is_no_long_head(live):
    body = b'{"actions": [{"id": "a", "features": {}}]}' + b" " * 2 * HEAD_BYTES
    head = HEAD.replace(b"content-length: %d" % len(RANK), b"content-length: %d" % len(body))
    with connected(live) as connection:
        connection.sendall(head + body + b"GET /healthz HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\n\r\n")
        assert all_of(connection).count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("nonsense", [b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"])
def test_what_is_no_http_is_refused_in_the_same_shape(live, nonsense):
    with connected(live) as connection:
        connection.sendall(nonsense)
        assert parsed(all_of(connection)) == (400, "invalid_http")


@pytest.fixture(scope="module")
def large(tmp_path_factory, live_service):
    """A service with an export and a model that no system's buffers hold."""
    with live_service(tmp_path_factory.mktemp("large"), limits=Limits(request_seconds=LONGER)) as running:
        fill(running)
        yield running


def fill(live):
    numbers = [k / 7 for k in range(900)]
    requests = [{"context": {"x": numbers}, "actions": [{"id": "a", "features": {}}]}] * 40
    with live.client() as client:
        for _ in range(15):
            assert client.post("/v1/rank/batch", json={"requests": requests}).status_code == 200
        made = client.post("/v1/loops", json={"name": "large", "settings": {"model": "adagrad", "bits": 22}})
        assert made.status_code == 201


def asking(live, path):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connection.connect(live.address)
    connection.sendall(b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path)
    return connection


@pytest.mark.parametrize("path", [b"/v1/events", b"/v1/loops/large/model"], ids=["in parts", "as a whole"])
def test_a_client_that_does_not_read_its_reply_is_cut_off(large, path):
    with asking(large, path) as connection:
        closed = select.poll()
        closed.register(connection, select.POLLRDHUP)
        assert closed.poll(1_000 * LIMIT)
        with pytest.raises(ConnectionResetError):
            all_of(connection)


def test_a_client_that_reads_slowly_gets_all_of_its_reply(large):
    with asking(large, b"/v1/events") as connection:
        received, chunk = b"", b"-"
        while chunk:
            chunk = connection.recv(250_000, socket.MSG_WAITALL)
            received += chunk
            time.sleep(LONGER / 60)
        assert received.endswith(b"\r\n0\r\n\r\n")
        assert received.count(b'"event_id"') >= 600

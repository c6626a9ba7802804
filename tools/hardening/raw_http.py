"""HTTP on the wire, right and broken: every connection ends with an answer or is closed, and the service goes on."""

import random
import re
import socket
import tempfile
from pathlib import Path

from live import run_service

BODY = b'{"actions": [{"id": "a", "features": {}}]}'
LENGTH = b"content-length: %d" % len(BODY)
START = b"POST /v1/rank HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
SECONDS = 30


def head(*lines, body=BODY, start=START):
    return start + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


# name: what is sent, and the statuses of all answers; each ends with a request that closes the connection
CORPUS = {
    "right": (head(LENGTH), [200, 200]),
    "chunked": (START + CHUNKED, [200, 200]),
    "length and chunks": (head(LENGTH, body=b"")[:-2] + CHUNKED, [400]),
    "two lengths": (head(LENGTH, b"content-length: 3"), [400]),
    "the same length twice": (head(LENGTH, LENGTH), [400]),
    "a list of lengths": (head(b"content-length: 42, 42"), [400]),
    "a negative length": (head(b"content-length: -1"), [400]),
    "a length with a sign": (head(b"content-length: +42"), [400]),
    "a length in hexadecimal": (head(b"content-length: 0x2a"), [400]),
    "a length beyond 64 bits": (head(b"content-length: 99999999999999999999999"), [400]),
    "a long length": (head(b"content-length: 1000001", body=b""), [413]),
    "no length": (head(body=b""), [400, 200]),
    "an unknown encoding": (head(b"transfer-encoding: xchunked"), [400]),
    "chunked twice": (head(b"transfer-encoding: chunked, chunked", body=b"0\r\n\r\n"), [400]),
    "chunked, then more": (head(b"transfer-encoding: chunked, identity", body=b"0\r\n\r\n"), [400]),
    "a bad chunk size": (START + b"transfer-encoding: chunked\r\n\r\nxyz\r\n", [400]),
    "a negative chunk size": (START + b"transfer-encoding: chunked\r\n\r\n-1\r\n", [400]),
    "a chunk that is too short": (START + b"transfer-encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n", [400]),
    "a huge chunk size": (START + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n", [400]),
    "a blank in front of the colon": (head(b"x-a : b", LENGTH), [400]),
    "a folded header": (head(b"x-a: b\r\n c", LENGTH), [400]),
    "a header without a name": (head(b": b", LENGTH), [400]),
    "a header without a colon": (head(b"abc", LENGTH), [400]),
    "a NUL in a header": (head(b"x-a: b\0c", LENGTH), [400]),
    "a bare carriage return": (head(b"x-a: b\rc", LENGTH), [400]),
    "a header that is no ASCII": (head(b"x-a: \xff\xfe", LENGTH), [200, 200]),
    "an unknown method": (b"FETCH /v1/rank HTTP/1.1\r\nhost: localhost\r\n\r\n", [400]),
    "a method in small letters": (b"get / HTTP/1.1\r\nhost: localhost\r\n\r\n", [400]),
    "a method that a path has not": (b"DELETE /v1/rank HTTP/1.1\r\nhost: localhost\r\n\r\n", [405, 200]),
    "trace": (b"TRACE / HTTP/1.1\r\nhost: localhost\r\n\r\n", [405, 200]),
    "another version": (b"GET / HTTP/3.7\r\nhost: localhost\r\n\r\n", [400]),
    "HTTP/0.9": (b"GET /\r\n\r\n", [200]),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [400]),
    "a blank line first": (b"\r\n\r\n" + head(LENGTH), [200, 200]),
    "a path that climbs": (b"GET /v1/../../etc/passwd HTTP/1.1\r\nhost: localhost\r\n\r\n", [404, 200]),
    "a path with a NUL": (b"GET /%00 HTTP/1.1\r\nhost: localhost\r\n\r\n", [404, 200]),
    "a path with a blank": (b"GET /a b HTTP/1.1\r\nhost: localhost\r\n\r\n", [400]),
    "a fragment": (b"GET /healthz#a HTTP/1.1\r\nhost: localhost\r\n\r\n", [200, 200]),
    "an address as path": (b"GET http://evil.example/v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n", [200, 200]),
    "another host": (b"GET /v1/status HTTP/1.1\r\nhost: evil.example\r\n\r\n", [421, 200]),
    "a foreign origin": (
        b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example\r\n\r\n",
        [403, 200],
    ),
    "a long path": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", [431]),
    "a continue that is expected": (head(LENGTH, b"expect: 100-continue"), [100, 200, 200]),
    "another expectation": (head(LENGTH, b"expect: the-unexpected"), [200, 200]),
    "a second request in a body": (head(b"content-length: 0", body=START + CHUNKED), [400, 200, 200]),
    "trailers": (START + CHUNKED[:-2] + b"authorization: Bearer x\r\n\r\n", [200, 200]),
    "gzip that is none": (head(LENGTH, b"content-encoding: gzip"), [400, 200]),
}
LAST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def exchange(address, *parts, ends=True):
    """Return all that comes back, None where the service neither answers nor closes the connection.

    With ``ends``, the client says that no more will come, and does not insist on an answer.
    """
    received = b""
    with socket.create_connection(address) as connection:
        connection.settimeout(SECONDS)
        try:
            for part in parts:
                connection.sendall(part)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(1 << 16):
                received += chunk
        except TimeoutError:
            return None
        except OSError:  # closed before all was sent
            pass
    return received


def statuses(received):
    """Return the statuses of the answers."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def broken(rng):
    """Return a request of the corpus, or several, with bytes changed, left out, repeated or cut into parts."""
    data = bytearray(b"".join(sent for sent, _ in rng.choices(list(CORPUS.values()), k=rng.choice([1, 1, 2, 3]))))
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at : at + rng.randint(1, 8)]
        elif kind == 2:
            data[at:at] = rng.choice([b"\r\n", b"\0", b" ", b"\r", b"\n", b":", b"0\r\n\r\n", LAST])
        else:
            data[at:at] = data[at : at + 40]
    at = rng.randrange(len(data) + 1)
    return [bytes(data[:at]), bytes(data[at:])] if rng.random() < 0.3 else [bytes(data)]


def send_broken(first, n):
    """Return what was wrong with the answers to ``n`` connections of the seed ``first``."""
    rng, wrong = random.Random(f"broken {first}"), []
    with tempfile.TemporaryDirectory(prefix="fedres-raw-") as folder, run_service(Path(folder)) as live:
        for k in range(n):
            parts = broken(rng)
            received = exchange(live.address, *parts)
            if received is None:
                wrong.append(f"seed {first}, connection {k}: no answer: {parts!r}"[:1_000])
            elif any(status >= 500 for status in statuses(received)):
                wrong.append(f"seed {first}, connection {k}: {received[:200]!r}: {parts!r}"[:1_000])
        if statuses(exchange(live.address, LAST, ends=False)) != [200]:
            wrong.append(f"seed {first}: the service is not well afterwards")
    return wrong

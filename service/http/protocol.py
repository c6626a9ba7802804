"""uvicorn's HTTP protocol with bounds: by itself it waits for ever for the rest of a request, and reads without end.

Head and body of a request must come within ``request_seconds``, and a head may have ``HEAD_BYTES``. Requests that a
client sends before it has its replies wait unread beyond ``MOST_PIPELINED``. What is refused here has not reached the
application, so the reply in the service's own shape is written here too. A client that takes nothing of its reply for
as long is cut off.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import ApiError
from service.http.replies import refusal, safe

HEAD_BYTES = 65_536
SLICE_BYTES = 4_096  # that are parsed at once: they hold 227 of the shortest requests
MOST_PIPELINED = 16  # requests of a connection that wait for their turn; no more are parsed
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: the system does not keep what the client does not take either
FINAL = tuple(b"HTTP/1.1 %d" % hundreds for hundreds in (2, 3, 4, 5))


class JoinedTransport:
    """A transport that holds the head of a reply until what follows, so that both go out at once.

    Only what begins like the head of a final reply is held, until the next write, ``flush`` or ``close``.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._held = transport, b""
        self._written = 0  # bytes
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._held and data.startswith(FINAL):
            self._held = data
        else:
            held, self._held = self._held, b""
            self._send(held + data if held else data)

    def _send(self, data: bytes) -> None:
        if self.is_closing():  # the client has gone; a closed transport would raise
            return
        self._written += len(data)
        self._transport.write(data)

    def left(self) -> tuple[int, int]:
        """Return how many bytes the client has yet to take, and how many it has taken."""
        waiting = self._transport.get_write_buffer_size()
        return waiting, self._written - waiting

    def flush(self) -> None:
        if self._held:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()


class Protocol(HttpToolsProtocol):
    """One connection; what all of a server have in common is set by ``protocol``."""

    request_seconds: float
    most_connections: int

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._whole = False  # the request that came last is here to its end
        self._begun = 0  # requests that began in the chunk that came last
        self._head_bytes: int | None = 0  # of the head that is being read, None in a body
        self._progress = (0, 0.0)  # bytes that the client had taken, and since when no more
        self._unparsed = b""  # what came and waits for requests before it
        self._upgrading = False  # the head that was read last asks for another protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = JoinedTransport(transport)  # type: ignore[assignment]  # has all of a transport's methods
        self._set_deadline()
        if len(self.connections) > self.most_connections:
            message = f"the service must have at most {self.most_connections} connections at once; try again"
            self._refuse(ApiError(503, "too_many_connections", message))

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._unparsed and len(data) <= SLICE_BYTES:
            self._parse(data)
            return
        self._unparsed += data
        self._parse_waiting()

    def _parse_waiting(self) -> None:
        """Parse what waits, slice by slice, until too many requests wait for their turn."""
        data, at = self._unparsed, 0
        while at < len(data) and len(self.pipeline) < MOST_PIPELINED and not self.transport.is_closing():
            self._parse(data[at : at + SLICE_BYTES])
            at += SLICE_BYTES
        self._unparsed = b"" if self.transport.is_closing() else data[at:]
        if self._unparsed:  # the client cannot be late: the rest of its request may be here
            self._unset_deadline()
            self.flow.pause_reading()

    def _parse(self, data: bytes) -> None:
        before, self._begun = self._head_bytes, 0
        self._unset_keepalive_if_required()
        self._feed(data)
        if self.transport.is_closing():
            return
        if self._whole:
            self._unset_deadline()
            return
        self._set_deadline()
        if self._head_bytes is not None:
            all_of_it = before is not None and self._begun <= 1  # else the slice has the end of other requests too
            self._head_bytes = (before or 0) + len(data) if all_of_it else 0
            if self._head_bytes > HEAD_BYTES:
                error = f"the head must have at most {HEAD_BYTES} bytes"
                self._refuse(ApiError(431, "head_too_large", error, "headers"))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse_http()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1, as a server may: the parser has given up at the end of the head, so it is told again."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            self._refuse_http()
            return
        self._upgrading = False
        kept = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"connection")]
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode()), *(b"%b: %b" % header for header in kept)]
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join([*lines, b"\r\n"]) + rest)

    def on_message_begin(self) -> None:
        self._whole = False
        self._begun += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._upgrading = True
            return
        self._head_bytes = None
        super().on_headers_complete()
        self.headers = []  # of trailers, which are no part of the head

    def on_message_complete(self) -> None:
        if not self._upgrading:
            self._whole, self._head_bytes = True, 0
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()
        if self._unparsed:
            self._parse_waiting()

    def _refuse_http(self) -> None:
        self._refuse(ApiError(400, "invalid_http", "the request must be HTTP/1.1", None))

    def _set_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.request_seconds, self._give_up)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def end_if_stuck(self) -> None:
        """Cut a client off that takes nothing of what waits for it; to be called now and then."""
        waiting, taken = self.transport.left()  # type: ignore[attr-defined]
        before, since = self._progress
        if not waiting or taken != before:
            self._progress = (taken, self.loop.time())
        elif self.loop.time() - since > self.request_seconds:
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()

    def _give_up(self) -> None:
        self._deadline = None
        seconds = self.request_seconds
        self._refuse(ApiError(408, "request_timeout", f"the request must be complete within {seconds:g} s"))

    def _refuse(self, error: ApiError) -> None:
        """Say why, unless a reply to the request is under way or was sent, and close."""
        if self.transport.is_closing():
            return
        cycle, in_body = self.cycle, self._head_bytes is None
        begun = cycle is not None and cycle.response_started and (in_body or not cycle.response_complete)
        if not begun:
            self.transport.write(_raw(error))
        self.transport.close()


def protocol(request_seconds: float, most_connections: int) -> type[Protocol]:
    """Return the protocol class for uvicorn's ``http`` option."""
    return type("Protocol", (Protocol,), {"request_seconds": request_seconds, "most_connections": most_connections})


def _raw(error: ApiError) -> bytes:
    reply = refusal(error)
    headers = (*safe(reply.headers), (b"content-length", b"%d" % len(reply.body)), (b"connection", b"close"))
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[reply.status] + head + b"\r\n" + reply.body

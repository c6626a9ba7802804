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
from functools import lru_cache
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.errors import ApiError
from service.http.replies import NO_FRAMES, NO_SNIFFING, Headers, Reply, Send, refusal, safe

HEAD_BYTES = 65_536
SLICE_BYTES = 4_096  # that are parsed at once: they hold 227 of the shortest requests
SLICE_LINES = 450  # the same in lines, of which each request has two: a large body without any is not cut
MOST_PIPELINED = 16  # requests of a connection that wait for their turn; no more are parsed
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: the system does not keep what the client does not take either
NOT_PARSED = (httptools.HttpParserError, httptools.HttpParserUpgrade)
FINAL = tuple(b"HTTP/1.1 %d" % hundreds for hundreds in (2, 3, 4, 5))


class JoinedTransport:
    """A transport that holds the head of a reply until what follows, so that both go out at once.

    Only what begins like the head of a final reply is held, until the next write, ``flush`` or ``close``.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self.held = transport, b""
        self._written = 0  # bytes
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self.held and data.startswith(FINAL):
            self.held = data
            return
        data, self.held = self.held + data, b""
        self.write_whole(data)

    def write_whole(self, data: bytes) -> None:
        """Write what nothing follows."""
        if not self.is_closing():  # else the client has gone; a closed transport would raise
            self._written += len(data)
            self._transport.write(data)

    def left(self) -> tuple[int, int]:
        """Return how many bytes the client has yet to take, and how many it has taken."""
        waiting = self._transport.get_write_buffer_size()
        return waiting, self._written - waiting

    def flush(self) -> None:
        if self.held:
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
        self._complete: Any = ()  # the scope of the last request that came to its end
        self._any_complete = False  # some request came to its end in the last slice
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
        """Parse a slice; more than a slice waits for the requests before it."""
        if self._unparsed or (len(data) > SLICE_BYTES and not self._has_few_requests(data)):
            self._unparsed += data
            self._parse_waiting()
            return
        head_bytes, self._any_complete = self._head_bytes, False
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except NOT_PARSED as error:
            self._not_parsed(data, error)
        if self.transport.is_closing():
            return
        if self._complete is not self.scope:
            self._await_rest(head_bytes, len(data))
        elif self._deadline is not None:
            self._unset_deadline()

    def _has_few_requests(self, data: bytes) -> bool:
        """Return whether data, with the head that it may go on with, holds no more requests than a slice can."""
        return (self._head_bytes or 0) + len(data) <= HEAD_BYTES and data.count(b"\n") <= SLICE_LINES

    def _await_rest(self, head_bytes: int | None, n_bytes: int) -> None:
        """Set a deadline for the rest of a request; refuse a head that is too large.

        ``head_bytes`` is the size of the head before the last slice of ``n_bytes``, None in a body.
        """
        self._set_deadline()
        if self._head_bytes is not None:
            all_of_it = head_bytes is not None and not self._any_complete  # else the slice ends other requests too
            self._head_bytes = (head_bytes or 0) + n_bytes if all_of_it else 0
            if self._head_bytes > HEAD_BYTES:
                error = f"the head must have at most {HEAD_BYTES} bytes"
                self._refuse(ApiError(431, "head_too_large", error, "headers"))

    def _parse_waiting(self) -> None:
        """Parse what waits, slice by slice, until too many requests wait for their turn."""
        data, self._unparsed, at = self._unparsed, b"", 0
        while at < len(data) and len(self.pipeline) < MOST_PIPELINED and not self.transport.is_closing():
            self.data_received(data[at : at + SLICE_BYTES])
            at += SLICE_BYTES
        self._unparsed = b"" if self.transport.is_closing() else data[at:]
        if self._unparsed:  # the client cannot be late: the rest of its request may be here
            self._unset_deadline()
            self.flow.pause_reading()

    def _not_parsed(self, data: bytes, error: Exception) -> None:
        """Refuse what is no HTTP; ignore a request to upgrade, as a server may, and go on in HTTP/1.1.

        The parser has given up at the end of the head, so a new one gets the head without the upgrade.
        """
        is_upgrade = isinstance(error, httptools.HttpParserUpgrade)
        if not is_upgrade or self.parser.get_method() == b"CONNECT":
            self._refuse(ApiError(400, "invalid_http", "the request must be HTTP/1.1", None))
            return
        self._upgrading = False
        kept = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"connection")]
        version = self.parser.get_http_version().encode()
        first = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)
        lines = [first, *(b"%b: %b" % header for header in kept)]
        self.parser = httptools.HttpRequestParser(self)
        data = b"\r\n".join([*lines, b"\r\n"]) + data[error.args[0] :]
        try:
            self.parser.feed_data(data)
        except NOT_PARSED as again:
            self._not_parsed(data, again)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._upgrading = True
            return
        self._head_bytes = None
        super().on_headers_complete()
        self.headers = []  # of trailers, which are no part of the head

    def on_message_complete(self) -> None:
        if not self._upgrading:
            self._complete, self._any_complete, self._head_bytes = self.scope, True, 0
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self.transport.held:  # type: ignore[attr-defined]
            self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()
        if self._unparsed:
            self._parse_waiting()

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


@lru_cache(maxsize=1_000)
def head_of(status: int, headers: Headers) -> bytes:
    """Return the beginning of a reply that sets no policy for frames of its own."""
    lines = [b"%b: %b\r\n" % header for header in (*headers, NO_FRAMES, NO_SNIFFING)]
    return STATUS_LINE[status] + b"".join(lines)


async def send_reply(send: Send, reply: Reply, more: Headers = ()) -> None:
    """Send a reply, which sets no policy for frames of its own, with ``more`` headers.

    On our own server it is written at once, unless the client is slow or gone.
    """
    cycle = getattr(send, "__self__", None)
    if (
        not isinstance(cycle, RequestResponseCycle)
        or not isinstance(cycle.transport, JoinedTransport)
        or cycle.disconnected
        or cycle.flow.write_paused
        or cycle.scope["method"] == "HEAD"
    ):
        length = () if reply.status == 204 else ((b"content-length", b"%d" % len(reply.body)),)
        headers = (*reply.headers, NO_FRAMES, NO_SNIFFING, *more, *length)
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})
        return
    parts = [head_of(reply.status, reply.headers)]
    for name, value in (*cycle.default_headers, *more):
        parts += (name, b": ", value, b"\r\n")
    if reply.status != 204:
        parts.append(b"content-length: %d\r\n" % len(reply.body))
    if not cycle.keep_alive:
        parts.append(b"connection: close\r\n")
    cycle.transport.write_whole(b"".join((*parts, b"\r\n", reply.body)))
    cycle.response_started = cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()

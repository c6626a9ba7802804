"""uvicorn's HTTP protocol with limits: by itself it waits forever for the rest of a request, and reads without bound.

Head and body of a request must arrive within ``request_seconds``, and a head may have ``HEAD_BYTES``. Pipelined
requests beyond ``MOST_PIPELINED`` stay unread. Requests refused here do not reach the application, so their error
reply is written here too. A client that reads nothing of its reply for ``request_seconds`` is disconnected.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from service.errors import ApiError
from service.http.replies import NO_FRAMES, NO_SNIFFING, Headers, Reply, Send, refusal
from service.http.request import Limits

HEAD_BYTES = 65_536
SLICE_BYTES = 4_096  # parsed at once: 227 of the shortest requests
SLICE_LINES = 450  # the same in lines, of which each request has two: a large body without any is not cut
MOST_PIPELINED = 16  # requests of a connection that wait for their turn; no more are parsed
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: the system also drops data that the client has not read
NOT_PARSED = (httptools.HttpParserError, httptools.HttpParserUpgrade)


class CountingTransport:
    """A transport that tracks how much its client has read, and writes nothing after it has closed."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._written = transport, 0  # bytes
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self.is_closing():  # a closed transport would raise
            self._written += len(data)
            self._transport.write(data)

    def left(self) -> tuple[int, int]:
        """Return how many bytes the client has yet to read, and how many it has read."""
        waiting = self._transport.get_write_buffer_size()
        return waiting, self._written - waiting


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, limits: Limits, config: Config, server_state: ServerState) -> None:
        super().__init__(config, server_state, app_state={})
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._complete: Any = ()  # the scope of the last request that came to its end
        self._any_complete = False  # some request came to its end in the last slice
        self._head_bytes: int | None = 0  # of the head that is being read, None in a body
        self._progress = (0, 0.0)  # bytes that the client had read, and the time since then
        self._unparsed = b""  # received bytes that wait for earlier requests
        self._upgrading = False  # the last head requests another protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = CountingTransport(transport)  # type: ignore[assignment]  # has all of a transport's methods
        self._set_deadline()
        if len(self.connections) > self._limits.connections:
            message = f"the service must have at most {self._limits.connections} connections at once; try again"
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
        """Parse the waiting bytes, slice by slice, until too many requests wait for their turn."""
        data, self._unparsed, at = self._unparsed, b"", 0
        while at < len(data) and len(self.pipeline) < MOST_PIPELINED and not self.transport.is_closing():
            self.data_received(data[at : at + SLICE_BYTES])
            at += SLICE_BYTES
        self._unparsed = b"" if self.transport.is_closing() else data[at:]
        if self._unparsed:  # the client cannot be late: the rest of its request may be here
            self._unset_deadline()
            self.flow.pause_reading()

    def _not_parsed(self, data: bytes, error: Exception) -> None:
        """Refuse invalid HTTP; ignore a request to upgrade, as a server may, and continue in HTTP/1.1.

        The parser stops at the end of such a head, so a new parser gets the head without the upgrade.
        """
        is_upgrade = isinstance(error, httptools.HttpParserUpgrade)
        if not is_upgrade or self.parser.get_method() == b"CONNECT":
            self._refuse(ApiError(400, "invalid_http", "the request must be HTTP/1.1", None))
            return
        self._upgrading = False
        kept = list(_without_upgrade(self.headers))
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
        super().on_response_complete()
        if self._unparsed:
            self._parse_waiting()

    def _set_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.request_seconds, self._give_up)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def end_if_stuck(self) -> None:
        """Disconnect a client that reads nothing of its pending reply; to be called at intervals."""
        waiting, taken = self.transport.left()  # type: ignore[attr-defined]
        before, since = self._progress
        if not waiting or taken != before:
            self._progress = (taken, self.loop.time())
        elif self.loop.time() - since > self._limits.request_seconds:
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()

    def _give_up(self) -> None:
        self._deadline = None
        message = f"the request must be complete within {self._limits.request_seconds:g} s"
        self._refuse(ApiError(408, "request_timeout", message))

    def _refuse(self, error: ApiError) -> None:
        """Send an error reply, unless a reply to the request is under way or was sent, and close."""
        if self.transport.is_closing():
            return
        cycle, in_body = self.cycle, self._head_bytes is None
        begun = cycle is not None and cycle.response_started and (in_body or not cycle.response_complete)
        if not begun:
            reply = refusal(error)
            ending = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(reply.body)
            self.transport.write(head_of(reply.status, reply.headers) + ending + reply.body)
        self.transport.close()


def _without_upgrade(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield headers without a request to upgrade; what else Connection has, such as close, stays."""
    for name, value in headers:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            value = b", ".join(option for option in options if option.lower() not in (b"upgrade", b"http2-settings"))
        if name != b"upgrade" and value:
            yield name, value


@lru_cache(maxsize=1_000)
def head_of(status: int, headers: Headers) -> bytes:
    """Return the head of a reply without a frame policy of its own."""
    lines = [b"%b: %b\r\n" % header for header in (*headers, NO_FRAMES, NO_SNIFFING)]
    return STATUS_LINE[status] + b"".join(lines)


async def send_reply(send: Send, reply: Reply, more: Headers = ()) -> None:
    """Send a reply without a frame policy of its own, with ``more`` headers.

    On our own server it is written at once, unless the client is slow or gone.
    """
    cycle = getattr(send, "__self__", None)
    if (
        not isinstance(cycle, RequestResponseCycle)
        or not isinstance(cycle.transport, CountingTransport)
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
    cycle.transport.write(b"".join((*parts, b"\r\n", reply.body)))
    cycle.response_started = cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()

"""uvicorn's HTTP protocol with an end to its patience: it alone waits for ever for the rest of a request.

Head and body of a request must come within ``request_seconds``, and a head may have ``HEAD_BYTES``. What is refused
here has not reached the application, so the reply in the service's own shape is written here too. A client that takes
nothing of its reply for as long is cut off.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import ApiError
from service.http.lane import Lane
from service.http.replies import JSON, Reply, Scope, refusal

HEAD_BYTES = 65_536
AT_ONCE = struct.pack("ii", 1, 0)  # for SO_LINGER: the system does not keep what the client does not take either
LAST = b"\r\nconnection: close\r\n\r\n"
FINAL = tuple(b"HTTP/1.1 %d" % hundreds for hundreds in (2, 3, 4, 5))


class Joined:
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

    def write_all(self, reply: bytes) -> None:
        """Send a whole reply."""
        if self._held:
            self.flush()
        self._send(reply)

    def _send(self, data: bytes) -> None:
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


class Good:
    """The head of good answers, up to the length; made anew when uvicorn's own headers are: once a second, the date."""

    def __init__(self) -> None:
        self._default: list[tuple[bytes, bytes]] = []
        self._beginning = b""

    def beginning(self, default: list[tuple[bytes, bytes]]) -> bytes:
        if default is not self._default:
            self._default, self._beginning = default, _beginning(200, *default, JSON)
        return self._beginning


class Protocol(HttpToolsProtocol):
    """One connection; what all of a server have in common is set by ``protocol``."""

    request_seconds: float
    lane: Lane | None
    good: Good

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._whole = False  # the request that came last is here to its end
        self._begun = 0  # requests that began in the chunk that came last
        self._head_bytes: int | None = 0  # of the head that is being read, None in a body
        self._between = True  # requests: none is being read
        self._taken = False  # by the lane, and not answered
        self._behind = b""  # what came after that
        self._part = bytearray()  # of a request that the lane may take
        self._missing = 0  # bytes of it
        self._ending = False  # with the answer to that
        self._answered_at = 0.0
        self._progress = (0, 0.0)  # bytes that the client had taken, and since when no more

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = Joined(transport)  # type: ignore[assignment]  # has all of a transport's methods
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.lane is None:
            self._read(data)
        elif self._taken:
            self._behind += data
            self.flow.pause_reading()
        elif self._missing:
            self._part += data
            self._missing -= len(data)
            if self._missing <= 0:
                self._missing, whole = 0, bytes(self._part)
                self._begin(self.lane, whole)
        elif self._is_free():
            self._begin(self.lane, data)
        else:
            self._read(data)

    def _begin(self, lane: Lane, data: bytes) -> None:
        """Let the lane take the request that ``data`` is, wait for its rest, or read it as usual."""
        found = lane.find(data)
        if found is not None and lane.take(found, data, self):
            self._taken = True
            self._unset_deadline()
        elif found is not None and (missing := lane.missing(found, data)):
            self._missing, self._part = missing, bytearray(data)
            self._set_deadline()
        else:
            self._read(data)
            if found is None and self._begun == 1 and self._is_plain():
                lane.note(data, cast(Scope, self.scope))

    def _is_free(self) -> bool:
        """Return whether what comes next is the beginning of a request, which can be answered at once."""
        answered = self.cycle is None or self.cycle.response_complete
        return self._between and answered and not self.flow.write_paused and not self.transport.is_closing()

    def _is_plain(self) -> bool:
        """Return whether the head of the request that was read last is here, and leaves the connection open."""
        read = (self._between or self._head_bytes is None) and not self.transport.is_closing()
        return read and self.cycle.keep_alive and not self.expect_100_continue

    def _read(self, data: bytes) -> None:
        before, self._begun = self._head_bytes, 0
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._whole:
            self._unset_deadline()
            return
        self._set_deadline()
        if self._head_bytes is not None:
            all_of_it = before is not None and self._begun <= 1  # else the chunk has the end of other requests too
            self._head_bytes = (before or 0) + len(data) if all_of_it else 0
            if self._head_bytes > HEAD_BYTES:
                error = f"the head must have at most {HEAD_BYTES} bytes"
                self._refuse(ApiError(431, "head_too_large", error, "headers"))

    def on_message_begin(self) -> None:
        self._whole = self._between = False
        self._begun += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._whole, self._between, self._head_bytes = True, True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()

    def answer(self, reply: Reply) -> None:
        """Send the lane's answer and go on with what came meanwhile."""
        self._answer(_beginning(reply.status, *self.server_state.default_headers, *reply.headers), reply.body)

    def answer_json(self, body: bytes) -> None:
        """Send a good answer."""
        self._answer(self.good.beginning(self.server_state.default_headers), body)

    def _answer(self, beginning: bytes, body: bytes) -> None:
        self._taken = False
        if self.transport.is_closing():
            return
        self.server_state.total_requests += 1
        end = LAST if self._ending else b"\r\n\r\n"
        self.transport.write_all(b"%b%d%b%b" % (beginning, len(body), end, body))  # type: ignore[attr-defined]
        if self._ending:
            self.transport.close()
            return
        self._answered_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._await_more(self.timeout_keep_alive)
        if self._behind:
            behind, self._behind = self._behind, b""
            self.flow.resume_reading()
            self.data_received(behind)

    def ask_again(self, data: bytes) -> None:
        """Read what the lane gave back, and what came meanwhile."""
        self._taken = False
        if not self.transport.is_closing():
            behind, self._behind = self._behind, b""
            self.flow.resume_reading()
            self._read(data + behind)
            if self._ending:
                super().shutdown()

    def shutdown(self) -> None:
        if self._taken:
            self._ending = True
            return
        if self._missing:
            self._missing = 0
            self._read(bytes(self._part))  # its rest goes the usual way too
        super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for long enough; the lane does not set the alarm anew for each answer."""
        seconds_left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        busy = self._taken or self._missing > 0
        if busy or seconds_left > 0:
            self._await_more(self.timeout_keep_alive if busy else seconds_left)
        else:
            super().timeout_keep_alive_handler()

    def _await_more(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def send_400_response(self, msg: str) -> None:
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
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            self.transport.abort()

    def _give_up(self) -> None:
        self._deadline = None
        seconds = self.request_seconds
        self._refuse(ApiError(408, "request_timeout", f"the request must be complete within {seconds:g} s"))

    def _refuse(self, error: ApiError) -> None:
        """Say why, unless a reply is under way, and close."""
        if self.transport.is_closing():
            return
        busy = self.cycle is not None and not self.cycle.response_complete
        if not (busy and self.cycle.response_started):
            self.transport.write(_raw(error))
        self.transport.close()


def protocol(request_seconds: float, lane: Lane | None = None) -> type[Protocol]:
    """Return the protocol class for uvicorn's ``http`` option; requests that ``lane`` takes do not reach its ASGI."""
    return type("Protocol", (Protocol,), {"request_seconds": request_seconds, "lane": lane, "good": Good()})


def _beginning(status: int, *headers: tuple[bytes, bytes]) -> bytes:
    """Return a head as uvicorn writes it, up to the length."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"".join([STATUS_LINE[status], *lines, b"content-length: "])


def _raw(error: ApiError) -> bytes:
    reply = refusal(error)
    headers = (*reply.headers, (b"content-length", b"%d" % len(reply.body)), (b"connection", b"close"))
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[reply.status] + head + b"\r\n" + reply.body

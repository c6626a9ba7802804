"""Requests, replies, and flows that yield requests, without the network.

A flow is a generator that yields a ``Request`` or a ``Wait`` and is sent the ``Answer``, or a ``Failure`` without a
reply; its driver does the input and output (httpx's authentication flows work the same way).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from fedres.client.store import Queued

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # of JSON that is invalid or nested too deep
LONGEST_REST = 86_400.0  # seconds that a service can request
SMALLEST_TO_PACK = 1_000  # bytes: gzip does not pay below

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True):
    method: str
    path: str  # below the service's URL
    body: bytes = b""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    seconds: float = 30.0  # to wait for an answer


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    headers: Mapping[str, str]  # names in small letters

    @property
    def retry_after(self) -> float:
        """The seconds in Retry-After; 0 without that header, or if it is a date."""
        text = self.headers.get("retry-after", "")
        return min(float(text), LONGEST_REST) if text.isascii() and text.isdigit() else 0.0


class Failure(msgspec.Struct, frozen=True):
    """There was no reply; the request may have been handled or not."""

    reason: str
    is_late: bool = False  # there was none in time


class Wait(msgspec.Struct, frozen=True):
    seconds: float


Flow = Generator[Request | Wait, Answer | Failure | None, T]


class Finished(msgspec.Struct, frozen=True):
    """The result of a flow."""

    value: Any


def advance(flow: Flow[Any], answer: Answer | Failure | None) -> Request | Wait | Finished:
    """Return the flow's next request or wait, or its result."""
    try:
        return flow.send(answer)
    except StopIteration as end:
        return Finished(end.value)


class _Detail(msgspec.Struct):
    code: str = ""
    message: str = ""
    target: str | None = None


class _Error(msgspec.Struct):
    error: _Detail


def refusal(answer: Answer) -> _Detail:
    """Return code, message and target of an error reply, empty if missing."""
    try:
        return msgspec.json.decode(answer.body, type=_Error).error
    except UNREADABLE:
        return _Detail(message=answer.body[:200].decode(errors="replace"))


def residuals_body(client: str, batch: list[Queued]) -> bytes:
    """Return the JSON of POST residuals."""
    items = [b'{"seq":%d,"version":%d,%s' % (upload.seq, upload.version, upload.body[1:]) for upload in batch]
    return b'{"client":%s,"residuals":[%s]}' % (msgspec.json.encode(client), b",".join(items))


def updates_body(client: str, batch: list[Queued]) -> bytes:
    """Return the msgpack of POST updates."""
    items = [{**read_upload(upload.body), "seq": upload.seq, "version": upload.version} for upload in batch]
    return msgspec.msgpack.encode({"client": client, "updates": items})


def residual(upload: Mapping[str, Any]) -> bytes:
    """Return a residual for the queue: JSON, without its version."""
    return msgspec.json.encode({name: value for name, value in upload.items() if name != "version"})


def update(upload: Mapping[str, Any]) -> bytes:
    """Return an update for the queue: msgpack, without its version."""
    return msgspec.msgpack.encode({name: value for name, value in upload.items() if name != "version"})


def read_upload(body: bytes) -> dict[str, Any]:
    """Return an update that ``update`` wrote."""
    return msgspec.msgpack.decode(body, type=dict[str, Any])


def post(path: str, body: bytes, content_type: str, *, pack: bool, seconds: float = 30.0) -> Request:
    """Return a POST, gzipped if ``pack`` is set and the body is large enough."""
    headers = {"Content-Type": content_type}
    if pack and len(body) > SMALLEST_TO_PACK:
        import gzip  # clients that only request decisions never need it

        body = gzip.compress(body, mtime=0)  # the same bytes at any time
        headers["Content-Encoding"] = "gzip"
    return Request("POST", path, body, headers, seconds)

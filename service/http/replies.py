"""Replies as bytes, and the one shape of all that fail."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec

from service.errors import ApiError, unavailable
from service.log.protocol import StoreUnavailable

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

Headers = tuple[tuple[bytes, bytes], ...]

JSON = (b"content-type", b"application/json")
NO_FRAMES = (b"content-security-policy", b"frame-ancestors 'none'")
NO_SNIFFING = (b"x-content-type-options", b"nosniff")
SOON = (b"retry-after", b"1")  # uploads that are on their way have found their place by then

LONGEST_REQUEST_ID = 200  # bytes; a longer one is not repeated

log = logging.getLogger("fedres.service")


class ErrorDetail(msgspec.Struct):
    code: str  # for programs
    message: str  # for people: the argument, the rule and the value
    target: str | None  # what it is about: an argument, a header, a path


class Error(msgspec.Struct):
    """What every failure looks like."""

    error: ErrorDetail


class Reply(msgspec.Struct, frozen=True, gc=False):
    status: int
    body: bytes = b""
    headers: Headers = ()


NO_CONTENT = Reply(204)


def json_reply(body: bytes, status: int = 200) -> Reply:
    return Reply(status, body, (JSON,))


def refusal(error: ApiError, headers: Headers = ()) -> Reply:
    """Return the reply that says why not."""
    if error.status == 401:
        headers = (*headers, (b"www-authenticate", b"Bearer"))
    if error.status == 429 and not headers:
        headers = (SOON,)
    return Reply(error.status, msgspec.json.encode(shaped(error)), (JSON, *headers))


def shaped(error: ApiError) -> Error:
    """Return the error as it is shown; what is no Unicode in it, escaped."""
    message, target = (
        text and text.encode("utf-8", "backslashreplace").decode() for text in (error.message, error.target)
    )
    return Error(ErrorDetail(error.code, message or "", target))


def too_many_requests(seconds: float) -> Reply:
    """Return the refusal of a key that asks too often, and when it may ask again."""
    wait = max(1, math.ceil(seconds))
    error = ApiError(429, "too_many_requests", f"the key made too many requests; try again in {wait} s")
    return refusal(error, ((b"retry-after", str(wait).encode()),))


def wrong_method(method: str, allowed: str) -> Reply:
    error = ApiError(405, "method_not_allowed", f"the method must be one of {allowed}, got {method}", "method")
    return refusal(error, ((b"allow", allowed.encode()),))


def failure(error: Exception) -> Reply:
    """Return the reply to what went wrong; what nobody foresaw is logged in full, and not shown."""
    if isinstance(error, ApiError):
        return refusal(error)
    if isinstance(error, StoreUnavailable):
        return refusal(unavailable(error))
    if isinstance(error, MemoryError):
        return refusal(ApiError(503, "out_of_memory", "the service has no memory left; try again"))
    log.error("a request failed", exc_info=error)
    return refusal(ApiError(500, "internal", "the service failed; its log has the details"))


def echoing(send: Send, request_id: bytes | None) -> Send:
    """Return a ``send`` whose reply repeats the request's X-Request-Id, so that clients can tell replies apart."""
    if request_id is None or len(request_id) > LONGEST_REQUEST_ID:
        return send

    async def echoed(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id)]}
        await send(message)

    return echoed


def safe(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers with what no reply is without: no page may frame it, and no browser guess its type."""
    given = tuple(headers)
    policy = () if any(name == NO_FRAMES[0] for name, _ in given) else (NO_FRAMES,)
    return (*given, *policy, NO_SNIFFING)


async def send_reply(send: Send, reply: Reply) -> None:
    headers = safe(reply.headers)
    if reply.status != 204:
        headers = (*headers, (b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})

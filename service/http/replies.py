"""Replies as bytes, and the common shape of error replies."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Annotated, Any

import msgspec
from fastapi import Response

from service.errors import ApiError
from service.hints import about
from service.log.protocol import StoreUnavailable, unavailable
from service.logs import failed_requests, serving

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

Headers = tuple[tuple[bytes, bytes], ...]

JSON = (b"content-type", b"application/json")
JSON_HEADERS = (JSON,)
NO_FRAMES = (b"content-security-policy", b"frame-ancestors 'none'")
NO_SNIFFING = (b"x-content-type-options", b"nosniff")
SOON = (b"retry-after", b"1")

REQUEST_ID = b"x-request-id"
LONGEST_TEXT = 2_000  # characters of an error's message, and of its target
LONGEST_REQUEST_ID = 200  # bytes; a longer one is not repeated
NOT_READY = "not_ready"  # sent to load balancers repeatedly, so not logged here; the cause is logged once

log = logging.getLogger("fedres.service")


class ErrorDetail(msgspec.Struct):
    """An error."""

    code: Annotated[str, about("The kind of error, for programs; the reference of errors lists all of them.")]
    message: Annotated[str, about("What is wrong, for people: the argument, the rule and the value.")]
    target: Annotated[str | None, about("The field, header or object that is wrong; null if there is none.")]


class Error(msgspec.Struct):
    """The shape of every error."""

    error: Annotated[ErrorDetail, about("What is wrong.")]


class Reply(msgspec.Struct, frozen=True, gc=False):
    status: int
    body: bytes = b""
    headers: Headers = ()


NO_CONTENT = Reply(204)


def json_reply(body: bytes, status: int = 200) -> Reply:
    return Reply(status, body, JSON_HEADERS)


def json_response(value: Any, status: int = 200) -> Response:
    """Return a JSON response for a FastAPI endpoint."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def refusal(error: ApiError, headers: Headers = ()) -> Reply:
    """Return the error reply for a refusal."""
    if error.status == 401:
        headers = (*headers, (b"www-authenticate", b"Bearer"))
    if error.status == 429 and not headers:
        headers = ((b"retry-after", b"%d" % error.wait),)
    return Reply(error.status, msgspec.json.encode(shaped(error)), (JSON, *headers))


def shaped(error: ApiError) -> Error:
    """Return the body of an error reply, with invalid Unicode escaped."""
    target = None if error.target is None else bounded(error.target)
    return Error(ErrorDetail(error.code, bounded(error.message), target))


def bounded(text: str) -> str:
    """Return a text that may repeat what a caller sent: valid Unicode, without its middle if it is long."""
    text = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT // 2]} … {text[-LONGEST_TEXT // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()


def wrong_method(method: str, allowed: str) -> Reply:
    error = ApiError(405, "method_not_allowed", f"the method must be one of {allowed}, got {method}", "method")
    return refusal(error, ((b"allow", allowed.encode()),))


def failure(error: Exception) -> Reply:
    """Return the reply to an exception; failures of the service are logged, unexpected ones with a traceback."""
    cause: BaseException | None = None
    if isinstance(error, StoreUnavailable):
        error = unavailable(error)
    elif isinstance(error, MemoryError):
        cause, error = error.__cause__, ApiError(503, "out_of_memory", "the service has no memory left; try again")
    elif not isinstance(error, ApiError):
        cause, error = error, ApiError(500, "internal", "the service failed; its log has the details")
    if error.status < 500 or error.code == NOT_READY:
        return refusal(error)
    request = serving.get()
    what = "a request" if request is None else f"{request.method} {request.path}"
    named = request is None or request.has_id  # then the reply repeats it anyway
    if failed_requests.allows():
        level = logging.ERROR if error.status == 500 else logging.WARNING
        log.log(level, "%s failed: %d %s: %s", what, error.status, error.code, error.message, exc_info=cause)
    headers = () if request is None or named else ((REQUEST_ID, request.id.encode()),)
    return refusal(error, headers)


def safe(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers with those of every reply: no page may frame it, and browsers must not guess its type."""
    sent = tuple(headers)
    policy = () if any(name == NO_FRAMES[0] for name, _ in sent) else (NO_FRAMES,)
    return (*sent, *policy, NO_SNIFFING)

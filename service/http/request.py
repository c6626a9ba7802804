"""Requests: their limits, reading of bodies, and decoding.

JSON and msgpack are decoded strictly: valid Unicode, finite numbers, bounded nesting, no unknown names.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import msgspec
from fastapi import Request

from fedres import checks
from service.errors import ApiError
from service.hints import complaint
from service.http.routes import LINES, PARAMETERS
from service.settings import DEFAULT_LOOP

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # errors of decoding a body

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the HTTP side; those of features are in ``fedres.scoring.flattening``."""

    body_bytes: int = 1_000_000  # of a request, before and after decompression
    rank_bytes: int = 262_144  # the same of one rank call: 500 actions with 500 bytes each
    model_bytes: int = 64_000_000  # of an uploaded model
    update_bytes: int = 8_000_000  # of a request with updates: 100 of 2^14 + 1 numbers in 32 bits, and some room
    actions: int = 500  # in one rank call, and ids that it excludes
    excluded: int = 2_000  # ids that a call for recommendations excludes
    batch: int = 100  # rank calls in one batch
    slots: int = 20  # of a page in one call
    slot_actions: int = 2_000  # slots times actions of a call: each slot is stored with all actions
    feedback: int = 500  # events in one request
    rewards: int = 500  # of many events in one request
    residuals: int = 500  # of a device in one request
    updates: int = 100  # the same
    connections: int = 2_000  # of one ranker at once
    # Of one key that has no rate of its own, at each ranker; twice that many at once after a pause. 0 is no limit.
    requests_per_second: float = 0.0
    # From a connection's or a request's first byte to its last, and for any part of a reply to be taken.
    request_seconds: float = 15.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type == "int":
                checks.whole(field.name, getattr(self, field.name))
        checks.not_negative("requests_per_second", self.requests_per_second)
        checks.positive("request_seconds", self.request_seconds)


class Disconnected(Exception):  # noqa: N818
    """The client went away before its request was complete."""


def gunzip(body: bytes, limit: int) -> bytes:
    """Return one gzip member's content; decompression stops at the limit."""
    gzip = zlib.decompressobj(wbits=31)
    try:
        content = gzip.decompress(body, limit + 1)
    except zlib.error as error:
        raise ApiError(400, "invalid_gzip", f"the body must be gzip: {error}", "body") from None
    if len(content) > limit:
        raise too_large(limit)
    if not gzip.eof or gzip.unused_data:
        raise ApiError(400, "invalid_gzip", "the body must be one whole gzip member", "body")
    return content


def check_media_type(media_type: bytes | None, *expected: bytes) -> None:
    """Refuse a body of another type or without one: browsers send bodies without a type for any page."""
    if (media_type or b"").partition(b";")[0].strip().lower() not in expected:
        rule, sent = b" or ".join(expected).decode(), (media_type or b"none")[:100].decode("latin-1")
        raise ApiError(415, "unsupported_media_type", f"Content-Type must be {rule}, got {sent}", "Content-Type")


def too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body must have at most {limit} bytes", "body")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return the body as the decoder's type; if a name comes twice in an object, the last one counts."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise unreadable(error, decoder.type) from None


def unreadable(error: Exception, kind: Any) -> ApiError:
    """Return the error for a JSON body that is not a ``kind``."""
    if isinstance(error, msgspec.ValidationError):
        return invalid(error, kind)
    if isinstance(error, RecursionError):
        return ApiError(400, "nesting_too_deep", "the body is nested too deeply", "body")
    return ApiError(400, "invalid_json", f"the body must be JSON: {error}", "body")


def decode_msgpack(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    """Return the body as the decoder's type, which must have no defaults.

    It must be the shortest encoding: most encoders write no other, and it excludes repeated names.
    """
    try:
        value = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "invalid_msgpack", f"the body must be msgpack: {error}", "body") from None
    shortest = len(msgspec.msgpack.encode(value))
    if len(body) != shortest:
        message = f"the body must have every name once, and all in its shortest form: {shortest} bytes, got {len(body)}"
        raise ApiError(400, "invalid_msgpack", message, "body")
    return value


def invalid(error: msgspec.ValidationError, kind: Any) -> ApiError:
    """Return msgspec's error about a ``kind`` as an ``ApiError`` whose target is the place."""
    message, place = complaint(error, kind)
    code = "too_long" if "length <=" in message else "invalid_request"
    target = place or "body"
    return ApiError(422, code, f"{target}: {message[:1].lower()}{message[1:]}", target)


# bodies of FastAPI endpoints


async def loop_of(request: Request) -> str:
    return str(request.scope[PARAMETERS].get("loop", DEFAULT_LOOP))


async def user_of(request: Request) -> str:
    return str(request.scope[PARAMETERS]["user"])


def lines_of(body: bytes, decoder: msgspec.json.Decoder[T]) -> list[T]:
    """Return the values of JSON lines; an error names its line."""
    values = []
    for number, line in enumerate(body.split(b"\n"), 1):
        try:
            values += [decode(decoder, line)] if line.strip() else []
        except ApiError as error:
            raise ApiError(error.status, error.code, f"line {number}: {error.message}", error.target) from None
    return values


async def read_lines(request: Request, kind: type[T]) -> list[T] | None:
    """Return the lines of a body of JSON lines, each as ``kind``; None if the body is of another type."""
    if not request.headers["content-type"].lower().startswith(LINES):
        return None
    return lines_of(await request.body(), msgspec.json.Decoder(kind))


async def read_json(request: Request, kind: type[T]) -> T:
    """Return the body as ``kind``."""
    return decode(msgspec.json.Decoder(kind), await request.body())

"""The body of a request, read within its limits: refused by its headers where they say enough."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, MutableMapping
from typing import Any, NamedTuple

from service.errors import ApiError
from service.http.replies import Receive


class Disconnected(Exception):  # noqa: N818
    """The client went away before its request was complete."""


class Head(NamedTuple):
    """The headers that the service looks at."""

    authorization: bytes | None = None
    length: bytes | None = None
    media_type: bytes | None = None
    encoding: bytes | None = None
    host: bytes | None = None
    origin: bytes | None = None
    subscription_key: bytes | None = None  # of Azure's clients
    request_id: bytes | None = None  # repeated in the reply
    site: bytes | None = None  # where a browser says that the request comes from


_HEADERS = (
    *(b"authorization", b"content-length", b"content-type", b"content-encoding", b"host", b"origin"),
    *(b"ocp-apim-subscription-key", b"x-request-id", b"sec-fetch-site"),
)
_CREDENTIALS = (b"authorization", b"ocp-apim-subscription-key")
_NAMES = {name: place for place, name in enumerate(_HEADERS)}


def read_head(headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """Return the headers of interest; of one that comes twice, the last. Credentials must come once.

    A proxy in front that looks at the first of two would let in what it should not.
    """
    found: list[bytes | None] = [None] * len(_HEADERS)
    for name, value in headers:
        place = _NAMES.get(name)
        if place is not None:
            if found[place] is not None and name in _CREDENTIALS:
                shown = name.decode().title()
                raise ApiError(400, "repeated_header", f"{shown} must come once, got it twice", shown)
            found[place] = value
    return Head(*found)


async def read_body(receive: Receive, head: Head, limit: int) -> bytes:
    """Return the body, decompressed if it came as gzip; more than ``limit`` bytes before or after are refused."""
    if head.encoding is not None:
        _check_encoding(head.encoding)
    if head.length is not None and not _is_within(head.length.strip(), limit):
        raise _too_large(limit)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body", False) or message["type"] == "http.disconnect" or len(body) > limit:
        body = await _receive_rest(message, receive, limit)
    return body if head.encoding is None or head.encoding.lower() == b"identity" else _gunzip(body, limit)


def _is_within(length: bytes, limit: int) -> bool:
    return length.isdigit() and int(length[:20]) <= limit


def _check_encoding(encoding: bytes) -> None:
    if encoding.lower() not in (b"identity", b"gzip"):
        raise ApiError(415, "unsupported_encoding", _must("Content-Encoding", "gzip", encoding), "Content-Encoding")


async def _receive_rest(message: MutableMapping[str, Any], receive: Receive, limit: int) -> bytes:
    """Return the body that begins with ``message``."""
    chunks, size = [], 0
    while True:
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()


def _gunzip(body: bytes, limit: int) -> bytes:
    """Return one gzip member's content; decompression stops at the limit, however much would follow."""
    gzip = zlib.decompressobj(wbits=31)
    try:
        content = gzip.decompress(body, limit + 1)
    except zlib.error as error:
        raise ApiError(400, "invalid_gzip", f"the body must be gzip: {error}", "body") from None
    if len(content) > limit:
        raise _too_large(limit)
    if not gzip.eof or gzip.unused_data:
        raise ApiError(400, "invalid_gzip", "the body must be one whole gzip member", "body")
    return content


def check_media_type(head: Head, wanted: bytes | None) -> None:
    """Refuse a body of another type, and one without a type: a browser sends that for any page that asks it to."""
    if wanted is None:
        return
    given = (head.media_type or b"").partition(b";")[0].strip().lower()
    if given != wanted:
        message = _must("Content-Type", wanted.decode(), head.media_type or b"none")
        raise ApiError(415, "unsupported_media_type", message, "Content-Type")


def _must(header: str, rule: str, value: bytes) -> str:
    return f"{header} must be {rule}, got {value[:100].decode('latin-1')}"


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body must have at most {limit} bytes", "body")

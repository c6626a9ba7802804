"""What is rare about bodies: those that come in parts or compressed, and those that are refused."""

from __future__ import annotations

import zlib
from collections.abc import MutableMapping
from typing import Any

from service.errors import ApiError
from service.http.replies import Receive


class Disconnected(Exception):  # noqa: N818
    """The client went away before its request was complete."""


async def read_rest(message: MutableMapping[str, Any], receive: Receive, limit: int) -> bytes:
    """Return the body that begins with ``message``; more than ``limit`` bytes are refused."""
    chunks, size = [], 0
    while True:
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()


def check_encoding(encoding: bytes) -> None:
    if encoding.lower() not in (b"identity", b"gzip"):
        raise ApiError(415, "unsupported_encoding", _must("Content-Encoding", "gzip", encoding), "Content-Encoding")


def decompressed(body: bytes, encoding: bytes, limit: int) -> bytes:
    """Return a body that came with a ``Content-Encoding``."""
    return body if encoding.lower() == b"identity" else _gunzip(body, limit)


def _gunzip(body: bytes, limit: int) -> bytes:
    """Return one gzip member's content; decompression stops at the limit, however much would follow."""
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


def check_media_type(media_type: bytes | None, expected: bytes) -> None:
    """Refuse a body of another type, and one without a type: a browser sends that for any page that asks it to."""
    if (media_type or b"").partition(b";")[0].strip().lower() != expected:
        message = _must("Content-Type", expected.decode(), media_type or b"none")
        raise ApiError(415, "unsupported_media_type", message, "Content-Type")


def _must(header: str, rule: str, value: bytes) -> str:
    return f"{header} must be {rule}, got {value[:100].decode('latin-1')}"


def too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body must have at most {limit} bytes", "body")

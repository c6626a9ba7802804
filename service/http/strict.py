"""JSON and msgpack as the types of requests: valid Unicode, finite numbers, bounded nesting, no unknown names."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from service.errors import ApiError
from service.hints import hint

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # what decoding a body may raise

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return the body as the decoder's type; of a name that comes twice in an object, the last one counts."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise unreadable(error, decoder.type) from None


def unreadable(error: Exception, kind: Any) -> ApiError:
    """Return why a JSON body is no ``kind``."""
    if isinstance(error, msgspec.ValidationError):
        return invalid(str(error), kind)
    if isinstance(error, RecursionError):
        return ApiError(400, "nesting_too_deep", "the body is nested too deeply", "body")
    return ApiError(400, "invalid_json", f"the body must be JSON: {error}", "body")


def decode_msgpack(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    """Return the body as the decoder's type, which must have no defaults.

    It must be as short as msgpack can be: most encoders write nothing else, and it leaves no room for a repeated name.
    """
    try:
        value = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(str(error), decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "invalid_msgpack", f"the body must be msgpack: {error}", "body") from None
    shortest = len(msgspec.msgpack.encode(value))
    if len(body) != shortest:
        message = f"the body must have every name once, and all in its shortest form: {shortest} bytes, got {len(body)}"
        raise ApiError(400, "invalid_msgpack", message, "body")
    return value


def invalid(message: str, kind: Any) -> ApiError:
    """Return msgspec's complaint about a ``kind`` as an error of ours; the place at its end is the target."""
    said, _, place = message.partition(" - at `$")
    said += hint(said, place, kind)
    target = place.rstrip("`").lstrip(".") or "body"
    code = "too_long" if "length <=" in said else "invalid_request"
    return ApiError(422, code, f"{target}: {said[:1].lower()}{said[1:]}", target)

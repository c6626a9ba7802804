"""What the ordinary FastAPI routes share: how they are declared, what they read and how they answer."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Request, Response

from service.http.openapi import Json
from service.http.strict import decode_strictly
from service.http.table import DEFAULT_LOOP

T = TypeVar("T")

BINARY = "application/octet-stream"
MOST = 2**62  # SQLite's integers end at twice that

encode = msgspec.json.Encoder().encode


async def _loop(request: Request) -> str:
    return str(request.scope["fedres.parameters"].get("loop", DEFAULT_LOOP))


async def _user(request: Request) -> str:
    return str(request.scope["fedres.parameters"]["user"])


Loop = Annotated[str, Depends(_loop)]
User = Annotated[str, Depends(_user)]


def route(entry: Json) -> dict[str, Any]:
    """Return a route's options for FastAPI: its entry as we write it, and no model of FastAPI's own."""
    return {"openapi_extra": entry, "status_code": int(next(iter(entry["responses"]))), "response_class": Response}


def json_response(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


async def read_json(request: Request, kind: type[T]) -> T:
    """Return the body as ``kind``, read strictly."""
    return decode_strictly(msgspec.json.Decoder(kind), await request.body())

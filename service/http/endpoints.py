"""What the ordinary FastAPI endpoints share: what they read, and how they answer."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response

from service.http.router import PARAMETERS
from service.http.routes import DEFAULT_LOOP
from service.http.strict import decode

T = TypeVar("T")

encode = msgspec.json.Encoder().encode


async def loop_of(request: Request) -> str:
    return str(request.scope[PARAMETERS].get("loop", DEFAULT_LOOP))


async def user_of(request: Request) -> str:
    return str(request.scope[PARAMETERS]["user"])


def json_response(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


async def read_json(request: Request, kind: type[T]) -> T:
    """Return the body as ``kind``."""
    return decode(msgspec.json.Decoder(kind), await request.body())

"""From requests to httpx and back."""

from __future__ import annotations

from typing import Any

import httpx

from fedres import checks
from fedres.client.wire import Answer, Failure, Request


def headers(key: str | None) -> dict[str, str]:
    """Return what every request says."""
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ValueError("key must be printable ASCII, got other characters")
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def check_url(url: str) -> None:
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, got {url!r}")


def check_seconds(sync_seconds: float | None) -> None:
    if sync_seconds is not None:
        checks.positive("sync_seconds", sync_seconds)


def ask(http: httpx.Client, request: Request) -> Answer | Failure:
    """Send a request; return its answer, or why none came."""
    try:
        return _answer(http.request(request.method, request.path, **_options(request)))
    except httpx.HTTPError as error:
        return _failure(error)


async def ask_async(http: httpx.AsyncClient, request: Request) -> Answer | Failure:
    """Send a request; return its answer, or why none came."""
    try:
        return _answer(await http.request(request.method, request.path, **_options(request)))
    except httpx.HTTPError as error:
        return _failure(error)


def _options(request: Request) -> dict[str, Any]:
    content = request.body if request.method == "POST" else None
    return {"content": content, "headers": dict(request.headers), "timeout": request.seconds}


def _answer(reply: httpx.Response) -> Answer:
    return Answer(reply.status_code, reply.content, dict(reply.headers))


def _failure(error: httpx.HTTPError) -> Failure:
    return Failure(f"{type(error).__name__}: {error}")

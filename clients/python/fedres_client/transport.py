"""Sends requests by httpx."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator
from typing import Any

import httpcore  # noqa: F401  httpx imports it late, in the threads of connections; a fork would copy the import's lock
import httpx

from fedres_client.wire import Answer, Failure, Request

VERSION = "0.1.0"  # as in pyproject.toml
REQUEST_ID = "X-Request-Id"  # the service repeats it in its reply
OUT_OF_STEP = Failure("the reply belongs to another request")


def headers(key: str | None) -> dict[str, str]:
    """Return the headers of every request; the default key is in FEDRES_KEY."""
    key = os.environ.get("FEDRES_KEY") or None if key is None else key
    if key is not None and not (key.isascii() and key.isprintable() and key and key == key.strip()):
        what = "a line break at its end" if key.endswith("\n") else "none or other characters"
        raise ValueError(f"key must be printable ASCII without spaces around it, got {what}")
    agent = {"User-Agent": f"fedres-client/{VERSION} python/{platform.python_version()}"}
    return agent if key is None else {**agent, "Authorization": f"Bearer {key}"}


def address(url: str | None, default: str | None = None) -> str:
    """Return the checked address of a service; the default is in FEDRES_URL."""
    url = os.environ.get("FEDRES_URL") or default if url is None else url
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, got {url!r}")
    try:
        host = httpx.URL(url).raw_host.decode("ascii").encode("idna")  # as the system looks it up
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ValueError(f"url must have a host that can be looked up, got {url!r}: {error}") from None
    if not host:
        raise ValueError(f"url must have a host, got {url!r}")
    return url


def ask(http: httpx.Client, request: Request, *, whole: bool = False) -> Answer | Failure:
    """Send a request; return its reply, or the failure.

    ``request.seconds`` are for each read; with ``whole``, for the whole reply too.
    """
    end = time.monotonic() + request.seconds if whole else math.inf
    try:
        with http.stream(request.method, request.path, **_options(request)) as reply:
            if not _belongs(reply, request):
                return OUT_OF_STEP
            return Answer(reply.status_code, b"".join(_until(end, reply)), dict(reply.headers))
    except (httpx.HTTPError, httpx.InvalidURL) as error:  # of a redirect's address, too, which httpx parses
        return _failure(error)


def _until(end: float, reply: httpx.Response) -> Iterator[bytes]:
    for part in reply.iter_bytes():
        if time.monotonic() > end:
            raise httpx.ReadTimeout("the reply does not end")
        yield part


async def ask_async(http: httpx.AsyncClient, request: Request) -> Answer | Failure:
    """Send a request; return its reply, or the failure."""
    try:
        async with http.stream(request.method, request.path, **_options(request)) as reply:
            if not _belongs(reply, request):
                return OUT_OF_STEP
            return Answer(reply.status_code, await reply.aread(), dict(reply.headers))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return _failure(error)


def _belongs(reply: httpx.Response, request: Request) -> bool:
    """Return whether a reply belongs to this request; other replies stay unread, which closes the connection."""
    sent = request.headers.get(REQUEST_ID)
    echoed = reply.headers.get(REQUEST_ID)
    return sent is None or echoed is None or sent == echoed


def _options(request: Request) -> dict[str, Any]:
    content = request.body if request.method in ("POST", "PUT", "PATCH") else None
    return {"content": content, "headers": dict(request.headers), "timeout": request.seconds}


def _failure(error: Exception) -> Failure:
    return Failure(f"{type(error).__name__}: {error}", isinstance(error, httpx.TimeoutException))

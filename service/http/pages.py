"""Headers of our pages, and the API's documentation pages: Swagger UI from a package, so no internet is needed."""

from __future__ import annotations

import gzip
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.openapi.docs import get_swagger_ui_html

from service.http.openapi import Json, shortened
from service.http.routes import OPEN, Route

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
CACHED = {"Cache-Control": "public, max-age=86400"}
PRIVATE = {"Cache-Control": "private, no-cache"}  # of data, which each request asks for again
TAG_DIGITS = 24
LEAST_PACKED = 1_000  # bytes; less is not worth compressing
PACKING = 5  # level of compression of what changes
# As the dashboard's, but Swagger UI has one inline script, sets inline styles and writes HTML.
DOCS_POLICY = (
    "default-src 'none'; script-src 'self' {script}; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def source_hash(text: str) -> str:
    """Return the hash by which a content security policy allows an inline script or style."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def docs_routes(title: str, openapi: Callable[[], Json]) -> list[Route]:
    """Return the document, the page and its files; addresses are relative, so that it works below any path.

    The page shows the short document, which has each route once. Both are made and encoded once, in a thread, on the
    first request.
    """
    page = get_swagger_ui_html(
        openapi_url="docs/openapi.json",
        title=title,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="data:,",
    )
    [script] = re.findall("<script>(.*?)</script>", bytes(page.body).decode(), re.DOTALL)
    headers = {**HEADERS, "Content-Security-Policy": DOCS_POLICY.format(script=source_hash(script))}
    endpoints: dict[str, Callable[..., Any]] = {
        "/openapi.json": _made_once(openapi),
        "/docs": fixed_response(bytes(page.body), "text/html", headers),
        "/docs/openapi.json": _made_once(lambda: shortened(openapi())),
    }
    for name, media_type in ASSETS.items():
        content = (files("fastapi_offline") / "static" / name).read_bytes()
        endpoints[f"/docs/{name}"] = fixed_response(content, media_type, CACHED)
    return [Route(method="GET", path=path, roles=OPEN, endpoint=endpoint) for path, endpoint in endpoints.items()]


def fixed_response(
    content: bytes, media_type: str, headers: Mapping[str, str]
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint with a fixed response, compressed on the first request that takes gzip."""
    packed = cache(lambda: gzip.compress(content, mtime=0))

    async def send(request: Request) -> Response:
        return conditional_response(request, content, media_type, headers, packed)

    return send


def conditional_response(
    request: Request,
    content: bytes,
    media_type: str,
    headers: Mapping[str, str] = PRIVATE,
    packed: Callable[[], bytes] | None = None,
) -> Response:
    """Return a response with an entity tag: 304 if the client has this content, else compressed if it takes gzip."""
    tag = f'"{sha256(content).hexdigest()[:TAG_DIGITS]}"'
    sent = {**headers, "ETag": tag, "Vary": "Accept-Encoding, Authorization"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    if len(content) >= LEAST_PACKED and "gzip" in request.headers.get("accept-encoding", ""):
        content = gzip.compress(content, PACKING, mtime=0) if packed is None else packed()
        sent["Content-Encoding"] = "gzip"
    return Response(content, media_type=media_type, headers=sent)


def _made_once(make: Callable[[], Json]) -> Callable[[], Response]:
    """Return an endpoint with fixed JSON, which is made in a thread on the first request."""
    encoded = cache(lambda: msgspec.json.encode(make()))
    return lambda: Response(encoded(), media_type="application/json")

"""Headers of our pages, and the pages that show the API: Swagger UI from a package, so that it needs no internet."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html

from service.http.openapi import shortened

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
Endpoint = Callable[[], Awaitable[Response]]
PACKAGE = "fastapi_offline"
ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
PATHS = ("/openapi.json", "/docs", "/docs/openapi.json", *(f"/docs/{name}" for name in ASSETS))
CACHED = {"Cache-Control": "public, max-age=86400"}
# As the dashboard's, but Swagger UI has one inline script, sets inline styles and writes HTML.
DOCS_POLICY = (
    "default-src 'none'; script-src 'self' {script}; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def source_hash(text: str) -> str:
    """Return what a content security policy names an inline script or style by."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def add_docs(app: FastAPI) -> None:
    """Add the document, the page and its files; addresses are relative, so that it works below any path.

    The page shows the short document, which has each route once. Both are made and encoded once, in a thread, when
    somebody asks for one.
    """
    page = get_swagger_ui_html(
        openapi_url="docs/openapi.json",
        title=app.title,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="data:,",
    )

    [script] = re.findall("<script>(.*?)</script>", bytes(page.body).decode(), re.DOTALL)
    headers = {**HEADERS, "Content-Security-Policy": DOCS_POLICY.format(script=source_hash(script))}

    app.add_api_route("/docs/openapi.json", json_response(lambda: shortened(app.openapi())), include_in_schema=False)
    app.add_api_route("/docs", fixed_response(bytes(page.body), "text/html", headers), include_in_schema=False)
    app.add_api_route("/openapi.json", json_response(lambda: app.openapi()), include_in_schema=False)
    for name, media_type in ASSETS.items():
        content = (files(PACKAGE) / "static" / name).read_bytes()
        app.add_api_route(f"/docs/{name}", fixed_response(content, media_type, CACHED), include_in_schema=False)


def fixed_response(content: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> Endpoint:
    """Return an endpoint that always sends the same."""

    async def send() -> Response:
        return Response(content, media_type=media_type, headers=headers)

    return send


def json_response(make: Callable[[], object]) -> Callable[[], Response]:
    """Return an endpoint that always sends the same, which is made the first time, in a thread."""
    encoded = cache(lambda: msgspec.json.encode(make()))
    return lambda: Response(encoded(), media_type="application/json")

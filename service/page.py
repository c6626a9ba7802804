"""The dashboard at ``/``: a page and two files. It asks the service's own routes, and no other host."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files

ASSETS = {"dashboard.js": "text/javascript", "dashboard.css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@cache
def asset(name: str) -> bytes:
    """Return a file of the dashboard."""
    return (files("service") / "static" / name).read_bytes()


def page(root_path: str = "") -> bytes:
    """Return the page; ``root_path`` is where a proxy offers the service."""
    root = escape(root_path, quote=True) + "/" if root_path else ""
    return asset("dashboard.html").replace(b"{root}", root.encode())

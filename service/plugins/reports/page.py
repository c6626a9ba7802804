"""The dashboard at ``/``: a page and its files. It sends requests to the service's own routes only."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files

import msgspec

from service.http.pages import source_hash

SCRIPT = "text/javascript"
MODULES = ("parts.js", "charts.js", "manage.js", "events.js", "overview.js", "loop.js", "dashboard.js")  # in this order
ASSETS = {**dict.fromkeys((*MODULES, "demo.js"), SCRIPT), "dashboard.css": "text/css"}
PAGES = {"/": "dashboard.html", "/demo": "demo.html"}


@cache
def asset(name: str) -> bytes:
    """Return a file of the dashboard."""
    return (files(__package__) / "static" / name).read_bytes()


def report_page(loop: str, report: bytes) -> bytes:
    """Return a report as a page without other files, which may run its own script only."""
    style, script = asset("dashboard.css").decode(), _bundled()
    data = '{"loop":' + msgspec.json.encode(loop).decode() + ',"report":' + report.decode() + "}"
    policy = (
        f"default-src 'none'; img-src data:; style-src {source_hash(style)}; script-src {source_hash(script)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>fedres</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main id="main"></main>
<script type="application/json" id="report">{data.replace("<", chr(92) + "u003c")}</script>
<script type="module">{script}</script>
</body>
</html>
""".encode()


def _bundled() -> str:
    """Return the dashboard's scripts as one module."""
    lines = "".join(asset(name).decode() for name in MODULES).splitlines()
    return "\n".join(line for line in lines if not line.startswith("import ")) + "\n"


def page(path: str, root_path: str = "") -> bytes:
    """Return a page; ``root_path`` is the path below which a proxy serves the service."""
    root = escape(root_path, quote=True) + "/" if root_path else ""
    return asset(PAGES[path]).replace(b"{root}", root.encode())

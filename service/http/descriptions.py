"""Tags of routes and descriptions of fields, for the OpenAPI document and the reference."""

from __future__ import annotations

import inspect
import re

from msgspec.structs import fields

TAGS = {
    "decide": "Choose actions and send rewards.",
    "manage": "Loops, settings, catalogue, models and users.",
    "evaluate": "Events, lift, reports and off-policy evaluation.",
    "devices": "Shared models and uploads of devices with private features.",
    "operate": "Status, health and metrics.",
    "azure": "The API of Azure Personalizer.",
    "pages": "The dashboard and its files.",
}
_PATTERNS = (  # the first that is found in a path
    ("azure", r"/personalizer(/|$)"),
    ("devices", r"/federated/|/devices$"),
    ("decide", r"/(rank|recommend|feedback|popular|similar)(/|$)|/(reward|activate)$"),
    ("evaluate", r"/(lift|report|what-if|personal|evaluations|events|unmatched|decisions)(/|$)"),
    ("operate", r"^/(v1/status|metrics|healthz|readyz)$"),
    ("manage", r"^/v1/"),
    ("pages", ""),
)


def field_descriptions(kind: type) -> dict[str, str]:
    """Return what a type's comments say of its fields, by their names in JSON: those that begin with ``#:``.

    Such a comment is behind its field or in front of it.
    """
    texts: dict[str, str] = {}
    in_front = ""
    for line in inspect.getsource(kind).splitlines():
        code, _, text = line.partition("#: ")
        if text and not code.strip():
            in_front = text
        elif field := re.match(r" {4}(\w+): ", code):
            texts[field[1]], in_front = text or in_front, ""
    return {field.encode_name: texts[field.name] for field in fields(kind) if texts.get(field.name)}


def tag_of(path: str) -> str:
    """Return the tag of a route."""
    return next(tag for tag, pattern in _PATTERNS if re.search(pattern, path))


def is_repeated(path: str, method: str, paths: dict[str, dict[str, object]]) -> bool:
    """Return whether a path is another form of one that the page with the API shows, or a file of a page."""
    if tag_of(path) == "pages":
        return True
    if tag_of(path) == "azure":
        return not path.startswith("/personalizer/{version}/")
    return path.startswith("/v1/loops/{loop}/") and method in paths.get(
        path.replace("/v1/loops/{loop}/", "/v1/", 1), {}
    )

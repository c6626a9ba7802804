"""Examples of requests, replies and fields in the OpenAPI document, recorded from a real service.

``docs/api_examples.py`` records them. An example of a loop's route stands at both of its paths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct

from service.http.routes import JSON, PREFIXES

Json = dict[str, Any]
Fields = dict[tuple[str, str], Any]  # examples by type and field
SCHEMAS = "#/components/schemas/"
EMPTY: tuple[Any, ...] = (None, "", [], {})


class Example(Struct):
    """A request with its reply."""

    route: str
    summary: str
    status: int
    path: dict[str, str] = {}
    query: dict[str, Any] = {}
    media_type: str = JSON
    body: Any = None
    reply: Any = None


@cache
def recorded() -> dict[str, list[Example]]:
    """Return the examples of each route."""
    content = files("service.http").joinpath("examples.json").read_bytes()
    by_route: dict[str, list[Example]] = defaultdict(list)
    for example in msgspec.json.decode(content, type=list[Example]):
        by_route[_name(example.route)].append(example)
    return by_route


def add_examples(openapi: Json) -> None:
    """Add the recorded examples to a document."""
    schemas = openapi["components"]["schemas"]
    fields: Fields = {}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            for example in recorded().get(_name(f"{method.upper()} {path}"), ()):
                _add_to_parameters(operation, {"loop": "default", **example.path, **example.query})
                body = operation.get("requestBody") if example.status < 400 else None
                contents = [
                    (body, example.media_type, example.body),
                    (operation["responses"].get(str(example.status)), None, example.reply),
                ]
                for described, media_type, value in contents:
                    for content in _contents(described, media_type, value):
                        content.setdefault("examples", {})[example.summary] = {"value": value}
                        fields |= _better(fields, _fields(value, content.get("schema", {}), schemas))
    for (kind, name), value in fields.items():
        schemas[kind]["properties"][name].setdefault("examples", [value])


def _name(route: str) -> str:
    """Return the name of a route without its loop."""
    return route.replace(f"{PREFIXES[1]}/", f"{PREFIXES[0]}/", 1)


def _add_to_parameters(operation: Json, values: Json) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in values:
            parameter.setdefault("example", values[parameter["name"]])


def _contents(described: Json | None, media_type: str | None, value: Any) -> list[Json]:
    """Return the contents of a body or of a reply that have an example."""
    if value is None or described is None:
        return []
    by_type: dict[str, Json] = described.get("content", {})
    return [content for kind, content in by_type.items() if media_type in (None, kind)]


def _better(fields: Fields, new: Iterator[tuple[tuple[str, str], Any]]) -> Fields:
    """Return examples that are new, or that have a value where an earlier one has none."""
    better: Fields = {}
    for field, value in new:
        before = better.get(field, fields.get(field))
        if before in EMPTY and (value not in EMPTY or field not in fields):
            better[field] = value
    return better


def _fields(value: Any, schema: Json, schemas: Json) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield the value of each field of named types in a value."""
    for option in schema.get("anyOf", ()):
        yield from _fields(value, option, schemas)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            yield from _fields(item, schema["items"], schemas)
    kind = schema.get("$ref", "").removeprefix(SCHEMAS)
    if not kind or not isinstance(value, dict):
        return
    properties = schemas[kind].get("properties", {})
    if value.keys() <= properties.keys() and value.keys() >= {*schemas[kind].get("required", ())}:
        for name, inner in value.items():
            yield (kind, name), inner
            yield from _fields(inner, properties[name], schemas)

"""The OpenAPI document, made from the declared routes: their types are msgspec's, which FastAPI does not know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from inspect import getsource
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec import inspect
from msgspec.structs import astuple, fields

from service.http.replies import Error
from service.http.request import Limits
from service.http.routes import JSON, OPEN, Route

Json = dict[str, Any]

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
REF = "#/components/schemas/{name}"
ANY = {
    400: "The path cannot be read.",
    401: "A key is needed.",
    403: "The key may not do this.",
    404: "There is no such loop, user or experiment.",
    421: "This machine does not serve the loop, or not under this Host.",
    422: "The request breaks a rule.",
    429: "The key makes too many requests, or the device too many uploads; Retry-After says when to come back.",
    503: "The log cannot be written or read at the moment; nothing was acknowledged.",
}
CHANGES = {409: "It contradicts what is there."}
WITH_BODY = {
    400: "The request cannot be read.",
    413: "The body is too large.",
    415: "The body is of another type.",
}
TAG = {"ETag": {"description": "The version and a checksum, in quotes.", "schema": {"type": "string"}}}


def entry(route: Route) -> Json:
    """Return a route's entry: what it takes and gives."""
    response: Json = {"description": "Done."}
    if route.reply is not None:
        response["content"] = _content(route.reply, JSON)
    made: Json = {"tags": [tag_of(route.path)], "summary": route.summary, "responses": {str(route.status): response}}
    if route.body is not None:
        made["requestBody"] = {"required": True, "content": _content(route.body, route.body_type or JSON)}
    if route.path.endswith("/federated/model"):
        response["headers"] = TAG
        made["responses"]["304"] = {"description": "If-None-Match has the published version.", "headers": TAG}
    return made


def document(app: FastAPI, routes: Sequence[Route], limits: Limits) -> Json:
    """Return the whole document."""
    made: Json = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    paths = made.setdefault("paths", {})
    kinds: dict[str, type] = {"Error": Error}  # by name
    for route in routes:
        operation = paths.setdefault(route.path, {}).setdefault(route.method.lower(), {})
        operation.update({**entry(route), "operationId": _operation_id(route)})
        _complete(route, operation)
        for kind in (route.body, route.reply, route.error):
            if isinstance(kind, type):
                kinds[kind.__name__] = kind
    _, schemas = msgspec.json.schema_components([*kinds.values()], ref_template=REF)
    _limit(schemas, limits)
    _describe(schemas, kinds.values())
    made["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    declared = {route.path: place for place, route in reversed([*enumerate(routes)])}
    order = [*TAGS]
    made["paths"] = dict(sorted(paths.items(), key=lambda one: (order.index(tag_of(one[0])), declared[one[0]])))
    made["components"] = {
        "schemas": schemas,
        "securitySchemes": {
            "key": {"type": "http", "scheme": "bearer"},
            "subscription_key": {"type": "apiKey", "in": "header", "name": "Ocp-Apim-Subscription-Key"},
        },
    }
    return made


def shortened(made: Json) -> Json:
    """Return the document with each route once, as the page with the API shows it.

    A path below ``/v1`` is also there below ``/v1/loops/{loop}``.
    """
    paths = made["paths"]
    shown = {
        path: {method: entry for method, entry in methods.items() if not is_repeated(path, method, paths)}
        for path, methods in paths.items()
    }
    tags = [tag for tag in made["tags"] if tag["name"] != "pages"]
    return {**made, "paths": {path: methods for path, methods in shown.items() if methods}, "tags": tags}


def _describe(schemas: Json, kinds: Iterable[type]) -> None:
    """Add what fields mean."""
    for kind in _structs_in(inspect.multi_type_info(kinds), set()):
        for name, text in field_descriptions(kind).items():
            schemas[kind.__name__]["properties"][name]["description"] = text


def _structs_in(part: Any, seen: set[type]) -> set[type]:
    """Return the structs that types are made of."""
    if isinstance(part, inspect.StructType):
        if part.cls in seen:
            return seen
        seen.add(part.cls)
    if isinstance(part, (inspect.Type, inspect.Field)):
        part = astuple(part)
    if isinstance(part, tuple):
        for inner in part:
            _structs_in(inner, seen)
    return seen


def _limit(schemas: Json, limits: Limits) -> None:
    """Add the limits that the service was started with."""
    for kind, name, most in (
        ("RankRequest", "actions", limits.actions),
        ("RankRequest", "exclude", limits.actions),
        ("SlotsRequest", "actions", limits.actions),
        ("SlotsRequest", "slots", limits.slots),
        ("Slot", "exclude", limits.actions),
        ("Scoring", "actions", limits.actions),
        ("Batch", "requests", limits.batch),
        ("FeedbackRequest", "events", limits.feedback),
        ("Residuals", "residuals", limits.residuals),
        ("Updates", "updates", limits.updates),
    ):
        if kind in schemas:  # of a plug-in perhaps, that is not switched on
            schemas[kind]["properties"][name]["maxItems"] = most
    if "Update" in schemas:
        schemas["Update"]["properties"]["body"] = {"type": "string", "format": "binary"}  # as msgpack has it


def _content(kind: type | str, media_type: str) -> Json:
    """Return the content of a body of our types, or of any other media type."""
    return {kind: {}} if isinstance(kind, str) else {media_type: {"schema": {"$ref": REF.format(name=kind.__name__)}}}


def _complete(route: Route, operation: Json) -> None:
    """Add the path's parameters, the key, and the failures that any route can have."""
    names = [segment[1:-1] for segment in route.path.split("/") if segment.startswith("{")]
    others = [one for one in operation.get("parameters", []) if one["in"] != "path"]
    others += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query if route.hot]
    if names or others:
        operation["parameters"] = [_parameter(name, route.choices.get(name)) for name in names] + others
    is_open = route.roles is OPEN
    operation["security"] = [] if is_open else [{"key": []}]
    if route.takes_subscription_key:
        operation["security"].append({"subscription_key": []})
    may_contradict = route.method != "GET" or "/federated/" in route.path  # devices cannot use every loop
    failures = {503: ANY[503]} if is_open else {**ANY, **(CHANGES if may_contradict else {})}
    failures |= WITH_BODY if "requestBody" in operation else {}
    for status, text in failures.items():
        operation["responses"][str(status)] = {"description": text, "content": _content(route.error, JSON)}


def _parameter(name: str, choices: Sequence[str] | None) -> Json:
    schema: Json = {"type": "string", "minLength": 1, "maxLength": 200}
    if choices is not None:
        schema = {"type": "string", "enum": list(choices)}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _operation_id(route: Route) -> str:
    return "_".join([route.method.lower(), *(part.strip("{}") for part in route.path.split("/") if part)])


@cache
def field_descriptions(kind: type) -> dict[str, str]:
    """Return what a type's comments say of its fields, by their names in JSON: those that begin with ``#:``.

    Such a comment is behind its field or in front of it.
    """
    texts: dict[str, str] = {}
    in_front = ""
    for line in getsource(kind).splitlines():
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

"""The OpenAPI document: FastAPI's for its own routes, ours for the hot ones, and what all of them have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.http.limits import Limits
from service.http.replies import Error
from service.http.table import OPEN, ROUTES

Json = dict[str, Any]

REF = "#/components/schemas/{name}"
ANY = {
    400: "The path cannot be read.",
    401: "A key is needed.",
    403: "The key may not do this.",
    404: "There is no such loop or user.",
    422: "The request breaks a rule.",
    429: "The key makes too many requests, or the device too many uploads; Retry-After says when to come back.",
    503: "The store cannot be written or read at the moment; nothing was acknowledged.",
}
CHANGES = {409: "It contradicts what is there."}
WITH_BODY = {
    400: "The request cannot be read.",
    413: "The body is too large.",
    415: "The body is of another type.",
}


def reference(kind: type) -> Json:
    return {"$ref": REF.format(name=kind.__name__)}


def content(kind: type | str, media_type: str = "application/json") -> Json:
    """Return the content of a body of our types, or of any other media type."""
    return {kind: {}} if isinstance(kind, str) else {media_type: {"schema": reference(kind)}}


def operation(
    summary: str, *, body: type | str | None = None, reply: type | str | None = None, status: int = 200
) -> Json:
    """Return the entry of a route: what it takes and gives, by type or by media type, or nothing."""
    response: Json = {"description": "Done."} if reply is None else {"description": "Done.", "content": content(reply)}
    entry: Json = {"summary": summary, "responses": {str(status): response}}
    if body is not None:
        entry["requestBody"] = {"required": True, "content": content(body)}
    return entry


def document(app: FastAPI, hot: Mapping[str, Json], kinds: Sequence[type], limits: Limits) -> Json:
    """Return the whole document; ``hot`` has the POST entries of the hot paths, ``kinds`` all types it refers to."""
    made: Json = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    paths = made.setdefault("paths", {})
    for path, entry in hot.items():
        paths[path] = {"post": {**entry, "operationId": _operation_id("POST", path)}}
    for path, methods in paths.items():
        for method, entry in methods.items():
            _complete(path, method.upper(), entry)
    _, schemas = msgspec.json.schema_components([*kinds, Error], ref_template=REF)
    for name in ("actions", "exclude"):
        schemas["Rank"]["properties"][name]["maxItems"] = limits.actions
    schemas["RankSlots"]["properties"]["actions"]["maxItems"] = limits.actions
    schemas["RankSlots"]["properties"]["slots"]["maxItems"] = limits.slots
    schemas["Slot"]["properties"]["exclude"]["maxItems"] = limits.actions
    schemas["Scoring"]["properties"]["actions"]["maxItems"] = limits.actions
    schemas["Batch"]["properties"]["requests"]["maxItems"] = limits.batch
    schemas["Residuals"]["properties"]["residuals"]["maxItems"] = limits.residuals
    schemas["Updates"]["properties"]["updates"]["maxItems"] = limits.updates
    schemas["Update"]["properties"]["body"] = {"type": "string", "format": "binary"}  # as msgpack has it
    made["components"] = {
        "schemas": schemas,
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    return made


def _complete(path: str, method: str, entry: Json) -> None:
    """Add the path's parameters, the key, and the failures that any route can have."""
    entry.setdefault("operationId", _operation_id(method, path))
    names = [segment[1:-1] for segment in path.split("/") if segment.startswith("{")]
    others = [one for one in entry.get("parameters", []) if one["in"] != "path"]
    if names or others:
        entry["parameters"] = [_parameter(name) for name in names] + others
    is_open = ROUTES[path][method] is OPEN
    entry["security"] = [] if is_open else [{"key": []}]
    failures = {503: ANY[503]} if is_open else {**ANY, **(CHANGES if method != "GET" else {})}
    failures |= WITH_BODY if "requestBody" in entry else {}
    for status, text in failures.items():
        entry["responses"][str(status)] = {"description": text, "content": content(Error)}


def _parameter(name: str) -> Json:
    schema: Json = {"type": "string", "minLength": 1, "maxLength": 200}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _operation_id(method: str, path: str) -> str:
    return "_".join([method.lower(), *(part.strip("{}") for part in path.split("/") if part)])

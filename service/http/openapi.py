"""The OpenAPI document, made from the declared routes, whose msgspec types FastAPI does not support."""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.http.examples import add_examples
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
_PATTERNS = (  # the first that matches a path counts
    ("azure", r"/personalizer(/|$)"),
    ("devices", r"/federated/|/devices$"),
    ("decide", r"/(rank|recommend|feedback|popular|similar)(/|$)|/(reward|rewards|activate)$"),
    ("evaluate", r"/(lift|report|what-if|personal|evaluations|events|unmatched|decisions|experiments|state)(/|$)"),
    ("operate", r"^/(v1/(status|overview|key)|metrics|healthz|readyz)$"),
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
OF_KEYS = "/v1/key"  # a route that checks the key itself
TAG = {"ETag": {"description": "The version and a checksum, in quotes.", "schema": {"type": "string"}}}
SETTINGS_TAG = {"ETag": {"description": "The version of the settings, in quotes.", "schema": {"type": "string"}}}


def document(app: FastAPI, routes: Sequence[Route], limits: Limits, root_path: str = "") -> Json:
    """Return the whole document; ``root_path`` is the path below which a proxy serves the service."""
    openapi: Json = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    described = openapi.get("paths", {})  # by FastAPI, with the query parameters of its endpoints
    kinds: dict[str, type] = {"Error": Error}  # by name
    openapi["paths"] = {}
    for route in sorted(routes, key=lambda route: [*TAGS].index(tag_of(route.path))):
        method = route.method.lower()
        queries = described.get(route.path, {}).get(method, {}).get("parameters", [])
        openapi["paths"].setdefault(route.path, {})[method] = _operation(route, queries)
        for kind in (route.body, route.reply, route.error):
            if isinstance(kind, type):
                kinds[kind.__name__] = kind
    _, schemas = msgspec.json.schema_components([*kinds.values()], ref_template=REF)
    _limit(schemas, limits)
    openapi["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    if root_path:
        openapi["servers"] = [{"url": root_path}]
    openapi["components"] = {
        "schemas": schemas,
        "securitySchemes": {
            "key": {"type": "http", "scheme": "bearer"},
            "subscription_key": {"type": "apiKey", "in": "header", "name": "Ocp-Apim-Subscription-Key"},
        },
    }
    add_examples(openapi)
    return openapi


def shortened(openapi: Json) -> Json:
    """Return the document with each route once, for the API's page.

    A path below ``/v1`` also exists below ``/v1/loops/{loop}``.
    """
    shown: Json = {}
    for path, methods in openapi["paths"].items():
        if tag_of(path) == "pages" or (tag_of(path) == "azure" and not path.startswith("/personalizer/{version}/")):
            continue
        shorter = path.replace("/v1/loops/{loop}/", "/v1/", 1)
        repeated = openapi["paths"].get(shorter, {}) if shorter != path else {}
        new = {method: operation for method, operation in methods.items() if method not in repeated}
        if new:
            shown[path] = new
    tags = [tag for tag in openapi["tags"] if tag["name"] != "pages"]
    return {**openapi, "paths": shown, "tags": tags}


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
        ("RewardBatch", "rewards", limits.rewards),
        ("Residuals", "residuals", limits.residuals),
        ("Updates", "updates", limits.updates),
    ):
        if kind in schemas:  # else its plug-in is off
            schemas[kind]["properties"][name]["maxItems"] = most
    if "Update" in schemas:
        # Bodies of updates are msgpack, which has bytes: msgspec describes them as base64, as in JSON.
        body = schemas["Update"]["properties"]["body"]
        schemas["Update"]["properties"]["body"] = {
            "description": body["description"],
            "type": "string",
            "format": "binary",
        }


def _content(kind: type | str, media_type: str) -> Json:
    """Return the content of a body of our types, or of any other media type."""
    return {kind: {}} if isinstance(kind, str) else {media_type: {"schema": {"$ref": REF.format(name=kind.__name__)}}}


def _operation(route: Route, queries: Sequence[Json]) -> Json:
    """Return the operation of a route: parameters, body, replies, and the errors of all routes."""
    segments = [segment for segment in route.path.split("/") if segment]
    parameters: list[Json] = []
    for name in (segment[1:-1] for segment in segments if segment.startswith("{")):
        schema: Json = {"type": "string", "minLength": 1, "maxLength": 200}
        if name in route.choices:
            schema = {"type": "string", "enum": list(route.choices[name])}
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    parameters += [parameter for parameter in queries if parameter["in"] != "path"]
    parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query if route.hot]
    response: Json = {"description": "Done."}
    if route.reply is not None:
        response["content"] = _content(route.reply, JSON)
    responses = {str(route.status): response}
    if route.path.endswith("/federated/model"):
        response["headers"] = TAG
        responses["304"] = {"description": "If-None-Match has the published version.", "headers": TAG}
    if route.path.endswith(("/settings", "/hold", "/resume")):
        response["headers"] = SETTINGS_TAG
    may_contradict = route.method != "GET" or "/federated/" in route.path  # devices cannot use every loop
    needs_key = route.roles is not OPEN or route.path == OF_KEYS
    open_failures = {status: ANY[status] for status in (401, 503) if status == 503 or needs_key}
    failures = open_failures if route.roles is OPEN else {**ANY, **(CHANGES if may_contradict else {})}
    failures |= WITH_BODY if route.body is not None else {}
    if route.path.endswith(("/settings", "/hold", "/resume")) and route.method != "GET":
        failures[412] = "The settings have another version than If-Match names."
    for status, text in failures.items():
        responses[str(status)] = {"description": text, "content": _content(route.error, JSON)}
    operation: Json = {
        "tags": [tag_of(route.path)],
        "summary": route.summary,
        "description": cleandoc(route.endpoint.__doc__ or "").replace("``", "`"),
        "operationId": "_".join([route.method.lower(), *(segment.strip("{}") for segment in segments)]),
        "security": [{"key": []}] if needs_key else [],
        "responses": responses,
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(route.body, route.body_type or JSON)}
    if route.takes_subscription_key:
        operation["security"].append({"subscription_key": []})
    return operation


def tag_of(path: str) -> str:
    """Return the tag of a route."""
    return next(tag for tag, pattern in _PATTERNS if re.search(pattern, path))

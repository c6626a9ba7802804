"""The application: FastAPI behind a gate that lets in, refuses and counts; the hot routes are answered at the gate."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from service.engine import Engine
from service.errors import ApiError
from service.http import federated, slots, wire
from service.http.admin import loop_routes, service_routes
from service.http.gate import Gate
from service.http.hot import ENTRIES, Hot
from service.http.keys import Keys
from service.http.lane import Lane
from service.http.limits import Limits
from service.http.metrics import Requests
from service.http.openapi import document
from service.http.replies import Receive, Scope, Send, failure
from service.http.table import PREFIXES, of_a_loop
from service.store import StoreUnavailable

DESCRIPTION = """\
Ranks actions and learns from rewards: one shared model, and one of each user's own.

Every failure is `{{"error": {{"code", "message", "target"}}}}`: a code for programs, a message for people, and what it
is about. A service with keys asks for `Authorization: Bearer <key>`. Paths below `/v1` are those of the loop `default`.

A body has at most {limits.body_bytes} bytes (a model {limits.model_bytes}, updates {limits.update_bytes}) and must come
with its `Content-Type` and within {limits.request_seconds:g} seconds. It may come with `Content-Encoding: gzip`; then
the limit holds before and after decompression. A key may make {limits.requests_per_second:g} requests a second.
"""


class App(FastAPI):
    """A FastAPI application with the gate in front of all of it: FastAPI's own way in takes longer than the gate."""

    gate: Gate
    lane: Lane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.gate(scope, receive, send)

    async def behind_the_gate(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)


def create_app(
    engine: Engine, *, keys: Keys, limits: Limits | None = None, at_the_gate: Limits | None = None
) -> FastAPI:
    """Return the application on an engine, which stays its caller's to close.

    ``at_the_gate`` are the limits that its gate keeps to, where others have kept to ``limits`` already.
    """
    requests = Requests()
    limits = limits or Limits()
    app = App(
        title="fedres",
        version=version("fedres"),
        description=DESCRIPTION.format(limits=limits),
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,
    )
    for prefix in PREFIXES:
        app.include_router(loop_routes(engine), prefix=prefix)
        app.include_router(federated.device_routes(engine, limits), prefix=prefix)
    app.include_router(service_routes(engine, requests))
    app.add_exception_handler(RequestValidationError, _invalid_query)
    app.add_exception_handler(HTTPException, _refused)
    for kind in (ApiError, StoreUnavailable, Exception):
        app.add_exception_handler(kind, _failed)
    hot = Hot(engine, limits)
    handlers = hot.handlers() | slots.hot_handlers(engine, limits) | federated.hot_handlers(engine, limits)
    app.gate = Gate(app.behind_the_gate, hot=handlers, keys=keys, limits=at_the_gate or limits, requests=requests)
    app.lane = Lane(engine, hot, app.gate)
    hot_entries = ENTRIES | slots.ENTRIES | federated.ENTRIES
    entries = {path: entry for below, entry in hot_entries.items() for path in of_a_loop(below)}
    made = document(app, entries, wire.KINDS, limits)
    app.openapi = lambda: made  # type: ignore[method-assign]  # the way FastAPI has for this
    return app


async def _invalid_query(request: Request, error: Exception) -> Response:
    """Answer a query parameter that breaks a rule; all else is checked by ourselves."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    message = f"{name}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {str(first.get('input'))[:100]!a}"
    return await _failed(request, ApiError(422, "invalid_request", message, name))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await _failed(request, ApiError(error.status_code, "refused", str(error.detail)))


async def _failed(_: Request, error: Exception) -> Response:
    reply = failure(error)
    return Response(reply.body, reply.status, {name.decode(): value.decode() for name, value in reply.headers})

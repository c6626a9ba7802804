"""The other routes of a loop and those of the service: ordinary FastAPI, on bodies that are read strictly."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from service.engine import Engine
from service.engine.settings import Settings
from service.errors import ApiError
from service.http.figures import figures
from service.http.metrics import Requests
from service.http.openapi import operation
from service.http.routing import BINARY, MOST, Loop, User, encode, json_response, read_json, route
from service.http.wire import Catalogue, CatalogueChange, Evaluate, Health, LoopMade, Loops, SettingsInForce, Unmatched
from service.page import PAGE

LINES, TEXT, HTML = "application/x-ndjson", "text/plain; version=0.0.4", "text/html"
LINES_AT_ONCE = 500


def loop_routes(engine: Engine) -> APIRouter:
    """Return the routes below a loop's prefix."""
    api = APIRouter()

    @api.get("/events", **route(operation("Export events as JSON lines.", reply=LINES)))
    async def get_events(
        loop: Loop,
        after: Annotated[int, Query(ge=0, le=MOST)] = 0,
        limit: Annotated[int | None, Query(ge=1, le=MOST)] = None,
    ) -> Response:
        lines = _chunks(engine.events(loop, after, limit))
        first = await run_in_threadpool(next, lines, b"")
        return StreamingResponse(chain([first], lines), media_type=LINES)

    @api.get("/rewards/unmatched", **route(operation("List late and unmatched rewards.", reply=Unmatched)))
    async def get_unmatched(loop: Loop) -> Response:
        return json_response({"rewards": await run_in_threadpool(engine.unmatched, loop)})

    @api.get("/actions", **route(operation("Show the catalogue.", reply=Catalogue)))
    async def get_actions(loop: Loop) -> Response:
        return json_response({"actions": engine.actions(loop)})

    @api.put("/actions", **route(operation("Add, change or retire actions.", body=CatalogueChange, status=204)))
    async def put_actions(loop: Loop, request: Request) -> Response:
        change = await read_json(request, CatalogueChange)
        await engine.put_actions(loop, put=change.put, retire=change.retire)
        return Response(status_code=204)

    @api.get("/settings", **route(operation("Show the settings.", reply=SettingsInForce)))
    async def get_settings(loop: Loop) -> Response:
        return json_response(SettingsInForce(*engine.settings(loop)))

    @api.put("/settings", **route(operation("Replace the settings.", body=Settings, reply=SettingsInForce)))
    async def put_settings(loop: Loop, request: Request) -> Response:
        await engine.put_settings(loop, await read_json(request, dict[str, Any]))
        return json_response(SettingsInForce(*engine.settings(loop)))

    @api.get("/model", **route(operation("Download the shared model.", reply=BINARY)))
    async def get_model(loop: Loop) -> Response:
        return Response(await run_in_threadpool(engine.model, loop), media_type=BINARY)

    @api.put("/model", **route(operation("Upload a shared model.", body=BINARY, status=204)))
    async def put_model(loop: Loop, request: Request) -> Response:
        await engine.put_model(loop, await request.body())
        return Response(status_code=204)

    @api.get("/users/{user}/model", **route(operation("Show a user's model.", reply="application/json")))
    async def get_user_model(loop: Loop, user: User) -> Response:
        return json_response(await run_in_threadpool(engine.user_model, loop, user))

    @api.delete("/users/{user}", **route(operation("Erase a user: model and events.", status=204)))
    async def delete_user(loop: Loop, user: User) -> Response:
        await engine.erase_user(loop, user)
        return Response(status_code=204)

    @api.post(
        "/evaluations", **route(operation("Value policies on the events.", body=Evaluate, reply="application/json"))
    )
    async def evaluate(loop: Loop, request: Request) -> Response:
        wanted = await read_json(request, Evaluate)
        return json_response(await engine.evaluate(loop, wanted.policies, wanted.estimators))

    return api


def service_routes(engine: Engine, requests: Requests) -> APIRouter:
    """Return the routes of the service as a whole."""
    api = APIRouter()

    @api.get("/v1/loops", **route(operation("List the loops.", reply=Loops)))
    async def get_loops() -> Response:
        return json_response(Loops(list(engine.loops())))

    @api.post("/v1/loops", **route(operation("Make a loop.", body=LoopMade, reply=SettingsInForce, status=201)))
    async def post_loop(request: Request) -> Response:
        made = await read_json(request, LoopMade)
        await engine.create_loop(made.name, made.settings)
        return json_response(SettingsInForce(*engine.settings(made.name)), 201)

    @api.delete("/v1/loops/{loop}", **route(operation("Delete a loop.", status=204)))
    async def delete_loop(loop: Loop) -> Response:
        await engine.delete_loop(loop)
        return Response(status_code=204)

    @api.get("/v1/status", **route(operation("Show how the service does.", reply="application/json")))
    async def get_status() -> Response:
        return json_response(engine.status())

    @api.get("/metrics", **route(operation("Show figures for Prometheus.", reply="text/plain")))
    async def get_metrics() -> Response:
        return Response(
            requests.text() + figures({loop: engine.gauges(loop) for loop in engine.loops()}), media_type=TEXT
        )

    @api.get("/healthz", **route(operation("Say that the process answers.", reply=Health)))
    async def get_health() -> Response:
        return json_response(Health("ok"))

    @api.get("/readyz", **route(operation("Say whether requests can be answered.", reply=Health)))
    async def get_readiness() -> Response:
        trouble = engine.status()["trouble"]
        if trouble is not None:
            raise ApiError(503, "not_ready", f"the learner waits: {trouble}")
        return json_response(Health("ready"))

    @api.get("/", **route(operation("Show a page.", reply=HTML)))
    async def get_page() -> Response:
        return Response(PAGE, media_type=HTML)

    return api


def _chunks(events: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """Yield JSON lines, many at a time: each chunk is a trip to a thread."""
    while lines := list(islice(events, LINES_AT_ONCE)):
        yield b"".join(encode(event) + b"\n" for event in lines)

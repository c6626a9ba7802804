"""The application: FastAPI behind a router that authenticates requests and serves hot routes itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from service.admin.admin import Admin
from service.admin.routes import key_routes, loop_routes, service_routes
from service.admin.status import MachineStatus
from service.errors import ApiError
from service.http.audit import Audit
from service.http.hosts import Hosts
from service.http.hot import hot_routes
from service.http.keys import Keys
from service.http.openapi import document
from service.http.pages import docs_routes
from service.http.replies import failure
from service.http.request import Limits
from service.http.router import Router
from service.http.routes import Route
from service.log.protocol import StoreUnavailable
from service.plugins import Core, plugins
from service.rank.ranker import Ranker, RankerContext
from service.rank.rewards import Rewards

DESCRIPTION = """\
Ranks actions and learns from rewards: one shared model, and one of each user's own.

Every failure is `{{"error": {{"code", "message", "target"}}}}`: a code for programs, a message for people, and what it
is about. A service with keys asks for `Authorization: Bearer <key>`. Paths below `/v1` are those of the loop `default`.

A body has at most {limits.body_bytes} bytes (that of a rank call {limits.rank_bytes}, a model {limits.model_bytes},
updates {limits.update_bytes}) and must come with its `Content-Type` and within {limits.request_seconds:g} seconds. It
may come with `Content-Encoding: gzip`; then the limit holds before and after decompression. A key may have a limit of
requests a second.
"""


class App(NamedTuple):
    """The application of a ranker."""

    router: Router  # for a server: passes all but hot routes on to FastAPI
    core: Core
    openapi: Callable[[], dict[str, Any]]  # returns the OpenAPI document


def create_app(
    context: RankerContext,
    status: MachineStatus,
    *,
    keys: Keys,
    limits: Limits | None = None,
    hosts: Hosts | None = None,
    audit: Audit | None = None,
    root_path: str = "",
    access_log: bool = False,
) -> App:
    """Return the application of a ranker; ``root_path`` is the path below which a proxy serves it."""
    limits = limits or Limits()
    fastapi = FastAPI(
        title="fedres",
        version=version("fedres"),
        description=DESCRIPTION.format(limits=limits),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,
    )
    audit = audit or Audit(None)
    core = _core(context, status, limits, root_path, audit)
    declared = _routes(core, keys)
    openapi = cache(partial(document, fastapi, declared, limits, root_path))  # takes long to make
    routes = [*declared, *docs_routes(fastapi.title, openapi)]
    for route in routes:
        if not route.hot:
            options = {"methods": [route.method], "status_code": route.status, "response_class": Response}
            fastapi.add_api_route(route.path, route.endpoint, **options)  # type: ignore[arg-type]
    fastapi.add_exception_handler(RequestValidationError, _invalid_query)
    fastapi.add_exception_handler(HTTPException, _refused)
    for kind in (ApiError, StoreUnavailable, Exception):
        fastapi.add_exception_handler(kind, _failed)
    router = Router(
        fastapi,
        routes,
        keys=keys,
        limits=limits,
        hosts=hosts or Hosts(),
        audit=audit,
        reshape={part: reshape for plugin in plugins() for part, reshape in plugin.failures.items()},
        root_path=root_path,
        access_log=access_log,
    )
    return App(router, core, openapi)


def declared_routes(context: RankerContext, status: MachineStatus, limits: Limits) -> list[Route]:
    """Return all routes except those of the API's documentation pages."""
    return _routes(_core(context, status, limits, ""))


def _core(
    context: RankerContext, status: MachineStatus, limits: Limits, root_path: str, audit: Audit | None = None
) -> Core:
    return Core(
        context=context,
        ranker=Ranker(context),
        admin=Admin(context),
        status=status,
        limits=limits,
        root_path=root_path,
        audit=audit,
    )


def _routes(core: Core, keys: Keys | None = None) -> list[Route]:
    return [
        *key_routes(keys).all,
        *hot_routes(core.ranker, Rewards(core.context), core.limits).all,
        *loop_routes(core.admin).all,
        *service_routes(core.admin, core.status).all,
        *(route for plugin in plugins() for route in plugin.routes(core)),
    ]


async def _invalid_query(request: Request, error: Exception) -> Response:
    """Reply to an invalid query parameter; everything else is validated by our own code."""
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

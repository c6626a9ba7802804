"""FastAPI routes of loops (except the hot ones) and of the service."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from msgspec import Meta, Struct

from service import metrics
from service.admin.admin import Admin, UnmatchedReward
from service.admin.status import MachineStatus
from service.errors import ApiError
from service.hints import about
from service.http.keys import Keys
from service.http.replies import json_response
from service.http.request import loop_of, read_json, read_lines, user_of
from service.http.routes import ADMIN, BINARY, DEVICE, JSON, LINES, OPEN, READ, TEXT, Routes
from service.rank.requests import Action, Id
from service.settings import LONGEST_REASON, Settings

MOST = 2**62  # SQLite's integers end at twice that
LOOP_USER = "/v1/loops/{loop}/users/{user}"
PROMETHEUS = "text/plain; version=0.0.4"
SINCE = "Fedres-Events-Since"  # a header of exports

IF_MATCH = "The version that these settings replace, in quotes, as ETag has it; 412 if they have another one."


def expected_version(
    tag: Annotated[str | None, Header(alias="If-Match", description=IF_MATCH)] = None,
) -> int | None:
    """Return the version in the header If-Match, None without it."""
    if tag is None:
        return None
    if not re.fullmatch(r'"[0-9]{1,18}"', tag):
        message = f'If-Match must be the version of the settings in quotes, such as "17", got {tag[:100]!r}'
        raise ApiError(422, "invalid_request", message, "If-Match")
    return int(tag.strip('"'))


Loop = Annotated[str, Depends(loop_of)]
User = Annotated[str, Depends(user_of)]
Version = Annotated[int | None, Depends(expected_version)]


class Catalogue(Struct):
    """The actions that can be named by id alone."""

    actions: Annotated[list[Action], about("The actions with their features, in the order of their registration.")]


class CatalogueChange(Struct, forbid_unknown_fields=True):
    """Actions to add or change, and ids to retire."""

    put: Annotated[list[Action], about("Actions to add, or to replace with all their features.")] = []
    retire: Annotated[list[Id], about("Ids of actions to remove.")] = []


class Unmatched(Struct):
    """The newest rewards that came too late or have no event, oldest first."""

    rewards: Annotated[list[UnmatchedReward], about("The rewards, oldest first.")]


class NewLoop(Struct, forbid_unknown_fields=True):
    """A loop to create; missing settings have their defaults."""

    name: Annotated[Id, about("Letters, digits, -, _ and .")]
    settings: Annotated[
        Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Settings"})],
        about("Settings that differ from the defaults."),
    ] = {}


class Loops(Struct):
    """The loops of the service."""

    loops: Annotated[list[str], about("Names of the loops.")]


class SettingsInForce(Struct):
    """A loop's settings and their version, which is their position in the log."""

    version: Annotated[int, about("Position in the log of the record with these settings; the header ETag has it too.")]
    settings: Annotated[Settings, about("All settings, those with default values included.")]


class Hold(Struct, forbid_unknown_fields=True):
    """Why the baseline is to decide for everybody."""

    reason: Annotated[str, Meta(min_length=1, max_length=LONGEST_REASON), about("Shown wherever the loop is shown.")]


class Health(Struct, omit_defaults=True):
    """Whether the service works."""

    status: Annotated[str, about("ok: the process responds; ready: it serves requests.")]
    trouble: Annotated[
        str | None,
        about(
            "What is wrong with single loops, while all others are served; left out if nothing is.",
            "still learned from the log: shop",
        ),
    ] = None


class CallerKey(Struct):
    """The key of a request: what it may do."""

    id: Annotated[str, about("Id of the key; empty without keys.", "4f2a90b1c3d5")]
    role: Annotated[str, about("What the key may do: rank, device, read or admin.")]
    loop: Annotated[str | None, about("The only loop that it is for; null: all loops.", "shop")]
    expires: Annotated[float | None, about("When it ends, in seconds since 1970; null: never.", 1793534400.0)]


def key_routes(keys: Keys | None) -> Routes:
    """Return the route that shows a caller its key; it needs a valid one of any role."""
    routes = Routes()

    @routes.of_service("GET", "/v1/key", OPEN, "Show the role of the key that the request has.", reply=CallerKey)
    async def get_key(request: Request) -> Response:
        """Show what the key of the request may do; a service without keys treats every caller as an admin."""
        assert keys is not None
        header = request.headers.get("authorization")
        key = keys.identify(None if header is None else header.encode("latin-1"))
        return json_response(CallerKey(key.id, key.role, key.loop, key.expires))

    return routes


def loop_routes(admin: Admin) -> Routes:
    """Return the routes of a loop."""
    routes = Routes()

    @routes.of_loop("GET", "/events", ADMIN, "Export events as JSON lines.", reply=LINES, query=("after", "limit"))
    async def get_events(
        loop: Loop,
        after: Annotated[int, Query(ge=0, le=MOST)] = 0,
        limit: Annotated[int | None, Query(ge=1, le=MOST)] = None,
    ) -> Response:
        """Stream the loop's events as JSON lines: context, actions, probabilities, reward and status.

        To continue, send the ``position`` of the last line as ``after``.
        """
        return await _lines(admin.events(loop, after, limit), admin.events_since(loop))

    @routes.of_loop("GET", "/rewards/unmatched", ADMIN, "List late and unmatched rewards.", reply=Unmatched)
    async def get_unmatched(loop: Loop) -> Response:
        """List the newest rewards that do not count: late, unmatched, too many, or early ones that still wait
        for their event.
        """
        return json_response(Unmatched(await admin.unmatched(loop)))

    @routes.of_loop("GET", "/actions", ADMIN, "Show the catalogue.", reply=Catalogue)
    async def get_actions(loop: Loop) -> Response:
        """Return all actions of the catalogue with their features."""
        return json_response(Catalogue(admin.actions(loop)))

    @routes.of_loop(
        "PUT", "/actions", ADMIN, "Add, change or retire actions.", body=CatalogueChange, status=204, or_lines=True
    )
    async def put_actions(loop: Loop, request: Request) -> Response:
        """Change the catalogue, as JSON or as JSON lines with an action each.

        The change takes effect before the response is sent.
        """
        lines = await read_lines(request, Action)
        change = await read_json(request, CatalogueChange) if lines is None else CatalogueChange(lines)
        await admin.put_actions(loop, put=change.put, retire=change.retire)
        return Response(status_code=204)

    _settings_routes(routes, admin)
    _model_routes(routes, admin)
    _user_routes(routes, admin)
    return routes


def _settings_routes(routes: Routes, admin: Admin) -> None:
    @routes.of_loop("GET", "/settings", ADMIN, "Show the settings.", reply=SettingsInForce)
    async def get_settings(loop: Loop) -> Response:
        """Return the settings in force. The header ``ETag`` has their version."""
        return _settings_response(admin, loop)

    @routes.of_loop("PUT", "/settings", ADMIN, "Replace the settings.", body=Settings, reply=SettingsInForce)
    async def put_settings(loop: Loop, request: Request, version: Version) -> Response:
        """Replace all settings; missing ones return to their defaults, except those that are fixed at
        creation, and ``control.hold``.

        With ``If-Match``, only if nobody else changed them.
        """
        await admin.put_settings(loop, await read_json(request, dict[str, Any]), version)
        return _settings_response(admin, loop)

    @routes.of_loop("PATCH", "/settings", ADMIN, "Change some settings.", body=Settings, reply=SettingsInForce)
    async def patch_settings(loop: Loop, request: Request, version: Version) -> Response:
        """Change the settings that the body names; of ``control`` and ``defences``, the fields that it names.

        With ``If-Match``, only if nobody else changed them.
        """
        await admin.patch_settings(loop, await read_json(request, dict[str, Any]), version)
        return _settings_response(admin, loop)

    @routes.of_loop("POST", "/hold", ADMIN, "Let the baseline decide for everybody.", body=Hold, reply=SettingsInForce)
    async def hold(loop: Loop, request: Request, version: Version) -> Response:
        """Let the baseline decide for everybody, and pause the experiment until the loop is resumed."""
        await admin.hold(loop, (await read_json(request, Hold)).reason, version)
        return _settings_response(admin, loop)

    @routes.of_loop("POST", "/resume", ADMIN, "Let the policy decide again.", reply=SettingsInForce)
    async def resume(loop: Loop, version: Version) -> Response:
        """Let the policy decide again, and the experiment go on; with If-Match, a newer hold stays."""
        await admin.resume(loop, version)
        return _settings_response(admin, loop)


def _model_routes(routes: Routes, admin: Admin) -> None:
    @routes.of_loop("GET", "/model", DEVICE, "Download the shared model.", reply=BINARY)
    async def get_model(loop: Loop) -> Response:
        """Download the shared model, which includes everything logged so far."""
        return Response(await admin.model(loop), media_type=BINARY)

    @routes.of_loop("PUT", "/model", ADMIN, "Upload a shared model.", body=BINARY, status=204)
    async def put_model(loop: Loop, request: Request) -> Response:
        """Replace the shared model by one that was downloaded."""
        await admin.put_model(loop, await request.body())
        return Response(status_code=204)


def _user_routes(routes: Routes, admin: Admin) -> None:
    @routes.of_loop("GET", "/users/{user}/model", ADMIN, "Show a user's personal model.", reply=JSON)
    async def get_user_model(loop: Loop, user: User) -> Response:
        """Return the weights of a personal model, by the key of each feature.

        404 if the user has none yet.
        """
        return json_response(admin.user_model(loop, user))

    @routes.of_service("DELETE", LOOP_USER, ADMIN, "Erase a user in one loop: model and events.", status=204)
    async def delete_user(loop: Loop, user: User) -> Response:
        """Remove the user's personal model and events from one loop."""
        await admin.erase_user(loop, user)
        return Response(status_code=204)

    @routes.of_service("GET", LOOP_USER + "/events", ADMIN, "Export a user's events in one loop.", reply=LINES)
    async def get_user_events(loop: Loop, user: User) -> Response:
        """Stream the user's events in one loop as JSON lines."""
        return await _lines(admin.user_events(user, [loop]))


def service_routes(admin: Admin, status: MachineStatus) -> Routes:
    """Return the routes of the service as a whole."""
    routes = Routes()

    @routes.of_service("GET", "/v1/loops", READ, "List the loops.", reply=Loops)
    async def get_loops() -> Response:
        """Return the names of all loops."""
        return json_response(Loops(admin.loops()))

    @routes.of_service("POST", "/v1/loops", ADMIN, "Create a loop.", body=NewLoop, reply=SettingsInForce, status=201)
    async def post_loop(request: Request) -> Response:
        """Create a loop.

        A repeat with the same name and settings returns the existing loop; other settings get 409.
        """
        new_loop = await read_json(request, NewLoop)
        await admin.create_loop(new_loop.name, new_loop.settings)
        return json_response(SettingsInForce(*admin.settings(new_loop.name)), 201)

    @routes.of_service("DELETE", "/v1/loops/{loop}", ADMIN, "Delete a loop.", status=204)
    async def delete_loop(loop: Loop) -> Response:
        """Remove the loop's models and pending events; its records stay in the log.

        The loop ``default`` cannot be deleted.
        """
        await admin.delete_loop(loop)
        return Response(status_code=204)

    @routes.of_service("DELETE", "/v1/users/{user}", ADMIN, "Erase a user in all loops.", status=204)
    async def delete_user_everywhere(user: User) -> Response:
        """Remove the user's personal models and events from all loops."""
        await admin.erase_user_everywhere(user)
        return Response(status_code=204)

    @routes.of_service("GET", "/v1/users/{user}/events", ADMIN, "Export a user's events in all loops.", reply=LINES)
    async def get_user_events_everywhere(user: User) -> Response:
        """Stream the user's events in all loops as JSON lines."""
        return await _lines(admin.user_events(user))

    _status_routes(routes, status)
    return routes


def _status_routes(routes: Routes, status: MachineStatus) -> None:
    @routes.of_service("GET", "/v1/status", READ, "Show the status of the service.", reply=JSON)
    async def get_status() -> Response:
        """Return the version, the processes, the size of the log, and for each loop its counts, its lag and
        its model.
        """
        return json_response(await status.status())

    @routes.of_service("GET", "/metrics", READ, "Metrics for Prometheus.", reply=TEXT)
    async def get_metrics() -> Response:
        """Return the metrics of the service in the text format of Prometheus."""
        report = await status.status()
        metrics.flush_requests()
        text = await run_in_threadpool(metrics.text, report["loops"], report["processes"], report["log"])
        return Response(text, media_type=PROMETHEUS)

    @routes.of_service("GET", "/healthz", OPEN, "Liveness: the process answers.", reply=Health)
    async def get_health() -> Response:
        """Return 200 while the process responds. It needs no key."""
        return json_response(Health("ok"))

    @routes.of_service("GET", "/readyz", OPEN, "Readiness: requests can be served.", reply=Health)
    async def get_readiness() -> Response:
        """Return 200 once the service can serve requests, else 503 with the reason. It needs no key."""
        return json_response(Health("ready", status.check_ready()))


def _settings_response(admin: Admin, loop: str) -> Response:
    """Return the settings in force, with their version as entity tag."""
    in_force = SettingsInForce(*admin.settings(loop))
    response = json_response(in_force)
    response.headers["etag"] = f'"{in_force.version}"'
    return response


async def _lines(events: AsyncIterator[bytes], since: str | None = None) -> Response:
    """Stream events as JSON lines; a failure before the first of them is an ordinary error reply.

    If older events were removed, a header has ``since``, the time from which on there are events.
    """
    first = await anext(events, b"")

    async def all_of_them() -> AsyncIterator[bytes]:
        yield first
        async for lines in events:
            yield lines

    return StreamingResponse(all_of_them(), media_type=LINES, headers={} if since is None else {SINCE: since})

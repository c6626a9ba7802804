"""The routes of reports and of the dashboard."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Depends, Query, Request, Response
from msgspec import Meta, Struct, field

from fedres_client.event_ids import LONGEST_ID
from service.hints import about
from service.http.pages import HEADERS, conditional_response, fixed_response
from service.http.replies import json_response
from service.http.request import loop_of, read_json, user_of
from service.http.routes import ADMIN, HTML, JSON, OPEN, PARAMETERS, READ, Routes
from service.plugins.reports.actions import ActionsReport
from service.plugins.reports.devices import DeviceList
from service.plugins.reports.event_details import EventDetails, UserDecisions
from service.plugins.reports.lift import Experiments, LiftReport
from service.plugins.reports.overview import LoopState, Overview, Summaries
from service.plugins.reports.page import ASSETS, PAGES, asset, page
from service.plugins.reports.personalization import Personalization
from service.plugins.reports.report import LoopReport
from service.plugins.reports.reports import Reports
from service.plugins.reports.setting_forms import settings_schema
from service.plugins.reports.verdicts import State
from service.plugins.reports.what_if import WhatIf
from service.rank.requests import Id

MOST_LISTED = 1_000  # loops in an overview

Loop = Annotated[str, Depends(loop_of)]
User = Annotated[str, Depends(user_of)]


class Evaluate(Struct, forbid_unknown_fields=True):
    """Policies to estimate from the logged events, by these estimators."""

    policies: Annotated[
        Annotated[list[Id], Meta(min_length=1, max_length=20)],
        about("Names of the policies to estimate, such as uniform or likeliest."),
    ]
    estimators: Annotated[
        Annotated[list[Id], Meta(min_length=1, max_length=20)],
        about("Names of the estimators, such as ips, snips or dr."),
    ] = field(default_factory=lambda: ["snips", "dr"])
    time_uniform: Annotated[
        bool, about("Whether intervals are valid at all looks at the growing log together, else at one look.")
    ] = False


class WhatIfRequest(Struct, forbid_unknown_fields=True):
    """Changes of ``policy``, ``epsilon``, ``gamma`` and ``floor`` to estimate; without any, some are picked."""

    settings: Annotated[
        Annotated[list[dict[str, Any]], Meta(max_length=20)],
        about("The changes to estimate, each as PATCH of the settings takes it; empty: a selection."),
    ] = []


def report_routes(reports: Reports) -> Routes:
    """Return the routes of reports on a loop's log."""
    routes = Routes()

    @routes.of_loop("GET", "/lift", READ, "Compare the policy with its control group.", reply=LiftReport)
    async def get_lift(loop: Loop) -> Response:
        """Compare the rewards of the policy with those of the control group, since the experiment began.

        The intervals are valid at every look.
        """
        return json_response(await reports.lift(loop))

    @routes.of_loop("GET", "/experiments", READ, "List experiments with their results.", reply=Experiments)
    async def get_experiments(loop: Loop) -> Response:
        """List the experiments with their results, the newest first; a change of the control group ends one."""
        return Response(await reports.experiments(loop), media_type=JSON)

    @routes.of_loop("GET", "/actions/report", READ, "Show rewards by action and by context.", reply=ActionsReport)
    async def get_actions_report(loop: Loop, request: Request) -> Response:
        """Show what the policy decides: share and reward of each action, and which action goes to which context."""
        return conditional_response(request, await reports.actions_report(loop), JSON)

    @routes.of_loop("GET", "/report", READ, "Summarize a loop from its log.", reply=LoopReport)
    async def get_report(loop: Loop, request: Request) -> Response:
        """Summarize the loop for the dashboard: rewards by time, actions, delays, features, drift, lift,
        estimates for other policies and alarms.
        """
        return conditional_response(request, await reports.report(loop), JSON)

    @routes.of_loop("POST", "/what-if", READ, "Estimate other settings from the log.", body=WhatIfRequest, reply=WhatIf)
    async def what_if(loop: Loop, request: Request) -> Response:
        """Estimate from the log what the loop would have earned with another policy, ``epsilon``, ``gamma``
        or ``floor``.

        Nothing changes.
        """
        sent = await read_json(request, WhatIfRequest)
        return Response(await reports.what_if(loop, sent.settings), media_type=JSON)

    @routes.of_loop("GET", "/personal", READ, "Show how personal the loop is.", reply=Personalization)
    async def get_personal(loop: Loop) -> Response:
        """Measure how much of the newest decisions comes from the users' own models."""
        return json_response(await reports.personalization(loop))

    _detail_routes(routes, reports)
    return routes


def _detail_routes(routes: Routes, reports: Reports) -> None:
    @routes.of_loop("GET", "/devices", ADMIN, "List the devices that uploaded last.", reply=DeviceList)
    async def get_devices(loop: Loop) -> Response:
        """List up to 100 devices with the time of their last upload and the age of the model they used."""
        return Response(await reports.devices(loop), media_type=JSON)

    @routes.of_loop("GET", "/events/{event_id}", ADMIN, "Show the details of an event.", reply=EventDetails)
    async def get_event(loop: Loop, request: Request) -> Response:
        """Return an event with its ranking, all records about it, and its explanation by the current models."""
        return json_response(await reports.event_details(loop, str(request.scope[PARAMETERS]["event_id"])))

    @routes.of_loop("GET", "/users/{user}/decisions", ADMIN, "Show a user's newest decisions.", reply=UserDecisions)
    async def get_decisions(loop: Loop, user: User) -> Response:
        """Return up to 20 of a user's newest decisions with their details, the newest first."""
        return json_response(await reports.decisions(loop, user))

    @routes.of_loop(
        "POST", "/evaluations", ADMIN, "Estimate other policies from the events.", body=Evaluate, reply=JSON
    )
    async def evaluate(loop: Loop, request: Request) -> Response:
        """Estimate from the log what other policies would have earned, by off-policy estimators.

        It needs at least ten events with a reward.
        """
        sent = await read_json(request, Evaluate)
        document = await reports.evaluate(loop, sent.policies, sent.estimators, time_uniform=sent.time_uniform)
        return json_response(document)


def overview_routes(summaries: Summaries) -> Routes:
    """Return the routes of the first page of the dashboard, and of a loop's state on it."""
    routes = Routes()

    @routes.of_service(
        "GET", "/v1/overview", READ, "Show the state of all loops.", reply=Overview, query=("has", "state", "limit")
    )
    async def get_overview(
        request: Request,
        has: Annotated[str, Query(max_length=LONGEST_ID, description="Part of the names of loops.")] = "",
        state: Annotated[State | None, Query(description="State of the loops to list.")] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED, description="Loops to list at most.")] = 100,
    ) -> Response:
        """Show a verdict on each loop with what it rests on, the most urgent loops first."""
        overview = await summaries.overview(has, state, limit)
        return conditional_response(request, msgspec.json.encode(overview), JSON)

    @routes.of_loop("GET", "/state", READ, "Show a loop's state and verdict.", reply=LoopState)
    async def get_state(loop: Loop) -> Response:
        """Show the verdict on a loop with what it rests on, as the overview of all loops has it."""
        return json_response(await summaries.state(loop))

    @routes.of_loop("GET", "/settings/schema", ADMIN, "Describe the settings, for forms.", reply=JSON)
    async def get_schema(loop: Loop, request: Request) -> Response:
        """Show types, meanings and defaults of the settings, and which of them a model or a policy does not use."""
        summaries.check_loop(loop)
        return conditional_response(request, settings_schema(), JSON)

    return routes


def page_routes(root_path: str = "") -> Routes:
    """Return the pages; ``root_path`` is the path below which a proxy serves them."""
    routes = Routes()
    summary = "Show a page: the dashboard, or that of the demo."
    for path in PAGES:
        shown = fixed_response(page(path, root_path), HTML, HEADERS)
        routes.of_service("GET", path, OPEN, summary, reply=HTML)(shown)
    for name, media_type in ASSETS.items():
        file = fixed_response(asset(name), media_type, HEADERS)
        routes.of_service("GET", f"/{name}", OPEN, "A file of these pages.", reply=media_type)(file)
    return routes

"""Reports on the log: lift, statistics over time, evaluations, the dashboard, guardrails, ``fedres report``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from service.plugins import Core, Plugin

if TYPE_CHECKING:
    import typer

    from service.http.routes import Route


def _routes(core: Core) -> list[Route]:
    from service.plugins.reports.overview import Summaries
    from service.plugins.reports.reports import Reports
    from service.plugins.reports.routes import overview_routes, page_routes, report_routes

    reports = report_routes(Reports(core.context)).all
    overview = overview_routes(Summaries(core.context, core.status)).all
    return [*reports, *overview, *page_routes(core.root_path).all]


async def _watch(core: Core, folder: Path) -> None:
    from service.plugins.reports.overview import Summaries

    summaries = Summaries(core.context, core.status).watch(folder / "summaries.lock")
    async with asyncio.TaskGroup() as group:
        group.create_task(_watch_guardrails(core, folder))
        group.create_task(summaries)


async def _watch_guardrails(core: Core, folder: Path) -> None:
    from service.plugins.reports.guardrails import Guardrails
    from service.plugins.reports.reports import Reports

    guardrails = Guardrails(core.admin, Reports(core.context), audit=core.audit)
    await guardrails.watch(folder / "guardrails.lock")


def _commands(app: typer.Typer) -> None:
    from service.plugins.reports import commands

    app.command()(commands.report)


plugin = Plugin(name="reports", routes=_routes, background=_watch, commands=_commands)

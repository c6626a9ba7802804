"""Reports on a loop's log: lift, summary, what-if, personalization, single events, evaluations.

The log is read by separate processes (``service.log.workers``), which cache what they have read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bandits.evaluation import evaluate, log_of
from service.admin.exporting import exporter, time_or_none
from service.errors import ApiError, invalid
from service.log.workers import JOB_SECONDS, Worker
from service.plugins.reports.event_details import MOST_DECISIONS, EventDetails, UserDecisions, event_details
from service.plugins.reports.lift import LiftReport
from service.plugins.reports.personalization import (
    MOST_USERS,
    CachedReport,
    Personalization,
    TakenAction,
    personalization,
)
from service.plugins.reports.reader import LoopReader, ask_reader
from service.plugins.reports.report import range_of
from service.plugins.reports.what_if import CHANGEABLE
from service.rank.ranker import RankerContext
from service.rank.requests import check_id
from service.settings import read_settings


class Reports:
    """Reports of one ranker."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context
        self._personalization = CachedReport()

    async def lift(self, loop: str) -> LiftReport:
        """Return the lift against the loop's control group."""
        view = self._context.loop(loop).view
        if not view.settings.control.share:
            message = 'the loop has no control group: PATCH its settings with {"control": {"share": 0.1}}'
            raise ApiError(404, "no_experiment", message, "control")
        return msgspec.json.decode(await self._read(loop, LoopReader.lift), type=LiftReport)

    async def experiments(self, loop: str) -> bytes:
        """Return the experiments of a loop, the newest first, ``Experiments`` as JSON."""
        return await self._read(loop, LoopReader.experiments)

    async def actions_report(self, loop: str) -> bytes:
        """Return what the policy decides, an ``ActionsReport`` as JSON."""
        return await self._read(loop, LoopReader.actions_report)

    async def report(self, loop: str) -> bytes:
        """Return a ``LoopReport`` as JSON."""
        return await self._read(loop, LoopReader.report)

    async def what_if(self, loop: str, all_changes: Sequence[dict[str, Any]]) -> bytes:
        """Return estimates for other settings of exploration, a ``WhatIf`` as JSON."""
        settings = msgspec.to_builtins(self._context.loop(loop).view.settings)
        for place, changes in enumerate(all_changes):
            for name in changes:
                if name not in CHANGEABLE:
                    raise invalid(
                        f"settings must be of {', '.join(CHANGEABLE)}, got {name[:100]!r}", f"settings[{place}]"
                    )
            read_settings({**settings, **changes})
        return await self._read(loop, LoopReader.what_if, list(all_changes))

    async def personalization(self, loop: str) -> Personalization:
        """Return how personal the newest decisions' scores are; results are cached for a while."""
        view = self._context.loop(loop).view

        async def make() -> Personalization:
            taken = msgspec.json.decode(
                await self._read(loop, LoopReader.newest_taken, MOST_USERS), type=list[TakenAction]
            )
            return await personalization(self._context, loop, taken)

        return await self._personalization.get((view.id, view.settings_version), make)

    async def devices(self, loop: str) -> bytes:
        """Return the devices that uploaded last, a ``DeviceList`` as JSON."""
        return await self._read(loop, LoopReader.device_list)

    async def event_details(self, loop: str, event_id: str) -> EventDetails:
        """Return all about an event."""
        details = await event_details(self._context, loop, [event_id])
        if not details:
            raise ApiError(404, "unknown_event", f"event {event_id!r} does not exist in this loop", "event_id")
        return details[0]

    async def decisions(self, loop: str, user: str) -> UserDecisions:
        """Return a user's newest decisions among those in reports."""
        check_id("user", user)
        events = msgspec.json.decode(await self._read(loop, LoopReader.events_of, user, MOST_DECISIONS), type=list[str])
        return UserDecisions(user, await event_details(self._context, loop, events))

    async def _read(self, loop: str, question: Callable[..., Any], *arguments: Any) -> bytes:
        return await ask_reader(self._context, loop, question, *arguments)

    async def evaluate(
        self,
        loop: str,
        policies: Sequence[str],
        estimators: Sequence[str] = ("snips", "dr"),
        *,
        time_uniform: bool = False,
    ) -> dict[str, object]:
        """Return off-policy values of policies on the logged events; those that read files are refused."""
        for policy in policies:
            if policy.startswith("file:"):
                raise invalid(f"policies must not read files of the server, got {policy!r}", "policies")
        view = self._context.loop(loop).view
        arguments = view.created_at, policies, estimators, time_uniform, view.settings.reward_range
        document = await self._context.jobs.call(loop, evaluation, *arguments, seconds=JOB_SECONDS)
        return {**document, "events_since": time_or_none(view.events_since)}


def evaluation(
    worker: Worker,
    loop: str,
    created_at: int,
    policies: Sequence[str],
    estimators: Sequence[str],
    time_uniform: bool,
    range_now: tuple[float, float],
) -> dict[str, object]:
    """Return estimates of policies on a loop's events; ``range_now`` is the current reward range."""
    try:
        log = log_of(exporter(worker, loop, created_at).events(loop, created_at, None))
        span = range_of(log.reward, range_now)
        return evaluate(log, policies, estimators=estimators, time_uniform=time_uniform, reward_range=span).to_json()
    except ValueError as error:
        raise ApiError(422, "invalid_evaluation", str(error)) from None

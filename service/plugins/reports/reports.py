"""What a loop's log shows: lift, figures over time, other settings, how personal it is, single events, evaluations.

The log is read by processes of its own (``service.log.workers``), which remember what they have read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from service.admin.exporting import time_or_none
from service.errors import ApiError, invalid
from service.log.workers import JOB_SECONDS
from service.plugins.reports.evaluation import evaluation
from service.plugins.reports.experiments import LiftReport
from service.plugins.reports.figures import Question, answer
from service.plugins.reports.how_personal import MOST_USERS, HowPersonal, Remembered, how_personal
from service.plugins.reports.series import Taken
from service.plugins.reports.stories import MOST_DECISIONS, Story, UserDecisions, stories
from service.plugins.reports.what_if import CHANGEABLE
from service.rank.ranker import RankerContext
from service.rank.requests import check_id
from service.settings import read_settings


class Reports:
    """Answers of one ranker."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context
        self._personal = Remembered()

    async def lift(self, loop: str) -> LiftReport:
        """Return what the loop's control group shows."""
        view = self._context.loop(loop).view
        if not view.settings.control.share:
            message = "the loop must have a control group: set control.share in its settings"
            raise ApiError(404, "no_experiment", message, "control")
        return msgspec.json.decode(await self._ask("lift", loop), type=LiftReport)

    async def report(self, loop: str) -> bytes:
        """Return what the loop's log shows, a ``LoopReport`` as JSON."""
        return await self._ask("report", loop)

    async def what_if(self, loop: str, wanted: Sequence[dict[str, Any]]) -> bytes:
        """Return what other settings of exploration would have earned, a ``WhatIf`` as JSON."""
        known = msgspec.to_builtins(self._context.loop(loop).view.settings)
        for place, changes in enumerate(wanted):
            for name in changes:
                if name not in CHANGEABLE:
                    raise invalid(
                        f"settings must be of {', '.join(CHANGEABLE)}, got {name[:100]!r}", f"settings[{place}]"
                    )
            read_settings({**known, **changes})
        return await self._ask("what-if", loop, settings=list(wanted))

    async def how_personal(self, loop: str) -> HowPersonal:
        """Return how much of the newest decisions' scores is personal; whoever asks soon is told the same again."""
        view = self._context.loop(loop).view
        return await self._personal.ask((view.id, view.settings_version), lambda: self._how_personal(loop))

    async def _how_personal(self, loop: str) -> HowPersonal:
        found = await self._ask("taken", loop, most=MOST_USERS)
        return await how_personal(self._context, loop, msgspec.json.decode(found, type=list[Taken]))

    async def devices(self, loop: str) -> bytes:
        """Return the devices that uploaded last, a ``DeviceList`` as JSON."""
        return await self._ask("devices", loop)

    async def story(self, loop: str, event_id: str) -> Story:
        """Return all about an event."""
        found = await stories(self._context, loop, [event_id])
        if not found:
            raise ApiError(404, "unknown_event", f"event must be one that was decided, got {event_id!r}", "event_id")
        return found[0]

    async def decisions(self, loop: str, user: str) -> UserDecisions:
        """Return a user's newest decisions among those that reports look at."""
        check_id("user", user)
        events = msgspec.json.decode(await self._ask("user", loop, user=user, most=MOST_DECISIONS), type=list[str])
        return UserDecisions(user, await stories(self._context, loop, events))

    async def _ask(self, what: str, loop: str, **details: Any) -> bytes:
        question = Question(what, loop, self._context.loop(loop).view.created_at, **details)
        return await self._context.reports.call(answer, question)

    async def evaluate(
        self,
        loop: str,
        policies: Sequence[str],
        estimators: Sequence[str] = ("snips", "dr"),
        *,
        time_uniform: bool = False,
    ) -> dict[str, object]:
        """Return off-policy values of policies on the logged events."""
        view = self._context.loop(loop).view
        asked = loop, view.created_at, policies, estimators, time_uniform, view.settings.reward_range
        found = await self._context.jobs.call(evaluation, *asked, seconds=JOB_SECONDS)
        return {**found, "events_since": time_or_none(view.events_since)}

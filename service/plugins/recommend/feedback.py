"""Feedback on actions that were chosen elsewhere: ratings in a file, events on other pages.

It is logged as a decision without probabilities, together with its reward. So repeats, erasures and prunings treat it
as any other event; it is learned at once, and counts in no statistics of the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, field

from fedres.scoring.features import Named, Preparer
from fedres_client.event_ids import new_event_id
from service.errors import ApiError, invalid
from service.hints import about
from service.log.protocol import Duplicate
from service.log.records import (
    EMPTY,
    RANK,
    CatalogueReference,
    DecisionExample,
    FeedbackBody,
    HashedExample,
    InlineAction,
    LoggedRank,
    Record,
    encode,
    ranks_in,
)
from service.models.published import Loop
from service.rank.decide import example_at, features_of, work_of
from service.rank.ranker import MOST_WORK, RankerContext
from service.rank.requests import Action, Features, Id, RankRequest, check_id
from service.times import seconds_of, system_clock

STEP = 100  # events hashed at once; other requests run in between
LAST_TIME = 100_000_000_000  # seconds since 1970: the year 5138
MOST_AHEAD = 60.0  # seconds that a caller's clock may be ahead of ours


class FeedbackEvent(Struct, kw_only=True, forbid_unknown_fields=True):
    """What an action earned that was not chosen here."""

    action: Annotated[
        Id | Action,
        about("Id of the action, or the action with features that differ from those in the catalogue."),
    ]
    reward: Annotated[float, about("What it earned, within the loop's reward_range.")]
    user: Annotated[Id | None, about("Id of the user, whose personal model learns from it too.")] = None
    context: Annotated[Features, about("Features of the situation.")] = field(default_factory=lambda: Raw(EMPTY))
    event_id: Annotated[
        Id | None,
        about("Id of this event, generated if missing. An event with a known id is not stored again."),
    ] = None
    time: Annotated[
        float | str | None,
        about("When it happened, in seconds since 1970 or as ISO 8601; for popular items."),
    ] = None

    @property
    def acted_on(self) -> Action:
        return Action(self.action) if isinstance(self.action, str) else self.action


class FeedbackRequest(Struct, forbid_unknown_fields=True):
    """Events with their rewards; one whose id exists is not stored again."""

    events: Annotated[
        Annotated[list[FeedbackEvent], Meta(min_length=1)],
        about("Actions that were not chosen here, with their rewards."),
    ]


class FeedbackStored(Struct):
    """How many events are new, and how many existed already."""

    stored: Annotated[int, about("Events that are new.")]
    repeated: Annotated[int, about("Events whose id was known.")]


class Feedback:
    """Stores feedback for all loops."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context

    async def store(self, name: str, events: Sequence[FeedbackEvent]) -> FeedbackStored:
        """Store events if all of them are valid; return once they are durable."""
        records: list[Record] = []
        for first in range(0, len(events), STEP):
            records += await self._some_records(name, events[first : first + STEP], first)
            await asyncio.sleep(0)
        outcomes = await self._context.append_each(records)
        repeats = [record for record, outcome in zip(records, outcomes, strict=True) if isinstance(outcome, Duplicate)]
        if repeats:
            await self._check_same(name, repeats)
        return FeedbackStored(len(records) - len(repeats), len(repeats))

    async def _some_records(self, name: str, events: Sequence[FeedbackEvent], first: int) -> list[Record]:
        """Return the records of some events, made on a thread if their features are many."""
        loop = self._context.loop(name)
        requests = [RankRequest(actions=[event.acted_on], context=event.context) for event in events]
        if sum([work_of(request, loop) for request in requests]) <= MOST_WORK:
            return self._records(loop, events, first, self._context.preparer_of(loop))
        lend = partial(self._context.lend, name, [event.acted_on.id for event in events])

        def made(lent: Loop) -> list[Record]:
            return self._records(lent, events, first, Preparer.within(lent.view.settings.largest_number))

        return await self._context.threads.call(name, lend, made)

    async def _check_same(self, name: str, repeats: Sequence[Record]) -> None:
        """Refuse events whose id was used for a different event."""
        events = [str(record.event) for record in repeats]
        logged = await self._context.look_up(name, lambda log: ranks_in(log.find(name, events, RANK)))
        for record in repeats:
            entry, body = logged.get(str(record.event), (None, None))
            sent = msgspec.json.decode(record.body, type=FeedbackBody)
            if entry is None or body is None or entry.user != record.user or not _is_same(sent, body):
                message = f"event_id {record.event!r} was already used with a different event"
                raise ApiError(409, "event_exists", f"{message}; events with other ids are stored", "event_id")

    def _records(self, loop: Loop, events: Sequence[FeedbackEvent], first: int, preparer: Preparer) -> list[Record]:
        rows = []
        for k, event in enumerate(events, first):
            _check(loop, event, f"events[{k}]")
            self._context.check_user(loop, event.user)
            context, action = bytes(event.context) or EMPTY, event.acted_on
            rows.append(Named(f"events[{k}].context", None, context))
            rows.append(Named(f"events[{k}].action.features", action.id, features_of(action, loop.catalogue)))
        hashed = preparer.hash_all(rows)
        records = []
        for k, (event, *pair) in enumerate(zip(events, hashed[::2], hashed[1::2], strict=True), first):
            records.append(_record(loop, event, example_at(f"events[{k}]", pair, loop, preparer)))
        return records


def _check(loop: Loop, event: FeedbackEvent, at: str) -> None:
    low, high = loop.view.settings.reward_range
    if not low <= event.reward <= high:
        raise invalid(f"{at}.reward must be in [{low:g}, {high:g}], got {event.reward}", f"{at}.reward")
    for name, value in (("action", event.acted_on.id), ("user", event.user), ("event_id", event.event_id)):
        if value is not None:
            check_id(f"{at}.{name}", value)
    _microseconds(event.time, f"{at}.time")


def _microseconds(time: float | str | None, at: str = "time") -> int | None:
    if time is None:
        return None
    try:
        seconds = seconds_of(time)
    except ValueError as error:
        raise invalid(f"{at} {error}", at) from None
    if not 0 <= seconds <= LAST_TIME:
        raise invalid(f"{at} must be from 1970 on and before the year 5138, got {time!r}", at)
    if seconds > system_clock() / 1e6 + MOST_AHEAD:
        raise invalid(f"{at} must not be in the future, got {time!r}", at)
    return round(seconds * 1e6)


def _record(loop: Loop, event: FeedbackEvent, features: HashedExample) -> Record:
    """Return the log record of an event: a body for readers, and an example for the learner."""
    view, action = loop.view, event.acted_on
    named = InlineAction(action.id, action.features) if action.features else loop.references.get(action.id)
    body = FeedbackBody(
        Raw(bytes(event.context) or EMPTY),
        [named or CatalogueReference(action.id, 0)],
        0,
        [],
        [],
        view.version,
        view.settings_version,
        reward=float(event.reward),
        happened=_microseconds(event.time),
    )
    example = DecisionExample(features, view.settings_version, 0.0, False, None, feedback=float(event.reward))
    name = event.event_id or new_event_id()
    return Record(view.name, RANK, name, event.user, example.encode(), encode(body))


def _is_same(sent: FeedbackBody, logged: LoggedRank) -> bool:
    """Return whether the logged event is the same feedback; the catalogue may have changed since."""
    return (
        (sent.reward, sent.happened, bytes(sent.context)) == (logged.reward, logged.happened, bytes(logged.context))
        and sent.actions[0]["id"] == logged.actions[0].id
    )  # fmt: skip

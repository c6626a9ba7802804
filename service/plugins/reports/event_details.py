"""The details of an event: the decision and its explanation, all records about it, and its reward."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from service.admin.exporting import Exporter, time_of
from service.errors import ApiError
from service.hints import about
from service.log.protocol import Log
from service.log.records import RANK, REWARD, Entry, decode_rank, decode_reward
from service.models.protocol import Explained
from service.rank.decide import logged_decision, prepare
from service.rank.explaining import explain_all
from service.rank.ranker import RankerContext
from service.rank.requests import Action, Ranked, RankRequest

MOST_DECISIONS = 20  # of a user that are shown at once
EXPLAINED_PAIRS = 2_000  # of features, for each event


class EventRecord(msgspec.Struct, omit_defaults=True):
    """A record about an event."""

    time: Annotated[str, about("When it was stored, as ISO 8601.")]
    kind: Annotated[str, about("rank, reward or activate.")]
    value: Annotated[float | None, about("The value, for a reward.")] = None
    id: Annotated[str | None, about("Id of the reward, if it has one.")] = None
    outcome: Annotated[str | None, about("Name of the outcome, if the reward is one.")] = None


class EventDetails(msgspec.Struct):
    """An event as it is exported, how the actions were ranked then, what was logged, and how they score now."""

    event: Annotated[dict[str, Any], about("The event as an export has it.")]
    ranking: Annotated[list[Ranked], about("All actions as they were ranked then, best score first.")]
    records: Annotated[list[EventRecord], about("The records about the event, oldest first.")]
    explanations: Annotated[
        list[Explained],
        about("The parts of each action's score by the current models; empty if the event has too many features."),
    ]


class UserDecisions(msgspec.Struct):
    """A user's newest decisions, the newest first."""

    user: Annotated[str, about("Id of the user.")]
    decisions: Annotated[list[EventDetails], about("The decisions, the newest first; at most 20.")]


async def event_details(context: RankerContext, loop: str, events: list[str]) -> list[EventDetails]:
    """Return the details of existing events, in their order."""
    created_at = context.loop(loop).view.created_at

    def read(log: Log) -> list[tuple[dict[str, Any], list[Entry]]]:
        return list(Exporter(log, created_at).stories(loop, events))

    details = {
        str(event["event_id"]): await _details(context, loop, event, about)
        for event, about in await context.look_up(loop, read)
    }
    return [details[event] for event in events if event in details]


async def _details(context: RankerContext, loop: str, event: dict[str, Any], about: list[Entry]) -> EventDetails:
    rank = next(entry for entry in about if entry.kind == RANK)
    body = decode_rank(rank.body)
    actions = [Action(action.id, action.features) for action in body.actions]
    request = RankRequest(actions=actions, context=body.context, user=rank.user, event_id=rank.event)
    ranking = [] if body.is_feedback else logged_decision(rank, body, request).result().ranking
    return EventDetails(event, ranking, [*map(_record, about)], await _explained(context, loop, request))


def _record(entry: Entry) -> EventRecord:
    if entry.kind != REWARD:
        return EventRecord(time_of(entry), entry.kind)
    reward = decode_reward(entry.body)
    return EventRecord(time_of(entry), entry.kind, reward.value, reward.id, reward.outcome)


async def _explained(context: RankerContext, name: str, request: RankRequest) -> list[Explained]:
    loop = context.loop(name)
    [prepared] = prepare([request], loop, context.preparer)
    if isinstance(prepared, ApiError) or loop.model.n_explained(prepared.rows, loop.view.settings) > EXPLAINED_PAIRS:
        return []
    await context.until_compiled()
    return await explain_all(prepared, loop, context.models)

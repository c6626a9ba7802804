"""Many rewards in one call: each is stored or refused separately, and all that are stored share one append."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from service.errors import ApiError
from service.hints import about
from service.log.records import ACTIVATE, RANK, REWARD, Record, ranks_in
from service.models.loop_metadata import LoopView
from service.rank.quotas import exceeded
from service.rank.ranker import RankerContext, reward_records
from service.rank.requests import Id, check_id, is_plain_id


class EventReward(Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The reward of one event among many: as of a single reward, with the event's id."""

    event_id: Annotated[Id, about("Id of the event.")]
    value: Annotated[float | None, about("The reward, within the loop's reward_range.")] = None
    id: Annotated[Id | None, about("Rewards of an event with the same id count once.")] = None
    outcomes: Annotated[
        dict[str, float] | None, about("Named outcomes, if the loop has a formula over them.", {"click": 1})
    ] = None
    activate: Annotated[bool, about("Start the wait time of a deferred event; it may come without a reward.")] = False


class RewardStored(Struct, gc=False):
    """A reward that is stored."""

    event_id: Annotated[str, about("Id of the event.")]


class _TooEarly(Struct):
    """Events without a decision, and why the loop takes no rewards of such events now."""

    events: set[str]
    error: ApiError


class Rewards:
    """Stores many rewards at once, for all loops."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context

    async def store(self, name: str, rewards: Sequence[EventReward]) -> list[RewardStored | ApiError]:
        """Store rewards and activations in their order; return once they are durable, each with its result."""
        view = self._context.loop(name).view
        self._context.quotas.check_bytes(view, self._context.all_waiting_bytes, 2)
        too_early = await self._too_early(view, rewards)
        records: list[Record] = []
        results: list[RewardStored | ApiError] = []
        for reward in rewards:
            try:
                if too_early is not None and reward.event_id in too_early.events:
                    raise too_early.error
                new_records = _records(view, reward)
                rewarded = [record for record in new_records if record.kind == REWARD]
                if rewarded and await self._context.are_repeats(view, reward.event_id, rewarded):
                    # The log has them, but an activation that comes with them may be new.
                    new_records = [record for record in new_records if record.kind != REWARD]
                records += new_records
                results.append(RewardStored(reward.event_id))
            except ApiError as error:
                results.append(error)
        if records:
            await self._context.append(*records)
        return results

    async def _too_early(self, view: LoopView, rewards: Sequence[EventReward]) -> _TooEarly | None:
        """Look for the decisions of events, if the loop has too many rewards of events that are not decided."""
        quotas = self._context.quotas
        if view.n_early >= quotas.early_events:
            what = "events with a reward that are not decided"
            error = exceeded("early_events", quotas.early_events, what, view.name)
        elif view.n_early_rewards >= quotas.early_rewards:
            error = exceeded("early_rewards", quotas.early_rewards, "rewards of events that are not decided", view.name)
        else:
            return None
        events = {reward.event_id for reward in rewards}
        logged = await self._context.look_up(view.name, lambda log: ranks_in(log.find(view.name, sorted(events), RANK)))
        return _TooEarly(events - logged.keys(), error)


def _records(view: LoopView, reward: EventReward) -> list[Record]:
    if not is_plain_id(reward.event_id):
        check_id("event_id", reward.event_id)
    activation = [Record(view.name, ACTIVATE, reward.event_id)] if reward.activate else []
    if reward.activate and reward.value is None and reward.outcomes is None:
        return activation
    return activation + reward_records(view, reward.event_id, reward.value, reward.id, reward.outcomes)

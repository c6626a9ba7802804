"""Rank, reward and activate, for one slot and for several: each is one call of the native ranker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from fedres_client.event_ids import LONGEST_ID, new_event_id
from service.errors import ApiError
from service.http.routes import Call
from service.log.records import RANK, LoggedRank, ranks_in
from service.plugins.personalizer.arguments import PolicyArguments, read_arguments
from service.plugins.personalizer.configuration import kept_of
from service.plugins.personalizer.errors import Refusal
from service.plugins.personalizer.features import id_in, merged, native_id
from service.plugins.personalizer.messages import (
    MOST_ACTIONS,
    MultiSlotRankRequest,
    MultiSlotRankResponse,
    MultiSlotReward,
    PersonalizerAction,
    PersonalizerRankRequest,
    PersonalizerRankResponse,
    PersonalizerReward,
    PersonalizerSlot,
    RankedAction,
    SlotAnswer,
)
from service.rank.decide import decide
from service.rank.ranker import Ranker, RankerContext
from service.rank.requests import Action, RankRequest, RankResult
from service.rank.slots import LONGEST_CALL_ID, Slot, SlotsRequest, SlotsResult, check_slots, events_of, fill
from service.settings import Settings

INVALID = "InvalidRankRequest"


class ApplicationCalls:
    """The calls of applications."""

    def __init__(self, context: RankerContext, ranker: Ranker) -> None:
        self._context, self._ranker = context, ranker

    # one slot

    async def rank(self, call: Call) -> PersonalizerRankResponse:
        """Choose an action. A request with an id that another request has used is decided, but not logged."""
        loop = call.loop
        sent: PersonalizerRankRequest = call.body
        policy = self._policy(loop)
        if policy.multi_slot:
            raise Refusal("InvalidApiAccess", "the loop's policy is for multi-slot calls (--ccb_explore_adf)")
        event_id = sent.event_id or new_event_id()
        excluded = set(sent.excluded_actions or ())
        request = RankRequest(
            actions=_actions(sent.actions, policy.ignored),
            context=merged("contextFeatures", sent.context_features or (), policy.ignored),
            user=_user(sent.user_id),
            exclude=[native_id(action.id) for action in sent.actions if action.id in excluded],
            event_id=native_id(event_id),
            defer=bool(sent.defer_activation),
        )
        try:
            result = await self._ranker.rank(loop, request)
        except ApiError as error:
            if error.code != "event_exists":
                raise
            result = self._decided_only(loop, request)
        ranking = ranked([action.id for action in sent.actions], excluded, result)
        chosen = next(action.id for action in sent.actions if native_id(action.id) == result.action_id)
        return PersonalizerRankResponse(ranking, event_id, chosen)

    async def reward(self, call: Call) -> None:
        """Store a reward; a reward of an unknown event has no effect."""
        reward: PersonalizerReward = call.body
        _check_value(self._context.loop(call.loop).view.settings, reward.value)
        with _unless_unknown():
            await self._ranker.reward(call.loop, _event(call), reward.value, new_event_id())

    async def activate(self, call: Call) -> None:
        with _unless_unknown():
            await self._ranker.activate(call.loop, _event(call))

    # several slots

    async def rank_slots(self, call: Call) -> MultiSlotRankResponse:
        """Choose an action for each slot; reused ids are treated as by ``rank``."""
        loop = call.loop
        sent: MultiSlotRankRequest = call.body
        policy = self._policy(loop)
        if not policy.multi_slot:
            message = "multi-slot calls need a policy with --ccb_explore_adf: change the loop's arguments first"
            raise Refusal("InvalidMultiSlotApiAccess", message)
        if len(sent.slots) > len(sent.actions):
            message = f"slots must be no more than actions, got {len(sent.slots)} and {len(sent.actions)}"
            raise Refusal(INVALID, message, "slots")
        event_id = sent.event_id or new_event_id()
        context = merged("contextFeatures", sent.context_features or (), policy.ignored, rename={"slot": "slot "})
        request = SlotsRequest(
            actions=_actions(sent.actions, policy.ignored),
            slots=[_slot(place, slot, policy.ignored) for place, slot in enumerate(sent.slots)],
            context=context,
            user=_user(sent.user_id),
            event_id=native_id(event_id, LONGEST_CALL_ID),
            defer=bool(sent.defer_activation),
        )
        _check_baselines(sent)
        try:
            result = await self._ranker.rank_slots(loop, request)
        except ApiError as error:
            if error.code != "event_exists":
                raise
            result = self._filled_only(loop, request)
        by_native_id = {native_id(action.id): action.id for action in sent.actions}
        answers = [
            SlotAnswer(slot.id, by_native_id[filled.action_id])
            for slot, filled in zip(sent.slots, result.slots, strict=True)
        ]
        return MultiSlotRankResponse(answers, event_id)

    async def reward_slots(self, call: Call) -> None:
        """Store the rewards of slots; those of unknown slots have no effect."""
        sent: MultiSlotReward = call.body
        events = await self._slot_events(call)
        for reward in sent.reward:
            event = events.get(native_id(reward.slot_id))
            if event is not None:
                await self._ranker.reward(call.loop, event, reward.value, new_event_id())

    async def activate_slots(self, call: Call) -> None:
        for event in (await self._slot_events(call)).values():
            await self._ranker.activate(call.loop, event)

    async def _slot_events(self, call: Call) -> dict[str, str]:
        """Return the native events of a multi-slot call by slot."""
        self._context.loop(call.loop)  # refuses a missing loop
        events = events_of(_event(call, LONGEST_CALL_ID), MOST_ACTIONS)
        ranks = await self._context.look_up(call.loop, lambda log: ranks_in(log.find(call.loop, events, RANK)))
        return {_slot_of(logged): event for event, (_, logged) in ranks.items()}

    def _policy(self, loop: str) -> PolicyArguments:
        return read_arguments(kept_of(self._context.loop(loop).view.settings).arguments)

    # decisions that are not logged

    def _decided_only(self, loop: str, request: RankRequest) -> RankResult:
        context = self._context
        published = context.loop(loop)
        [decision] = decide([request], published, context.models, context.preparer_of(published))
        if isinstance(decision, ApiError):
            raise decision
        return decision.result()

    def _filled_only(self, loop: str, request: SlotsRequest) -> SlotsResult:
        check_slots(request)
        return fill(request, str(request.event_id), lambda slot_request: self._decided_only(loop, slot_request))


def _event(call: Call, longest: int = LONGEST_ID) -> str:
    return native_id(id_in(call, "event_id"), longest)


@contextmanager
def _unless_unknown() -> Iterator[None]:
    """Ignore the refusal of a call about an unknown event when too many such events are stored already."""
    try:
        yield
    except ApiError as error:
        if error.code not in ("too_many_early_events", "too_many_early_rewards"):
            raise


def _check_value(settings: Settings, value: float) -> None:
    """Refuse a value outside a native loop's range, and name who can widen it, since Azure's range is [−1, 1]."""
    low, high = settings.reward_range
    if kept_of(settings).native and not low <= value <= high:
        message = (
            f"value must be in [{low:g}, {high:g}], got {value:g}: the loop has native settings, and an admin gives it"
            " Azure's, with rewards in [-1, 1], by PUT configurations/service or DELETE configurations/policy"
        )
        raise Refusal("InvalidRewardRequest", message, "value")


def ranked(ids: list[str], excluded: set[str], result: RankResult) -> list[RankedAction]:
    """Return all actions: the excluded ones at their own place, the others in the places left, the chosen first."""
    names = {native_id(name): name for name in ids}
    in_order = sorted(result.ranking, key=lambda action: action.id != result.action_id)
    others = iter([action for action in in_order if names[action.id] not in excluded])
    ranking = []
    for name in ids:
        if name in excluded:
            ranking.append(RankedAction(name, 0.0))
        else:
            action = next(others)
            ranking.append(RankedAction(names[action.id], action.probability))
    return ranking


def _actions(actions: list[PersonalizerAction], ignored: tuple[str, ...]) -> list[Action]:
    return [
        Action(native_id(action.id), merged(f"actions[{place}].features", action.features, ignored))
        for place, action in enumerate(actions)
    ]


def _slot(place: int, slot: PersonalizerSlot, ignored: tuple[str, ...]) -> Slot:
    features = merged(f"slots[{place}].features", slot.features or (), ignored, rename={"id": "id "})
    return Slot(
        id=native_id(slot.id),
        features=features,
        exclude=[native_id(name) for name in slot.excluded_actions or ()],
        baseline=native_id(slot.baseline_action),
    )


def _check_baselines(sent: MultiSlotRankRequest) -> None:
    baselines = [slot.baseline_action for slot in sent.slots]
    for place, name in enumerate(baselines):
        if name in baselines[:place]:
            raise Refusal(INVALID, f"slots must have different baseline actions, got {name!r} twice", "slots")


def _slot_of(logged: LoggedRank) -> str:
    context: dict[str, Any] = msgspec.json.decode(logged.context)
    return str(context["slot"]["id"]) if isinstance(context.get("slot"), dict) else ""


def _user(user_id: Any) -> str | None:
    return user_id if isinstance(user_id, str) and 1 <= len(user_id) <= LONGEST_ID else None

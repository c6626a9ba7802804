"""The hot routes, decisions and rewards: decoded and served without FastAPI."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from service.errors import ApiError
from service.hints import about
from service.http.replies import JSON_HEADERS, NO_CONTENT, Reply, json_reply, shaped
from service.http.request import Limits, decode, lines_of
from service.http.routes import LINES, RANK, Call, Routes
from service.rank.ranker import Ranker
from service.rank.requests import Id, RankRequest, RankResult
from service.rank.rewards import EventReward, Rewards
from service.rank.slots import SlotsRequest, SlotsResult

_EITHER = {"anyOf": [{"$ref": f"#/components/schemas/{kind}"} for kind in ("RankResult", "Error")]}
_STORED: dict[str, Any] = {"type": "object", "properties": {"event_id": {"type": "string"}}, "required": ["event_id"]}
_REWARD_OR_ERROR = {"anyOf": [_STORED, {"$ref": "#/components/schemas/Error"}]}


class Batch(Struct, forbid_unknown_fields=True):
    """Many requests at once, each decided or rejected separately."""

    requests: Annotated[
        Annotated[list[RankRequest], Meta(min_length=1)],
        about("The rank requests; each is decided or rejected separately."),
    ]


class Decisions(Struct):
    """The result of each request of a batch, in its order."""

    results: Annotated[
        list[Annotated[Any, Meta(extra_json_schema=_EITHER)]],
        about("A rank response or an error for each request, in order."),
    ]


class Reward(Struct, forbid_unknown_fields=True):
    """The reward of an event, or named outcomes where the loop's reward is a formula over them.

    An id that comes twice, or without ids a value that comes twice, counts once.
    """

    value: Annotated[float | None, about("The reward, within the loop's reward_range.")] = None
    id: Annotated[Id | None, about("Rewards of an event with the same id count once.")] = None
    outcomes: Annotated[dict[str, float] | None, about("Named outcomes, if the loop has a formula over them.")] = None


class RewardBatch(Struct, forbid_unknown_fields=True):
    """Many rewards at once, each stored or refused separately."""

    rewards: Annotated[
        Annotated[list[EventReward], Meta(min_length=1)],
        about("Rewards of events of one loop; those of one event count in their order."),
    ]


class RewardResults(Struct):
    """The result of each reward of a call, in its order; all that are stored are durable."""

    results: Annotated[
        list[Annotated[Any, Meta(extra_json_schema=_REWARD_OR_ERROR)]],
        about("The id of the event, or an error, for each reward, in order."),
    ]


_encode = msgspec.json.Encoder().encode
_all_rewards = msgspec.json.Decoder(RewardBatch)
_one_reward = msgspec.json.Decoder(EventReward)


def hot_routes(ranker: Ranker, rewards: Rewards, limits: Limits) -> Routes:
    """Return the routes of decisions and rewards: those of one event, then those of many."""
    routes = Routes()
    _event_routes(routes, ranker, limits)
    _slot_routes(routes, ranker, limits)
    _batch_routes(routes, ranker, rewards, limits)
    return routes


def _event_routes(routes: Routes, ranker: Ranker, limits: Limits) -> None:
    @routes.hot("POST", "/rank", RANK, "Choose an action.", body=RankRequest, reply=RankResult, limit="rank_bytes")
    async def rank(call: Call) -> Reply:
        """Draw one of the actions of the request and store the decision.

        The response is sent once the decision is on disk. A repeat with the same ``event_id`` returns the
        same decision; a different request with that id gets 409.
        """
        request: RankRequest = call.body
        if request.explain or len(request.actions) > limits.actions or len(request.exclude) > limits.actions:
            _check(request, limits, call)
        return Reply(200, _encode(await ranker.rank(call.loop, request)), JSON_HEADERS)

    @routes.hot("POST", "/events/{event_id}/reward", RANK, "Send the reward of an event.", body=Reward, status=204)
    async def reward(call: Call) -> Reply:
        """Store what an event earned: a value, or named outcomes if the loop has a formula over them.

        Repeats count once. The response is sent once the reward is on disk.
        """
        sent: Reward = call.body
        await ranker.reward(call.loop, call.parameters["event_id"], sent.value, sent.id, sent.outcomes)
        return NO_CONTENT

    @routes.hot("POST", "/events/{event_id}/activate", RANK, "Start the wait time of a deferred event.", status=204)
    async def activate(call: Call) -> Reply:
        """Start the wait for a reward of an event that was decided with ``defer``.

        Send it when the user sees the action.
        """
        await ranker.activate(call.loop, call.parameters["event_id"])
        return NO_CONTENT


def _slot_routes(routes: Routes, ranker: Ranker, limits: Limits) -> None:
    @routes.hot(
        "POST",
        "/rank/slots",
        RANK,
        "Choose an action for each slot of a page.",
        body=SlotsRequest,
        reply=SlotsResult,
        limit="rank_bytes",
    )
    async def rank_slots(call: Call) -> Reply:
        """Fill the slots of a page in order, without showing an action twice.

        Each slot is an event of its own; the call is stored as a whole.
        """
        request: SlotsRequest = call.body
        at_most("actions", "too_many_actions", len(request.actions), limits.actions)
        at_most("slots", "too_many_slots", len(request.slots), limits.slots)
        if len(request.slots) * len(request.actions) > limits.slot_actions:
            got = f"{len(request.slots)} × {len(request.actions)}"
            message = f"slots times actions must be at most {limits.slot_actions}, got {got}"
            raise ApiError(422, "too_many_slots", message, "slots")
        for place, slot in enumerate(request.slots):
            at_most(f"slots[{place}].exclude", "too_many_excluded", len(slot.exclude), limits.actions)
        return json_reply(_encode(await ranker.rank_slots(call.loop, request)))


def _batch_routes(routes: Routes, ranker: Ranker, rewards: Rewards, limits: Limits) -> None:
    @routes.hot("POST", "/rank/batch", RANK, "Choose an action for each of many requests.", body=Batch, reply=Decisions)
    async def rank_many(call: Call) -> Reply:
        """Decide up to 100 rank requests in one call.

        Each has a result of its own: a decision, or an error.
        """
        requests: list[RankRequest] = call.body.requests
        at_most("requests", "too_many_requests_in_batch", len(requests), limits.batch)
        for place, request in enumerate(requests):
            _check(request, limits, call)
            n_bytes = len(request.context) + sum(len(action.features) for action in request.actions)
            at_most(f"bytes of features in requests[{place}]", "body_too_large", n_bytes, limits.rank_bytes)
        results = await ranker.rank_many(call.loop, requests)
        shown = [shaped(result) if isinstance(result, ApiError) else result for result in results]
        return json_reply(_encode(Decisions(shown)))

    @routes.of_loop(
        "POST",
        "/events/rewards",
        RANK,
        "Send the rewards of many events.",
        body=RewardBatch,
        reply=RewardResults,
        or_lines=True,
        hot=True,
    )
    async def reward_many(call: Call) -> Reply:
        """Store up to 500 rewards in one call, as JSON or as JSON lines.

        Each has a result of its own: the id of its event, or an error.
        """
        sent = _rewards_in(call)
        at_most("rewards", "too_many_rewards", len(sent), limits.rewards)
        results = await rewards.store(call.loop, sent)
        shown = [shaped(result) if isinstance(result, ApiError) else result for result in results]
        return json_reply(_encode(RewardResults(shown)))


def _rewards_in(call: Call) -> list[EventReward]:
    """Return the rewards of a body: an object with all of them, or a line of JSON for each."""
    media_type = dict(call.scope["headers"]).get(b"content-type", b"")
    if media_type.lower().startswith(LINES.encode()):
        return lines_of(call.body, _one_reward)
    return decode(_all_rewards, call.body).rewards


def _check(request: RankRequest, limits: Limits, call: Call) -> None:
    if request.explain:
        check_may_explain(call)
    at_most("actions", "too_many_actions", len(request.actions), limits.actions)
    at_most("exclude", "too_many_excluded", len(request.exclude), limits.actions)


def check_may_explain(call: Call) -> None:
    if not call.may_explain:
        message = "explain must be false with this key, which was made with --no-explain"
        raise ApiError(403, "forbidden", message, "explain")


def at_most(target: str, code: str, n: int, limit: int) -> None:
    """Refuse more than ``limit`` of something."""
    if n > limit:
        raise ApiError(422, code, f"{target} must be at most {limit}, got {n}", target)

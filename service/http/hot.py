"""The hot routes: rank, reward and activate, straight from bytes to the engine and back."""

from __future__ import annotations

import msgspec

from service.engine import Engine
from service.engine.deciding import RankResult
from service.errors import ApiError
from service.http.gate import Call, Handler
from service.http.limits import Limits
from service.http.offers import Offers, shortest_rest
from service.http.openapi import Json, operation
from service.http.replies import NO_CONTENT, Error, Reply, json_reply, shaped
from service.http.strict import decode, refuse_repeats
from service.http.table import of_a_loop
from service.http.wire import Batch, Decisions, Rank, Reward, UnreadRank

ENTRIES: dict[str, Json] = {
    "/rank": operation("Choose an action.", body=Rank, reply=RankResult),
    "/rank/batch": operation("Choose an action for each of many requests.", body=Batch, reply=Decisions),
    "/events/{event_id}/reward": operation("Say what came of an event.", body=Reward, status=204),
    "/events/{event_id}/activate": operation("Let a deferred event be learned from.", status=204),
}

_rank = msgspec.json.Decoder(Rank)
_batch = msgspec.json.Decoder(Batch)
_reward = msgspec.json.Decoder(Reward)
_encode = msgspec.json.Encoder().encode


class Hot:
    """The handlers, on an engine."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine, self._limits = engine, limits
        self._offers = Offers(limits.actions)

    def handlers(self) -> dict[str, Handler]:
        """Return each hot path's handler."""
        of = {
            "/rank": self.rank,
            "/rank/batch": self.rank_many,
            "/events/{event_id}/reward": self.reward,
            "/events/{event_id}/activate": self.activate,
        }
        return {path: handle for below, handle in of.items() for path in of_a_loop(below)}

    async def rank(self, call: Call) -> Reply:
        return json_reply(_encode(await self._engine.rank(call.loop, self.read_rank(call.body))))

    async def rank_many(self, call: Call) -> Reply:
        requests = decode(_batch, call.body).requests
        if len(call.body) != len('{"requests":[]}') - 1 + sum(_shortest(request) + 1 for request in requests):
            refuse_repeats(call.body)
        at_most("requests", "too_many_requests_in_batch", len(requests), self._limits.batch)
        for request in requests:
            self._check(request)
        results = await self._engine.rank_many(call.loop, list(requests))
        return json_reply(_encode(Decisions([_answer(result) for result in results])))

    async def reward(self, call: Call) -> Reply:
        reward = decode(_reward, call.body)
        if call.body.count(b":") != 1:
            refuse_repeats(call.body)
        await self._engine.reward(call.loop, call.parameters["event_id"], reward.value, reward.id)
        return NO_CONTENT

    async def activate(self, call: Call) -> Reply:
        await self._engine.activate(call.loop, call.parameters["event_id"])
        return NO_CONTENT

    def read_rank(self, body: bytes, start: int = 0) -> Rank | UnreadRank:
        """Return the request to rank that begins at ``start``; raise ``ApiError`` if it breaks a rule."""
        return self._offers.read(body, start) or self._read(body[start:])

    def _read(self, body: bytes) -> Rank:
        request = decode(_rank, body)
        if not _surely_once(body, request):
            refuse_repeats(body)
        self._check(request)
        self._offers.keep(body, request)
        return request

    def _check(self, request: Rank) -> None:
        at_most("actions", "too_many_actions", len(request.actions), self._limits.actions)
        at_most("exclude", "too_many_excluded", len(request.exclude), self._limits.actions)


def _surely_once(body: bytes, request: Rank) -> bool:
    """Return whether it is plain that no name comes twice outside of features, whose names are checked on their own.

    It is if the body is no longer than the shortest that says the same: there is no room for another name. Or else, if
    there are no more colons than names that were read. A body that spells out defaults has names that cannot be told.
    """
    return len(body) == _shortest(request) or body.count(b":") == _colons(request)


_WITH_FEATURES, _WITHOUT = len('{"id":"","features":},'), len('{"id":""},')


def _shortest(request: Rank) -> int:
    """Return the least length of a body with these values; characters that take more bytes are counted as one."""
    size = 1  # [] less the comma after the last action
    for action in request.actions:
        n_features = len(action.features)
        size += len(action.id) + (n_features + _WITH_FEATURES if n_features else _WITHOUT)
    return size + shortest_rest(request)


def _colons(request: Rank) -> int:
    """Return how many colons come with the names that were read, if no string has one."""
    features = [action.features for action in request.actions]
    names = len(features) + sum(len(given) > 0 for given in features) + 1
    names += (request.user is not None) + (request.event_id is not None) + bool(request.exclude)
    names += request.defer + request.explain + (len(request.context) > 2)
    return names + b"".join([request.context, *features]).count(b":")


def _answer(result: RankResult | ApiError) -> RankResult | Error:
    return shaped(result) if isinstance(result, ApiError) else result


def at_most(target: str, code: str, n: int, limit: int) -> None:
    """Refuse more than ``limit`` of something."""
    if n > limit:
        raise ApiError(422, code, f"{target} must be at most {limit}, got {n}", target)

"""What devices ask for and upload: the shared model or its scores, residuals, updates, and who takes part."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from fedres.event_ids import LONGEST_ID
from fedres.scoring.federated import LAST_ROUND
from service.engine import Engine
from service.errors import ApiError
from service.http.gate import CLIENT, MSGPACK_TYPE, Call, Handler
from service.http.hot import at_most
from service.http.limits import Limits
from service.http.openapi import Json, content, operation
from service.http.replies import Reply, json_reply
from service.http.routing import BINARY, MOST, Loop, encode, json_response, read_json, route
from service.http.strict import decode, decode_msgpack, refuse_repeats
from service.http.table import of_a_loop
from service.http.wire import (
    Residuals,
    ResidualsStored,
    Round,
    Score,
    Scores,
    Scoring,
    Updates,
    UpdatesStored,
)

ENTRIES: dict[str, Json] = {
    "/federated/residuals": operation(
        "Upload what a device's examples left over.", body=Residuals, reply=ResidualsStored
    )
}
UPDATES = operation("Upload updates of a dense learner.", body=Updates, reply=UpdatesStored)
UPDATES["requestBody"]["content"] = content(Updates, MSGPACK_TYPE.decode())
TAG = {"ETag": {"description": "The version and a checksum, in quotes.", "schema": {"type": "string"}}}
MODEL = operation("Download the shared weights, or what changed since a version.", reply=BINARY)
MODEL["responses"]["200"]["headers"] = TAG
MODEL["responses"]["304"] = {"description": "If-None-Match has the version that is published.", "headers": TAG}

_residuals = msgspec.json.Decoder(Residuals)
_updates = msgspec.msgpack.Decoder(Updates)


def hot_handlers(engine: Engine, limits: Limits) -> dict[str, Handler]:
    """Return the handlers of the paths in ``ENTRIES``."""

    async def residuals(call: Call) -> Reply:
        sent = decode(_residuals, call.body)
        if call.body.count(b":") != _colons(sent):
            refuse_repeats(call.body)
        check_client(call.client, sent.client)
        at_most("residuals", "too_many_residuals", len(sent.residuals), limits.residuals)
        stored = await engine.residuals(call.loop, sent.client, sent.residuals)
        return json_reply(encode(ResidualsStored(stored.positions, stored.version)))

    return dict.fromkeys(of_a_loop("/federated/residuals"), residuals)


def device_routes(engine: Engine, limits: Limits) -> APIRouter:
    """Return the other routes below a loop's prefix."""
    api = APIRouter()

    @api.get("/federated/model", **route(MODEL))
    async def get_model(
        loop: Loop, request: Request, since: Annotated[int | None, Query(ge=0, le=MOST)] = None
    ) -> Response:
        tag = _quoted(await run_in_threadpool(engine.model_tag, loop))
        if names(request.headers.getlist("if-none-match"), tag):
            return Response(status_code=304, headers={"etag": tag})
        model = await run_in_threadpool(engine.federated_model, loop, since)
        return Response(model.body, media_type=BINARY, headers={"etag": _quoted(model.tag)})

    @api.post("/federated/scores", **route(operation("Score actions by the shared model.", body=Scoring, reply=Scores)))
    async def post_scores(loop: Loop, request: Request) -> Response:
        asked = await read_json(request, Scoring)
        at_most("actions", "too_many_actions", len(asked.actions), limits.actions)
        version, scores = engine.global_scores(loop, asked.context, asked.actions)
        scored = [Score(action.id, score) for action, score in zip(asked.actions, scores, strict=True)]
        return json_response(Scores(version, scored))

    @api.post("/federated/updates", **route(UPDATES))
    async def post_updates(loop: Loop, request: Request) -> Response:
        sent = decode_msgpack(_updates, await request.body())
        check_client(request.scope[CLIENT], sent.client)
        at_most("updates", "too_many_updates", len(sent.updates), limits.updates)
        stored = await engine.updates(loop, sent.client, sent.updates)
        return json_response(UpdatesStored(stored.positions, stored.version, stored.number))

    @api.get("/federated/round", **route(operation("Show how the loop learns, and who takes part.", reply=Round)))
    async def get_round(
        loop: Loop,
        request: Request,
        client: Annotated[str | None, Query(min_length=1, max_length=LONGEST_ID)] = None,
        t: Annotated[int | None, Query(ge=1, le=LAST_ROUND)] = None,
    ) -> Response:
        if client is not None:
            check_client(request.scope[CLIENT], client)
        return json_response(await run_in_threadpool(engine.round, loop, client, t))

    return api


def check_client(bound: str | None, client: str) -> None:
    """Refuse a key that is bound to one device and speaks for another."""
    if bound is not None and client != bound:
        message = f"client must be {bound!a}, to which the key is bound, got {client!a}"
        raise ApiError(403, "forged_client", message, "client")


def names(if_none_match: list[str], tag: str) -> bool:
    """Return whether the headers name the tag, weakly or not, or any tag."""
    tags = [each.strip().removeprefix("W/") for each in ",".join(if_none_match).split(",")]
    return tag in tags or tags == ["*"]


def _quoted(tag: str) -> str:
    return f'"{tag}"'


def _colons(sent: Residuals) -> int:
    """Return how many colons come with the names that were read, if no string outside of features has one.

    A body without any more has no name twice outside of features, whose names are checked on their own.
    """
    names = 2 + 7 * len(sent.residuals)  # client and residuals; seq, version, context, action, id, local and label
    names += sum((len(each.action.features) > 0) + (each.global_ is not None) for each in sent.residuals)
    raw = [part for each in sent.residuals for part in (each.context, each.action.features)]
    return names + b"".join(raw).count(b":")

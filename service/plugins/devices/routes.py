"""Routes of devices: the shared model or its scores, uploads of residuals and updates, and who takes part."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Depends, Query, Request, Response
from msgspec import Meta, Raw, Struct, field

from fedres.scoring.federated import LAST_ROUND
from fedres_client.event_ids import LONGEST_ID
from service.admin.routes import MOST
from service.errors import ApiError
from service.hints import about
from service.http.hot import at_most
from service.http.replies import Reply, json_reply, json_response
from service.http.request import Limits, decode_msgpack, loop_of, read_json
from service.http.routes import BINARY, CLIENT, DEVICE, MSGPACK, Call, Routes
from service.log.records import encode
from service.plugins.devices.devices import Devices
from service.plugins.devices.uploads import Residual, ResidualsStored, Update, UpdatesStored
from service.rank.requests import Action, Features, Id
from service.settings import DEVICE_MODEL, Model

Loop = Annotated[str, Depends(loop_of)]


class Residuals(Struct, forbid_unknown_fields=True):
    """Examples of one device; a repeated sequence number counts once."""

    client: Annotated[Id, about("Id of the device.")]
    residuals: Annotated[Annotated[list[Residual], Meta(min_length=1)], about("The examples, oldest first.")]


class Updates(Struct, forbid_unknown_fields=True):
    """Updates of one device; an empty list registers it."""

    client: Annotated[Id, about("Id of the device.")]
    updates: Annotated[list[Update], about("The updates, oldest first; empty to register the device.")]


class Scoring(Struct, forbid_unknown_fields=True):
    """Actions to score by the shared model alone; nothing is stored."""

    actions: Annotated[Annotated[list[Action], Meta(min_length=1)], about("The actions to score.")]
    context: Annotated[Features, about("The shared features of the situation.")] = field(
        default_factory=lambda: Raw(b"{}")
    )


class Score(Struct):
    """An action with the shared part of its score."""

    id: Annotated[str, about("Id of the action.")]
    score: Annotated[float, about("The shared part of its score.")]


class Scores(Struct):
    """The shared part of each action's score, in the order of the request."""

    version: Annotated[int, about("Version of the shared model.")]
    scores: Annotated[list[Score], about("The scores, in the order of the request.")]


class Round(Struct):
    """How a loop learns; with a round who uploads after it, or with a client too whether it does."""

    model: Annotated[str, about("Setting model of the loop.")]
    global_learner: Annotated[str, about("Setting global_learner: the learner of the shared model.")]
    hyperparameters: Annotated[
        dict[str, float | None], about("Setting hyperparameters of that learner, with defaults.")
    ]
    bits: Annotated[int, about("Setting bits: the shared model has 2^bits weights.")]
    timing: Annotated[str, about("Setting timing: on-arrival or aligned.")]
    crosses: Annotated[bool, about("Setting crosses: whether pairs of features have weights.")]
    personal: Annotated[bool, about("Setting personal: whether devices have a model of their own.")]
    policy: Annotated[str, about("Setting policy: how scores become probabilities.")]
    epsilon: Annotated[float, about("Setting epsilon of epsilon-greedy.")]
    floor: Annotated[float, about("Setting floor of optimistic-squarecb.")]
    gamma: Annotated[float, about("γ of the SquareCB policies, with the default if the setting is null.")]
    learning_rate: Annotated[float, about("Setting learning_rate of the models.")]
    largest_number: Annotated[float, about("Setting largest_number: the bound of numbers in features.")]
    draw_prefix: Annotated[str, about("Prefix of an event's id in the draw of its number.", "shop\0")]
    reward_range: Annotated[
        Annotated[list[float], Meta(min_length=2, max_length=2)],
        about("Setting reward_range: smallest and largest reward."),
    ]
    settings_version: Annotated[int, about("Position of the settings in the loop's log.")]
    version: Annotated[int, about("Version of the published shared model.")]
    n_learned: Annotated[int, about("Uploads that the shared model has learned.")]
    number: Annotated[int | None, about("Number of the client in the loop, from 0; null without a client or a number.")]
    t: Annotated[int | None, about("The round of the request; null without one.")]
    senders: Annotated[
        list[int] | None,
        about(
            "Numbers of the devices that upload after the round; null with a client, without a round, or for residuals."
        ),
    ]
    takes_part: Annotated[
        bool | None,
        about("Whether the client uploads after the round; true for residuals, else null without client and round."),
    ]


_updates = msgspec.msgpack.Decoder(Updates)


def device_routes(devices: Devices, limits: Limits) -> Routes:
    """Return the routes that devices use."""
    routes = Routes()
    _upload_routes(routes, devices, limits)
    _model_routes(routes, devices, limits)
    return routes


def _upload_routes(routes: Routes, devices: Devices, limits: Limits) -> None:
    @routes.hot(
        "POST", "/federated/residuals", DEVICE, "Upload residuals of a device.", body=Residuals, reply=ResidualsStored
    )
    async def residuals(call: Call) -> Reply:
        """Store examples of a device for the shared model: shared features, the local prediction and the
        reward.

        Private features stay on the device.
        """
        sent: Residuals = call.body
        check_client(call.client, sent.client)
        at_most("residuals", "too_many_residuals", len(sent.residuals), limits.residuals)
        return json_reply(encode(await devices.residuals(call.loop, sent.client, sent.residuals)))

    @routes.of_loop(
        "POST",
        "/federated/updates",
        DEVICE,
        "Upload updates of a dense learner.",
        body=Updates,
        body_type=MSGPACK,
        reply=UpdatesStored,
    )
    async def post_updates(loop: Loop, request: Request) -> Response:
        """Store gradients or deltas of a device, for loops whose learner is dense.

        The body is msgpack. An empty list registers the device.
        """
        sent = decode_msgpack(_updates, await request.body())
        check_client(request.scope[CLIENT], sent.client)
        at_most("updates", "too_many_updates", len(sent.updates), limits.updates)
        return json_response(await devices.updates(loop, sent.client, sent.updates))


def _model_routes(routes: Routes, devices: Devices, limits: Limits) -> None:
    @routes.of_loop(
        "GET",
        "/federated/model",
        DEVICE,
        "Download the shared weights, or what changed since a version.",
        reply=BINARY,
        query=("since",),
    )
    async def get_model(
        loop: Loop, request: Request, since: Annotated[int | None, Query(ge=0, le=MOST)] = None
    ) -> Response:
        """Download the shared model as safetensors.

        With ``since``, only weights that changed after that version; with ``If-None-Match``, 304 if the model
        is the same.
        """
        known = request.headers.getlist("if-none-match")
        tag = f'"{await devices.model_tag(loop)}"' if known else ""
        if known and names(known, tag):
            return Response(status_code=304, headers={"etag": tag})
        model = await devices.federated_model(loop, since)
        return Response(model.body, media_type=BINARY, headers={"etag": f'"{model.tag}"'})

    @routes.of_loop(
        "POST", "/federated/scores", DEVICE, "Score actions by the shared model.", body=Scoring, reply=Scores
    )
    async def post_scores(loop: Loop, request: Request) -> Response:
        """Return the shared part of each action's score, for devices that do not download the model.

        Nothing is stored.
        """
        sent = await read_json(request, Scoring)
        at_most("actions", "too_many_actions", len(sent.actions), limits.actions)
        version, scores = await devices.global_scores(loop, sent.context, sent.actions)
        scored = [Score(action.id, score) for action, score in zip(sent.actions, scores, strict=True)]
        return json_response(Scores(version, scored))

    @routes.of_loop(
        "GET",
        "/federated/round",
        DEVICE,
        "Show how the loop learns, and who takes part.",
        reply=Round,
        query=("client", "t", "model"),
    )
    async def get_round(
        loop: Loop,
        request: Request,
        client: Annotated[str | None, Query(min_length=1, max_length=LONGEST_ID)] = None,
        t: Annotated[int | None, Query(ge=1, le=LAST_ROUND)] = None,
        model: Model = DEVICE_MODEL,
    ) -> Response:
        """Return what a device needs to learn with the loop: settings, versions, and with ``client`` and
        ``t`` whether it uploads after that round.
        """
        if client is not None:
            check_client(request.scope[CLIENT], client)
        return json_response(devices.round(loop, client, t, model))


def check_client(bound: str | None, client: str) -> None:
    """Refuse a key that is bound to one device in a request of another."""
    if bound is not None and client != bound:
        message = f"client must be {bound!a}, to which the key is bound, got {client!a}"
        raise ApiError(403, "forged_client", message, "client")


def names(if_none_match: list[str], tag: str) -> bool:
    """Return whether the headers name the tag, weakly or not, or any tag."""
    tags = [each.strip().removeprefix("W/") for each in ",".join(if_none_match).split(",")]
    return tag in tags or tags == ["*"]

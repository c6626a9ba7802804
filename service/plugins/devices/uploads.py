"""Uploads of devices, checked before they are logged, and the models and rounds that devices receive."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from fedres.decisions.kalman_parts import field_keys
from fedres.scoring.features import Named, Preparer
from fedres.scoring.federated import LAST_ROUND, Hyperparameter, NotChosenError, Wire, WrongKindError
from fedres.scoring.flattening import FeatureError
from fedres.scoring.model import score
from service.errors import ApiError, invalid
from service.hints import about
from service.log.records import (
    RESIDUAL,
    UPDATE,
    HashedExample,
    InlineAction,
    Record,
    ResidualBody,
    ResidualExample,
    Spread,
    UpdateBody,
    encode,
)
from service.models.loop_metadata import LoopView
from service.models.published import Loop
from service.rank.decide import example_at, features_of, invalid_features
from service.rank.requests import Action, Features, Id, check_actions, check_id
from service.settings import Settings

LARGEST = 1e9  # of a prediction
OF_SETTINGS = (  # settings that devices receive
    *("model", "global_learner", "hyperparameters", "timing", "crosses", "personal", "policy", "epsilon", "floor"),
    *("learning_rate", "largest_number", "bits", "reward_range"),
)
LAST = 2**53  # of sequence numbers: every JSON parser reads it exactly

_pack = msgspec.msgpack.Encoder().encode


Count = Annotated[int, Meta(ge=1, le=LAST)]
RoundNumber = Annotated[int, Meta(ge=1, le=LAST_ROUND)]
Version = Annotated[int, Meta(ge=0, le=LAST)]


class Residual(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An example of a device, less what is private: the shared features, the local prediction and the label."""

    seq: Annotated[
        Count, about("Number that the device gives this example; a repeat with the same number counts once.")
    ]
    version: Annotated[Version, about("Version of the shared model that the example was made with.")]
    context: Annotated[Features, about("The shared features of the situation; private features stay on the device.")]
    action: Annotated[Action, about("The chosen action.")]
    local: Annotated[float, about("Prediction of the device's own model.")]
    label: Annotated[float, about("The reward.")]
    global_: Annotated[
        float | None, about("Prediction of the shared model; required if the loop's timing is aligned.")
    ] = msgspec.field(default=None, name="global")
    variance: Annotated[
        float | None, about("Variance of the local prediction; required by the model residual-kalman.")
    ] = None
    slopes: Annotated[
        list[float] | None,
        about(
            "Slopes of the local prediction by part of the action; required by the model residual-kalman, may be empty."
        ),
    ] = None


class Update(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a device uploads after round ``t``: a gradient or a delta of the shared weights."""

    seq: Annotated[Count, about("Number that the device gives this update; a repeat with the same number counts once.")]
    t: Annotated[RoundNumber, about("Round of the device after which the update was made, from 1.")]
    version: Annotated[Version, about("Version of the shared model that the update was made with.")]
    kind: Annotated[Id, about("Form of the body, which depends on the learner, such as gradient or delta.")]
    body: Annotated[bytes, about("The numbers, as bytes.")]


class ResidualsStored(msgspec.Struct):
    """Positions of the residuals in the log, and the published version."""

    positions: Annotated[list[int], about("Position of each residual in the log; a repeat has that of the first.")]
    version: Annotated[int, about("Version of the published model, which includes uploads up to this position.")]


class UpdatesStored(msgspec.Struct):
    """Positions of the updates in the log, the published version, and the device's number in the loop."""

    positions: Annotated[list[int], about("Position of each update in the log; a repeat has that of the first.")]
    version: Annotated[int, about("Version of the published model, which includes uploads up to this position.")]
    number: Annotated[
        int | None, about("Number of the device in the loop, from 0; null if the learner does not number devices.")
    ]


def residual_records(loop: Loop, client: str, residuals: Sequence[Residual], preparer: Preparer) -> Iterator[Record]:
    """Yield the records of residuals; refuse all of them at the first invalid one."""
    if not loop.view.settings.takes_residuals:
        raise wrong_upload(loop.view, "residuals")
    for k, residual in enumerate(residuals):
        body, example = _residual(loop, residual, f"residuals[{k}]", preparer)
        event = _event(loop.view, client, residual.seq)
        yield Record(loop.view.name, RESIDUAL, event, client, example.encode(), encode(body))


def _residual(loop: Loop, residual: Residual, at: str, preparer: Preparer) -> tuple[ResidualBody, ResidualExample]:
    view = loop.view
    _check_head(view, residual, at)
    low, high = view.settings.reward_range
    if not low <= residual.label <= high:
        raise invalid(f"{at}.label must be in [{low:g}, {high:g}], got {residual.label}", f"{at}.label")
    _check_prediction(f"{at}.local", residual.local)
    check_id(f"{at}.action.id", residual.action.id)
    context, features = bytes(residual.context) or b"{}", features_of(residual.action, loop.catalogue)
    named = [Named(f"{at}.context", None, context), Named(f"{at}.action.features", residual.action.id, features)]
    hashed = example_at(at, preparer.hash_all(named), loop, preparer)
    local, label, shared = float(residual.local), float(residual.label), None
    if view.settings.timing == "aligned":
        _check_prediction(f"{at}.global", residual.global_)
        shared = residual.global_
    spread = _spread(loop, residual, hashed, at)
    action = InlineAction(residual.action.id, msgspec.Raw(features))
    body = ResidualBody(
        msgspec.Raw(context), action, local, label, residual.version, shared, residual.variance, residual.slopes
    )
    return body, ResidualExample(hashed, residual.version, label, local, shared, spread)


def _spread(loop: Loop, residual: Residual, hashed: HashedExample, at: str) -> Spread | None:
    """Return the variance and slopes of the device's part, which models with widths require and others refuse."""
    has_spread = residual.variance is not None or residual.slopes is not None
    if not loop.view.settings.has_widths:
        if has_spread:
            message = f"{at}: variance and slopes must only come where the model has widths"
            raise ApiError(409, "wrong_upload", message, at)
        return None
    if residual.variance is None or residual.slopes is None:
        message = f"{at} must have variance and slopes: the model {loop.view.settings.model!r} has widths"
        raise ApiError(409, "wrong_upload", message, at)
    _check_prediction(f"{at}.variance", residual.variance)
    if residual.variance < 0:
        raise invalid(f"{at}.variance must not be negative, got {residual.variance}", f"{at}.variance")
    n = field_keys(np.frombuffer(hashed.fields, np.uint32)).size
    if len(residual.slopes) not in (0, n):
        message = f"{at}.slopes must be none, or {n}: of all actions and of each field, got {len(residual.slopes)}"
        raise invalid(message, f"{at}.slopes")
    for slope in residual.slopes:
        _check_prediction(f"{at}.slopes", slope)
    return Spread(float(residual.variance), tuple(map(float, residual.slopes)))


def update_records(loop: Loop, client: str, updates: Sequence[Update]) -> Iterator[Record]:
    """Yield the records of a client's updates; refuse all of them at the first invalid one."""
    number = number_of(loop, client)
    for k, update in enumerate(updates):
        body = _pack(_update(loop.view, number, update, f"updates[{k}]"))
        yield Record(loop.view.name, UPDATE, _event(loop.view, client, update.seq), client, body=body)


def _event(view: LoopView, client: str, seq: int) -> str:
    """Return an upload's event id, by which repeats are recognized; it differs from those of a deleted namesake."""
    return f"{view.created_at}/{client}/{seq}"


def _update(view: LoopView, number: int, update: Update, at: str) -> UpdateBody:
    _check_head(view, update, at)
    _check_round(f"{at}.t", update.t)
    try:
        wire_of(view.settings).check(number, update.t, update.kind, update.body)
    except WrongKindError as error:
        raise ApiError(409, "wrong_upload", f"{at}: {error}", f"{at}.kind") from None
    except NotChosenError as error:
        raise ApiError(409, "not_chosen", f"{at}: {error}", f"{at}.t") from None
    except ValueError as error:
        raise invalid(f"{at}: {error}", f"{at}.body") from None
    return UpdateBody(number, update.t, update.version, update.kind, update.body)


def wire_of(settings: Settings) -> Wire:
    """Return the format of uploads in a loop with a dense learner."""
    return _wire(settings.global_learner, settings.bits, tuple(settings.hyperparameters.items()))


@lru_cache(maxsize=100)
def _wire(name: str, bits: int, hyperparameters: tuple[tuple[str, Hyperparameter], ...]) -> Wire:
    return Wire(name, bits, dict(hyperparameters))


def number_of(loop: Loop, client: str) -> int:
    """Return the number that a client has in a loop whose learner numbers them."""
    number = loop.clients.numbers.get(client)
    if number is None:
        message = f"client must have joined with an empty list of updates, got {client!r}"
        raise ApiError(409, "not_joined", message, "client")
    return number


def loop_full(view: LoopView) -> ApiError:
    """Return the refusal of a client when no number is left."""
    n_clients = view.settings.n_clients
    return ApiError(409, "loop_full", f"the loop has {n_clients} clients, and all of them have joined", "client")


def wrong_upload(view: LoopView, got: str) -> ApiError:
    """Return the refusal of uploads that the loop's learner does not take."""
    right, learner = "residuals" if got == "updates" else "updates", view.settings.global_learner
    return ApiError(409, "wrong_upload", f"uploads must be {right} where {learner} learns, got {got}", got)


def _check_head(view: LoopView, upload: Residual | Update, at: str) -> None:
    if not 1 <= upload.seq <= LAST:
        raise invalid(f"{at}.seq must be in [1, 2^53], got {upload.seq}", f"{at}.seq")
    if not view.created_at <= upload.version <= view.version:
        message = f"{at}.version must be a version of the model, got {upload.version}"
        raise ApiError(409, "unknown_version", message, f"{at}.version")


def _check_round(name: str, t: int) -> None:
    if not 1 <= t <= LAST_ROUND:
        raise invalid(f"{name} must be in [1, {LAST_ROUND}], got {t}", name)


def _check_prediction(name: str, value: float | None) -> None:
    if value is None:
        raise invalid(f"{name} must be given where timing is aligned", name)
    if not (math.isfinite(value) and -LARGEST <= value <= LARGEST):
        raise invalid(f"{name} must be within ±{LARGEST:g}, got {value}", name)


def score_actions(loop: Loop, context: bytes, actions: Sequence[Action], preparer: Preparer) -> list[float]:
    """Return the shared part of each action's score."""
    check_actions(actions)
    pairs = [(action.id, features_of(action, loop.catalogue)) for action in actions]
    try:
        prepared = preparer.prepare(bytes(context) or b"{}", pairs)
    except FeatureError as error:
        raise invalid_features(error) from None
    scores: list[float] = score(prepared._replace(crosses=loop.view.settings.crosses), loop.weights)[0].tolist()
    return scores


class DeviceModel(NamedTuple):
    """A shared model to send to a device."""

    version: int
    body: bytes  # safetensors
    tag: str  # unique among all models, also those of other services


def round_of(loop: Loop, client: str | None, t: int | None) -> dict[str, Any]:
    """Return a loop's settings for devices, and the clients that upload after round t, or whether ``client`` does."""
    if t is not None:
        _check_round("t", t)
    view, settings = loop.view, loop.view.settings
    number = None if client is None else loop.clients.numbers.get(client)
    senders, takes_part = None, True if settings.takes_residuals else None
    if t is not None and not settings.takes_residuals:
        learner = wire_of(settings).learner
        senders = learner.senders(t).tolist() if client is None else None
        takes_part = None if number is None else bool(learner.takes_part(t, np.array([number])).all())
    return {
        **{name: getattr(settings, name) for name in OF_SETTINGS},
        "gamma": settings.greed,
        "draw_prefix": settings.draw_prefix(view.name),
        "settings_version": view.settings_version,
        "version": view.version,
        "n_learned": loop.n_learned,
        "number": number,
        "t": t,
        "senders": senders,
        "takes_part": takes_part,
    }

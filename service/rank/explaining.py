"""Why actions score as they do, by either model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np

from fedres.checks import Array
from fedres.decisions import explaining as kalman_explaining
from fedres.decisions.kalman_kernels import predict
from fedres.decisions.kalman_state import Request
from fedres.decisions.residual_kalman import NO_MODEL, in_present_basis
from fedres.scoring import features
from fedres.scoring.explaining import Contribution, explain
from fedres.scoring.flattening import Limits, action_features, flatten
from fedres.scoring.model import PersonalModel, score
from service.log.records import EMPTY
from service.models.kalman import PublishedKalman
from service.models.kalman_personal import PersonalKalman
from service.models.personal import Personal, read_entry
from service.models.published import Loop, Models
from service.rank.decide import features_of
from service.rank.requests import Explained, Prepared, Strongest


async def explain_all(prepared: Prepared, loop: Loop, models: Models) -> list[Explained]:
    """Return what ``explanations`` yields; others have their turn after each action, which takes milliseconds."""
    found = []
    for one in explanations(prepared, loop, models):
        found.append(one)
        await asyncio.sleep(0)
    return found


def explanations(prepared: Prepared, loop: Loop, models: Models) -> Iterator[Explained]:
    """Yield why each action scores as it does, by the models as they are when it is asked for."""
    for k in range(len(prepared.rows) - 1):
        personal = personal_model(prepared.request.user, loop, models)
        if loop.kalman is not None:
            yield _by_kalman(prepared, k, loop, loop.kalman, personal)
        else:
            yield _by_adagrad(prepared, k, loop, personal)


def personal_model(user: str | None, loop: Loop, models: Models) -> Personal | None:
    """Return the model of a user that counts in decisions."""
    if user is None or not loop.view.settings.personal or models.memory is None:
        return None
    found = read_entry(models.memory, loop.view.id, user)
    model_replaced_at = 0 if loop.kalman is None else loop.kalman.model_replaced_at
    return None if found is None or found[0] < model_replaced_at else found[1]


def score_parts(prepared: Prepared, loop: Loop, personal: Personal | None) -> list[tuple[float, float]]:
    """Return the shared and the personal part of each action's score, without a look at pairs of features."""
    rows, kalman = prepared.rows, loop.kalman
    starts = np.cumsum([row.size for row in rows], dtype=np.int64)
    hashes = np.frombuffer(b"".join([row.hashes for row in rows]), np.uint32)
    values = np.frombuffer(b"".join([row.values for row in rows]), np.float32)
    if kalman is None:
        own = personal if isinstance(personal, PersonalModel) else None
        given = features.Prepared(hashes, values, starts, loop.view.settings.crosses)
        by_model = score(given, loop.weights, own)
        return [*zip(by_model[0].tolist(), by_model[1].tolist(), strict=True)]
    parts = np.zeros((len(rows) - 1, 3))
    if kalman.settled:
        words = _own_words(prepared, loop, personal)
        fields = np.frombuffer(b"".join([row.fields for row in rows]), np.uint32)
        given_words = NO_MODEL if words is None else words
        predict(kalman.shared, given_words, words is not None, Request(hashes, values, fields, starts), parts)
    return [(kalman.low + kalman.span * part[0], kalman.span * part[1]) for part in parts.tolist()]


def _own_words(prepared: Prepared, loop: Loop, personal: Personal | None) -> Array | None:
    """Return the user's model for ``residual-kalman``, empty where there is none yet; None for nobody."""
    if prepared.request.user is None or not loop.view.settings.personal:
        return None
    return personal.words if isinstance(personal, PersonalKalman) else NO_MODEL


def personal_variances(prepared: Prepared, loop: Loop, personal: Personal | None) -> tuple[float, float] | None:
    """Return how unsure the personal part of the first action's score was without the user's own data, and is with it.

    ``None`` where the model does not know, or the user has no personal part.
    """
    own, kalman = _own_words(prepared, loop, personal), loop.kalman
    if kalman is None or not kalman.settled or own is None:
        return None
    return kalman_explaining.personal_variances(kalman.shared, own, (prepared.rows[0], prepared.rows[1]))


def _by_adagrad(prepared: Prepared, k: int, loop: Loop, personal: Personal | None) -> Explained:
    request, own = prepared.request, personal if isinstance(personal, PersonalModel) else None
    action = request.actions[k]
    named = action.id, features_of(action, loop.catalogue)
    why = explain(bytes(request.context) or EMPTY, named, loop.weights, own, crosses=loop.view.settings.crosses)
    return Explained(action.id, why.shared, why.personal, _strongest(why.strongest, 1.0))


def _by_kalman(prepared: Prepared, k: int, loop: Loop, kalman: PublishedKalman, personal: Personal | None) -> Explained:
    request, low, span = prepared.request, kalman.low, kalman.span
    action = request.actions[k]
    if not kalman.settled:
        return Explained(action.id, low, 0.0, [], span)
    own = _own_words(prepared, loop, personal)
    if own is not None:
        own = in_present_basis(kalman.shared, own)
    names = flatten(bytes(request.context) or EMPTY, Limits()), action_features(
        action.id, features_of(action, loop.catalogue), Limits()
    )  # fmt: skip
    why = kalman_explaining.explain(kalman.shared, own, (prepared.rows[0], prepared.rows[1 + k]), names)
    strongest = _strongest(why.strongest, span)
    return Explained(action.id, low + span * why.shared, span * why.personal, strongest, span * why.width)


def _strongest(contributions: list[Contribution], span: float) -> list[Strongest]:
    return [Strongest(one.context, one.action, span * one.shared, span * one.personal) for one in contributions]

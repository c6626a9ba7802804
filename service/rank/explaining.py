"""Explanations of scores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from service.errors import ApiError
from service.log.records import EMPTY
from service.models.personal import read_data
from service.models.protocol import Explained, ScoredRequest
from service.models.published import Loop, PublishedModels
from service.rank.decide import Decision, features_of
from service.rank.requests import PreparedRequest

MOST_EXPLAINED = 20_000  # pairs of features evaluated for one call


def explainable(decision: Decision, loop: Loop, most: int) -> Decision | ApiError:
    """Return the decision, or its refusal if an explanation would evaluate too many pairs of features."""
    n_pairs = loop.model.n_explained(decision.prepared.rows, loop.view.settings)
    if n_pairs <= most:
        return decision
    message = f"explain must look at no more than {most} pairs of features, got {n_pairs}"
    return ApiError(422, "too_much_to_explain", message, "explain")


async def explain_all(prepared: PreparedRequest, loop: Loop, models: PublishedModels) -> list[Explained]:
    """Return the items of ``explanations``; other requests run after each action, which takes milliseconds."""
    explained = []
    for explanation in explanations(prepared, loop, models):
        explained.append(explanation)
        await asyncio.sleep(0)
    return explained


def explanations(prepared: PreparedRequest, loop: Loop, models: PublishedModels) -> Iterator[Explained]:
    """Yield the explanation of each action's score, by the models at the time of that step."""
    request = prepared.request
    for k, action in enumerate(request.actions):
        personal = personal_model(request.user, loop, models)
        scored = scored_request(prepared, loop, personal)._replace(rows=[prepared.rows[0], prepared.rows[1 + k]])
        features = features_of(action, loop.catalogue)
        yield loop.model.explain(scored, bytes(request.context) or EMPTY, (action.id, features))


def personal_model(user: str | None, loop: Loop, models: PublishedModels) -> Any:
    """Return the personal model used in decisions for a user, None if there is none."""
    if user is None or not loop.view.settings.personal or models.memory is None:
        return None
    data = read_data(models.memory, loop.view.id, user)
    return None if data is None else loop.model.read_personal(data)


def scored_request(prepared: PreparedRequest, loop: Loop, personal: Any) -> ScoredRequest:
    """Return a request to explain; ``personal`` is the result of ``personal_model``."""
    settings = loop.view.settings
    return ScoredRequest(prepared.rows, settings, prepared.request.user is not None and settings.personal, personal)

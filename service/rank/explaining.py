"""Why actions score as they do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from service.log.records import EMPTY
from service.models.personal import read_data
from service.models.protocol import Explained, Scored
from service.models.published import Loop, Models
from service.rank.decide import features_of
from service.rank.requests import Prepared


async def explain_all(prepared: Prepared, loop: Loop, models: Models) -> list[Explained]:
    """Return what ``explanations`` yields; others have their turn after each action, which takes milliseconds."""
    explained = []
    for explanation in explanations(prepared, loop, models):
        explained.append(explanation)
        await asyncio.sleep(0)
    return explained


def explanations(prepared: Prepared, loop: Loop, models: Models) -> Iterator[Explained]:
    """Yield why each action scores as it does, by the models as they are when it is asked for."""
    request = prepared.request
    for k, action in enumerate(request.actions):
        personal = personal_model(request.user, loop, models)
        scored = scored_request(prepared, loop, personal)._replace(rows=[prepared.rows[0], prepared.rows[1 + k]])
        features = features_of(action, loop.catalogue)
        yield loop.model.explain(scored, bytes(request.context) or EMPTY, (action.id, features))


def personal_model(user: str | None, loop: Loop, models: Models) -> Any:
    """Return the model of a user that counts in decisions, None where there is none."""
    if user is None or not loop.view.settings.personal or models.memory is None:
        return None
    data = read_data(models.memory, loop.view.id, user)
    return None if data is None else loop.model.read_personal(data)


def scored_request(prepared: Prepared, loop: Loop, personal: Any) -> Scored:
    """Return a request to look into; ``personal`` is what ``personal_model`` returns."""
    settings = loop.view.settings
    return Scored(prepared.rows, settings, prepared.request.user is not None and settings.personal, personal)

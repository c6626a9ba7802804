"""How personal a loop is: the share of personal models in the scores of its newest decisions, by current models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Annotated

import msgspec

from service.errors import ApiError
from service.hints import about
from service.rank.decide import prepare
from service.rank.explaining import personal_model, scored_request
from service.rank.ranker import RankerContext
from service.rank.requests import Action, RankRequest

MOST_USERS = 100  # whose newest decision is analyzed
SECONDS = 120.0  # for which a report is cached: it takes the ranker as long as a hundred decisions


class TakenAction(msgspec.Struct):
    """The action that a user's newest finished decision took."""

    user: str
    context: msgspec.Raw
    action: str
    features: msgspec.Raw


class Personalization(msgspec.Struct):
    """How personal the newest decisions of different users are, by the current models."""

    users_with_model: Annotated[int, about("Users of the loop with a personal model.")]
    looked_at: Annotated[int, about("Decisions that the figures are about: the newest one of each of up to 100 users.")]
    with_model: Annotated[int, about("Users among these who have a personal model.")]
    share: Annotated[
        float | None,
        about("Share of the personal parts in the scores of the actions taken, from 0 to 1; null without decisions."),
    ]
    trust: Annotated[
        float | None,
        about("Share of the personal variance that users' own data removed, from 0 to 1; null with the model adagrad."),
    ]


async def personalization(context: RankerContext, name: str, decisions: list[TakenAction]) -> Personalization:
    """Return the personalization of decisions; other requests run in between."""
    personal = total = before = now = 0.0
    looked_at = with_model = 0
    for taken in decisions:
        await asyncio.sleep(0)
        loop = context.loop(name)
        request = RankRequest(actions=[Action(taken.action, taken.features)], context=taken.context, user=taken.user)
        [prepared] = prepare([request], loop, context.preparer)
        if isinstance(prepared, ApiError):  # logged under other limits
            continue
        model = personal_model(taken.user, loop, context.models)
        scored = scored_request(prepared, loop, model)
        [(shared_part, personal_part)] = loop.model.score_parts(scored)
        looked_at += 1
        with_model += model is not None
        personal += abs(personal_part)
        total += abs(shared_part) + abs(personal_part)
        if (variances := loop.model.personal_variances(scored)) is not None:
            before, now = before + variances[0], now + variances[1]
    share = personal / total if total else None
    trust = max(0.0, 1 - now / before) if before > 0 else None
    return Personalization(context.loop(name).view.n_users, looked_at, with_model, share, trust)


class CachedReport:
    """Cached reports: concurrent requests for the same report compute it once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[Hashable, tuple[float, Personalization]] = {}  # with the time until which each is returned
        self._lock = asyncio.Lock()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[Personalization]]) -> Personalization:
        """Return the cached report of a key; compute it if it is old or was empty."""
        async with self._lock:
            now = self._clock()
            self._reports = {name: cached for name, cached in self._reports.items() if now < cached[0]}
            if key in self._reports:
                return self._reports[key][1]
            report = await make()
            if report.looked_at:
                self._reports[key] = self._clock() + SECONDS, report
            return report

"""Requests on their way through a ranker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from service.errors import unavailable
from service.log.protocol import Outcome, StoreUnavailable
from service.ranking.decide import Decision
from service.ranking.requests import RankRequest

ACTIONS_PER_PIECE = 250  # of a batch that are decided before others have their turn, a few milliseconds


class Asked:
    """A request of this turn; the future is the position of its record."""

    __slots__ = ("decision", "future", "loop", "request")

    def __init__(self, loop: str, request: RankRequest) -> None:
        self.loop, self.request = loop, request
        self.future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.decision: Decision | None = None


def fail(asked: Sequence[Asked], error: Exception) -> None:
    for one in asked:
        if not one.future.done():
            one.future.set_exception(unavailable(error) if isinstance(error, StoreUnavailable) else error)


async def pieces(asked: Sequence[Asked]) -> AsyncIterator[list[Asked]]:
    """Yield requests in pieces with few actions each, and let others have their turn in between."""
    piece: list[Asked] = []
    n_actions = 0
    for one in asked:
        piece.append(one)
        n_actions += len(one.request.actions)
        if n_actions >= ACTIONS_PER_PIECE:
            yield piece
            await asyncio.sleep(0)
            piece, n_actions = [], 0
    if piece:
        yield piece

"""Requests on their way through a ranker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from fedres.scoring.features import Hashed, Named, Preparer
from service.errors import unavailable
from service.log.protocol import Outcome, StoreUnavailable
from service.rank.decide import Decision
from service.rank.requests import Action, RankRequest

ACTIONS_PER_PIECE = 100  # of a batch that are decided before others have their turn, a millisecond or two
BYTES_PER_PIECE = 16_384  # of features that are hashed before others have their turn; in Python, 3 ms


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
        if piece and n_actions + len(one.request.actions) > ACTIONS_PER_PIECE:
            yield piece
            await asyncio.sleep(0)
            piece, n_actions = [], 0
        piece.append(one)
        n_actions += len(one.request.actions)
    if piece:
        yield piece


async def hash_in_pieces(actions: Sequence[Action], preparer: Preparer) -> dict[str, Hashed]:
    """Return the features that come with actions, hashed, by id, and let others have their turn in between.

    What cannot be hashed is left out: deciding says what is wrong with it.
    """
    found: dict[str, Hashed] = {}
    piece: list[Action] = []
    n_bytes = 0
    for place, action in enumerate(actions, 1):
        piece.append(action)
        n_bytes += len(action.features)
        if n_bytes >= BYTES_PER_PIECE or place == len(actions):
            given = [one for one in piece if one.features]
            rows = preparer.hash_all([Named("", one.id, bytes(one.features)) for one in given])
            found |= {one.id: row for one, row in zip(given, rows, strict=True) if isinstance(row, Hashed)}
            await asyncio.sleep(0)
            piece, n_bytes = [], 0
    return found

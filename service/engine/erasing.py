"""Erasing a user: what takes long is done in pieces, before and after the moment in which nobody else may log anything.

What others have learned cannot be learned again from a log without the user's records, so the log gets their models as
they are: most of them a few at a time, while all goes on, and those that have changed since together with the erasure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from service.engine.core import Core
from service.engine.deciding import check_id
from service.engine.records import BASE
from service.errors import unavailable
from service.store import StoreUnavailable

PIECE = 300  # personal models that others wait for at once
ROUNDS = 5  # at most; each has as many models as changed during the one before


class Erasing(Core):
    """Erases users."""

    async def erase_user(self, loop: str, user: str) -> int:
        """Erase a user's model, events and rewards from both files; return how many records that were."""
        check_id("user", user)
        async with self._erasing:
            based = await self._base_others(loop, user)
            async with self._change():
                since = self.view(loop).since
                n_erased = await self._on_learner(lambda: self._learning.erase(loop, user))
                self._given.forget(since, user)
            await self._on_learner(self._learning.flush)  # after which the snapshot has nothing of the user either
            await self._drop_older(loop, based)
        return n_erased

    async def _base_others(self, loop: str, user: str) -> list[str]:
        """Log the models of others, but for a few or those that change too fast; return whose."""
        based: list[str] = []
        for _ in range(ROUNDS):
            self.view(loop)
            await self._save()
            if await self._on_learner(lambda: self._learning.n_without_base(loop)) <= PIECE:
                break
            row: int | None = 0
            while row is not None:
                row, users = await self._base_some(loop, user, row)
                based += users
        return based

    async def _base_some(self, loop: str, without: str, after: int) -> tuple[int | None, list[str]]:
        began = time.monotonic()
        async with self._change():
            self.view(loop)
            found = await self._on_learner(lambda: self._learning.base_some(loop, without, after, PIECE))
        await self._on_disk(self._commits.checkpoint)
        await asyncio.sleep(time.monotonic() - began)  # half of the time is that of others
        return found

    async def _save(self) -> None:
        """Save what was published before; others go on."""
        for _ in range(2):  # one may have been on its way
            writing = await self._on_learner(self._learning.begin_save)
            if writing is not None:
                await asyncio.gather(asyncio.wrap_future(writing), return_exceptions=True)

    async def _drop_older(self, loop: str, users: list[str]) -> None:
        """Delete what the log had of the users' models before."""
        for start in range(0, len(users), PIECE):
            await self._on_disk(self._commits.drop_older, loop, BASE, users[start : start + PIECE])

    async def _on_disk(self, change: Callable[..., None], *arguments: Any) -> None:
        try:
            await asyncio.to_thread(change, *arguments)
        except StoreUnavailable as error:
            raise unavailable(error) from error

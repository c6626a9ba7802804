"""Large requests take turns; small ones pass them by."""

import asyncio
from contextlib import suppress

import pytest

from service.errors import ApiError
from service.http.lane import LARGE_BYTES, MOST_WAITING, Lane


class Endpoint:
    """Notes who has begun, and answers when told to."""

    def __init__(self):
        self.begun, self.may_end = [], asyncio.Event()

    async def __call__(self, name):
        self.begun.append(name)
        await self.may_end.wait()
        return name


async def turns(n=5):
    for _ in range(n):
        await asyncio.sleep(0)


def test_large_requests_take_turns_and_small_ones_do_not_wait():
    async def story():
        lane, endpoint = Lane(), Endpoint()
        sizes = {"large": LARGE_BYTES + 1, "next": LARGE_BYTES + 1, "small": LARGE_BYTES}
        tasks = [asyncio.ensure_future(lane.in_turn(size, endpoint, name)) for name, size in sizes.items()]
        await turns()
        assert endpoint.begun == ["large", "small"]
        endpoint.may_end.set()
        assert await asyncio.gather(*tasks) == ["large", "next", "small"]

    asyncio.run(story())


def test_those_that_wait_are_bounded():
    async def story():
        lane, endpoint = Lane(), Endpoint()
        tasks = [asyncio.ensure_future(lane.in_turn(LARGE_BYTES + 1, endpoint, k)) for k in range(1 + MOST_WAITING)]
        await turns()
        with pytest.raises(ApiError, match="at most 64 requests") as refused:
            await lane.in_turn(LARGE_BYTES + 1, endpoint, "one too many")
        assert refused.value.status == 503
        endpoint.may_end.set()
        assert await asyncio.gather(*tasks) == [*range(1 + MOST_WAITING)]

    asyncio.run(story())


def test_one_that_fails_or_goes_away_does_not_keep_the_turn():
    async def fails(name):
        raise ValueError(name)

    async def story():
        lane, endpoint = Lane(), Endpoint()
        with suppress(ValueError):
            await lane.in_turn(LARGE_BYTES + 1, fails, "fails")
        gone = asyncio.ensure_future(lane.in_turn(LARGE_BYTES + 1, endpoint, "gone"))
        while not endpoint.begun:
            await asyncio.sleep(0)
        waits = asyncio.ensure_future(lane.in_turn(LARGE_BYTES + 1, endpoint, "waits"))
        last = asyncio.ensure_future(lane.in_turn(LARGE_BYTES + 1, endpoint, "last"))
        await turns()
        waits.cancel()
        gone.cancel()
        endpoint.may_end.set()
        assert await last == "last"
        assert endpoint.begun == ["gone", "last"]

    asyncio.run(story())

"""Rewards that come many at once, and clocks that jump."""

import asyncio

import pytest
from fault_clients import EARLIEST, SUMS, Connection, Ledger, path_of, request_for
from fault_run import digests_after_every_way_to_start, judge, load

DAY = 86_400_000_000  # microseconds


@pytest.mark.parametrize("name", [None, "click"])
def test_32_rewards_at_once_that_are_the_same_count_once(play, name):
    @play
    async def _(service):
        ledger = Ledger()
        await service.start()
        await service.make_loops()
        reward = {"value": 0.25} if name is None else {"value": 0.25, "id": name}
        for loop in (EARLIEST, SUMS):
            ledger.ranked(loop, (await service.ask("POST", path_of(loop, "rank"), request_for("e"))).json())
            answers = await at_once(32, service, path_of(loop, "events/e/reward"), reward)
            assert [answer.status for answer in answers] == [204] * 32
            ledger.rewarded(loop, "e", reward)
        assert await judge(service, ledger) == []
        [summed] = (await service.ask("GET", path_of(SUMS, "events"))).lines()
        assert summed["reward"] == 0.25


async def at_once(n, service, path, body):
    connections = [Connection(service.whereabouts) for _ in range(n)]
    for connection in connections:
        await connection.send("GET", "/healthz")
        await connection.receive()
    for connection in connections:  # all are open: the requests leave within a moment of each other
        await connection.send("POST", path, body)
    return await asyncio.gather(*(connection.receive() for connection in connections))


def jump(service, microseconds):
    """Set the server's clock, which reads the file at any moment: it must never find half of it."""
    ahead = service.store.with_name(service.store.name + "-ahead")
    ahead.with_suffix(".part").write_text(str(microseconds))
    ahead.with_suffix(".part").replace(ahead)


def test_clocks_that_jump_lose_nothing_and_never_run_backwards_in_the_log(play):
    @play
    async def _(service):
        ledger = Ledger()
        await service.start()
        await service.make_loops()
        await service.ask("PUT", "/v1/settings", {"default_reward": None})  # what a jump makes late is not learned
        async with load(service, ledger, seed=5, n_clients=4):
            for ahead in (DAY, 0, -DAY):
                await ledger.grows()
                jump(service, ahead)
            await ledger.grows()
        jump(service, 2 * DAY)  # the log's time has stood still since the first jump: let it go on
        assert await judge(service, ledger) == []
        times = [event["time"] for event in (await service.ask("GET", "/v1/events")).lines()]
        assert times == sorted(times)
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3

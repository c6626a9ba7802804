"""Rewards that come many at once, and clocks that jump."""

import asyncio
import os
import signal
from datetime import datetime, timedelta

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
    """Set the server's wall clock, which reads the file at any moment: it must never find half of it."""
    ahead = service.store.with_name(service.store.name + "-ahead")
    ahead.with_suffix(".part").write_text(str(microseconds))
    ahead.with_suffix(".part").replace(ahead)


def test_a_wall_clock_that_is_set_makes_no_reward_late_and_no_event_wait_longer(play):
    @play
    async def _(service):
        ledger = Ledger()
        await service.start()
        await service.make_loops()
        async with load(service, ledger, seed=5, n_clients=4):
            for ahead in (DAY, 0, -DAY):
                await ledger.grows()
                jump(service, ahead)
                for role in ("log", "learner"):  # whatever starts now must not believe the wall clock
                    await restarted(service, role)
            await ledger.grows()
            await service.kill()
            await service.start()  # a day behind the log
            await ledger.grows()
        assert await judge(service, ledger) == []  # returns once no sum waits
        assert (await service.ask("GET", "/v1/rewards/unmatched")).json() == {"rewards": []}
        times = [datetime.fromisoformat(event["time"]) for event in (await service.ask("GET", "/v1/events")).lines()]
        assert times == sorted(times)
        assert times[-1] - times[0] < timedelta(hours=12)
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3


async def restarted(service, role):
    """Kill a process; return once there is another."""
    [pid] = service.server.pids(role).values()
    os.kill(pid, signal.SIGKILL)
    while service.server.pids(role)[0] in (0, pid):
        await asyncio.sleep(0.005)

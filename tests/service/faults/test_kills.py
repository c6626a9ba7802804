"""kill -9 and pauses at random moments under load, judged by what the clients were told."""

import asyncio

from fault_campaign import Campaign
from fault_changers import Changer
from fault_clients import EARLIEST, SUMS, Connection, Ledger, request_for
from fault_run import digests_after_every_way_to_start, judge, judge_log, load, read_log


def test_kills_and_pauses_of_each_role_lose_and_double_nothing_and_clients_see_no_more_than_they_must(play):
    @play
    async def _(service):
        campaign = Campaign(service, rankers=2, seed=1, pause=(0.1, 1.0))
        await campaign.run(n_kills=8, n_pauses=1)
        assert campaign.problems == []


def test_kills_of_all_processes_at_once_lose_and_double_nothing(play):
    @play
    async def _(service):
        ledger = Ledger()
        await service.start()
        await service.make_loops()
        await Changer(service.whereabouts, ledger, seed=9).put_actions()  # for recommendations
        async with load(service, ledger, seed=9):
            for snapshot_seconds in (0.05, 0.5, 10.0):
                await ledger.grows()
                await service.kill()
                await service.start(snapshot_seconds=snapshot_seconds)
            await ledger.grows()
        assert await judge(service, ledger) == []
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3


def test_kills_while_old_events_are_removed_lose_no_newer_ones_and_models_stay_the_same(play):
    @play
    async def _(service):
        old, new = Ledger(), Ledger()
        await service.start(snapshot_seconds=0.2)
        await service.make_loops()
        async with load(service, old, seed=11):
            await old.grows(400)
        await service.settle()
        before, token = service.now(), ""
        async with load(service, new, seed=12):
            for k, role in enumerate(("learner", "log", "all", "learner")):
                token = service.ask_to_prune(SUMS, before)
                await asyncio.sleep(0.02 * k)  # kills meet different moments
                await service.kill_role(role)
                await new.grows()
            while not service.is_pruned(SUMS, token):
                await asyncio.sleep(0.05)
        await service.settle()
        stored = await asyncio.to_thread(read_log, service)
        assert judge_log(SUMS, new, stored[SUMS]) == []
        assert old.feedback[SUMS]
        assert not {entry.event for entry in stored[SUMS]} & (old.ranks[SUMS].keys() | old.feedback[SUMS].keys())
        assert judge_log(EARLIEST, old, stored[EARLIEST]) == judge_log(EARLIEST, new, stored[EARLIEST]) == []
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3


def test_requests_to_erase_a_user_that_are_made_again_are_all_answered_and_no_file_has_the_user_then(play):
    @play
    async def _(service):
        await service.start(rankers=2, snapshot_seconds=0.05)
        for user in ("stays", "goes away"):
            event = f"{user} with this"
            assert (await service.ask("POST", "/v1/rank", {**request_for(event), "user": user})).status == 200
            path = f"/v1/events/{event.replace(' ', '%20')}/reward"
            assert (await service.ask("POST", path, {"value": 1})).status == 204
        connections = [Connection(service.whereabouts) for _ in range(8)]
        for connection in connections:
            await connection.send("DELETE", "/v1/users/goes%20away")
        assert [(await connection.receive()).status for connection in connections] == [204] * 8
        assert [file.name for file in service.files() if b"goes away" in file.read_bytes()] == []
        [event] = (await service.ask("GET", "/v1/events")).lines()
        assert event["user"] == "stays"
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3

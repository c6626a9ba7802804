"""The service on PostgreSQL: it is killed, its sessions end, the server goes away, another machine takes over."""

import asyncio
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from fault_clients import Ledger
from fault_run import digests_after_every_way_to_start, judge, load

FEDRES = Path(sys.executable).with_name("fedres")


def test_nothing_acknowledged_is_lost_by_kills_and_the_models_are_those_of_the_log(play_on_postgres):
    @play_on_postgres
    async def _(service):
        ledger = Ledger()
        await service.start()
        await service.make_loops()
        async with load(service, ledger, seed=21):
            for snapshot_seconds in (0.0, 0.1, 10.0):
                await ledger.grows(by=100)
                await service.kill()
                await service.start(snapshot_seconds=snapshot_seconds)
            await ledger.grows(by=100)
        assert await judge(service, ledger) == []
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3


def test_requests_are_refused_while_the_database_is_away_and_nothing_is_lost(play_on_postgres, postgres):
    @play_on_postgres
    async def _(service):
        ledger = Ledger()
        await service.start(workers=2)
        await service.make_loops()
        async with load(service, ledger, seed=22, n_clients=4):
            await ledger.grows()
            await asyncio.to_thread(postgres.end_sessions)
            await ledger.grows()
            await asyncio.to_thread(postgres.stop, "immediate")
            refused = await service.ask("POST", "/v1/events/x/reward", {"value": 1})
            assert (refused.status, refused.code()) == (503, "store_io")
            await asyncio.to_thread(postgres.start)
            await ledger.grows()
        assert await judge(service, ledger) == []


@asynccontextmanager
async def standby(database, folder):
    """Lend a second service, on a machine with nothing but the database, and its output so far."""
    command = [FEDRES, "serve", "--store", database, "--folder", folder, "--port", "0", "--standby"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert b"stands by" in await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def address_of(process):
    """Return where it listens, once it does."""
    async for line in process.stdout:
        if found := re.search(r"http://[\d.]+:\d+", line.decode()):
            return found[0]
    raise ConnectionError("the standby has ended")


def test_a_standby_takes_over_from_a_killed_service_and_nothing_is_lost(play_on_postgres, database, tmp_path):
    (tmp_path / "elsewhere").mkdir()

    @play_on_postgres
    async def _(service):
        ledger = Ledger()
        await service.start()
        await service.make_loops()
        async with standby(database, tmp_path / "elsewhere") as second:
            async with load(service, ledger, seed=23, n_clients=4):
                await ledger.grows()
                await service.kill()
                service.moved_to(await address_of(second))
                await ledger.grows()
            assert await judge(service, ledger) == []
            model = (await service.ask("GET", "/v1/model")).body
            second.terminate()
            assert await second.wait() == 0
        await service.start()
        assert (await service.ask("GET", "/v1/model")).body == model

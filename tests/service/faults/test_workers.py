"""Several processes that answer requests for one engine: any of them may be killed."""

import signal

from fault_clients import Ledger
from fault_run import digests_after_every_way_to_start, judge, kill_workers_often, load, nobody_at


def test_killed_workers_are_replaced_and_a_killed_engine_takes_its_workers_along_and_nothing_is_lost(play, nursery):
    @play
    async def _(service):
        before = nursery.temporary_files()
        ledger = await kill_workers_often(service, n_kills=3, seed=7)
        assert await judge(service, ledger) == []
        assert nursery.temporary_files() == before
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3


def test_workers_told_to_stop_under_load_answer_and_end_well(play):
    @play
    async def _(service):
        ledger = Ledger()
        await service.start(workers=2)
        await service.make_loops()
        async with load(service, ledger, seed=8):
            await ledger.grows()
            url = await service.server.url()
            assert await service.stop(signal.SIGTERM) == 0
            assert service.server.errors() == ""
            await nobody_at(url)
            await service.start()
        assert await judge(service, ledger) == []

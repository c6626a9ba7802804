"""kill -9 at random moments under load, judged by what the clients were told."""

from fault_run import digests_after_every_way_to_start, judge, kill_often

N_KILLS = 30


def test_nothing_acknowledged_is_lost_or_counted_twice_and_the_models_are_those_of_the_log(play):
    @play
    async def _(service):
        ledger, productive = await kill_often(service, N_KILLS, seed=1)
        assert await judge(service, ledger) == []
        assert productive > N_KILLS / 3
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3

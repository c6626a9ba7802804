"""kill -9 at random moments under load, judged by what the clients were told."""

from fault_clients import Connection, request_for
from fault_run import digests_after_every_way_to_start, judge, judge_events, kill_often, kill_writers_often

N_KILLS = 30


def test_nothing_acknowledged_is_lost_or_counted_twice_and_the_models_are_those_of_the_log(play):
    @play
    async def _(service):
        ledger, productive = await kill_often(service, N_KILLS, seed=1)
        assert await judge(service, ledger) == []
        assert productive > N_KILLS / 3
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3


def test_a_killed_writer_is_replaced_and_nothing_acknowledged_is_lost(play):
    @play
    async def _(service):
        ledger = await kill_writers_often(service, n_kills=5, seed=9)
        assert await judge(service, ledger) == []
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3


class Leaver:
    """Users that come and are erased, one after the other."""

    def __init__(self, service):
        self._connection, self.n_erased, self.stopped = Connection(service.whereabouts), 0, False

    async def run(self):
        while not self.stopped:
            user = f"leaver-{self.n_erased}"
            for event in (f"{user}-a", f"{user}-b"):
                await self._connection.insist("POST", "/v1/rank", {**request_for(event), "user": user})
            await self._connection.insist("POST", f"/v1/events/{user}-a/reward", {"value": 1})
            await self._connection.insist("DELETE", f"/v1/users/{user}")
            self.n_erased += 1


def test_users_erased_between_kills_leave_nothing_and_take_nothing_of_others(play):
    @play
    async def _(service):
        leaver = Leaver(service)
        ledger, _ = await kill_often(service, n_kills=10, seed=6, beside=leaver)
        assert leaver.n_erased > 0
        assert await judge_events(service, ledger) == []
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3
        await service.kill()
        for file in service.store.parent.iterdir():
            assert b"leaver-" not in file.read_bytes(), file

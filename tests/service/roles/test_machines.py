"""Two machines on one database: both learn the same bits from whatever either was told, and lose nothing.

They are started once; each test leaves them as it found them, and relies on nothing that another did. ``b`` reaches
the database through a proxy.
"""

import contextlib
import platform
import threading
import time

import pytest
from machines import ACTIONS, Ledger, Load, digests, judge
from proxies import StallingProxy
from serving import MachineProcess, running
from waiting import until

from service.http.keys import Keys, KeyTable
from service.log.postgres import PostgresLog


class World:
    """Two machines, their database, and what their clients were told so far."""

    def __init__(self, postgres, folder):
        self.postgres, self.database, self.folder = postgres, postgres.address, folder
        self.proxy = StallingProxy(postgres.data.parent / ".s.PGSQL.5432")
        self.through_proxy = f"postgresql://fedres@127.0.0.1:{self.proxy.port}/postgres?application_name=b"
        PostgresLog(self.database).close()  # makes the tables
        with contextlib.closing(Keys(KeyTable(self.database))) as keys:
            self.bearer = bearer(keys.add("admin"))
        self.a = self.machine(folder / "a", self.database)
        self.b = self.machine(folder / "b", self.through_proxy)
        self.machines = [self.a, self.b]
        self.ledger = Ledger()
        self._seeds = iter(range(1, 100))

    def machine(self, folder, address, *options):
        machine = MachineProcess(folder, address, *options)
        machine.http.headers.update(self.bearer)
        return machine

    def load(self, machines=None, **options):
        return Load(machines or self.machines, self.ledger, seed=next(self._seeds), headers=self.bearer, **options)

    def make_loop(self, name, **settings):
        assert self.a.ask("POST", "/v1/loops", json={"name": name, "settings": settings}).status_code == 201
        until(lambda: name in self.b.ask("GET", "/v1/loops").json()["loops"], "b following the loop")

    def make_learned_loop(self, name):
        """Make a loop that has learned enough for personal models: users of its first 16 rewards have none."""
        self.make_loop(name)
        with self.load(loops=[name]):
            self.ledger.grow(30)

    def check(self, loop="default"):
        """Judge by the clients' ledger; compare the models of both machines, of a replay, and of a copy in SQLite."""
        assert judge(self.ledger, self.database) == []
        assert len(set(digests(self.machines, self.database, self.folder, loop).values())) == 1
        rewarded = sum(of == loop for of, _ in self.ledger.rewards.values())
        assert [one.status()["loops"][loop]["rewarded_events"] for one in self.machines] == [rewarded] * 2


@pytest.fixture(scope="module")
def world(postgres, tmp_path_factory):
    postgres.ask("DROP SCHEMA IF EXISTS fedres CASCADE")
    world = World(postgres, tmp_path_factory.mktemp("machines"))
    with running(*world.machines):
        yield world
    world.proxy.close()


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def rank(machine, event, user="anna", loop="default"):
    body = {"user": user, "context": {"hour": 7}, "actions": ACTIONS, "event_id": event}
    return machine.ask("POST", f"/v1/loops/{loop}/rank", json=body)


def reward(machine, event, loop="default"):
    return machine.ask("POST", f"/v1/loops/{loop}/events/{event}/reward", json={"value": 1.0})


def model_status(machine, user, loop):
    return machine.ask("GET", f"/v1/loops/{loop}/users/{user}/model").status_code


def test_what_one_machine_is_told_both_learn(world):
    with world.load():
        world.ledger.grow(60)
    world.check()


def test_a_repeat_on_another_machine_is_answered_as_the_first(world):
    first = rank(world.a, "asked twice").json()
    assert rank(world.b, "asked twice").json() == first
    world.ledger.ranks["asked twice"] = ("default", first["action"], first["probability"])
    assert (reward(world.a, "asked twice").status_code, reward(world.b, "asked twice").status_code) == (204, 204)
    world.ledger.rewards["asked twice"] = ("default", 1.0)
    world.check()


def test_killed_processes_cost_nothing_that_was_acknowledged(world):
    with world.load():
        for role in ("ranker", "learner", "log"):
            world.a.kill_role(role)
            world.ledger.grow(20)
        world.b.kill()
        world.ledger.grow(20)
        world.b.start()
        world.ledger.grow(20)
    world.check()


def test_a_restart_of_the_database_costs_nothing_that_was_acknowledged(world):
    with world.load():
        for how in ("fast", "immediate"):
            world.ledger.grow()
            world.postgres.stop(how)
            refused = until(lambda: (reply := reward(world.a, "x")).status_code == 503 and reply, "a refusal")
            assert refused.json()["error"]["code"] == "store_io"
            world.postgres.start()
            world.ledger.grow()
    for machine in world.machines:
        until(machine.is_ready, "readiness")
    world.check()


def test_a_machine_without_the_database_says_so_and_comes_back(world):
    world.proxy.stall()
    replies = []
    asking = threading.Thread(target=lambda: replies.append(rank(world.b, "during the partition")))
    asking.start()
    with world.load([world.a]):
        world.ledger.grow()
        until(lambda: not world.b.is_ready(), "b noticing")
        assert world.a.is_ready()
        asking.join()
        assert [reply.status_code for reply in replies] == [503]
        world.proxy.heal()
        until(world.b.is_ready, "b coming back")
    decision = rank(world.b, "during the partition").json()  # whether or not the first attempt was stored
    world.ledger.ranks["during the partition"] = ("default", decision["action"], decision["probability"])
    with world.load():
        world.ledger.grow()
    world.check()


def test_a_wait_time_ends_once_for_all_machines(world):
    world.make_loop("short", wait_time=0.2)
    for k, machine in enumerate(world.machines):
        assert rank(machine, f"short {k}", loop="short").status_code == 200
    for machine in world.machines:
        until(lambda: machine.status()["loops"]["short"]["learned_events"] == 2, "the end of the wait")  # noqa: B023
    assert len(set(digests(world.machines, world.database, world.folder, "short").values())) == 1


def test_pages_and_feedback_are_learned_by_both_machines_and_answered_once(world):
    items = [{"id": f"film {k}", "features": {"genre": "drama" if k % 2 else "comedy"}} for k in range(40)]
    world.make_loop("films")
    assert world.a.ask("PUT", "/v1/loops/films/actions", json={"put": items}).status_code == 204
    until(lambda: len(world.b.ask("GET", "/v1/loops/films/actions").json()["actions"]) == 40, "b's catalogue")
    events = [
        {"event_id": f"rating {k}", "user": f"u{k % 5}", "action": f"film {k % 40}", "reward": k % 2} for k in range(60)
    ]
    replies = [one.ask("POST", "/v1/loops/films/feedback", json={"events": events}) for one in world.machines]
    assert [reply.json() for reply in replies] == [{"stored": 60, "repeated": 0}, {"stored": 0, "repeated": 60}]
    for k, (one, other) in enumerate([world.machines, world.machines[::-1]] * 10):
        body = {"user": f"u{k % 5}", "n": 3, "event_id": f"page {k}"}
        page = one.ask("POST", "/v1/loops/films/recommend", json=body).json()
        assert other.ask("POST", "/v1/loops/films/recommend", json=body).json()["items"] == page["items"]
        for place, item in enumerate(page["items"]):
            path = f"/v1/loops/films/events/{item['event_id']}/reward"
            assert other.ask("POST", path, json={"value": place % 2}).status_code == 204
    for machine in world.machines:
        until(lambda: machine.status()["loops"]["films"]["rewarded_events"] == 60, "learning")  # noqa: B023
    assert len(set(digests(world.machines, world.database, world.folder, "films").values())) == 1


def test_a_user_is_erased_from_all_machines_whoever_is_asked(world):
    world.make_learned_loop("erasing")
    for k, machine in enumerate(world.machines):
        user = f"erased-{k}"
        assert rank(world.a, f"of {user}", user, "erasing").status_code == 200
        assert reward(world.b, f"of {user}", "erasing").status_code == 204
        for one in world.machines:
            until(lambda: model_status(one, user, "erasing") == 200, "a model")  # noqa: B023
            one.digest("erasing")  # writes the snapshot
        assert machine.ask("DELETE", f"/v1/users/{user}").status_code == 204
        assert user.encode() not in _models(machine)
        for one in world.machines:
            until(lambda: user.encode() not in _models(one), "clean files")  # noqa: B023
            assert model_status(one, user, "erasing") == 404
        assert world.postgres.ask(f"SELECT count(*) FROM fedres.log WHERE \"user\" = '{user}'") == [(0,)]
    assert len(set(digests(world.machines, world.database, world.folder, "erasing").values())) == 1


def _models(machine):
    return b"".join(file.read_bytes() for file in machine.folder.glob("*-models*"))


def test_a_machine_that_was_away_during_an_erasure_catches_up(world):
    user = "missed"
    loop = "erasing-while-away"
    world.make_learned_loop(loop)
    assert rank(world.a, f"of {user}", user, loop).status_code == 200
    assert reward(world.a, f"of {user}", loop).status_code == 204
    until(lambda: model_status(world.b, user, loop) == 200, "a model")
    world.proxy.stall()
    with world.load([world.a], n_clients=1, loops=[loop]):
        world.ledger.grow(5)
        # b may be the holder until the server ends its sessions, for which this proxy gives no reason.
        world.postgres.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'b'")
        assert world.a.ask("DELETE", f"/v1/users/{user}").status_code == 204
        world.ledger.grow(5)
    world.proxy.heal()
    until(world.b.is_ready, "b coming back")
    until(lambda: model_status(world.b, user, loop) == 404, "b forgetting")
    assert user.encode() not in _models(world.b)
    assert len(set(digests(world.machines, world.database, world.folder, loop).values())) == 1


def test_a_machine_joins_and_leaves_and_follows_the_loops_it_is_told_to(world, tmp_path):
    world.make_loop("theirs")
    third = world.machine(tmp_path / "c", world.database, "--loops", "default")
    with world.load(), running(third):
        with world.load([*world.machines, third], n_clients=2):
            world.ledger.grow()
        assert len({machine.digest("theirs") for machine in world.machines}) == 1
        refused = third.ask("POST", "/v1/loops/theirs/rank", json={"user": "anna", "context": {}, "actions": ACTIONS})
        assert (refused.status_code, refused.json()["error"]["code"]) == (421, "not_followed")
        assert third.ask("POST", "/v1/loops", json={"name": "other"}).status_code == 421
        assert third.ask("GET", "/v1/loops").json() == {"loops": ["default"]}
        assert third.stop() == 0
        world.ledger.grow()
    assert judge(world.ledger, world.database) == []
    assert len(set(digests(world.machines, world.database, world.folder).values())) == 1


def test_keys_are_shared_and_known_while_the_database_is_away(world):
    keys = Keys(KeyTable(world.database))
    key = keys.add("admin")
    with_key = {"headers": bearer(key)}
    other_key = {"headers": bearer("unknown")}
    for machine in world.machines:
        until(lambda: machine.ask("GET", "/v1/loops", **with_key).status_code == 200, "the key")  # noqa: B023
        assert machine.ask("GET", "/v1/loops", **other_key).status_code == 401
    world.postgres.stop("fast")
    time.sleep(1.1)  # longer than keys are cached
    for machine in world.machines:
        assert machine.ask("GET", "/v1/loops", **other_key).status_code == 401
        assert machine.ask("GET", "/v1/loops", **with_key).status_code == 200
    world.postgres.start()
    keys.revoke(keys.list()[-1].id)
    keys.close()
    for machine in world.machines:
        until(lambda: machine.ask("GET", "/v1/loops", **with_key).status_code == 401, "its end")  # noqa: B023
        until(machine.is_ready, "readiness")


def test_another_architecture_is_refused_unless_it_is_wanted(world, tmp_path):
    world.postgres.ask("UPDATE fedres.meta SET value = 'vax' WHERE name = 'architecture'")
    other = MachineProcess(tmp_path / "vax", world.database)
    with pytest.raises(AssertionError, match=r"was made on vax.* --any-architecture"):
        other.start()
    other.close()
    PostgresLog(world.database, any_architecture=True).close()
    world.postgres.ask(f"UPDATE fedres.meta SET value = '{platform.machine()}' WHERE name = 'architecture'")

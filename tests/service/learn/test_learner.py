"""The learner's thread in an engine: what it is handed, when it rests, and snapshots."""

import asyncio
import shutil
import sqlite3
from types import SimpleNamespace

import msgspec
import pytest
from engines import SECOND, Clock, play, rebuilt, request, running
from service.engine import Action, Engine, RankRequest, learning, saving
from service.engine.records import NOTHING, TICK
from service.store import Record


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE personal SET model = zeroblob(40) WHERE user = 'user-1'",
        "UPDATE personal SET user = 'somebody' WHERE user = 'user-1'",
        "DELETE FROM personal WHERE user = 'user-1'",
        "UPDATE shared SET model = zeroblob(20)",
        "DELETE FROM page WHERE n = 0",
        "UPDATE page SET body = substr(body, 2)",
        "UPDATE state SET body = substr(body, 2)",
        "DROP TABLE shared",
    ],
)
def test_a_damaged_snapshot_is_found_and_made_anew(tmp_path, damage):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 60)
            live = engine.digest("default")
        with sqlite3.connect(tmp_path / "store.db-models") as db:
            assert db.execute(damage).rowcount != 0
        db.close()
        async with running(tmp_path) as engine:
            assert engine.status()["rebuilt"] == 1
            assert engine.digest("default") == live

    asyncio.run(story())


def test_a_snapshot_of_another_log_is_not_used(tmp_path):
    async def story():
        for name, seed in (("one", 0), ("other", 1)):
            (tmp_path / name).mkdir()
            async with running(tmp_path / name) as engine:
                await play(engine, 40, seed=seed)
        shutil.copy(tmp_path / "one" / "store.db-models", tmp_path / "other" / "store.db-models")
        async with running(tmp_path / "other") as engine:
            assert engine.status()["rebuilt"] == 1
            assert engine.digest("default") == rebuilt(tmp_path / "other")

    asyncio.run(story())


def test_a_model_damaged_while_the_service_runs_is_never_served(tmp_path):
    async def story():
        async with running(tmp_path, cache_bytes=1) as engine:
            await play(engine, 60)
            live = engine.digest("default")
            with sqlite3.connect(tmp_path / "store.db-models") as db:
                db.execute("UPDATE personal SET model = zeroblob(40)")
            db.close()
            for k in range(6):  # the cache holds one of them
                await engine.rank("default", request(f"user-{k}"))
            await engine.settle()
            assert engine.status()["rebuilt"] >= 1
            assert engine.digest("default") == live == rebuilt(tmp_path)

    asyncio.run(story())


def test_a_learner_with_nothing_due_asks_nothing_of_a_store_that_is_closed(tmp_path):
    async def story():
        async with running(tmp_path, writer_process=True) as engine:
            await play(engine, 3)
            await asyncio.to_thread(engine._commits.close)
            await engine.settle()

    asyncio.run(story())


@pytest.mark.parametrize("apprentice", [False, True])
def test_what_is_handed_to_the_learner_is_what_it_would_read_in_the_record(tmp_path, apprentice):
    def request(k):
        actions = [Action(f"a{n}", msgspec.Raw(b'{"x": %d}' % (n % 3))) for n in range(4)]
        return RankRequest(
            actions=[*actions[k % 4 :], Action("known")], context=msgspec.Raw(b'{"h": %d}' % k), user="u"
        )

    async def rank_many():
        engine = Engine.open(tmp_path / "store.db")
        fed, feed = [], engine._log.appended
        engine._log.appended = lambda entries: (fed.extend(entries), feed(entries))
        await engine.put_settings("default", {"epsilon": 1.0, "apprentice": apprentice})
        await engine.put_actions("default", [Action("known", msgspec.Raw(b'{"y": "z"}'))])
        await engine.rank_many("default", [request(k) for k in range(40)])
        await engine.settle()
        state = engine._learning.learner.loops["default"]
        both = [(entry.body.known, state._read_rank(entry)) for entry in fed if entry.kind == "rank"]
        await engine.close()
        return both

    both = asyncio.run(rank_many())
    assert len(both) == 40
    assert all(handed == read for handed, read in both)


@pytest.mark.parametrize(("hold", "rests"), [(3_600, False), (0, True)])
def test_the_learner_rests_only_after_it_has_held_the_interpreter_for_long(tmp_path, monkeypatch, hold, rests):
    slept, passed, monotonic = [], Clock(), learning.time.monotonic

    def seconds():
        passed.pass_seconds(1)
        return passed() / SECOND

    clocks = {"perf_counter": seconds, "monotonic": monotonic}
    monkeypatch.setattr(learning, "time", SimpleNamespace(**clocks, sleep=slept.append))
    monkeypatch.setattr(learning, "LONGEST_HOLD", hold)

    async def story():
        async with running(tmp_path) as engine:
            passed.pass_seconds(10_000)  # with nothing to do
            event = (await engine.rank("default", request())).event_id
            await engine.reward("default", event, 1.0)
            while engine.view("default").statistics.rewarded == 0:
                await asyncio.sleep(0.001)

    asyncio.run(story())
    assert (learning.REST in slept) is rests


def test_decisions_are_noted_by_who_stores_them_unless_the_learner_is_at_work(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            thread, noted = engine._learning, engine._learning.learner.loops["default"].join.slots
            await engine.settle()
            thread._interval = lambda: 3_600.0  # from now on it sleeps until somebody is in a hurry
            with thread._turn:
                first = await engine.rank("default", request())
                assert not noted
            second = await engine.rank("default", request())
            assert [*noted] == [first.event_id, second.event_id]
            await engine.reward("default", second.event_id, 1.0)
            third = await engine.rank("default", request())
            assert third.event_id not in noted  # the reward is for the thread, and comes first
            await engine.settle()
            assert third.event_id in noted
            return engine.digest("default")

    assert asyncio.run(story()) == rebuilt(tmp_path)


def test_who_waits_for_a_snapshot_does_not_wait_for_its_rests(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "REST", 3_600)

    async def story():
        async with running(tmp_path, snapshot_seconds=0.0) as engine:
            await engine.rank_many("default", [request() for _ in range(300)])
            while engine._learning._saver._writing is None:
                await asyncio.sleep(0.001)
            return engine.digest("default")

    assert asyncio.run(story()) == rebuilt(tmp_path)


def test_the_learner_answers_though_records_come_faster_than_it_reads_them(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "MOST_FED", 0)  # all is read from the log
    monkeypatch.setattr(learning, "CHUNK", 1)

    async def story():
        async with running(tmp_path) as engine:
            read = engine._learning._log.read

            def read_and_add(after, limit):
                engine._log.append([Record("default", TICK, None, None, NOTHING)])
                return read(after, limit)

            engine._learning._log.read = read_and_add
            await engine.rank("default", request())
            await asyncio.wait_for(engine.settle(), 30)
            assert engine.view("default").statistics.ranks == 1
            engine._learning._log.read = read

    asyncio.run(story())

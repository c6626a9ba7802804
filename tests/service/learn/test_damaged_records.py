"""A damaged record: its loop stops in front of it and says so, others go on, and nobody ever learns from it."""

import asyncio
import sqlite3

import pytest
from machine import Clock, Engine, running
from playing import logged, play, rebuilt, request

from service.admin.status import MachineStatus
from service.log.records import DamagedRecord


def damage(folder, position, loop="default", column="example"):
    """Change a byte of what the learner reads of a record."""
    with sqlite3.connect(folder / "store.db") as db:
        [(data,)] = db.execute(f"SELECT {column} FROM log WHERE loop = ? AND position = ?", (loop, position))
        data = data.encode() if isinstance(data, str) else data
        changed = data[:-1] + bytes([data[-1] ^ 1])
        db.execute(f"UPDATE log SET {column} = ? WHERE loop = ? AND position = ?", (changed, loop, position))
    db.close()


def repair(folder, position, loop="default", column="example"):
    damage(folder, position, loop, column)  # the same bit again


async def rank_and_reward(engine, names, loop="default"):
    for name in names:
        await engine.rank(loop, request(f"user {name}", event_id=name))
        await engine.reward(loop, name, 1.0)


async def said(engine):
    """Return what the service says of its trouble."""
    return (await MachineStatus(engine.context, "store.db").status())["trouble"]


def test_a_loop_stops_in_front_of_a_damaged_record_names_it_and_others_go_on(tmp_path):
    async def story():
        clock = Clock()
        engine = Engine(tmp_path, clock=clock)
        await engine.create_loop("other")
        await rank_and_reward(engine, "ab")
        before = engine.digest()
        await rank_and_reward(engine, "cd")
        bad = len(logged(tmp_path)) - 1  # the decision d
        await rank_and_reward(engine, "ef", "other")
        damage(tmp_path, bad)
        for _ in range(3):
            engine.learner.step()
        assert isinstance(engine.learner.trouble, DamagedRecord)
        assert f"record {bad} of loop 'default'" in await said(engine)
        assert engine.view().position == bad - 1
        assert engine.view().statistics.rewarded == 3
        assert engine.view("other").statistics.rewarded == 2
        assert engine.learner.digest("default") != before
        await rank_and_reward(engine, "g")  # still served and stored
        await rank_and_reward(engine, "h", "other")
        clock.pass_seconds(10_000)
        last = engine.log.heads()["default"].last
        for _ in range(3):
            engine.learner.step()
        assert engine.log.heads()["default"].last == last  # no tick that nobody would read
        assert engine.view("other").statistics.rewarded == 3
        live = engine.learner.digest("default")
        engine.kill()
        async with running(tmp_path, clock=clock) as engine:
            assert f"record {bad} of loop 'default'" in str(engine.learner.trouble)
            assert (engine.view().position, engine.learner.digest("default")) == (bad - 1, live)
            engine.learner.step()
            assert engine.view("other").statistics.rewarded == 3
        (tmp_path / "store.db-models").unlink()
        async with running(tmp_path, clock=clock) as engine:
            assert (engine.view().position, engine.learner.digest("default")) == (bad - 1, live)
        repair(tmp_path, bad)
        async with running(tmp_path, clock=clock) as engine:
            await engine.settle()
            assert engine.view().statistics.rewarded == 5
            assert engine.digest() == rebuilt(tmp_path)

    asyncio.run(story())


def test_what_is_in_front_of_the_damage_is_learned_also_where_records_were_erased(tmp_path):
    async def story():
        engine = Engine(tmp_path)
        await rank_and_reward(engine, "abc")
        await engine.erase_user("default", "user a")
        await rank_and_reward(engine, "de")
        bad = engine.log.heads()["default"].last  # the reward of e
        await rank_and_reward(engine, "f")
        engine.kill()
        damage(tmp_path, bad)
        (tmp_path / "store.db-models").unlink()
        async with running(tmp_path) as engine:
            assert (engine.view().position, engine.view().statistics.rewarded) == (bad - 1, 4)
            engine.learner.step()
            assert f"record {bad} " in await said(engine)

    asyncio.run(story())


def test_damage_to_what_was_learned_already_leaves_the_models_served_and_learns_no_more(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await rank_and_reward(engine, "ab")
            await engine.rank("default", request(event_id="waits"))
            live = engine.digest()
        damage(tmp_path, 2)
        for _ in range(2):
            async with running(tmp_path) as engine:
                assert engine.learner.rebuilt == 0
                await engine.reward("default", "waits", 1.0)
                engine.learner.step()
                assert "record 2 of loop 'default'" in await said(engine)
                assert engine.learner.digest("default") == live
        repair(tmp_path, 2)
        async with running(tmp_path) as engine:
            await engine.settle()
            assert engine.view().statistics.rewarded == 3
            assert engine.digest() == rebuilt(tmp_path)

    asyncio.run(story())


def test_damage_to_the_record_that_a_snapshot_ends_with_makes_the_loop_learn_up_to_there_again(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await rank_and_reward(engine, "ab")
            await engine.settle()
            last = engine.view().position
        damage(tmp_path, last)
        async with running(tmp_path) as engine:
            assert engine.learner.rebuilt == 1
            assert (engine.view().position, engine.view().statistics.rewarded) == (last - 1, 1)

    asyncio.run(story())


@pytest.mark.parametrize("kind", ["loop", "erased", "base"])
def test_a_loop_that_cannot_be_begun_is_not_served_and_others_are(tmp_path, kind):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("other")
            await play(engine, 20, loop="other")
            before = engine.view("other").statistics.rewarded
            await rank_and_reward(engine, "ab")
            await engine.erase_user("default", "user a")
        [bad, *_] = [entry.position for entry in logged(tmp_path) if entry.kind == kind]
        damage(tmp_path, bad, column="body")
        (tmp_path / "store.db-models").unlink()
        async with running(tmp_path) as engine:
            engine.learner.step()
            assert engine.loops() == ["other"]
            assert f"record {bad} of loop 'default'" in await said(engine)
            await rank_and_reward(engine, "cd", "other")
            engine.learner.step()
            assert engine.view("other").statistics.rewarded == before + 2

    asyncio.run(story())

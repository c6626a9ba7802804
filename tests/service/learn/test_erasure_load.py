"""Many erasures, and erasures of many records, cost others little and are all answered."""

import asyncio

import pytest
from machine import Clock, Engine, running
from playing import play, rebuilt, request

from service.learn import erasures, loop_state
from service.log import sqlite
from service.log.records import BASE, ERASE, EraseBody, Record, encode


def order(engine, users, loop="default"):
    """Log that users are to be erased, as rankers do."""
    body = {user: encode(EraseBody(f"token of {user}")) for user in users}
    engine.log.append([[Record(loop, ERASE, user=user, body=body[user])] for user in users])


def test_an_erasure_of_nothing_is_answered_at_once_and_logs_nothing(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 20)
            before = engine.log.heads()
            engine.context.learner_steps = False
            await engine.erase_user("default", "nobody")
            await engine.erase_user_everywhere("nobody")
            assert engine.log.heads() == before

    asyncio.run(story())


def test_erasures_that_wait_together_share_a_base_and_none_is_forgotten_before_it_is_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_state, "REMEMBERED_ERASURES", 10)
    monkeypatch.setattr(erasures, "MOST_TOGETHER", 8)

    async def story():
        async with running(tmp_path) as engine:
            users = [f"leaving {k}" for k in range(30)]
            for user in users:
                await engine.rank("default", request(user))
            await play(engine, 20)
            bases = []
            log_base = erasures.log_base
            monkeypatch.setattr(erasures, "log_base", lambda *what: (bases.append(1), log_base(*what)))
            await asyncio.gather(*(engine.erase_user("default", user) for user in users))
            assert len(bases) < len(users)  # one for each batch of those that wait
            assert not [entry for entry in engine.logged() if entry.user in users]
            assert engine.digest() == rebuilt(tmp_path)

    asyncio.run(story())


@pytest.mark.parametrize("cut", [False, True])
def test_a_user_with_very_many_records_goes_in_pieces_and_others_learn_in_between(tmp_path, monkeypatch, cut):
    monkeypatch.setattr(sqlite, "ERASED_AT_ONCE", 10)

    async def story():
        clock = Clock()
        engine = Engine(tmp_path, clock=clock)
        await engine.create_loop("other")
        for k in range(100):
            await engine.rank("default", request("anonymous", event_id=f"e{k}"))
            await engine.reward("default", f"e{k}", 1.0)
        await play(engine, 20)
        learner = engine.learner
        ticks = iter(range(10**9))
        learner.clock = lambda: next(ticks) * 0.06  # each call of the writer takes a slice
        order(engine, ["anonymous"])
        removed = []
        for k in range(6):
            await engine.rank("other", request("u", event_id=f"other {k}"))
            learner.step()
            removed.append(engine.log.heads()["default"].removed)
        assert 0 < removed[3] < removed[4] < removed[5] < 200
        assert learner.loops["other"].metadata.statistics.ranks >= 5
        assert not learner.loops["default"].metadata.erased
        assert [entry.user for entry in engine.log.of_kind("default", ERASE)] == ["anonymous"]
        if cut:
            engine.kill()
            engine = Engine(tmp_path, clock=clock)
        await engine.settle()
        await engine.settle()
        assert not [entry for entry in engine.logged() if entry.user == "anonymous" or str(entry.event).startswith("e")]
        assert engine.learner.loops["default"].metadata.erased == ["token of anonymous"]
        assert engine.digest() == rebuilt(tmp_path)
        await engine.close()

    asyncio.run(story())


def test_an_erasure_for_all_loops_reaches_deleted_ones_and_new_ones_of_the_same_name(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for name in ("gone", "new"):
                await engine.create_loop(name)
                await engine.rank(name, request("anna", {"diagnosis": "private"}, event_id=f"{name} 1"))
                await engine.reward(name, f"{name} 1", 1.0)
                await engine.delete_loop(name)
            await engine.create_loop("new")
            await engine.rank("new", request("anna", event_id="new 2"))
            await play(engine, 10, loop="new")
            await engine.erase_user_everywhere("anna")
            for name in ("gone", "new", "default"):
                entries = engine.logged(name)
                assert not [
                    entry for entry in entries if entry.user == "anna" or (entry.kind == BASE and name == "gone")
                ]
                assert not [entry for entry in entries if entry.event in (f"{name} 1", "new 2")]
            assert "gone" not in engine.loops()
            assert engine.digest("new") == rebuilt(tmp_path, "new")
            last = engine.log.heads()
            await engine.erase_user_everywhere("anna")
            assert engine.log.heads() == last

    asyncio.run(story())

"""The character U+0000 in ids: refused, and harmless in stores that have such ids from before."""

import asyncio

import pytest
from machine import Clock, Engine, running
from playing import rebuilt, refused_for, request

from service.log import checking
from service.log.records import RANK, REWARD
from service.rank.requests import Action

NUL = "\0"


@pytest.mark.parametrize(
    ("call", "target"),
    [
        (lambda engine: engine.rank("default", request(event_id=f"n{NUL}x")), "event_id"),
        (lambda engine: engine.rank("default", request(f"u{NUL}")), "user"),
        (lambda engine: engine.reward("default", f"victim{NUL}x", 0.0), "event_id"),
        (lambda engine: engine.reward("default", "e", 0.0, reward_id=f"r{NUL}"), "id"),
        (lambda engine: engine.activate("default", f"e{NUL}"), "event_id"),
        (lambda engine: engine.put_actions("default", [Action(f"a{NUL}")]), "put[0].id"),
        (lambda engine: engine.create_loop(f"l{NUL}"), "loop"),
        (lambda engine: engine.erase_user("default", f"u{NUL}"), "user"),
        (lambda engine: engine.residuals("default", f"c{NUL}", []), "client"),
    ],
)
def test_an_id_with_a_nul_is_refused(tmp_path, call, target):
    async def story():
        async with running(tmp_path) as engine:
            status, _, about = await refused_for(call(engine))
            assert (status, about) == (422, target)

    asyncio.run(story())


def test_an_action_whose_id_has_a_nul_is_refused(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for name in (f"a{NUL}", f"a{NUL}b", f"{NUL}b", NUL):
                refused_request = request()
                refused_request.actions[1] = Action(name)
                assert (await refused_for(engine.rank("default", refused_request)))[::2] == (422, "actions")

    asyncio.run(story())


def old_store(engine, monkeypatch):
    """Let a store take ids as it did before they were refused."""
    monkeypatch.setattr(checking, "_refuse", lambda record: None)
    monkeypatch.setattr("service.rank.requests.check_id", lambda *_: None)
    monkeypatch.setattr("service.rank.decide.check_id", lambda *_: None)
    monkeypatch.setattr("service.rank.ranker.check_id", lambda *_: None)


def test_rewards_of_ids_with_a_nul_make_nobody_forget_the_events_they_begin_with(tmp_path, monkeypatch):
    """A restart asks the log which early rewards belong to decisions: it must ask for these ids, not for parts."""

    async def story():
        clock = Clock()
        engine = Engine(tmp_path, clock=clock)
        old_store(engine, monkeypatch)
        for k in range(10):
            await engine.rank("default", request(event_id=f"victim{k}"))
            await engine.reward("default", f"victim{k}{NUL}x", 0.0)
        engine.digest()
        engine.kill()
        async with running(tmp_path, clock=clock) as engine:
            await engine.settle()
            assert (engine.view().n_waiting, engine.view().n_early) == (10, 10)
            for k in range(10):
                await engine.reward("default", f"victim{k}", 1.0)
            await engine.settle()
            assert engine.view().statistics.rewarded == 10
            assert engine.digest() == rebuilt(tmp_path)

    asyncio.run(story())


def test_an_event_of_an_older_store_whose_id_has_a_nul_is_found_and_exported(tmp_path, monkeypatch):
    async def story():
        async with running(tmp_path) as engine:
            old_store(engine, monkeypatch)
            first = await engine.rank("default", request(event_id=f"n{NUL}x"))
            await engine.rank("default", request(event_id="n"))
            await engine.reward("default", f"n{NUL}x", 1.0)
            await engine.settle()
            assert (await engine.rank("default", request(event_id=f"n{NUL}x"))).action_id == first.action_id
            entries = engine.log.find("default", [f"n{NUL}x"])
            assert [(entry.kind, entry.event) for entry in entries] == [(RANK, f"n{NUL}x"), (REWARD, f"n{NUL}x")]
            assert [event["event_id"] for event in await engine.events()] == [f"n{NUL}x", "n"]

    asyncio.run(story())

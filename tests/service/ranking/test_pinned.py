"""A pinned baseline: the shared model of the moment an experiment began decides for the control group, for ever."""

import asyncio

import pytest
from machine import Clock, running, tell
from playing import raw, refused, request

from service.models import adagrad, residual_kalman
from service.rank.requests import Action, RankRequest
from service.rank.slots import Slot, SlotsRequest

PINNED = {"share": 0.5, "baseline": "pinned", "learn": False}
ADAGRAD = {"model": "adagrad", "policy": "epsilon-greedy", "epsilon": 0.5}


async def taught(engine, clock, best, n=60):
    """Reward one action, and no other."""
    for k in range(n):
        result = await engine.rank("default", request(user=f"t{k % 7}", event_id=f"{best}, {k}"))
        await engine.reward("default", result.event_id, float(result.action_id == best))
        await engine.settle()
    clock.pass_seconds(1)


async def seen(engine, user):
    result = await engine.rank("default", request(user=user))
    scores = {one.id: one.score for one in result.ranking}
    return result.arm, result.model_version, scores


def n_compiled():
    return [len(kernel.signatures) for kernel in (residual_kalman._choose_all, adagrad._choose_all)]


def member(engine, arm):
    """Return a user of an arm."""
    control = engine.settings("default")[1].control
    return next(f"new-{k}" for k in range(100) if control.has(f"new-{k}") == (arm == "control"))


@pytest.mark.parametrize("settings", [{}, ADAGRAD])
def test_a_pinned_model_decides_as_it_did_when_it_was_pinned_after_learning_restarts_and_rebuilding(tmp_path, settings):
    clock, seen_before = Clock(), {}

    async def pin():
        async with running(tmp_path, clock=clock, **settings) as engine:
            await taught(engine, clock, "a1")
            version = engine.view().version
            _, _, seen_before["before"] = await seen(engine, "nobody")
            compiled = n_compiled()
            await engine.patch_settings("default", {"control": PINNED})
            seen_before["user"] = member(engine, "control")
            seen_before["pinned"] = await seen(engine, seen_before["user"])
            assert n_compiled() == compiled  # else requests would wait for a compiler
            assert seen_before["pinned"] == ("control", version, seen_before["before"])
            await taught(engine, clock, "a2")
            assert await seen(engine, seen_before["user"]) == seen_before["pinned"]
            arm, newer, scores = await seen(engine, member(engine, "treatment"))
            assert (arm, newer > version) == ("treatment", True)
            assert scores["a2"] > seen_before["before"]["a2"]
            assert engine.digest() == engine.rebuilt()

    async def again():
        async with running(tmp_path, clock=clock) as engine:
            results = await asyncio.gather(
                *[seen(engine, seen_before["user"]) for _ in range(5)]
            )  # all wait for one reading
            assert results == [seen_before["pinned"]] * 5
            [batched] = await engine.rank_many("default", [request(user=seen_before["user"])])
            assert (batched.arm, batched.model_version) == seen_before["pinned"][:2]
            slots = [Slot(id="top", features=raw({}))]
            actions = [Action(f"a{k}", raw({"topic": f"t{k}"})) for k in range(3)]
            page = await engine.rank_slots(
                "default", SlotsRequest(user=seen_before["user"], slots=slots, actions=actions)
            )
            assert page.model_version == seen_before["pinned"][1]

    asyncio.run(pin())
    asyncio.run(again())


def test_a_model_is_pinned_once_for_each_experiment_and_unknown_ones_are_refused(tmp_path):
    async def story(engine, clock):
        await taught(engine, clock, "a1", 20)
        await engine.patch_settings("default", {"control": PINNED})
        first = engine.settings("default")[1].control
        assert [entry.position for entry in engine.logged() if entry.kind == "pin"] == [first.pinned]
        await engine.patch_settings("default", {"wait_time": 60.0})
        assert engine.settings("default")[1].control == first  # the same experiment
        await engine.patch_settings("default", {"control": {**PINNED, "experiment": "next"}})
        second = engine.settings("default")[1].control.pinned
        assert second > first.pinned
        await engine.patch_settings("default", {"control": {**PINNED, "pinned": first.pinned}})
        assert engine.settings("default")[1].control == first
        for wrong in ({**PINNED, "pinned": second + 1}, {**PINNED, "pinned": 1}, {"share": 0.1, "pinned": second}):
            assert (await refused(engine.patch_settings("default", {"control": wrong})))[0] == 422
        assert (await refused(engine.create_loop("new", {"control": PINNED})))[0] == 422
        assert [entry.kind for entry in engine.logged()].count("pin") == 2

    tell(tmp_path, story)


def test_requests_that_cannot_have_the_pinned_model_fail_and_later_ones_try_again(tmp_path):
    async def story(engine, clock):
        await taught(engine, clock, "a1", 20)
        await engine.patch_settings("default", {"control": PINNED})
        machine, look_up = engine.context, engine.context.look_up

        async def broken(function):
            raise RuntimeError("planted")

        machine.look_up = broken
        with pytest.raises(RuntimeError):
            await engine.rank("default", RankRequest(user="u", actions=[Action("a", raw({}))]))
        machine.look_up = look_up
        assert (await engine.rank("default", request(user="u"))).arm in ("control", "treatment")

    tell(tmp_path, story)

"""A loop that cannot learn from a record stands still and says so; all others learn, change and erase as before."""

import asyncio
import sqlite3

import numpy as np
import pytest
from machine import SECOND, Clock, Engine, running
from playing import logged, play, rebuilt, refused_for, request

from fedres.scoring.sealing import sealed, unsealed
from service.admin.status import MachineStatus
from service.learn import learner
from service.learn.follower import UnlearnableRecord
from service.log.checking import readable
from service.log.records import BASE, MODEL, RANK, REWARD, Record, checksum
from service.models import adagrad, residual_kalman
from service.settings import Settings


def fail_for(monkeypatch, user):
    """Plant a bug: nothing can be learned of this user."""
    for model in (residual_kalman.KalmanShared, adagrad.AdagradShared):
        monkeypatch.setattr(model, "learn", failing(model.learn, user))


def failing(learn, user):
    def fails(self, learned, *more):
        if any(event.user == user for event in learned):
            raise KeyError("planted")
        learn(self, learned, *more)

    return fails


async def rank_and_reward(engine, names, loop="default"):
    for name in names:
        await engine.rank(loop, request(f"user {name}", event_id=name))
        await engine.reward(loop, name, 1.0)


async def said(engine):
    return (await MachineStatus(engine.context, "store.db").status())["trouble"]


def steps(engine, n=3):
    for _ in range(n):
        engine.learner.step()


def position_of(folder, kind, event, loop="default"):
    [at] = [entry.position for entry in logged(folder, loop) if (entry.kind, entry.event) == (kind, event)]
    return at


async def check_that_the_other_loop_is_well(engine, tag):
    """Learn, change settings and erase in the other loop, on a machine that is ready."""
    assert "not everything is learned" in MachineStatus(engine.context, "store.db").check_ready()
    before = engine.view("other").statistics.rewarded
    await rank_and_reward(engine, [f"{tag}1", f"{tag}2"], "other")
    steps(engine)
    assert engine.view("other").statistics.rewarded == before + 2
    await engine.patch_settings("other", {"epsilon": 0.25})
    assert engine.view("other").settings.epsilon == 0.25
    await engine.erase_user("other", f"user {tag}1")
    assert not [entry for entry in engine.logged("other") if entry.user == f"user {tag}1"]


@pytest.mark.parametrize("model", ["residual-kalman", "adagrad"])
def test_a_loop_that_fails_within_a_batch_stands_still_in_front_of_the_record_and_others_go_on(
    tmp_path, monkeypatch, model
):
    async def story():
        clock = Clock()
        engine = Engine(tmp_path, clock=clock, model=model)
        await engine.create_loop("other")
        await play(engine, 30)
        engine.digest()  # a snapshot
        await rank_and_reward(engine, "ab")
        await engine.settle()
        published = engine.view().position
        fail_for(monkeypatch, "user bad")
        await rank_and_reward(engine, ["c", "bad", "d"])
        bad, reward = (position_of(tmp_path, kind, "bad") for kind in (RANK, REWARD))
        steps(engine)
        trouble = engine.learner.trouble
        assert isinstance(trouble, UnlearnableRecord)
        for text in (f"record {bad} of loop 'default' (rank, event 'bad')", "planted", f"drop default {bad} --force"):
            assert text in await said(engine)
        assert published < engine.view().position == reward - 1  # what is in front of it is learned
        live = engine.learner.digest("default")
        assert live == rebuilt(tmp_path)
        await rank_and_reward(engine, "e")  # still served and stored
        clock.pass_seconds(10_000)
        last = engine.log.heads()["default"].last
        await check_that_the_other_loop_is_well(engine, "x")
        assert engine.log.heads()["default"].last == last  # no tick that nobody would read
        engine.kill()
        for _ in range(2):  # from the snapshot, and without one
            async with running(tmp_path, clock=clock) as engine:
                steps(engine)
                assert f"record {bad} of loop 'default'" in await said(engine)
                assert (engine.view().position, engine.learner.digest("default")) == (reward - 1, live)
                assert engine.user_model("default", "user a")["user"] == "user a"
                await check_that_the_other_loop_is_well(engine, f"y{_}")
            (tmp_path / "store.db-models").unlink()
        async with running(tmp_path, clock=clock) as engine:
            steps(engine)
            engine.log.drop("default", bad)
            await engine.settle()
            assert engine.learner.halted == {}
            assert engine.view().statistics.rewarded > 20
            assert engine.digest() == rebuilt(tmp_path)

    asyncio.run(story())


def test_a_loop_that_stands_still_can_be_deleted_and_created_again(tmp_path, monkeypatch):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("other")
            fail_for(monkeypatch, "user bad")
            await rank_and_reward(engine, ["bad", "d"], "other")
            steps(engine)
            assert "of loop 'other'" in await said(engine)
            await engine.delete_loop("other")
            await engine.settle()
            assert engine.loops() == ["default"]
            await engine.create_loop("other")
            await rank_and_reward(engine, "ef", "other")
            await engine.settle()
            assert engine.view("other").statistics.rewarded == 2
            assert engine.digest("other") == rebuilt(tmp_path, "other")

    asyncio.run(story())


def test_a_loop_that_cannot_be_published_keeps_what_is_published(tmp_path, monkeypatch):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("other")
            await rank_and_reward(engine, "ab")
            await engine.settle()
            before, publish = engine.view().position, learner.publish_loop

            def fails(publisher, state, *more):
                if state.metadata.name == "default":
                    raise ValueError("planted")
                publish(publisher, state, *more)

            monkeypatch.setattr(learner, "publish_loop", fails)
            await rank_and_reward(engine, "cd")
            steps(engine)
            assert "of loop 'default'" in await said(engine)
            assert engine.view().position == before
            await check_that_the_other_loop_is_well(engine, "x")

    asyncio.run(story())


def test_an_early_outcome_of_a_name_that_is_gone_is_listed_and_does_not_count(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock, wait_time=2.0, outcomes={"click": 1.5}, formula="click") as engine:
            await engine.reward("default", "E", outcomes={"click": 1.0})
            await engine.patch_settings("default", {"outcomes": {"buy": 1.5}, "formula": "buy"})
            await engine.rank("default", request(event_id="E"))
            clock.now += 3 * SECOND
            await engine.settle()
            await engine.settle()
            assert engine.view().statistics.settled == 1
            assert engine.view().statistics.reward == 0.0
            assert [one.event_id for one in await engine.unmatched("default")] == ["E"]
            assert engine.digest() == rebuilt(tmp_path)

    asyncio.run(story())


@pytest.mark.parametrize("span", [[0, 1e-170], [0, 1e-10], [1e9 - 1e-3, 1e9]])
def test_a_range_of_rewards_that_is_a_point_to_arithmetic_is_refused(tmp_path, span):
    async def story():
        async with running(tmp_path) as engine:
            change, refusal = {"reward_range": span, "default_reward": None}, (422, "invalid_settings", "reward_range")
            assert await refused_for(engine.create_loop("other", change)) == refusal
            assert await refused_for(engine.patch_settings("default", change)) == refusal

    asyncio.run(story())


def with_range(state, low, high):
    _, body = unsealed(state, residual_kalman.SHARED_FORMAT, residual_kalman._SHARED_HEADER)
    return sealed(residual_kalman._SHARED_HEADER.pack(residual_kalman.SHARED_FORMAT, low, high), [body])


def test_a_model_of_another_range_of_rewards_is_refused(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 30)
            state = await engine.model("default")
            for low, high in [(0.0, 1e-200), (0.0, 2.0), (-1.0, 1.0), (0.0, float("nan"))]:
                refusal = await refused_for(engine.put_model("default", with_range(state, low, high)))
                assert refusal[:2] == (422, "invalid_model")
            await engine.put_model("default", state)

    asyncio.run(story())


def extreme(state):
    """Return a model whose next step cannot be finite."""
    shared = residual_kalman.from_bytes(Settings(), state)
    arrays = {name: array.copy() for name, array in shared.model.to_arrays(events=False).items()}
    arrays["covariances"][:] = 1e308
    arrays["means"][:] = -1e308
    rows = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}
    return sealed(
        residual_kalman._SHARED_HEADER.pack(residual_kalman.SHARED_FORMAT, 0.0, 1.0), [residual_kalman._pack(rows)]
    )


def test_a_model_that_would_not_be_finite_is_neither_published_nor_saved_nor_made_a_base(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await engine.create_loop("other")
            await play(engine, 40)
            [at] = engine.log.append([[Record("default", MODEL, body=extreme(await engine.model("default")))]])
            for k in range(10):
                await rank_and_reward(engine, [f"n{k}"])
                steps(engine)
            assert f"{at}" in await said(engine)
            shared = engine.context.loop("default").model.shared
            assert all(np.isfinite(array).all() for array in shared if array.dtype.kind == "f")
            with pytest.raises(Exception, match="learner has published"):
                await engine.erase_user("default", "user-1")
            assert not [entry for entry in logged(tmp_path) if entry.kind == BASE]
            await check_that_the_other_loop_is_well(engine, "x")
        async with running(tmp_path, clock=clock) as engine:
            steps(engine)
            assert f"{at}" in await said(engine)
            engine.log.drop("default", at)
            await engine.settle()
            assert not [entry for entry in logged(tmp_path) if entry.user == "user-1" and entry.kind != BASE]
            assert engine.digest() == rebuilt(tmp_path)

    asyncio.run(story())


def replace_body(folder, position, body, loop="default"):
    """Put another body into a record, with a checksum that is right."""
    [entry] = [entry for entry in logged(folder, loop) if entry.position == position]
    with sqlite3.connect(folder / "store.db") as db:
        values = (readable(body), checksum(entry._replace(body=body)), loop, position)
        assert db.execute("UPDATE log SET body = ?, checksum = ? WHERE loop = ? AND position = ?", values).rowcount
    db.close()


@pytest.mark.parametrize("whose", ["shared", "personal"])
def test_a_loop_with_an_unreadable_base_is_named_and_goes_on_once_that_is_dropped(tmp_path, whose):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("other")
            await play(engine, 40)
            await engine.erase_user("default", "user-1")
        bases = [entry for entry in logged(tmp_path) if entry.kind == BASE]
        [bad, *_] = [entry.position for entry in bases if (entry.user is None) == (whose == "shared")]
        replace_body(tmp_path, bad, b"\x81\xa1x\xc0")
        (tmp_path / "store.db-models").unlink()
        async with running(tmp_path) as engine:
            steps(engine)
            assert engine.loops() == ["other"]
            assert f"record {bad} of loop 'default' (base)" in await said(engine)
            await check_that_the_other_loop_is_well(engine, "x")
            engine.log.drop("default", bad)
            await rank_and_reward(engine, "ab", "other")
            await engine.settle()
            assert engine.loops() == ["default", "other"]
            await rank_and_reward(engine, "ab")
            assert engine.digest() == rebuilt(tmp_path)

    asyncio.run(story())


def test_an_example_that_no_learner_can_read_stops_its_loop_only(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("other")
            await rank_and_reward(engine, "ab")
            await engine.settle()
            [good] = [entry for entry in engine.logged() if (entry.kind, entry.event) == (RANK, "a")]
            huge = good.example[:17] + (2**32 - 1).to_bytes(4, "little") + good.example[21:]
            for event, example in (("one byte", b"x"), ("huge", huge), ("none", None)):
                [at] = engine.log.append([[Record("default", RANK, event, "u", example, good.body)]])
                steps(engine)
                assert f"record {at} of loop 'default' (rank, event {event!r})" in await said(engine)
                await check_that_the_other_loop_is_well(engine, event)
                engine.log.drop("default", at)
            await rank_and_reward(engine, "c")
            await engine.settle()
            assert engine.view().statistics.rewarded == 3

    asyncio.run(story())

"""Loops with adagrad refuse numbers on which its steps diverge; loops of earlier versions have no bound."""

import asyncio

import msgspec
from machine import running
from playing import raw, refused_for

from service.log.records import encode
from service.plugins.recommend.feedback import Feedback, FeedbackEvent
from service.rank.requests import Action, RankRequest
from service.settings import LARGEST_NUMBER, Settings

ADAGRAD = {"model": "adagrad"}


def with_age(age, **features):
    actions = [Action("tea", raw(features)), Action("juice")]
    return RankRequest(user="u", context=raw({"hour": 23, "age": age}), actions=actions)


def test_what_reaches_the_model_has_numbers_within_the_bound(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("paper", ADAGRAD)
            assert engine.settings("paper")[1].largest_number == LARGEST_NUMBER
            refusal = await refused_for(engine.rank("paper", with_age(61)))
            assert refusal == (422, "invalid_features", "context")
            refusal = await refused_for(engine.rank("paper", with_age(30, price=31)))
            assert refusal == (422, "invalid_features", "actions[0]")
            assert (await engine.rank("paper", with_age(30, price=30))).action_id in ("tea", "juice")
            # An array is hashed by another path than plain objects.
            refusal = await refused_for(engine.rank("paper", with_age(3, sizes=[1, -99])))
            assert refusal == (422, "invalid_features", "actions[0]")
            refusal = await refused_for(engine.put_actions("paper", [Action("tea", raw({"price": 99}))]))
            assert refusal == (422, "invalid_features", "put[0]")
            # The other model scales numbers itself.
            assert (await engine.rank("default", with_age(61_000, price=1e9))).action_id in ("tea", "juice")

    asyncio.run(story())


def test_feedback_has_the_same_bound(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("paper", ADAGRAD)
            event = FeedbackEvent(action="tea", reward=1.0, context=raw({"age": 61}))
            refusal = await refused_for(Feedback(engine.context).store("paper", [event]))
            assert refusal[:2] == (422, "invalid_features")

    asyncio.run(story())


def test_a_loop_can_have_another_bound(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("wide", {**ADAGRAD, "largest_number": 1000})
            assert (await engine.rank("wide", with_age(61))).action_id in ("tea", "juice")
            await engine.patch_settings("wide", {"largest_number": 50})
            refusal = await refused_for(engine.rank("wide", with_age(61)))
            assert refusal == (422, "invalid_features", "context")
            refusal = await refused_for(engine.patch_settings("default", {"largest_number": 50}))
            assert refusal[:2] == (422, "invalid_settings")

    asyncio.run(story())


def test_a_record_without_a_bound_is_one_of_an_earlier_version():
    written = msgspec.json.decode(encode(Settings(model="adagrad")))
    del written["largest_number"]
    earlier = msgspec.convert(written, Settings)
    assert earlier.largest_number > 1e14

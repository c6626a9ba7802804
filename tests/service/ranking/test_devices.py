"""Devices that upload residuals: what these change, and what is refused."""

import asyncio
import copy
import json

import msgspec
import numpy as np
import pytest
from device_uploads import BITS, DIM, hosted, residual, some_residuals
from machine import running
from playing import gauges, head_of, logged, raw, rebuilt, refused_for, relearned, weights

from fedres.scoring.features import Preparer
from fedres.scoring.model import SharedModel, expand
from service.errors import ApiError
from service.plugins.devices import devices
from service.plugins.devices.uploads import Residual, Update
from service.rank.requests import Action, RankRequest


def test_residuals_are_stored_answered_with_their_positions_and_learned(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            up = await engine.residuals("default", "phone", [residual(1), residual(2, local=-1.0, label=0.0)])
            assert (up.positions, up.version) == ([2, 3], 1)
            assert [(entry.kind, entry.user) for entry in logged(tmp_path)[1:]] == [("residual", "phone")] * 2
            await engine.settle()
            assert engine.view("default").version == 3
            example = expand(Preparer().prepare(b'{"cold": true}', [("tea", b'{"hot": 1}')]), 0)
            model = SharedModel()
            model.learn(example, 1.0, 0.25)
            model.learn(example, 0.0, -1.0)
            assert np.array_equal(weights(engine), model.weights)
            version, [score] = await engine.global_scores(
                "default", b'{"cold": true}', [Action("tea", msgspec.Raw(b'{"hot": 1}'))]
            )
            assert (version, score) == (3, pytest.approx(model.score(example)))

    asyncio.run(story())


def test_aligned_errors_are_those_of_the_joint_prediction_that_was_made(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            await engine.put_settings("default", {"timing": "aligned", "reward_range": [0, 2]})
            assert await refused_for(engine.residuals("default", "phone", [residual()])) == (
                *(422, "invalid"), "residuals[0].global"
            )  # fmt: skip
            sent = [residual(1, global_=0.0, label=2.0), residual(2, global_=9.0), residual(3, global_=0.5)]
            await engine.residuals("default", "phone", sent)
            await engine.settle()
            model = SharedModel()
            example = expand(Preparer().prepare(b'{"cold": true}', [("tea", b'{"hot": 1}')]), 0)
            for label, prediction in ((2.0, 0.25), (1.0, 2.0), (1.0, 0.75)):  # the second is clamped to the range seen
                model.correct(example, label, prediction)
            assert np.array_equal(weights(engine), model.weights)

    asyncio.run(story())


def test_an_error_at_the_newest_model_is_the_same_step_either_way():
    rng, learned, corrected = np.random.default_rng(0), SharedModel(4), SharedModel(4)
    for _ in range(30):
        keys = rng.integers(2**32, size=5, dtype=np.uint32)
        example = keys, rng.integers(1, 5, size=5).astype(np.float32)
        label, local = float(rng.integers(3)), float(np.float32(rng.normal()))
        corrected.correct(example, label, local + corrected.score(example))
        learned.learn(example, label, local)
    assert corrected.reward_range == learned.reward_range == (0.0, 2.0)
    np.testing.assert_allclose(corrected.weights, learned.weights, atol=1e-5)
    assert np.abs(learned.weights).max() > 0.01


def test_a_repeat_is_answered_with_the_position_of_the_first_and_changes_nothing(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            first = await engine.residuals("default", "phone", [residual(1), residual(2), residual(1, local=0.5)])
            assert first.positions == [2, 3, 2]
            before = engine.digest("default")
            again = await engine.residuals("default", "phone", [residual(2, local=0.9), residual(1), residual(3)])
            assert again.positions == [3, 2, 4]
            await engine.residuals("default", "tablet", [residual(1)])
            assert engine.digest("default") != before
            assert len(logged(tmp_path)) == 5
            await engine.settle()
            sums = engine.view("default").statistics
            assert (sums.uploads + sums.passed_over, sums.settled) == (4, 0)
            assert (await gauges(engine))["learned_uploads"] == sums.learned == sums.uploads

    asyncio.run(story())


@pytest.mark.parametrize(
    ("wrong", "status", "code", "target"),
    [
        ({"seq": 0}, 422, "invalid", ".seq"),
        ({"seq": 2**53 + 1}, 422, "invalid", ".seq"),
        ({"version": 0}, 409, "unknown_version", ".version"),
        ({"version": 99}, 409, "unknown_version", ".version"),
        ({"label": 1.5}, 422, "invalid", ".label"),
        ({"label": float("nan")}, 422, "invalid", ".label"),
        ({"local": float("inf")}, 422, "invalid", ".local"),
        ({"local": float("nan")}, 422, "invalid", ".local"),
        ({"local": -1e10}, 422, "invalid", ".local"),
        ({"context": msgspec.Raw(b'{"x": 1e300}')}, 422, "invalid_features", ".context"),
        ({"context": msgspec.Raw(b"[1]")}, 422, "invalid_features", ".context"),
        ({"action": Action("", raw({}))}, 422, "invalid", ".action.id"),
        ({"action": Action("a", raw({"": 1}))}, 422, "invalid_features", ".action.features"),
        ({"context": raw({f"f{k}": 1 for k in range(900)}),
          "action": Action("a", raw({f"f{k}": 1 for k in range(900)}))}, 422, "invalid_features", ""),
    ],
)  # fmt: skip
def test_one_bad_residual_refuses_the_batch_and_is_named(tmp_path, wrong, status, code, target):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            bad = msgspec.structs.replace(residual(2), **wrong)
            answer = await refused_for(engine.residuals("default", "phone", [residual(1), bad]))
            assert answer == (status, code, f"residuals[1]{target}")
            assert len(logged(tmp_path)) == 1

    asyncio.run(story())


def test_clients_and_loops_that_cannot_be_are_refused(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            await engine.create_loop("dense", {"model": "adagrad", "global_learner": "fedogd", "bits": BITS})
            update = Update(1, 1, 1, "gradient", bytes(4 * DIM))
            assert await refused_for(engine.residuals("default", "", [])) == (422, "invalid", "client")
            assert await refused_for(engine.residuals("none", "phone", [])) == (404, "unknown_loop", "loop")
            assert await refused_for(engine.residuals("dense", "phone", [residual()])) == (
                409,
                "wrong_upload",
                "residuals",
            )
            assert await refused_for(engine.updates("default", "phone", [update])) == (409, "wrong_upload", "updates")
            assert await refused_for(engine.updates("default", "phone", [])) == (409, "wrong_upload", "updates")
            assert await refused_for(engine.updates("dense", "phone", [update])) == (409, "not_joined", "client")

    asyncio.run(story())


def test_a_batch_is_checked_by_the_rules_that_are_in_force_when_it_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "LONGEST_HOLD", 0.0)  # others get their turn after each upload

    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            upload = asyncio.ensure_future(engine.residuals("default", "phone", [residual(k) for k in range(1, 30)]))
            await asyncio.sleep(0)
            assert not upload.done()
            changed = await engine.put_settings("default", {"reward_range": (0.0, 0.5)})
            assert await refused_for(upload) == (422, "invalid", "residuals[0].label")
            assert [entry.position for entry in logged(tmp_path)] == [1, changed]

    asyncio.run(story())


def test_a_flood_is_refused_before_it_reaches_the_store_and_others_are_served(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            batches = [[residual(500 * k + j + 1) for j in range(500)] for k in range(4)]
            flood = [engine.residuals("default", "phone", batch) for batch in batches]
            answers = await asyncio.gather(
                *flood, engine.residuals("default", "tablet", [residual()]), return_exceptions=True
            )
            assert [getattr(answer, "code", "stored") for answer in answers] == [
                *("stored", "stored", "too_many_uploads", "too_many_uploads", "stored")
            ]
            assert answers[2].status == 429
            assert len((await engine.residuals("default", "phone", batches[2])).positions) == 500
            assert len(logged(tmp_path)) == 1 + 3 * 500 + 1
            everybody = [engine.residuals("default", f"phone-{k}", batches[0]) for k in range(11)]
            answers = await asyncio.gather(*everybody, return_exceptions=True)
            assert sum(isinstance(answer, ApiError) for answer in answers) == 1

    asyncio.run(story())


def test_features_that_are_left_out_are_the_catalogues(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            await engine.put_actions("default", [Action("tea", raw({"hot": 1}))])
            bare = Residual(1, 1, raw({"cold": True}), Action("tea"), 0.25, 1.0)
            await engine.residuals("default", "phone", [bare])
            assert json.loads(logged(tmp_path)[-1].body)["action"] == {"id": "tea", "features": {"hot": 1}}
            version, _ = await engine.global_scores("default", b"", [Action("tea")])
            assert version >= 1

    asyncio.run(story())


def erased_records(engine):
    """Return how many records the last erasure took, its own among them."""
    [*_, erased] = [entry for entry in engine.logged() if entry.kind == "erased"]
    return json.loads(erased.body)["records"]


async def mixed_story(engine, seed=0):
    """Let two devices and hosted users share a loop, under settings that change."""
    rng, first = np.random.default_rng(seed), 10_000 * seed + 1
    for timing in ({}, {"timing": "aligned"}, {"crosses": False}):
        await engine.put_settings("default", timing)
        more = {"global_": 0.5} if timing.get("timing") else {}
        for k, client in enumerate(("phone", "tablet", "phone")):
            sent = some_residuals(rng, engine.view("default").version, 20, first + 20 * k, **more)
            await engine.residuals("default", client, sent)
            await hosted(engine, "default", rng, 4)
        first += 60
    await engine.settle()


def test_the_model_of_devices_and_hosted_users_is_the_same_live_rebuilt_and_after_restarts(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            await mixed_story(engine)
            assert engine.digest("default") == rebuilt(tmp_path)
            guard = copy.deepcopy(head_of(engine).guard)
            guard.forget("phone")
            assert guard != head_of(engine).guard
            await engine.erase_user("default", "phone")
            assert erased_records(engine) == 121
            assert head_of(engine).guard == guard
            await mixed_story(engine, seed=1)
            live, statistics, head = engine.digest("default"), engine.view("default").statistics, head_of(engine)
            assert (statistics.uploads + statistics.passed_over, statistics.settled) == (360, 72)
        assert rebuilt(tmp_path) == live
        with relearned(tmp_path) as learner:
            assert learner.loops["default"].metadata == head
        for remove in (False, True):
            if remove:
                (tmp_path / "store.db-models").unlink()
            async with running(tmp_path, model="adagrad") as engine:
                assert engine.digest("default") == live
                assert head_of(engine) == head

    asyncio.run(story())


def test_uploads_are_no_events_even_where_ids_are_the_same(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            request = RankRequest(user="ann", actions=[Action("tea", raw({}))], event_id="1/phone/1")
            await engine.rank("default", request)
            await engine.residuals("default", "phone", [residual(1), residual(2)])
            await engine.reward("default", "1/phone/1", 1.0)
            await engine.settle()
            [event] = await engine.events("default")
            assert (event["event_id"], event["status"], event["reward"]) == ("1/phone/1", "rewarded", 1.0)
            await engine.erase_user("default", "phone")
            assert erased_records(engine) == 3
            assert list(await engine.events("default")) == [event]
            assert [entry.kind for entry in logged(tmp_path) if entry.user == "phone"] == []

    asyncio.run(story())

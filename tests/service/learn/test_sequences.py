"""Random sequences of what happens to a loop, on a machine that restarts and on one that never does."""

import asyncio
import sqlite3
import tempfile
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import Clock, Engine, running
from playing import head_of, raw, refused_for

from fedres import key_tables
from fedres.decisions.kalman_state import FIELDS
from service.learn.snapshots import _checksum
from service.log.records import EraseBody, Record, encode
from service.models.residual_kalman import from_bytes
from service.plugins.recommend.recommender import Recommender, RecommendRequest
from service.rank.requests import Action, RankRequest
from service.settings import Settings

MODELS = {"residual-kalman": {}, "adagrad": {"model": "adagrad", "bits": 10}}
RESTARTS = ["restart", "kill", "without a snapshot"]
STEPS = st.lists(
    st.sampled_from(["play", "play", "play", *RESTARTS, "import", "erase", "prune", "settings", "publish"]),
    min_size=2,
    max_size=9,
)


async def play(engine, clock, first, n=12):
    """Rank, reward, defer and forget to reward; fields, features and users are new ones again and again."""
    rng = np.random.default_rng(first)
    for number in range(first, first + n):
        context = {f"c{rng.integers(2 + number // 8)}": float(rng.normal()), "hour": int(rng.integers(4))}
        fields = {f"f{rng.integers(1 + number // 9)}": f"v{rng.integers(3)}", f"n{number // 20}": 1.0 + number % 3}
        actions = [Action(f"a{number // 6 + k}", raw(fields)) for k in range(3)]
        user = f"user-{rng.integers(2 + number // 15)}"
        is_deferred = number % 9 == 4
        named = {"user": user, "event_id": f"e{number}", "defer": is_deferred}
        await engine.rank("default", RankRequest(context=raw(context), actions=actions, **named))
        if is_deferred and rng.random() < 0.6:
            await engine.activate("default", f"e{number}")
        if rng.random() < 0.8:
            await engine.reward("default", f"e{number}", float(rng.random() < 0.5))
        if rng.random() < 0.2:
            await engine.reward("default", f"e{rng.integers(number + 1)}", 1.0)
        clock.pass_seconds(7)
    await engine.settle()


async def prune(engine, number):
    before = engine.log.now() - 60 * 10**6
    body = encode(EraseBody(f"token {number}", before))
    engine.log.append([[Record("default", "erase", body=body)]])
    for _ in range(200):
        engine.learner.step()
        old = head_of(engine).pruned
        if old.done and engine.log.note("pruned default") == str(old.begun) and not head_of(engine).to_prune:
            return
    raise AssertionError("the pruning does not end")


async def take_step(engine, clock, step, number):
    """Let one of the things happen that change the log."""
    if step == "play":
        await play(engine, clock, 12 * number)
    elif step == "import":
        await engine.put_model("default", await engine.model("default"))
    elif step == "erase":
        await engine.erase_user("default", f"user-{number % 3}")
    elif step == "prune":
        await prune(engine, number)
    elif step == "settings":
        changes = [{"aggregation": "sum"}, {"aggregation": "earliest"}, {"wait_time": 40.0 + number}]
        await engine.patch_settings("default", changes[number % 3])
    elif step == "publish":
        await engine.settle()


async def restarted(engine, folder, clock, step):
    await engine.close() if step == "restart" else engine.kill()
    if step == "without a snapshot":
        for name in ("store.db-models", "store.db-models-wal", "store.db-models-shm"):
            (folder / name).unlink(missing_ok=True)
    return Engine(folder, clock=clock)


async def story(folder, model, steps):
    how = {"wait_time": 50.0, "default_reward": 0.0, **MODELS[model]}
    clocks: list[Clock] = []
    engines: list[Engine] = []
    for name in ("straight", "restarted"):
        (folder / name).mkdir()
        clocks.append(Clock())
        engines.append(Engine(folder / name, clock=clocks[-1], **how))
    try:
        for number, step in enumerate(["play", "play", *steps, "restart", "play"]):
            if step in RESTARTS:
                engines[1] = await restarted(engines[1], folder / "restarted", clocks[1], step)
                continue
            for engine, clock in zip(engines, clocks, strict=True):
                await take_step(engine, clock, step, number)
        assert engines[1].digest() == engines[0].digest()
        assert engines[1].rebuilt() == engines[0].digest()
        assert [engine.learner.halted for engine in engines] == [{}, {}]
    finally:
        for engine in engines:
            await engine.close()


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=8, deadline=None)
@given(steps=STEPS)
def test_a_loop_that_restarts_again_and_again_learns_as_one_that_never_does(model, steps):
    with tempfile.TemporaryDirectory(prefix="fedres-test-", dir="/dev/shm") as folder:
        asyncio.run(story(Path(folder), model, steps))


def kalman(engine):
    return engine.learner.loops["default"].shared.model


def test_new_fields_after_an_import_leave_a_model_that_can_be_pruned_exported_and_imported(tmp_path):
    async def told():
        clock = Clock()
        async with running(tmp_path, clock=clock, wait_time=50.0) as engine:
            await play(engine, clock, 0, 24)
            await engine.put_model("default", await engine.model("default"))
            n_fields = int(kalman(engine).shared.counts[FIELDS])
            await play(engine, clock, 60, 24)
            assert kalman(engine).shared.counts[FIELDS] > n_fields
            await prune(engine, 0)
            await engine.put_model("default", await engine.model("default"))
            await engine.patch_settings("default", {"aggregation": "sum"})
            assert engine.learner.halted == {}
            assert engine.digest() == engine.rebuilt()

    asyncio.run(told())


def test_a_snapshot_of_another_version_of_the_model_is_learned_from_the_log_again(tmp_path):
    async def told():
        clock = Clock()
        async with running(tmp_path, clock=clock, wait_time=50.0) as engine:
            await play(engine, clock, 0, 24)
            live = engine.digest()
            sealed = b"FRK9" + engine.learner.loops["default"].shared.to_bytes()[4:-4]
        state = sealed + zlib.crc32(sealed).to_bytes(4, "little")
        with pytest.raises(ValueError, match="got b'FRK9'; learn it from the log again"):
            from_bytes(Settings(), state)
        replace_snapshot(tmp_path, state)
        async with running(tmp_path, clock=clock) as engine:
            assert engine.learner.rebuilt == 1
            assert engine.digest() == live
            assert (await refused_for(engine.put_model("default", state)))[1] == "invalid_model"

    asyncio.run(told())


def replace_snapshot(folder, state):
    with sqlite3.connect(folder / "store.db-models") as db:
        row = "default", _checksum("shared default", state), state
        assert db.execute("REPLACE INTO shared VALUES (?, ?, ?)", row).rowcount == 1
    db.close()


@pytest.mark.parametrize("pruned", [False, True])
def test_a_snapshot_with_an_array_that_is_too_short_is_learned_from_the_log_again(tmp_path, pruned):
    """As restarted services once wrote it: the loop stood still, and every change got 503."""

    async def told():
        clock = Clock()
        async with running(tmp_path, clock=clock, wait_time=50.0) as engine:
            await play(engine, clock, 0, 24)
            if pruned:
                await prune(engine, 0)
                await play(engine, clock, 24, 24)
            live = engine.digest()
            model = kalman(engine)
            model.shared = model.shared._replace(field_keys=model.shared.field_keys[:2])
            state = engine.learner.loops["default"].shared.to_bytes()
        with pytest.raises(ValueError, match="field_keys must have the shape"):
            from_bytes(Settings(), state)
        replace_snapshot(tmp_path, state)
        async with running(tmp_path, clock=clock) as engine:
            assert engine.learner.rebuilt == 1
            assert engine.digest() == live
            assert (await refused_for(engine.put_model("default", state)))[1] == "invalid_model"
            await engine.patch_settings("default", {"aggregation": "sum"})
            await prune(engine, 1)
            assert engine.learner.halted == {}
            assert engine.digest() == engine.rebuilt()

    asyncio.run(told())


@pytest.mark.parametrize("model", MODELS)
def test_other_secrets_of_hash_tables_change_no_decision_snapshot_tag_or_document(tmp_path, monkeypatch, model):
    async def told(folder):
        clock = Clock()
        async with running(folder, clock=clock, wait_time=50.0, **MODELS[model]) as engine:
            await play(engine, clock, 0, 48)
            await engine.put_actions("default", [Action(f"c{k}", raw({"f0": f"v{k}"})) for k in range(5)])
            recommender = Recommender(engine.context, engine.parts[0])
            page = await recommender.recommend("default", RecommendRequest(user="user-1", event_id="page", n=3))
            digest, document = engine.digest(), await engine.federated_model("default")
            tag, shown = await engine.model_tag("default"), msgspec.json.encode(page)
            return digest, document, tag, shown, await engine.events()

    results = []
    for number, secret in enumerate((5, 2**40 + 1)):
        words = np.array([secret & 0xFFFFFFFF, secret >> 32], np.uint32)
        monkeypatch.setattr(key_tables, "new_secret", words.copy)
        (tmp_path / str(number)).mkdir()
        results.append(asyncio.run(told(tmp_path / str(number))))
    assert results[0] == results[1]

"""Devices in process: what their uploads change, what is refused, and which model they get."""

import asyncio
import contextlib
import json
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load

from fedres.scoring.features import Preparer
from fedres.scoring.federated import FederatedModel
from fedres.scoring.model import SharedModel, expand
from service.engine import Action, Engine, RankRequest, devices
from service.engine.federated import Residual, Update
from service.engine.heads import forgetting
from service.engine.history import followed
from service.engine.learner import digest_of, replay
from service.errors import ApiError
from service.store import Log, sqlite_file

UNGUARDED = {"max_norm": None, "client_share": None, "client_pull": None}
BITS = 6
DIM = 2**BITS + 1
DENSE = {
    "fedres-sgd": {"step_size": 0.05},
    "fedogd": {"n_clients": 3, "step_size": 0.1},
    "ofedavg": {"n_clients": 3, "participation": 0.6},
    "ofediq": {"n_clients": 3, "levels": 4, "blocks": 2, "period": 2},
    "fedomd": {"n_clients": 3, "sync": 2},
    "fedsea": {"n_clients": 3, "period": 3},
    "dynamic-fedavg": {"n_clients": 3, "period": 2, "participants": 2},
}


@contextlib.asynccontextmanager
async def running(folder, **options):
    engine = Engine.open(folder / "store.db", **{"snapshot_seconds": 3_600, **options})
    try:
        yield engine
    finally:
        await engine.close()


def logged(folder):
    with Log(sqlite_file(folder / "store.db")) as log:
        return log.read(0, 10**6)


def rebuilt(folder, loop="default"):
    """Return the loop as it is learned anew from the log."""
    return replay(logged(folder)).loops[loop]


def raw(tree):
    return msgspec.Raw(json.dumps(tree).encode())


def residual(seq=1, version=1, local=0.25, label=1.0, context=None, action="tea", **more):
    return Residual(seq, version, raw(context or {"cold": True}), Action(action, raw({"hot": 1})), local, label, **more)


def some_residuals(rng, version, n, first, **more):
    contexts = [{"hour": int(rng.integers(24)), "mood": f"m{rng.integers(3)}"} for _ in range(n)]
    numbers = rng.random((n, 2)).tolist()
    return [
        residual(first + k, version, *numbers[k], context=contexts[k], action=f"a{rng.integers(3)}", **more)
        for k in range(n)
    ]


async def hosted(engine, loop, rng, n):
    """Rank and reward for users whose models are hosted."""
    for _ in range(n):
        actions = [Action(f"a{k}", raw({"hot": k})) for k in range(3)]
        request = RankRequest(user=f"u{rng.integers(3)}", context=raw({"hour": int(rng.integers(24))}), actions=actions)
        answer = await engine.rank(loop, request)
        await engine.reward(loop, answer.event_id, float(rng.random()))


async def refused(awaitable):
    with pytest.raises(ApiError) as raised:
        await awaitable
    return raised.value.status, raised.value.code, raised.value.target


def weights_of(model):
    return load(model)["weights"]


def facts(folder, model):
    """Return the metadata of a model."""
    (folder / "model").write_bytes(model)
    with safe_open(folder / "model", "numpy") as file:
        return file.metadata()


def test_residuals_are_stored_answered_with_their_positions_and_learned(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            up = await engine.residuals("default", "phone", [residual(1), residual(2, local=-1.0, label=0.0)])
            assert (up.positions, up.version, up.number) == ([2, 3], 1, None)
            assert [(entry.kind, entry.user) for entry in logged(tmp_path)[1:]] == [("residual", "phone")] * 2
            await engine.settle()
            assert engine.view("default").version == 3
            example = expand(Preparer().prepare(b'{"cold": true}', [("tea", b'{"hot": 1}')]), 0)
            model = SharedModel()
            model.learn(example, 1.0, 0.25)
            model.learn(example, 0.0, -1.0)
            assert np.array_equal(engine.view("default").weights, model.weights)
            version, [score] = engine.global_scores(
                "default", b'{"cold": true}', [Action("tea", msgspec.Raw(b'{"hot": 1}'))]
            )
            assert (version, score) == (3, pytest.approx(model.score(example)))

    asyncio.run(story())


def test_aligned_errors_are_those_of_the_joint_prediction_that_was_made(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", {"timing": "aligned", "reward_range": [0, 2]})
            assert await refused(engine.residuals("default", "phone", [residual()])) == (
                *(422, "invalid"), "residuals[0].global"
            )  # fmt: skip
            sent = [residual(1, global_=0.0, label=2.0), residual(2, global_=9.0), residual(3, global_=0.5)]
            await engine.residuals("default", "phone", sent)
            await engine.settle()
            model = SharedModel()
            example = expand(Preparer().prepare(b'{"cold": true}', [("tea", b'{"hot": 1}')]), 0)
            for label, prediction in ((2.0, 0.25), (1.0, 2.0), (1.0, 0.75)):  # the second is clamped to the range seen
                model.correct(example, label, prediction)
            assert np.array_equal(engine.view("default").weights, model.weights)

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
        async with running(tmp_path) as engine:
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
            assert engine.gauges("default")["learned_uploads"] == sums.learned == sums.uploads

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
        ({"action": Action("a")}, 422, "invalid", ".action.features"),
        ({"context": raw({f"f{k}": 1 for k in range(900)}),
          "action": Action("a", raw({f"f{k}": 1 for k in range(900)}))}, 422, "invalid_features", ""),
    ],
)  # fmt: skip
def test_one_bad_residual_refuses_the_batch_and_is_named(tmp_path, wrong, status, code, target):
    async def story():
        async with running(tmp_path) as engine:
            bad = msgspec.structs.replace(residual(2), **wrong)
            answer = await refused(engine.residuals("default", "phone", [residual(1), bad]))
            assert answer == (status, code, f"residuals[1]{target}")
            assert len(logged(tmp_path)) == 1

    asyncio.run(story())


def test_clients_and_loops_that_cannot_be_are_refused(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("dense", {"global_learner": "fedogd", "bits": BITS})
            update = Update(1, 1, 1, "gradient", bytes(4 * DIM))
            assert await refused(engine.residuals("default", "", [])) == (422, "invalid", "client")
            assert await refused(engine.residuals("none", "phone", [])) == (404, "unknown_loop", "loop")
            assert await refused(engine.residuals("dense", "phone", [residual()])) == (409, "wrong_upload", "residuals")
            assert await refused(engine.updates("default", "phone", [update])) == (409, "wrong_upload", "updates")
            assert await refused(engine.updates("default", "phone", [])) == (409, "wrong_upload", "updates")
            assert await refused(engine.updates("dense", "phone", [update])) == (409, "not_joined", "client")

    asyncio.run(story())


def test_a_batch_is_checked_by_the_rules_that_are_in_force_when_it_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "LONGEST_HOLD", 0.0)  # others get their turn after each upload

    async def story():
        async with running(tmp_path) as engine:
            upload = asyncio.ensure_future(engine.residuals("default", "phone", [residual(k) for k in range(1, 30)]))
            await asyncio.sleep(0)
            assert not upload.done()
            changed = await engine.put_settings("default", {"reward_range": (0.0, 0.5)})
            assert await refused(upload) == (422, "invalid", "residuals[0].label")
            assert [entry.seq for entry in logged(tmp_path)] == [1, changed]

    asyncio.run(story())


def test_a_flood_is_refused_before_it_reaches_the_store_and_others_are_served(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
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
        async with running(tmp_path) as engine:
            await engine.put_actions("default", [Action("tea", raw({"hot": 1}))])
            bare = Residual(1, 1, raw({"cold": True}), Action("tea"), 0.25, 1.0)
            await engine.residuals("default", "phone", [bare])
            assert json.loads(logged(tmp_path)[-1].body)["action"] == {"id": "tea", "features": {"hot": 1}}
            assert engine.global_scores("default", b"", [Action("tea")])[0] >= 1

    asyncio.run(story())


def head_of(engine, loop="default"):
    """Return what the loop is apart from its models and events, after all that is logged."""
    return engine._learner_says(lambda: engine._learning.learner.loops[loop].head)


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
        async with running(tmp_path) as engine:
            await mixed_story(engine)
            assert engine.digest("default") == digest_of(rebuilt(tmp_path))
            guard = forgetting(head_of(engine).guard, "phone")
            assert guard != head_of(engine).guard
            assert await engine.erase_user("default", "phone") == 120
            assert head_of(engine).guard == guard
            await mixed_story(engine, seed=1)
            live, statistics, head = engine.digest("default"), engine.view("default").statistics, head_of(engine)
            assert (statistics.uploads + statistics.passed_over, statistics.settled) == (360, 72)
        assert digest_of(rebuilt(tmp_path)) == live
        assert rebuilt(tmp_path).head == head
        for remove in (False, True):
            if remove:
                (tmp_path / "store.db-models").unlink()
            async with running(tmp_path) as engine:
                assert engine.digest("default") == live
                assert head_of(engine) == head

    asyncio.run(story())


def body_of(name, rng):
    if name == "ofediq":
        learner = FederatedModel(name, BITS, DENSE[name])
        return "quantised gradient", learner.wire.quantizer.encode(rng.normal(size=DIM), rng)
    kind = "gradient" if name in ("fedogd", "ofedavg") else "delta"
    return kind, rng.normal(size=DIM).astype("<f4").tobytes()


async def upload(engine, name, client, rng, first, n=12):
    """Upload what the client may after its rounds; return how much that was."""
    if name == "fedres-sgd":
        await engine.residuals("dense", client, some_residuals(rng, engine.view("dense").version, n, first))
        return n
    number = (await engine.updates("dense", client, [])).number
    rounds = [t for t in range(1, n + 1) if number in engine.round("dense", None, t)["senders"]]
    version = engine.view("dense").version
    sent = [Update(first + t, t, version, *body_of(name, rng)) for t in rounds]
    assert len((await engine.updates("dense", client, sent)).positions) == len(sent)
    return len(sent)


@pytest.mark.parametrize("combine", ["mean", "median", "trimmed-mean"])
def test_updates_are_combined_as_the_defences_say(tmp_path, combine):
    async def story():
        async with running(tmp_path) as engine:
            numbers = {"n_clients": 6, "step_size": 1.0}
            made = {"global_learner": "fedogd", "bits": BITS, "hyperparameters": numbers}
            await engine.create_loop("dense", made | {"defences": {**UNGUARDED, "combine": combine}})
            for k in range(6):
                await engine.updates("dense", f"phone-{k}", [])
            for k, value in enumerate((1.0, 2.0, 300.0)):  # half of six clients
                assert combine == "mean" or not engine.view("dense").weights.any()
                body = np.full(DIM, value, "<f4").tobytes()
                await engine.updates(
                    "dense", f"phone-{k}", [Update(1, 1, engine.view("dense").version, "gradient", body)]
                )
                await engine.settle()
            step = {"mean": 303 / 6, "median": 3 * 2 / 6, "trimmed-mean": 303 / 6}[combine]  # of 3 none are trimmed
            assert engine.view("dense").weights == pytest.approx(-step)
            live = engine.digest("dense")
        assert digest_of(rebuilt(tmp_path, "dense")) == live

    asyncio.run(story())


def test_what_an_erased_client_has_waiting_for_others_is_gone_too(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            hyperparameters, defences = {"n_clients": 6, "step_size": 1.0}, {**UNGUARDED, "combine": "median"}
            made = {"global_learner": "fedogd", "bits": BITS, "hyperparameters": hyperparameters, "defences": defences}
            await engine.create_loop("dense", made)
            for client in ("a", "b", "c", "d"):  # half of them make a pool
                await engine.updates("dense", client, [])
            for client, value in (("a", 100.0), ("b", 1.0), ("c", 2.0)):
                body = np.full(DIM, value, "<f4").tobytes()
                if client == "b":
                    await engine.erase_user("dense", "a")
                await engine.updates("dense", client, [Update(1, 1, engine.view("dense").version, "gradient", body)])
                await engine.settle()
            assert engine.view("dense").weights == pytest.approx(-2 * 1.5 / 6)
            live = engine.digest("dense")
        assert digest_of(rebuilt(tmp_path, "dense")) == live

    asyncio.run(story())


def test_an_erasure_right_before_a_restart_leaves_nothing_waiting_in_the_files(tmp_path):
    async def story():
        secret = np.full(DIM, 100.0, "<f4")
        async with running(tmp_path) as engine:
            made = {"global_learner": "fedogd", "bits": BITS, "hyperparameters": {"n_clients": 6}}
            await engine.create_loop("dense", {**made, "defences": {**UNGUARDED, "combine": "median"}})
            for client in ("a", "b", "c", "d"):
                await engine.updates("dense", client, [])
            update = Update(1, 1, engine.view("dense").version, "gradient", secret.tobytes())
            await engine.updates("dense", "a", [update])
            await engine.settle()
            assert secret.astype("<f8").tobytes() not in engine.model("dense")  # for other devices to download
            await engine.erase_user("dense", "a")
            live = engine.digest("dense")
        assert secret.astype("<f8").tobytes() not in (tmp_path / "store.db-models").read_bytes()
        async with running(tmp_path) as engine:
            assert engine.digest("dense") == live == digest_of(rebuilt(tmp_path, "dense"))

    asyncio.run(story())


def test_a_decision_at_weights_beyond_all_bounds_is_logged_with_numbers_and_learned(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            hyperparameters = {"n_clients": 1, "step_size": 1.0}
            made = {"global_learner": "fedogd", "bits": BITS, "hyperparameters": hyperparameters}
            await engine.create_loop("dense", made)
            await engine.updates("dense", "phone", [])
            body = np.full(DIM, 1e30, "<f4").tobytes()
            await engine.updates("dense", "phone", [Update(1, 1, engine.view("dense").version, "gradient", body)])
            await engine.settle()
            actions, context = [Action("a", raw({"x": 1e12})), Action("b", raw({}))], raw({"time": 1.7e12})
            answer = await engine.rank("dense", RankRequest(context=context, actions=actions))
            assert all(np.isfinite(ranked.score) for ranked in answer.ranking)
            assert np.isfinite(engine.global_scores("dense", bytes(context), actions)[1]).all()
            await engine.settle()  # raises what stops the learner

    asyncio.run(story())


@pytest.mark.parametrize("name", DENSE)
def test_a_dense_loop_is_the_same_live_rebuilt_and_after_restarts(tmp_path, name):
    async def story():
        async with running(tmp_path) as engine:
            rng, n = np.random.default_rng(0), 0
            made = {"global_learner": name, "bits": BITS, "hyperparameters": DENSE[name]}
            await engine.create_loop("dense", made)
            for k, client in enumerate(("phone", "tablet", "phone")):
                n += await upload(engine, name, client, rng, 100 * k + 1)
                await hosted(engine, "dense", rng, 3)
            await engine.settle()
            assert engine.digest("dense") == digest_of(rebuilt(tmp_path, "dense"))
            assert await engine.erase_user("dense", "phone") > 0
            n += await upload(engine, name, "watch", rng, 1)
            await engine.settle()
            live, view, head = engine.digest("dense"), engine.view("dense"), head_of(engine, "dense")
            assert (view.statistics.uploads + view.statistics.passed_over, view.statistics.settled) == (n, 9)
            assert view.weights.any()
            assert engine.model("dense") == rebuilt(tmp_path, "dense").shared.to_bytes()
        assert digest_of(rebuilt(tmp_path, "dense")) == live
        assert rebuilt(tmp_path, "dense").head == head
        for remove in (False, True):
            if remove:
                (tmp_path / "store.db-models").unlink()
            async with running(tmp_path) as engine:
                assert engine.digest("dense") == live
                assert head_of(engine, "dense") == head
                assert engine.view("dense").newest == view.newest

    asyncio.run(story())


def test_clients_are_numbered_as_they_join_and_an_erased_ones_number_is_not_given_again(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            made = {"global_learner": "fedogd", "bits": BITS, "hyperparameters": {"n_clients": 3}}
            await engine.create_loop("dense", made)
            numbers = [(await engine.updates("dense", name, [])).number for name in ("a", "b", "a")]
            assert numbers == [0, 1, 0]
            await engine.erase_user("dense", "a")
            assert engine.round("dense", "a")["number"] is None
            assert engine.round("dense", "b", 1)["number"] == 1
            assert (await engine.updates("dense", "a", [])).number == 2
            assert await refused(engine.updates("dense", "d", [])) == (409, "loop_full", "client")
        assert rebuilt(tmp_path, "dense").head.clients.numbers == {"b": 1, "a": 2}
        async with running(tmp_path) as engine:
            assert (await engine.updates("dense", "a", [])).number == 2

    asyncio.run(story())


def test_of_clients_that_join_at_once_no_more_get_a_number_than_there_are(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            made = {"global_learner": "fedogd", "bits": BITS, "hyperparameters": {"n_clients": 2}}
            await engine.create_loop("dense", made)
            joins = [engine.updates("dense", name, []) for name in "abcd"]
            answers = await asyncio.gather(*joins, return_exceptions=True)
            assert sorted(up.number for up in answers if not isinstance(up, ApiError)) == [0, 1]
            assert {error.code for error in answers if isinstance(error, ApiError)} == {"loop_full"}

    asyncio.run(story())


@pytest.mark.parametrize(
    ("wrong", "status", "code", "target"),
    [
        ({"t": 0}, 422, "invalid", ".t"),
        ({"t": 2**60}, 422, "invalid", ".t"),
        ({"t": 3}, 409, "not_chosen", ".t"),
        ({"seq": 0}, 422, "invalid", ".seq"),
        ({"version": 10**6}, 409, "unknown_version", ".version"),
        ({"kind": "gradient"}, 409, "wrong_upload", ".kind"),
        ({"body": b"short"}, 422, "invalid", ".body"),
        ({"body": np.full(DIM, np.nan, "<f4").tobytes()}, 422, "invalid", ".body"),
    ],
)
def test_one_bad_update_refuses_the_batch_and_is_named(tmp_path, wrong, status, code, target):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop(
                "dense", {"global_learner": "fedsea", "bits": BITS, "hyperparameters": {"period": 2}}
            )
            await engine.updates("dense", "phone", [])
            good = Update(1, 2, engine.view("dense").version, "delta", bytes(4 * DIM))
            n_logged = len(logged(tmp_path))
            bad = msgspec.structs.replace(good, **{"seq": 2, **wrong})
            answer = await refused(engine.updates("dense", "phone", [good, bad]))
            assert answer == (status, code, f"updates[1]{target}")
            assert len(logged(tmp_path)) == n_logged
            assert (await engine.updates("dense", "phone", [good])).number == 0
            await engine.settle()
            assert engine.view("dense").newest == 2

    asyncio.run(story())


def patched(weights, delta):
    """Return weights as a device has them after a delta, or after a whole model."""
    parts = load(delta)
    if "weights" in parts:
        return parts["weights"]
    changed = weights.copy()
    changed[parts["indices"]] = parts["values"]
    return changed


def test_a_delta_on_any_older_version_gives_the_new_weights_to_the_bit(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            rng, known = np.random.default_rng(0), {0: np.zeros(2**18 + 1, np.float32)}
            for k in range(8):
                version, model, _ = engine.federated_model("default")
                known[version] = weights_of(model)
                for since, old in known.items():
                    delta = engine.federated_model("default", since)[1]
                    assert patched(old, delta).tobytes() == known[version].tobytes()
                    assert len(delta) < 10_000
                await engine.residuals("default", "phone", some_residuals(rng, version, 3, 10 * k + 1))
                await hosted(engine, "default", rng, k % 3)
                await engine.settle()
            assert len(known) == 9

    asyncio.run(story())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_a_history_knows_all_that_changed_since_each_version(seed, n):
    rng, history = np.random.default_rng(seed), None
    published = [(1, np.zeros(20, np.float32))]
    for version in range(2, n + 2):
        weights = published[-1][1].copy()
        weights[rng.integers(20, size=3)] = rng.choice(np.array([0.0, -0.0, 1.0, np.nan], np.float32), size=3)
        published.append((10 * version, weights))
        history = followed(history, published[-2], published[-1])
    for version, weights in published:
        changed = history.since(version)
        patch = weights.copy()
        patch[changed] = published[-1][1][changed]
        assert patch.tobytes() == published[-1][1].tobytes()
    assert history.start == 1
    assert history.since(published[-1][0]).size == 0


def test_the_whole_model_is_sent_where_changes_are_not_known(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            engine.federated_model("default")
            await engine.residuals("default", "phone", [residual()])
            await engine.settle()
            version, whole, tag = engine.federated_model("default")
            delta = engine.federated_model("default", 1).body
            assert facts(tmp_path, whole) == {
                "version": "2", "bits": "18", "low": "0.0", "high": "1.0", "newest": "0",
                "crc32": str(zlib.crc32(load(whole)["weights"])),
            }  # fmt: skip
            assert facts(tmp_path, delta)["crc32"] == facts(tmp_path, whole)["crc32"]
            assert facts(tmp_path, delta)["since"] == "1"
            assert load(engine.federated_model("default", version)[1])["indices"].size == 0
            assert engine.federated_model("default", 99)[1] == whole
        async with running(tmp_path) as engine:
            assert engine.federated_model("default", 1) == (version, whole, tag)
            assert load(engine.federated_model("default", version)[1])["indices"].size == 0
            await engine.residuals("default", "phone", [residual(2)])
            await engine.settle()
            assert "indices" in load(engine.federated_model("default", version)[1])

    asyncio.run(story())


def test_a_model_that_mostly_changed_is_sent_whole(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("small", {"bits": 3})
            engine.federated_model("small")
            sent = some_residuals(np.random.default_rng(0), engine.view("small").version, 20, 1)
            await engine.residuals("small", "phone", sent)
            await engine.settle()
            assert np.count_nonzero(engine.view("small").weights) > 4
            assert "weights" in load(engine.federated_model("small", 0)[1])

    asyncio.run(story())


def test_uploads_are_no_events_even_where_ids_are_the_same(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            request = RankRequest(user="ann", actions=[Action("tea", raw({}))], event_id="1/phone/1")
            await engine.rank("default", request)
            await engine.residuals("default", "phone", [residual(1), residual(2)])
            await engine.reward("default", "1/phone/1", 1.0)
            await engine.settle()
            [event] = engine.events("default")
            assert (event["event_id"], event["status"], event["reward"]) == ("1/phone/1", "rewarded", 1.0)
            assert await engine.erase_user("default", "phone") == 2
            assert list(engine.events("default")) == [event]
            assert [entry.kind for entry in logged(tmp_path) if entry.user == "phone"] == []

    asyncio.run(story())


def test_a_loop_made_anew_knows_nothing_of_the_uploads_before(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for _ in range(2):
                since = await engine.create_loop("shop", {"global_learner": "fedogd", "bits": BITS})
                assert (await engine.updates("shop", "phone", [])).number == 0
                version = engine.view("shop").version
                up = await engine.updates("shop", "phone", [Update(1, 1, version, "gradient", bytes(4 * DIM))])
                assert up.positions[0] > since
                await engine.delete_loop("shop")

    asyncio.run(story())


def test_the_rule_and_the_size_of_a_shared_model_stay_as_the_loop_was_made(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            made = {"global_learner": "fedogd", "bits": BITS, "hyperparameters": {"n_clients": 2}}
            await engine.create_loop("dense", made)
            for change in ({"global_learner": "fedsea"}, {"bits": 7}, {"hyperparameters": {"n_clients": 3}}):
                [name] = change
                assert await refused(engine.put_settings("dense", change)) == (409, "fixed_setting", name)
            await engine.put_settings("dense", {"epsilon": 0.5})
            assert engine.settings("dense")[1].hyperparameters == {"n_clients": 2}
            model = engine.model("dense")
            await engine.put_model("dense", model)
            assert (await refused(engine.put_model("dense", SharedModel(BITS).to_bytes())))[1] == "invalid_model"
            other = FederatedModel("fedogd", BITS, {"n_clients": 5}).to_bytes()
            assert (await refused(engine.put_model("dense", other)))[1] == "invalid_model"
            assert (await refused(engine.put_model("default", SharedModel(4).to_bytes())))[1] == "invalid_model"

    asyncio.run(story())


def test_a_round_says_how_the_loop_learns_and_who_takes_part(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            plain = engine.round("default", "phone", 3)
            assert plain.keys() == {
                "global_learner", "hyperparameters", "bits", "timing", "crosses", "policy", "epsilon", "gamma",
                "learning_rate", "personal", "reward_range", "settings_version", "version", "n_learned", "number", "t",
                "senders", "takes_part",
            }  # fmt: skip
            assert [plain[name] for name in ("bits", "number", "senders", "takes_part")] == [18, None, None, True]
            made = {"global_learner": "fedomd", "bits": BITS, "hyperparameters": {"n_clients": 2, "sync": 2}}
            await engine.create_loop("dense", made)
            assert engine.round("dense", "phone", 2)["takes_part"] is None
            await engine.updates("dense", "phone", [])
            assert [engine.round("dense", "phone", t)["takes_part"] for t in (1, 2, 3, 4)] == [False, True] * 2
            assert engine.round("dense", None, 2)["senders"] == [0, 1]
            assert engine.round("dense", "phone", 2)["senders"] is None
            with pytest.raises(ApiError, match="t must be in"):
                engine.round("dense", "phone", 0)

    asyncio.run(story())

"""Devices that upload gradients and deltas to a dense learner, which numbers them."""

import asyncio

import msgspec
import numpy as np
import pytest
from device_uploads import BITS, DIM, hosted, some_residuals
from machine import running
from playing import head_of, logged, raw, rebuilt, refused_for, relearned, weights

from fedres.scoring.federated import FederatedModel
from fedres.scoring.model import SharedModel
from service.errors import ApiError
from service.plugins.devices.uploads import Update
from service.rank.requests import Action, RankRequest

UNGUARDED = {"max_norm": None, "client_share": None, "client_pull": None}
DENSE = {
    "fedres-sgd": {"step_size": 0.05},
    "fedogd": {"n_clients": 3, "step_size": 0.1},
    "ofedavg": {"n_clients": 3, "participation": 0.6},
    "ofediq": {"n_clients": 3, "levels": 4, "blocks": 2, "period": 2},
    "fedomd": {"n_clients": 3, "sync": 2},
    "fedsea": {"n_clients": 3, "period": 3},
    "dynamic-fedavg": {"n_clients": 3, "period": 2, "participants": 2},
}


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
        async with running(tmp_path, model="adagrad") as engine:
            numbers = {"n_clients": 6, "step_size": 1.0}
            made = {"model": "adagrad", "global_learner": "fedogd", "bits": BITS, "hyperparameters": numbers}
            await engine.create_loop("dense", made | {"defences": {**UNGUARDED, "combine": combine}})
            for k in range(6):
                await engine.updates("dense", f"phone-{k}", [])
            for k, value in enumerate((1.0, 2.0, 300.0)):  # half of six clients
                assert combine == "mean" or not weights(engine, "dense").any()
                body = np.full(DIM, value, "<f4").tobytes()
                await engine.updates(
                    "dense", f"phone-{k}", [Update(1, 1, engine.view("dense").version, "gradient", body)]
                )
                await engine.settle()
            step = {"mean": 303 / 6, "median": 3 * 2 / 6, "trimmed-mean": 303 / 6}[combine]  # of 3 none are trimmed
            assert weights(engine, "dense") == pytest.approx(-step)
            live = engine.digest("dense")
        assert rebuilt(tmp_path, "dense") == live

    asyncio.run(story())


def test_what_an_erased_client_has_waiting_for_others_is_gone_too(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            hyperparameters, defences = {"n_clients": 6, "step_size": 1.0}, {**UNGUARDED, "combine": "median"}
            made = {
                "model": "adagrad",
                "global_learner": "fedogd",
                "bits": BITS,
                "hyperparameters": hyperparameters,
                "defences": defences,
            }
            await engine.create_loop("dense", made)
            for client in ("a", "b", "c", "d"):  # half of them make a pool
                await engine.updates("dense", client, [])
            for client, value in (("a", 100.0), ("b", 1.0), ("c", 2.0)):
                body = np.full(DIM, value, "<f4").tobytes()
                if client == "b":
                    await engine.erase_user("dense", "a")
                await engine.updates("dense", client, [Update(1, 1, engine.view("dense").version, "gradient", body)])
                await engine.settle()
            assert weights(engine, "dense") == pytest.approx(-2 * 1.5 / 6)
            live = engine.digest("dense")
        assert rebuilt(tmp_path, "dense") == live

    asyncio.run(story())


def test_an_erasure_right_before_a_restart_leaves_nothing_waiting_in_the_files(tmp_path):
    async def story():
        secret = np.full(DIM, 100.0, "<f4")
        async with running(tmp_path, model="adagrad") as engine:
            made = {"model": "adagrad", "global_learner": "fedogd", "bits": BITS, "hyperparameters": {"n_clients": 6}}
            await engine.create_loop("dense", {**made, "defences": {**UNGUARDED, "combine": "median"}})
            for client in ("a", "b", "c", "d"):
                await engine.updates("dense", client, [])
            update = Update(1, 1, engine.view("dense").version, "gradient", secret.tobytes())
            await engine.updates("dense", "a", [update])
            await engine.settle()
            assert secret.astype("<f8").tobytes() not in await engine.model("dense")  # for other devices to download
            await engine.erase_user("dense", "a")
            live = engine.digest("dense")
        assert secret.astype("<f8").tobytes() not in (tmp_path / "store.db-models").read_bytes()
        async with running(tmp_path, model="adagrad") as engine:
            assert engine.digest("dense") == live == rebuilt(tmp_path, "dense")

    asyncio.run(story())


def test_a_decision_at_weights_beyond_all_bounds_is_logged_with_numbers_and_learned(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            hyperparameters = {"n_clients": 1, "step_size": 1.0}
            made = {"model": "adagrad", "global_learner": "fedogd", "bits": BITS, "hyperparameters": hyperparameters}
            await engine.create_loop("dense", {**made, "largest_number": 1e15})
            await engine.updates("dense", "phone", [])
            body = np.full(DIM, 1e30, "<f4").tobytes()
            await engine.updates("dense", "phone", [Update(1, 1, engine.view("dense").version, "gradient", body)])
            await engine.settle()
            actions, context = [Action("a", raw({"x": 1e12})), Action("b", raw({}))], raw({"time": 1.7e12})
            answer = await engine.rank("dense", RankRequest(context=context, actions=actions))
            assert all(np.isfinite(ranked.score) for ranked in answer.ranking)
            _, scores = await engine.global_scores("dense", bytes(context), actions)
            assert np.isfinite(scores).all()
            await engine.settle()  # raises what stops the learner

    asyncio.run(story())


@pytest.mark.parametrize("name", DENSE)
def test_a_dense_loop_is_the_same_live_rebuilt_and_after_restarts(tmp_path, name):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            rng, n = np.random.default_rng(0), 0
            made = {"model": "adagrad", "global_learner": name, "bits": BITS, "hyperparameters": DENSE[name]}
            await engine.create_loop("dense", made)
            for k, client in enumerate(("phone", "tablet", "phone")):
                n += await upload(engine, name, client, rng, 100 * k + 1)
                await hosted(engine, "dense", rng, 3)
            await engine.settle()
            assert engine.digest("dense") == rebuilt(tmp_path, "dense")
            await engine.erase_user("dense", "phone")
            n += await upload(engine, name, "watch", rng, 1)
            await engine.settle()
            live, view, head = engine.digest("dense"), engine.view("dense"), head_of(engine, "dense")
            assert (view.statistics.uploads + view.statistics.passed_over, view.statistics.settled) == (n, 9)
            assert weights(engine, "dense").any()
            model = await engine.model("dense")
            with relearned(tmp_path) as learner:
                assert model == learner.loops["dense"].shared.to_bytes()
        assert rebuilt(tmp_path, "dense") == live
        with relearned(tmp_path) as learner:
            assert learner.loops["dense"].metadata == head
        for remove in (False, True):
            if remove:
                (tmp_path / "store.db-models").unlink()
            async with running(tmp_path, model="adagrad") as engine:
                assert engine.digest("dense") == live
                assert head_of(engine, "dense") == head
                assert engine.view("dense").newest == view.newest

    asyncio.run(story())


def test_clients_are_numbered_as_they_join_and_an_erased_ones_number_is_not_given_again(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            made = {"model": "adagrad", "global_learner": "fedogd", "bits": BITS, "hyperparameters": {"n_clients": 3}}
            await engine.create_loop("dense", made)
            numbers = [(await engine.updates("dense", name, [])).number for name in ("a", "b", "a")]
            assert numbers == [0, 1, 0]
            await engine.erase_user("dense", "a")
            assert engine.round("dense", "a")["number"] is None
            assert engine.round("dense", "b", 1)["number"] == 1
            assert (await engine.updates("dense", "a", [])).number == 2
            assert await refused_for(engine.updates("dense", "d", [])) == (409, "loop_full", "client")
        with relearned(tmp_path) as learner:
            assert learner.loops["dense"].metadata.clients.numbers == {"b": 1, "a": 2}
        async with running(tmp_path, model="adagrad") as engine:
            assert (await engine.updates("dense", "a", [])).number == 2

    asyncio.run(story())


def test_of_clients_that_join_at_once_no_more_get_a_number_than_there_are(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            made = {"model": "adagrad", "global_learner": "fedogd", "bits": BITS, "hyperparameters": {"n_clients": 2}}
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
        async with running(tmp_path, model="adagrad") as engine:
            await engine.create_loop(
                "dense",
                {"model": "adagrad", "global_learner": "fedsea", "bits": BITS, "hyperparameters": {"period": 2}},
            )
            await engine.updates("dense", "phone", [])
            good = Update(1, 2, engine.view("dense").version, "delta", bytes(4 * DIM))
            n_logged = len(logged(tmp_path, "dense"))
            bad = msgspec.structs.replace(good, **{"seq": 2, **wrong})
            answer = await refused_for(engine.updates("dense", "phone", [good, bad]))
            assert answer == (status, code, f"updates[1]{target}")
            assert len(logged(tmp_path, "dense")) == n_logged
            assert (await engine.updates("dense", "phone", [good])).number == 0
            await engine.settle()
            assert engine.view("dense").newest == 2

    asyncio.run(story())


def test_a_loop_made_anew_knows_nothing_of_the_uploads_before(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            for _ in range(2):
                since = await engine.create_loop("shop", {"model": "adagrad", "global_learner": "fedogd", "bits": BITS})
                assert (await engine.updates("shop", "phone", [])).number == 0
                version = engine.view("shop").version
                up = await engine.updates("shop", "phone", [Update(1, 1, version, "gradient", bytes(4 * DIM))])
                assert up.positions[0] > since
                await engine.delete_loop("shop")

    asyncio.run(story())


def test_the_rule_and_the_size_of_a_shared_model_stay_as_the_loop_was_made(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            made = {"model": "adagrad", "global_learner": "fedogd", "bits": BITS, "hyperparameters": {"n_clients": 2}}
            await engine.create_loop("dense", made)
            for change in ({"global_learner": "fedsea"}, {"bits": 7}, {"hyperparameters": {"n_clients": 3}}):
                [name] = change
                assert await refused_for(engine.put_settings("dense", change)) == (409, "fixed_setting", name)
            await engine.put_settings("dense", {"epsilon": 0.5})
            assert engine.settings("dense")[1].hyperparameters == {"n_clients": 2}
            model = await engine.model("dense")
            await engine.put_model("dense", model)
            assert (await refused_for(engine.put_model("dense", SharedModel(BITS).to_bytes())))[1] == "invalid_model"
            other = FederatedModel("fedogd", BITS, {"n_clients": 5}).to_bytes()
            assert (await refused_for(engine.put_model("dense", other)))[1] == "invalid_model"
            assert (await refused_for(engine.put_model("default", SharedModel(4).to_bytes())))[1] == "invalid_model"

    asyncio.run(story())


def test_a_round_says_how_the_loop_learns_and_who_takes_part(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            plain = engine.round("default", "phone", 3)
            assert plain.keys() == {
                "model", "global_learner", "hyperparameters", "bits", "timing", "crosses", "policy", "epsilon",
                "floor", "gamma",
                "learning_rate", "draw_prefix",
                "largest_number", "personal", "reward_range", "settings_version", "version", "n_learned", "number", "t",
                "senders", "takes_part",
            }  # fmt: skip
            assert [plain[name] for name in ("bits", "number", "senders", "takes_part")] == [18, None, None, True]
            made = {
                "model": "adagrad",
                "global_learner": "fedomd",
                "bits": BITS,
                "hyperparameters": {"n_clients": 2, "sync": 2},
            }
            await engine.create_loop("dense", made)
            assert engine.round("dense", "phone", 2)["takes_part"] is None
            await engine.updates("dense", "phone", [])
            assert [engine.round("dense", "phone", t)["takes_part"] for t in (1, 2, 3, 4)] == [False, True] * 2
            assert engine.round("dense", None, 2)["senders"] == [0, 1]
            assert engine.round("dense", "phone", 2)["senders"] is None
            with pytest.raises(ApiError, match="t must be in"):
                engine.round("dense", "phone", 0)

    asyncio.run(story())

"""Devices in a loop with residual-kalman: what their uploads change, and what is refused."""

import asyncio

import numpy as np
import pytest
from device_uploads import hosted, residual, some_residuals
from machine import Engine, running
from playing import head_of, raw, rebuilt, refused_for

from fedres.decisions.federated_kalman import DeviceKalman
from fedres.decisions.kalman_document import read_document
from fedres.decisions.kalman_state import OWN
from fedres.decisions.residual_kalman import request_of
from fedres.scoring.features import Named, Preparer
from service.models.guard import Defences
from service.plugins.devices.uploads import Residual
from service.rank.requests import Action, RankRequest

SURE = {"variance": 0.01, "slopes": [0.1, 0.2, 0.3]}


def test_uploads_teach_the_shared_model_and_rebuild_to_the_bit(tmp_path):
    async def story():
        rng = np.random.default_rng(0)
        async with running(tmp_path, defences=Defences(client_share=None, client_pull=None)) as engine:
            for first in range(1, 61, 20):
                await engine.residuals("default", "phone", some_residuals(rng, 1, 20, first, **SURE))
                await hosted(engine, "default", rng, 5)
            await engine.settle()
            shared = engine.learner.loops["default"].shared.model.shared
            assert head_of(engine).statistics.uploads == 60
            assert engine.context.loop("default").n_learned == 75
            assert shared.log_tau[1, OWN] != shared.log_tau[5, OWN]  # the slopes moved τ of the devices' weights
            digest = engine.digest("default")
        assert rebuilt(tmp_path) == digest
        async with running(tmp_path) as engine:  # from its snapshot
            assert engine.digest("default") == digest

    asyncio.run(story())


def test_a_device_downloads_what_rankers_decide_with(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            start = read_document((await engine.federated_model("default")).body)
            assert start.shared is None
            rng = np.random.default_rng(1)
            for k in range(5):  # of several clients, so that shares keep none out
                await engine.residuals("default", f"phone-{k}", some_residuals(rng, 1, 10, 1, **SURE))
            await engine.settle()
            model = await engine.federated_model("default")
            document, loop = read_document(model.body), engine.context.loop("default")
            assert (document.metadata.version, document.metadata.tag) == (loop.view.version, model.tag)
            assert await engine.model_tag("default") == model.tag
            request = request_of(([5], [1.0]), [([6], [1.0], [7]), ([8], [2.0], [8])])
            device = DeviceKalman()
            device.relearn(document.shared, [])
            expected = engine.learner.loops["default"].shared.model.predict(request)
            assert device.predict(request, 1).shared == pytest.approx(expected.means, abs=1e-5)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"variance": None}, (409, "wrong_upload", "residuals[0]")),
        ({"slopes": None}, (409, "wrong_upload", "residuals[0]")),
        ({"variance": -0.1}, (422, "invalid", "residuals[0].variance")),
        ({"variance": float("nan")}, (422, "invalid", "residuals[0].variance")),
        ({"slopes": [0.1]}, (422, "invalid", "residuals[0].slopes")),
        ({"slopes": [0.1, float("inf"), 0.0]}, (422, "invalid", "residuals[0].slopes")),
        ({"local": 1e10}, (422, "invalid", "residuals[0].local")),
        ({"label": 2.0}, (422, "invalid", "residuals[0].label")),
        ({"version": 99}, (409, "unknown_version", "residuals[0].version")),
    ],
)
def test_uploads_that_break_a_rule_are_refused(engine_of, change, refusal):
    good = {"version": engine_of.view().created_at, **SURE}
    sent = engine_of.residuals("default", "phone", [residual(**{**good, **change})])
    assert asyncio.run(refused_for(sent)) == refusal


@pytest.fixture(scope="module")
def engine_of(tmp_path_factory):
    engine = Engine(tmp_path_factory.mktemp("engine"))
    yield engine
    asyncio.run(engine.close())


def test_a_repeat_counts_once(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            first = await engine.residuals("default", "phone", [residual(1, **SURE)])
            again = await engine.residuals("default", "phone", [residual(1, local=0.9, **SURE)])
            await engine.settle()
            assert first.positions == again.positions
            assert engine.context.loop("default").n_learned == 1

    asyncio.run(story())


def test_a_hostile_minority_is_kept_within_bounds(tmp_path):
    """One client in nine always asks for the largest step in the wrong direction, in the contexts of all others."""

    async def moved(folder, attack, **settings):
        async with running(folder, **settings) as engine:
            rng, seqs = np.random.default_rng(2), iter(range(1, 10**6))
            for _ in range(25):
                for k in range(8):
                    good = residual(next(seqs), label=1.0, local=0.0, context=day(rng), **SURE)
                    await engine.residuals("default", f"phone-{k}", [good])
                if attack:
                    bad = {"label": 0.0, "local": 1e9, "variance": 0.0, "slopes": []}
                    sent = [residual(next(seqs), context=day(rng), **bad) for _ in range(10)]
                    await engine.residuals("default", "hostile", sent)
            await engine.settle()
            return engine.learner.loops["default"].shared.model

    def day(rng):
        return {"day": f"d{rng.integers(3)}"}

    def score(model):
        rows = Preparer().hash_all([Named("c", None, b'{"day": "d0"}'), Named("a", "tea", b'{"hot": 1}')])
        columns = [
            [np.frombuffer(getattr(row, name), kind) for name, kind in (("hashes", "u4"), ("values", "f4"))]
            for row in rows
        ]
        fields = np.frombuffer(rows[1].fields, np.uint32)
        return float(model.predict(request_of(tuple(columns[0]), [(*columns[1], fields)])).means[0])

    off = {"defences": Defences(max_norm=None, client_share=None, client_pull=None)}
    honest, defended, open_ = (
        score(asyncio.run(moved(tmp_path / name, attack, **settings)))
        for name, attack, settings in (("a", False, {}), ("b", True, {}), ("c", True, off))
        if (tmp_path / name).mkdir() is None
    )
    assert abs(honest - defended) < 0.05
    assert abs(honest - open_) > 0.5


REWARDED = {"tea": 0.8, "juice": 0.3, "cola": 0.1}  # probabilities
FREE = {"variance": 0.0, "slopes": []}


def weather(rng):
    return {"weather": ("cold", "warm")[rng.integers(2)]}


async def host(engine, rng, n, users):
    """Decide and reward ``n`` times; return how often tea was taken. Nobody has a name if there are no users."""
    taken = 0
    for _ in range(n):
        request = RankRequest(
            user=f"u{rng.integers(users)}" if users else None,
            context=raw(weather(rng)),
            actions=[Action(name, raw({})) for name in REWARDED],
            event_id=f"e{rng.integers(2**60)}",
        )
        name = (await engine.rank("default", request)).action_id
        taken += name == "tea"
        await engine.reward("default", request.event_id, float(rng.random() < REWARDED[name]))
    await engine.settle()
    return taken


def sent(rng, seqs, n, lie=None):
    """Return honest residuals, or those of a device that always says: tea is worse than predicted, the rest better."""
    residuals = []
    for _ in range(n):
        name = [*REWARDED][rng.integers(3)]
        label, local = (float(rng.random() < REWARDED[name]), 0.0) if lie is None else (0.0, lie)
        if lie is not None and name != "tea":
            label, local = 1.0, -lie
        residuals.append(Residual(next(seqs), 1, raw(weather(rng)), Action(name, raw({})), local, label, **FREE))
    return residuals


async def scores(engine):
    request = RankRequest(context=raw({"weather": "cold"}), actions=[Action(name, raw({})) for name in REWARDED])
    return {row.id: row.score for row in (await engine.rank("default", request)).ranking}


@pytest.mark.parametrize("users", [40, 0])
def test_one_device_moves_no_hosted_score_out_of_the_range_nor_changes_the_best_action(tmp_path, users):
    """It says ±1e9 as its own part, so that its error is always the largest; without bounds tea came to −102."""

    async def story():
        rng, seqs = np.random.default_rng(1), iter(range(1, 10**6))
        async with running(tmp_path) as engine:
            await host(engine, rng, 400, users)
            before = await scores(engine)
            for _ in range(4):
                await engine.residuals("default", "hostile", sent(rng, seqs, 500, lie=1e9))
            await engine.settle()
            after = await scores(engine)
            assert all(-0.05 <= score <= 1.05 for score in after.values())
            assert after == pytest.approx(before, abs=0.25)
            assert await host(engine, rng, 100, users) >= 80
            digest = engine.digest("default")
        assert rebuilt(tmp_path) == digest

    asyncio.run(story())


def test_without_any_defence_one_device_stays_within_the_range_of_rewards(tmp_path):
    async def story():
        rng, seqs = np.random.default_rng(1), iter(range(1, 10**6))
        off = Defences(max_norm=None, client_share=None, client_pull=None)
        async with running(tmp_path, defences=off) as engine:
            await host(engine, rng, 100, 10)
            for lie in (1e9, -1e9):
                await engine.residuals("default", "hostile", sent(rng, seqs, 500, lie=lie))
                await engine.settle()
                assert all(-0.5 <= score <= 1.5 for score in (await scores(engine)).values())

    asyncio.run(story())


@pytest.mark.parametrize("n_honest", [3, 20])
def test_a_hostile_device_among_honest_ones_does_not_make_the_best_action_the_last(tmp_path, n_honest):
    async def story():
        rng, seqs = np.random.default_rng(1), iter(range(1, 10**6))
        async with running(tmp_path) as engine:
            for k in range(60):
                for device in range(n_honest):
                    await engine.residuals("default", f"phone-{device}", sent(rng, seqs, 5))
                if k >= 20:
                    await engine.residuals("default", "hostile", sent(rng, seqs, 50, lie=1e9))
            await engine.settle()
            after = await scores(engine)
            assert after["tea"] == max(after.values())
            assert after == pytest.approx(REWARDED, abs=0.15 if n_honest == 20 else 0.4)

    asyncio.run(story())

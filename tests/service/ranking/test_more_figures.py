"""Drift, what-if, devices, how personal, and features that are gone: from the log, and by public questions."""

import asyncio
from array import array

import msgspec
import numpy as np
import pytest
from machine import Clock, running
from msgspec.structs import replace
from playing import play, raw, refused, request

from service.log.opening import Store
from service.log.workers import WorkerProcess
from service.plugins.devices.uploads import Residual
from service.plugins.reports.personalization import CachedReport, Personalization, TakenAction, personalization
from service.plugins.reports.reader import LoopReader, LoopReaders, read_loop
from service.plugins.reports.report import FinishedDecision, LoopReport, drift_of
from service.plugins.reports.what_if import WhatIf, changed, what_if
from service.rank.decide import prepare
from service.rank.explaining import explanations, personal_model, scored_request
from service.rank.requests import Action, RankRequest
from service.settings import Settings

SECOND = 1_000_000


async def report(engine, loop="default"):
    return msgspec.json.decode(await engine.report(loop), type=LoopReport)


def finished(k, reward, probabilities=(0.5, 0.5), scores=(0.5, 0.5), chosen=0, user=None, n_learned=100):
    taken = ("a", "b", "c")[chosen]
    shares = array("d", probabilities)
    return FinishedDecision(
        str(k), k * SECOND, user, False, taken, chosen, shares, array("d", scores), 1, n_learned, reward
    )


def test_the_same_rewards_and_errors_are_no_drift_and_a_change_that_predictions_miss_is_one():
    rng = np.random.default_rng(0)
    alike = [finished(k, float(rng.random() < 0.5), user=f"u{k % 40}") for k in range(1_000)]
    assert drift_of(alike[:499]) is None
    drift = drift_of(alike)
    assert (drift.earlier_events, drift.recent_events, drift.is_drifting) == (800, 200, False)
    assert drift.recent_since == 800
    assert drift.reward.difference.low < 0 < drift.reward.difference.high

    fell = [*alike[:800], *(replace(one, reward=float(rng.random() < 0.2)) for one in alike[800:])]
    drift = drift_of(fell[::-1])  # in whatever order they were finished
    assert drift.is_drifting
    assert drift.bias.recent == pytest.approx(np.mean([one.reward for one in fell[800:]]) - 0.5)
    assert drift.reward.difference.high < 0

    followed = [*fell[:800], *(replace(one, scores=array("d", (0.2, 0.2))) for one in fell[800:])]  # the model knows
    assert not drift_of(followed).is_drifting
    one_user = [replace(one, user="u" if k >= 800 else one.user) for k, one in enumerate(fell)]
    assert drift_of(one_user) is None  # that says little about all users


def test_drift_is_hardly_ever_reported_where_there_is_none():
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(200):
        rate = rng.beta(2, 8, 50)  # users differ, and predictions do not know it
        users = rng.integers(0, 50, 600)
        rewards = rng.random(600) < rate[users]
        events = [
            finished(k, float(reward), scores=(0.2, 0.2), user=f"u{u}")
            for k, (u, reward) in enumerate(zip(users, rewards, strict=True))
        ]
        alarms += drift_of(events).is_drifting
    assert alarms == 0


def test_other_settings_are_valued_from_logged_scores_and_probabilities():
    rng, events = np.random.default_rng(0), []
    now = Settings(model="adagrad", policy="epsilon-greedy", epsilon=0.5)
    for k in range(2_000):
        scores = (0.2, 0.8) if k % 2 else (0.8, 0.2)
        probabilities = tuple(0.25 + 0.5 * (score == 0.8) for score in scores)
        chosen = int(rng.random() > probabilities[0])
        events.append(finished(k, float(rng.random() < scores[chosen]), probabilities, scores, chosen))
    changes = [{"policy": "greedy"}, {"epsilon": 1.0}, {"policy": "squarecb", "gamma": 1e9}, {"epsilon": 0.5}]
    values = what_if(events, {1: now}, now, changes)
    truths = [0.8, 0.5, 0.8, 0.65]
    for one, truth in zip(values.estimates, truths, strict=True):
        assert one.reward.low < truth < one.reward.high
        assert one.reward.value == pytest.approx(truth, abs=0.05)
        assert one.difference.low < truth - 0.65 < one.difference.high
    assert values.estimates[0].difference.low > 0
    assert values.estimates[3].difference.value == pytest.approx(0.0, abs=1e-12)  # nothing changes
    few = what_if(events[:99], {1: now}, now, changes)
    assert [one.reward for one in few.estimates] == [None] * 4
    unlike = [{"policy": "optimistic-squarecb"}]  # no widths in this log
    kalman = Settings(policy="epsilon-greedy")
    assert what_if(events, {1: kalman}, kalman, unlike).estimates[0].reward is None


def test_optimistic_squarecb_with_another_gamma_is_told_from_its_own_probabilities():
    from fedres.policies import loop_rule
    from fedres.policies.kernels import explore
    from service.plugins.reports.what_if import _target

    then = Settings(gamma=3.0, floor=0.02)
    other = changed(then, {"gamma": 12.0, "floor": 0.1})
    means, widths = np.array([0.2, 0.5, 0.4]), np.array([0.3, 0.1, 0.05])

    def by(settings):
        out = np.empty(3)
        explore(loop_rule(settings), 0, 400, means, widths, np.ones(3, bool), out)
        return out

    one = finished(0, 1.0, by(then), means)
    assert _target(one, then, other) == pytest.approx(by(other))
    assert _target(one, then, then) == pytest.approx(by(then))


def test_what_if_and_how_personal_are_asked_of_a_running_loop(tmp_path):
    clock, rng = Clock(), np.random.default_rng(0)

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            assert (await engine.personalization("default")).looked_at == 0
            for k in range(150):
                user = k % 10
                result = await engine.rank("default", request(f"u{user}", {"hour": k % 3}, event_id=f"e{k}"))
                clock.pass_seconds(2)
                if rng.random() < 0.1 + 0.8 * (result.action_id == f"a{user % 3}"):  # tastes differ
                    await engine.reward("default", result.event_id, 1.0)
                await engine.settle()
            clock.pass_seconds(1_000)
            await engine.settle()
            figures = await engine.personalization("default")
            assert (figures.users_with_model, figures.looked_at, figures.with_model) == (10, 10, 10)
            assert 0.05 < figures.share < 0.95
            assert 0.2 < figures.trust < 0.99
            taken = [TakenAction(user, raw({"hour": 1}), "a1", raw({"topic": "t1"})) for user in ("u1", "nobody knows")]
            trusts = [(await personalization(engine.context, "default", [one])).trust for one in taken]
            assert trusts[0] > 0.2
            assert trusts[1] == 0.0
            estimated = msgspec.json.decode(await engine.what_if("default", []), type=WhatIf)
            assert estimated.events == 150
            assert estimated.estimates[0].settings == {"gamma": 75.0}
            assert all(one.reward is not None for one in estimated.estimates)
            await engine.patch_settings("default", estimated.estimates[0].settings)  # what "apply" does
            assert engine.settings("default")[1].gamma == 75.0
            for wrong in ([{"wait_time": 5}], [{"epsilon": 2}]):
                assert (await refused(engine.what_if("default", wrong)))[0] == 422
            await engine.patch_settings("default", {"personal": False})
            assert (await engine.personalization("default")).share == 0.0

    asyncio.run(story())


@pytest.mark.parametrize("model", ["residual-kalman", "adagrad"])
def test_the_parts_of_a_score_are_those_that_its_explanation_names(tmp_path, model):
    async def story():
        async with running(tmp_path, model=model) as engine:
            await play(engine, 60)
            await engine.settle()
            context, loop = engine.context, engine.context.loop("default")
            for user in ("user-1", "nobody has seen me", None):
                [prepared] = prepare([request(user, {"hour": 2})], loop, context.preparer)
                explained = [*explanations(prepared, loop, context.models)]
                own = personal_model(user, loop, context.models)
                assert (own is not None) == (user == "user-1")
                parts = loop.model.score_parts(scored_request(prepared, loop, own))
                assert parts == [(one.shared, one.personal) for one in explained]
                assert any(part[1] for part in parts) == (own is not None)

    asyncio.run(story())


def test_devices_are_listed_by_their_newest_upload_with_the_age_of_the_model_they_used(tmp_path):
    clock = Clock()

    def residual(seq, version):
        action = Action("tea", raw({"topic": "hot"}))
        return Residual(seq=seq, version=version, context=raw({}), action=action, local=0.0, label=1.0)

    async def story():
        async with running(tmp_path, clock=clock, model="adagrad") as engine:
            assert (await report(engine)).devices is None
            since = engine.view().created_at
            await engine.residuals("default", "old", [residual(1, since), residual(2, since)])
            clock.pass_seconds(7_200)
            await engine.residuals("default", "new", [residual(1, since)])
            await engine.settle()
            devices = (await report(engine)).devices
            assert (devices.devices, devices.last_hour, devices.last_day, devices.uploads) == (2, 1, 2, 3)
            [new, old] = msgspec.json.decode(await engine.devices("default"))["devices"]
            assert (new["client"], new["uploads"], new["lag"]) == ("new", 1, 3)
            assert (old["client"], old["uploads"], old["lag"]) == ("old", 2, 2)
            await engine.erase_user("default", "old")
            assert [one["client"] for one in msgspec.json.decode(await engine.devices("default"))["devices"]] == ["new"]

    asyncio.run(story())


def test_features_that_are_constant_gone_or_only_in_the_catalogue_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("service.plugins.reports.features.SAMPLED", 50)
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            await engine.put_actions("default", put=[Action("tea", raw({"hot": 1})), Action("ice", raw({"frozen": 1}))])
            for k in range(250):
                context = {"hour": k % 3, "site": "x", **({"old": 1} if k < 150 else {})}
                actions = [Action("tea", msgspec.Raw())]
                await engine.rank("default", RankRequest(user="u", context=raw(context), actions=actions))
            clock.pass_seconds(1_000)
            await engine.settle()
            notes = {one.name: one.note for one in (await report(engine)).features}
            assert notes == {"hour": "", "site": "constant", "hot": "constant", "old": "gone", "frozen": "never taken"}

    asyncio.run(story())


def test_a_reporter_forgets_the_loops_that_nobody_asked_about_for_longest(tmp_path, monkeypatch):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            await engine.create_loop("b")
            await engine.create_loop("c")
            for loop in ("default", "b", "c"):
                for _ in range(10):
                    await engine.rank(loop, request())
            readers, log = LoopReaders(), engine.context.archive()
            n_bytes = readers.loop(log, "default", engine.view().created_at).n_bytes
            monkeypatch.setattr("service.plugins.reports.reader.MOST_BYTES_TOGETHER", int(2.5 * n_bytes))
            for loop in ("default", "b", "default", "c"):
                assert readers.loop(log, loop, engine.view(loop).created_at).report().funnel.ranked == 10
            assert [*readers._readers] == ["default", "c"]

    asyncio.run(story())


def test_whoever_waits_behind_a_slow_report_is_told_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr("service.log.workers.SECONDS", 0.02)

    async def story():
        reports = WorkerProcess(Store(tmp_path / "store.db"))
        question = "default", read_loop, 1, LoopReader.report
        await reports._turns.acquire("other", 1)  # somebody else's report is being made
        assert await refused(reports.call(*question)) == (503, "report_timeout")

    asyncio.run(story())


def test_of_many_who_ask_how_personal_a_loop_is_one_makes_a_ranker_work():
    now, made = [0.0], []

    async def make():
        made.append(now[0])
        await asyncio.sleep(0)
        return Personalization(users_with_model=1, looked_at=len(made) - 1, with_model=1, share=0.5, trust=0.5)

    async def story():
        answers = CachedReport(lambda: now[0])
        await answers.get("shop", make)  # about no decision, so not remembered
        several = await asyncio.gather(*(answers.get("shop", make) for _ in range(10)))
        assert [one.looked_at for one in several] == [1] * 10
        await answers.get("news", make)
        now[0] = 119.9
        await answers.get("shop", make)
        now[0] = 120.1
        await answers.get("shop", make)

    asyncio.run(story())
    assert made == [0.0, 0.0, 0.0, 120.1]

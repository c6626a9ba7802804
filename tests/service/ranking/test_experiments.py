"""Control groups: who is in one, who decides for it, what is learned from it, and what it shows."""

import asyncio
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from machine import Clock, running
from playing import refused, request

from fedres.draws import event_draw
from service.learn.loop_state import read_settings_body
from service.plugins.reports.lift import Experiments, sentence
from service.settings import Control

HALF = {"control": {"share": 0.5}}


async def ranked(engine, user, **fields):
    return await engine.rank("default", request(user=user, **fields))


def test_a_group_is_the_share_it_should_be_and_another_experiment_has_another():
    first, second = Control(share=0.3), Control(share=0.3, experiment="experiment 2")
    users = [f"u{k}" for k in range(10_000)]
    groups = [{user for user in users if one.has("shop", user)} for one in (first, second)]
    for group in groups:
        assert abs(len(group) / 10_000 - 0.3) < 4 * math.sqrt(0.21 / 10_000)
    assert abs(len(groups[0] & groups[1]) / 10_000 - 0.09) < 4 * math.sqrt(0.0819 / 10_000)
    wider = Control(share=0.5)
    assert groups[0] <= {user for user in users if wider.has("shop", user)}  # who was in the group stays in it
    assert not any(Control().has("shop", user) for user in users)


def test_two_loops_draw_their_groups_independently_and_an_ongoing_experiment_keeps_its_own(tmp_path):
    control = {"share": 0.2}
    users = [f"u{k}" for k in range(300)]

    def group(engine, loop):
        settings = engine.settings(loop)[1]
        return {user for user in users if settings.control.has(loop, user)}

    async def story():
        async with running(tmp_path, control=control) as engine:  # its record has no rule of draws
            before = group(engine, "default")
            assert before == {user for user in users if event_draw(f"experiment 1\0{user}") < 0.2}
            for loop in ("a", "b"):
                version = await engine.create_loop(loop, {"control": control})
                assert await engine.create_loop(loop, {"control": control}) == version
            groups = [group(engine, loop) for loop in ("default", "a", "b")]
            for k in range(3):
                both = groups[k] & groups[(k + 1) % 3]
                assert 0 < len(both) < 30  # 12 expected, not 60
            for user in users[:40]:
                arm = (await engine.rank("a", request(user=user))).arm
                assert arm == ("control" if user in groups[1] else "treatment")
            await engine.patch_settings("default", {"control": {"hold": "looked bad"}})
            await engine.patch_settings("default", {"epsilon": 0.2})
            assert group(engine, "default") == before
            await engine.patch_settings("default", {"control": {"share": 0.4}})
            assert before < group(engine, "default")
            await engine.patch_settings("default", {"control": {"share": 0.2, "experiment": "experiment 2"}})
            drawn = {user for user in users if event_draw(f"default\0experiment 2\0{user}") < 0.2}
            assert group(engine, "default") == drawn
            await engine.patch_settings("a", {"control": {"by_loop": False}})  # which only the service sets
            assert group(engine, "a") == groups[1]

    asyncio.run(story())


async def drawn_actions(engine, loop, ids, **fields):
    requests = [request(user=None, n_actions=10, event_id=name, **fields) for name in ids]
    return [result.action_id for result in await engine.rank_many(loop, requests)]


def test_two_new_loops_draw_one_event_id_independently_and_earlier_loops_keep_their_draws(tmp_path):
    ids = [f"page {k}" for k in range(300)]

    def by(prefix):
        return [f"a{int(event_draw(name, prefix) * 10)}" for name in ids]

    async def story():
        async with running(tmp_path) as engine:  # its record has no rule of draws
            for loop in ("a", "b"):
                version = await engine.create_loop(loop)
                assert await engine.create_loop(loop) == version
            drawn = {loop: await drawn_actions(engine, loop, ids) for loop in ("default", "a", "b")}
            assert drawn == {"default": by(""), "a": by("a\0"), "b": by("b\0")}
            for one, other in (("default", "a"), ("a", "b")):
                same = sum(x == y for x, y in zip(drawn[one], drawn[other], strict=True))
                assert 5 < same < 60  # 30 expected, not 300
            settings = engine.settings("default")[1]
            assert not settings.draws_by_loop
            await engine.put_settings("default", {"gamma": 5.0})
            await engine.patch_settings("a", {"gamma": 5.0})
            assert not engine.settings("default")[1].draws_by_loop
            assert engine.settings("a")[1].draws_by_loop
            for loop, changed in (("default", True), ("a", False)):
                change = engine.patch_settings(loop, {"draws_by_loop": changed})
                assert await refused(change) == (409, "fixed_setting")
            assert read_settings_body(engine.logged("a")[0].body).draws_by_loop
            repeat = await engine.rank("a", request(user=None, n_actions=10, event_id=ids[0]))
            assert repeat.action_id == drawn["a"][0]

    asyncio.run(story())


@pytest.mark.parametrize(
    "control",
    [{"share": 1.0}, {"share": -0.1}, {"experiment": ""}, {"baseline": "best"}, {"learn": True}, {"salt": "x"}],
)
def test_control_groups_that_make_no_sense_are_refused(tmp_path, control):
    async def story():
        async with running(tmp_path) as engine:
            assert (await refused(engine.put_settings("default", {"control": control})))[0] == 422

    asyncio.run(story())


def test_a_user_stays_in_one_arm_and_the_first_allowed_action_is_controls(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", HALF)
            arms = {}
            for turn in range(2):
                for k in range(40):
                    exclude = ["a0"] if turn else []
                    result = await ranked(engine, f"u{k}", exclude=exclude)
                    assert arms.setdefault(f"u{k}", result.arm) == result.arm
                    if result.arm == "control":
                        assert (result.action_id, result.probability) == ("a1" if turn else "a0", 1.0)
            assert set(arms.values()) == {"control", "treatment"}
            for event in await engine.events("default"):
                assert event["arm"] == arms[event["user"]]

    asyncio.run(story())


def test_without_an_experiment_there_are_no_arms(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            assert (await ranked(engine, "u")).arm is None
            [event] = await engine.events("default")
            assert event["arm"] is None
            assert await refused(engine.lift("default")) == (404, "no_experiment")

    asyncio.run(story())


def test_a_repeated_request_has_the_arm_it_had(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", HALF)
            first = [await ranked(engine, None, event_id=f"e{k}") for k in range(10)]
            await engine.put_settings("default", {"control": {"share": 0.5, "experiment": "another"}})
            again = [await ranked(engine, None, event_id=f"e{k}") for k in range(10)]
            assert first == again
            assert {one.arm for one in first} == {"control", "treatment"}  # events without users are spread too

    asyncio.run(story())


def test_a_uniform_baseline_draws_all_allowed_actions_alike(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", {"control": {"share": 0.9, "baseline": "uniform"}})
            results = await engine.rank_many("default", [request(user=f"u{k}", exclude=["a1"]) for k in range(900)])
            drawn = Counter(result.action_id for result in results if result.arm == "control")
            assert {result.probability for result in results if result.arm == "control"} == {0.5}
            n = drawn.total()
            assert drawn.keys() == {"a0", "a2"}
            assert abs(drawn["a0"] - n / 2) < 4 * math.sqrt(n / 4)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("baseline", "learn", "learns"), [("first", None, 0), ("uniform", None, 1), ("uniform", False, 0)]
)
def test_control_is_counted_apart_and_learned_from_only_where_actions_are_drawn(tmp_path, baseline, learn, learns):
    async def story():
        async with running(tmp_path) as engine:
            control = {"share": 0.5, "baseline": baseline, "learn": learn}
            await engine.put_settings("default", {"control": control})
            n = Counter()
            for k in range(60):
                result = await ranked(engine, f"u{k}")
                n[result.arm] += 1
                await engine.reward("default", result.event_id, 1.0 if result.arm == "control" else 0.0)
            await engine.settle()
            sums = engine.view().statistics
            assert (sums.settled, sums.reward) == (n["treatment"], 0.0)
            assert (sums.control_settled, sums.control_reward) == (n["control"], n["control"])
            assert sums.learned == engine.context.loop("default").n_learned == n["treatment"] + learns * n["control"]
            assert engine.digest() == engine.rebuilt()

    asyncio.run(story())


def test_the_report_sums_up_each_arm_since_the_experiment_began(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            for k in range(40):  # before it
                result = await ranked(engine, f"u{k}")
                await engine.reward("default", result.event_id, k % 2)
            await engine.put_settings("default", {**HALF, "default_reward": 0.0})
            sums = {"control": [], "treatment": []}
            for k in range(200):
                result = await ranked(engine, f"u{k % 100}")
                reward = float(k % 2 if result.arm == "treatment" else k % 5 == 0)
                if reward:
                    await engine.reward("default", result.event_id, reward)
                sums[result.arm].append((f"u{k % 100}", reward))
            clock.pass_seconds(1_000)
            await engine.settle()
            lift = await engine.lift("default")
            for arm in ("control", "treatment"):
                shown = getattr(lift, arm)
                assert (shown.users, shown.events) == (len(dict(sums[arm])), len(sums[arm]))
                assert shown.reward == pytest.approx(sum(reward for _, reward in sums[arm]) / len(sums[arm]))
            assert lift.absolute.value == pytest.approx(lift.treatment.reward - lift.control.reward, abs=0.1)
            assert lift.absolute.low < lift.absolute.value < lift.absolute.high
            assert lift.variance_left < 1.0
            assert not lift.sample_ratio_is_wrong
            assert "95% interval" in lift.sentence

            await engine.put_settings("default", {"control": {"share": 0.4}})  # another experiment
            fresh = await engine.lift("default")
            assert (fresh.control.events, fresh.treatment.events, fresh.absolute) == (0, 0, None)
            assert fresh.sentence.startswith("Not enough data yet: control has 0 users")
            assert fresh.began > lift.began
            await engine.put_settings("default", {"control": {"share": 0.4}, "epsilon": 0.2})  # the same one goes on
            assert (await engine.lift("default")).began == fresh.began

    asyncio.run(story())


async def rewarded(engine, clock, users, **rewards):
    """Let users come by, reward what each arm decided by ``rewards``, and wait until all of it counts."""
    for user in users:
        result = await ranked(engine, user)
        await engine.reward("default", result.event_id, rewards[result.arm])
    clock.pass_seconds(1_000)
    await engine.settle()


def test_a_hold_pauses_the_experiment_which_goes_on_when_it_ends(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            await engine.put_settings("default", HALF)
            await rewarded(engine, clock, [f"u{k}" for k in range(100)], control=0.2, treatment=0.8)
            before = await engine.lift("default")
            assert before.absolute.low > 0
            pending = await ranked(engine, "pending")
            await engine.hold("default", "stock is wrong")
            version = engine.settings("default")[0]
            assert await engine.hold("default", "stock is wrong") == version
            await engine.reward("default", pending.event_id, 0.8)  # what was decided before the hold counts
            await rewarded(engine, clock, [f"held-{k}" for k in range(50)], held=0.0)
            frozen = await engine.lift("default")
            n_users = before.control.users + before.treatment.users
            assert frozen.control.users + frozen.treatment.users == n_users + 1
            assert (frozen.began, frozen.experiment, frozen.share) == (before.began, before.experiment, before.share)
            assert frozen.absolute.low > 0
            assert frozen.held.reason == "stock is wrong"
            assert f"Held since {frozen.held.since}" in frozen.sentence
            await engine.resume("default")
            version = engine.settings("default")[0]
            assert await engine.resume("default") == version  # it is not held
            await rewarded(engine, clock, [f"new-{k}" for k in range(20)], control=0.2, treatment=0.8)
            after = await engine.lift("default")
            assert after.control.users + after.treatment.users == n_users + 21
            assert (after.began, after.held, after.sample_ratio_is_wrong) == (before.began, None, False)
            assert after.paused_seconds >= 1_000
            assert "Held" not in after.sentence
        async with running(tmp_path, clock=clock) as engine:
            assert await engine.lift("default") == after

    asyncio.run(story())


def test_a_hold_that_has_changed_is_not_ended_by_who_has_seen_the_old_one(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            old = await engine.hold("default", "prices")
            version = await engine.hold("default", "prices and stock")
            assert await refused(engine.resume("default", old)) == (412, "settings_changed")
            assert engine.settings("default")[1].control.hold == "prices and stock"
            await engine.resume("default", version)
            assert engine.settings("default")[1].control.hold is None
            for reason in ("", "x" * 1_001):
                assert (await refused(engine.hold("default", reason)))[0] == 422

    asyncio.run(story())


def test_no_quota_stops_a_hold(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            engine.context.quotas = replace(engine.context.quotas, settings=2)
            await ranked(engine, "u")
            await engine.patch_settings("default", {"gamma": 5.0})
            await ranked(engine, "u")
            assert (await refused(engine.patch_settings("default", {"gamma": 6.0})))[0] == 429
            await engine.hold("default", "prices")
            assert (await ranked(engine, "u")).arm == "held"

    asyncio.run(story())


def test_earlier_experiments_stay_listed_with_their_results(tmp_path):
    clock = Clock()

    async def listed(engine):
        return msgspec.json.decode(await engine.experiments("default"), type=Experiments).experiments

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            assert await listed(engine) == []
            await engine.put_settings("default", HALF)
            await rewarded(engine, clock, [f"u{k}" for k in range(100)], control=0.2, treatment=0.8)
            first = await engine.lift("default")
            await engine.hold("default", "prices")
            await engine.patch_settings("default", {"control": {"share": 0.3, "experiment": "autumn"}})
            await engine.resume("default")
            await rewarded(engine, clock, [f"u{k}" for k in range(10)], control=0.2, treatment=0.8)
            newest, past = await listed(engine)
            assert (newest.experiment, newest.ended) == ("autumn", None)
            assert newest.control.users + newest.treatment.users == 10
            assert (past.experiment, past.held, past.ended) == ("experiment 1", None, newest.began)
            assert (past.control, past.treatment, past.absolute) == (first.control, first.treatment, first.absolute)
            assert past.sentence == first.sentence
            await engine.patch_settings("default", {"control": {"share": 0.0}})
            assert [one.experiment for one in await listed(engine)] == ["autumn", "experiment 1"]

    asyncio.run(story())


def test_the_experiment_goes_on_after_a_restart(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", HALF)
            began = (await engine.lift("default")).began
            await ranked(engine, "u")
        async with running(tmp_path, clock=engine.clock) as engine:
            assert (await engine.lift("default")).began == began

    asyncio.run(story())


@pytest.mark.parametrize(
    ("absolute", "relative", "text"),
    [
        (
            (0.5831, 0.45091, 0.7153),
            (2.09, 1.1109, 4.76),
            "more than its control group: +0.58 per event, 95% interval +0.45 to +0.72; +209% (+111% to +476%)",
        ),
        (
            (-1234.5, -1600, -900),
            None,
            "less than its control group: -1,234 per event, 95% interval -1,600 to -900. The",
        ),
        ((0.0, 0.0, 0.0), None, "cannot be told apart yet from its control group: +0.0000 per event"),
    ],
)
def test_the_sentence_has_as_many_decimals_as_the_interval_deserves(absolute, relative, text):
    assert text in sentence(SimpleNamespace(absolute=absolute, relative=relative))

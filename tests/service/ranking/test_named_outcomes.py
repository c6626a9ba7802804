"""Named outcomes: within their windows they make the reward, are exported, and have a lift and guardrails."""

import asyncio

import msgspec
import numpy as np
import pytest
from machine import Clock, running
from playing import refused, request

from service.plugins.reports.guardrails import Guardrails
from service.plugins.reports.report import LoopReport
from service.plugins.reports.reports import Reports

SHOP = {
    "outcomes": {"click": 60.0, "purchase": 500.0, "gone": 500.0},
    "formula": "0.1 * click + min(purchase, 50) / 50 - gone",
    "reward_range": (-1.0, 1.0),
}


async def outcome_of(engine, event="e"):
    event = (await engine.event_details("default", event)).event
    return event["status"], event["reward"], event["outcomes"]


def test_outcomes_within_their_windows_make_the_reward_at_the_end_of_the_wait(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock, **SHOP) as engine:
            for event in ("e", "nothing"):
                await engine.rank("default", request(event_id=event))
            await engine.reward("default", "e", outcomes={"click": 1})
            await engine.reward("default", "e", outcomes={"click": 1})  # a repeat
            await engine.reward("default", "e", outcomes={"click": 1}, reward_id="second")
            clock.pass_seconds(70)
            await engine.reward("default", "e", outcomes={"click": 3, "purchase": 10.0})  # too late for a click
            await engine.settle()
            assert (await outcome_of(engine))[0] == "waiting"
            assert engine.view().statistics.settled == 0
            clock.pass_seconds(600)
            await engine.settle()
            assert await outcome_of(engine) == (
                "rewarded",
                pytest.approx(0.4),
                {"click": 2.0, "purchase": 10.0, "gone": 0.0},
            )
            assert await outcome_of(engine, "nothing") == ("expired", 0.0, None)
            sums = engine.view().statistics
            assert (sums.settled, sums.rewarded, sums.late_rewards) == (2, 1, 1)
            assert sums.reward == pytest.approx(0.4)
            assert engine.digest() == engine.rebuilt()
            [late] = await engine.unmatched("default")
            assert (late.value, late.status) == (3.0, "late")

    asyncio.run(story())


def test_a_reward_is_cut_off_at_its_range_and_may_come_before_its_event(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock, **SHOP) as engine:
            await engine.reward("default", "e", outcomes={"gone": 7.0})
            await engine.rank("default", request(event_id="e"))
            clock.pass_seconds(700)
            await engine.settle()
            assert await outcome_of(engine) == ("rewarded", -1.0, {"click": 0.0, "purchase": 0.0, "gone": 7.0})

    asyncio.run(story())


def test_an_event_is_joined_by_the_kind_of_reward_it_was_decided_under(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            await engine.rank("default", request(event_id="plain"))
            await engine.put_settings("default", SHOP)
            await engine.rank("default", request(event_id="shop"))
            await engine.reward("default", "plain", outcomes={"click": 1})
            await engine.reward("default", "early", outcomes={"click": 1})
            await engine.put_settings("default", {})
            await engine.reward("default", "shop", 1.0)
            await engine.rank("default", request(event_id="early"))
            clock.pass_seconds(700)
            await engine.settle()
            assert [await outcome_of(engine, event) for event in ("plain", "shop", "early")] == [
                ("expired", 0.0, None)
            ] * 3
            assert engine.view().statistics.unmatched_rewards == 3
            assert engine.digest() == engine.rebuilt()

    asyncio.run(story())


def test_rewards_that_do_not_suit_the_loop_are_refused(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for wrong in (
                {},
                {"outcomes": {"click": 1}},
                {"value": 1.0, "outcomes": {}},
                {"value": 1.0, "reward_id": "\0"},
            ):
                assert (await refused(engine.reward("default", "e", **wrong)))[0] == 422
            await engine.put_settings("default", SHOP)
            for wrong in ({"value": 1.0}, {"outcomes": {}}, {"outcomes": {"other": 1}}, {"outcomes": {"click": 1e10}}):
                assert (await refused(engine.reward("default", "e", **wrong)))[0] == 422
            assert [entry.kind for entry in engine.logged() if entry.kind == "reward"] == []
            for wrong in ({**SHOP, "formula": "clock"}, {**SHOP, "guardrails": [{"outcome": "other", "rise": 1}]}):
                assert (await refused(engine.put_settings("default", wrong)))[0] == 422
            for guardrail in (
                {"outcome": "gone"},
                {"outcome": "gone", "rise": -1},
                {"outcome": "gone", "rise": 1, "fall": 1},
            ):
                assert (await refused(engine.put_settings("default", {**SHOP, "guardrails": [guardrail]})))[0] == 422

    asyncio.run(story())


@pytest.mark.parametrize(("gone", "codes"), [(0.6, ["guardrail"]), (0.05, [])])
def test_each_outcome_has_a_lift_and_a_guardrail_raises_an_alarm(tmp_path, gone, codes):
    clock, rng = Clock(), np.random.default_rng(0)

    async def story():
        control = {"share": 0.4, "baseline": "uniform"}
        guardrails = [{"outcome": "gone", "rise": 0.1}]
        async with running(tmp_path, clock=clock) as engine:
            await engine.put_settings("default", {**SHOP, "control": control, "guardrails": guardrails})
            sums = {"control": [0, 0], "treatment": [0, 0]}
            for k in range(800):
                result = await engine.rank("default", request(user=f"u{k % 400}"))
                left = rng.random() < (gone if result.arm == "treatment" else 0.05)
                sums[result.arm][0] += left
                sums[result.arm][1] += 1
                if left:
                    await engine.reward("default", result.event_id, outcomes={"gone": 1})
            clock.pass_seconds(700)
            await engine.settle()
            figures = msgspec.json.decode(await engine.report("default"), type=LoopReport)
            shown = {one.outcome: one for one in figures.lift.outcomes}
            assert shown.keys() == {"click", "purchase", "gone"}
            assert shown["gone"].treatment == pytest.approx(sums["treatment"][0] / sums["treatment"][1])
            assert shown["gone"].control == pytest.approx(sums["control"][0] / sums["control"][1])
            assert shown["gone"].absolute.low < gone - 0.05 < shown["gone"].absolute.high
            assert (shown["click"].treatment, shown["click"].absolute) == (0.0, None)
            assert [alarm.code for alarm in figures.alarms if alarm.code == "guardrail"] == codes
            assert await Guardrails(engine.admin, Reports(engine.context)).check() == []  # nobody asked for it

            guardrails[0]["revert"] = True
            await engine.patch_settings("default", {"guardrails": guardrails})
            assert await Guardrails(engine.admin, Reports(engine.context)).check() == (["default"] if codes else [])
            if codes:
                held = [await engine.rank("default", request(user=f"u{k}")) for k in range(20)]
                assert {result.arm for result in held} == {"held"}
                assert engine.settings("default")[1].control.hold.startswith(
                    "Guardrail: gone rose by more than 0.1: +0."
                )
                clock.pass_seconds(700)
                await engine.settle()
                now = msgspec.json.decode(await engine.report("default"), type=LoopReport)
                assert [alarm.code for alarm in now.alarms] == ["held"]
                assert (now.lift.control, now.lift.treatment) == (figures.lift.control, figures.lift.treatment)
                assert await Guardrails(engine.admin, Reports(engine.context)).check() == []
                assert engine.digest() == engine.rebuilt()

    asyncio.run(story())

"""Figures from the log: against the export, from where they stopped, without erased users, in their own process."""

import asyncio
import json
import os

import msgspec
import numpy as np
import pytest
from machine import Clock, running
from playing import refused, request

from bandits.evaluation import evaluate
from service.log.opening import Store
from service.log.workers import WorkerProcess
from service.plugins.reports.reader import LoopReader, LoopReaders, read_loop
from service.plugins.reports.report import LoopReport


async def lived(engine, clock, n, seed=0, **fields):
    """Rank ``n`` times, reward what is liked, let the rest expire."""
    rng = np.random.default_rng(seed)
    for k in range(n):
        result = await engine.rank("default", request(user=f"u{rng.integers(30)}", event_id=f"{seed}-{k}", **fields))
        clock.pass_seconds(2)
        if rng.random() < 0.2 + 0.5 * (result.action_id == "a1"):
            await engine.reward("default", result.event_id, 1.0)
    clock.pass_seconds(1_000)
    await engine.settle()


async def report(engine):
    return msgspec.json.decode(await engine.report("default"), type=LoopReport)


def near(number):
    return pytest.approx(number, rel=1e-4, abs=1e-6)


def mean(rewards):
    return sum(rewards) / len(rewards)


def test_a_report_says_what_the_export_says(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock, control={"share": 0.3}) as engine:
            await lived(engine, clock, 400)
            figures, events = await report(engine), list(await engine.events("default"))
            for line, arm in ((figures.policy, "treatment"), (figures.control, "control")):
                rewards = [event["reward"] for event in events if event["arm"] == arm]
                assert sum(line.events) == len(rewards) > 50
                bands = line.low, line.reward, line.high
                total = sum(n * value for n, value in zip(line.events, line.reward, strict=True) if n)
                assert total / len(rewards) == near(mean(rewards))
                assert all(low <= value <= high for low, value, high in zip(*bands, strict=True) if low)
            taken = [event["action"] for event in events if event["arm"] == "treatment"]
            shown = zip(figures.traffic.actions, map(sum, figures.traffic.events), strict=True)
            assert dict(shown) == {action: taken.count(action) for action in set(taken)}
            rewarded = sum(event["status"] == "rewarded" for event in events)
            funnel = figures.funnel
            assert (funnel.ranked, funnel.activated, funnel.rewarded, funnel.expired) == (
                400,
                400,
                rewarded,
                400 - rewarded,
            )
            assert (sum(figures.delays.events), funnel.waiting) == (rewarded, 0)
            assert (
                figures.delays.events[figures.delays.up_to_seconds.index(3)] == rewarded
            )  # each came after two seconds
            assert figures.lift.treatment.reward == near(mean([e["reward"] for e in events if e["arm"] == "treatment"]))

            path = tmp_path / "events.jsonl"
            path.write_text("\n".join(json.dumps(event) for event in events if event["arm"] == "treatment"))
            rows = evaluate(path, ["first", "uniform", "likeliest"], estimators=["snips"], time_uniform=True).rows
            assert [value.policy for value in figures.values] == ["logged", "first", "uniform", "likeliest"]
            for value, row in zip(figures.values, rows, strict=True):
                assert (value.reward.value, value.reward.low, value.reward.high) == near((row.value, row.low, row.high))
            assert figures.uniform.reward[-1] == near(rows[2].value)

    asyncio.run(story())


def test_a_reporter_goes_on_where_it_stopped_and_forgets_who_was_erased(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock, control={"share": 0.3}) as engine:
            await lived(engine, clock, 120)
            before = await report(engine)
            await lived(engine, clock, 120, seed=1)
            after = await report(engine)
            assert (before.events, after.events) == (120, 240)
            read = LoopReaders().loop(engine.context.archive(), "default", engine.view().created_at)
            assert read.report() == after
            mine = sum(event["user"] == "u3" for event in await engine.events("default"))
            assert mine > 0
            await engine.erase_user("default", "u3")
            assert (await report(engine)).events == 240 - mine

    asyncio.run(story())


def test_deferred_late_and_unmatched_events_are_in_the_funnel_and_alarms_say_so(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            for k in range(4):
                await engine.rank("default", request(event_id=f"e{k}", defer=k < 3))
            await engine.activate("default", "e0")
            await engine.activate("default", "e0")
            await engine.reward("default", "nobody", 1.0)
            clock.pass_seconds(4_000)
            await engine.reward("default", "e3", 1.0)
            figures = await report(engine)
            funnel = figures.funnel
            assert (funnel.ranked, funnel.activated, funnel.expired, funnel.waiting) == (4, 2, 2, 2)
            assert (funnel.late, funnel.unmatched) == (1, 1)
            assert [alarm.code for alarm in figures.alarms] == ["late_rewards", "unmatched_rewards"]
            assert (figures.values, figures.lift) == ([], None)

    asyncio.run(story())


@pytest.mark.parametrize(("epsilon", "codes"), [(0.0, ["collapsed"]), (1.0, [])])
def test_a_policy_that_takes_one_action_only_raises_an_alarm(tmp_path, epsilon, codes):
    clock = Clock()

    async def story():
        policy = {"model": "adagrad", "policy": "epsilon-greedy", "epsilon": epsilon, "personal": False}
        async with running(tmp_path, clock=clock, **policy) as engine:
            await lived(engine, clock, 40)
            await lived(engine, clock, 220, seed=1)
            figures = await report(engine)
            assert [alarm.code for alarm in figures.alarms] == codes
            assert bool(figures.values) == (not codes)  # what had no chance cannot be valued

    asyncio.run(story())


def test_a_process_of_its_own_answers_the_same_at_the_lowest_priority_and_is_started_anew(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock, control={"share": 0.3}) as engine:
            await lived(engine, clock, 120)
            reports = WorkerProcess(Store(tmp_path / "store.db"))
            question = "default", read_loop, engine.view().created_at, LoopReader.report
            expected = json.loads(await engine.report("default"))
            assert json.loads(await reports.call(*question)) == expected
            process = reports._process
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
            process.kill()
            await process.wait()
            assert json.loads(await reports.call(*question)) == expected
            reports._process.kill()
            assert await refused(reports.call(*question)) == (503, "report_failed")
            assert json.loads(await reports.call(*question)) == expected
            last = reports._process
            reports.close()
            await last.wait()

    asyncio.run(story())

"""The state of all loops for the first page: verdicts by rules, and summaries that one loop cannot keep from others."""

import asyncio
import json

import msgspec
import pytest
from machine import Clock, running
from playing import request

from service.admin.status import MachineStatus
from service.errors import ApiError
from service.plugins.reports.lift import Bounds
from service.plugins.reports.overview import ASKED, SUMMARIES, Summaries
from service.plugins.reports.summary import LiftSummary, LoopSummary, StandingAlarm
from service.plugins.reports.verdicts import NEXT_STEPS, verdict_of
from service.settings import Settings


def lift(low=None, high=None, missing=None):
    absolute = None if low is None else Bounds((low + high) / 2, low, high)
    return LiftSummary(absolute, None, 30, 70, missing, 1_200, "gain", False)


def summary(measured=None, alarms=()):
    standing = [StandingAlarm(code, f"{code} message", 1_700_000_000.0) for code in alarms]
    return LoopSummary(9, "2026-01-01T00:00:00+00:00", 5, [], 0, [], [], measured, None, standing)


def control(**fields):
    return msgspec.structs.replace(Settings(), control=msgspec.convert(fields, type(Settings().control)))


@pytest.mark.parametrize(
    ("settings", "decisions", "known", "error", "state", "sentence", "next_step"),
    [
        (control(hold="prices"), 0, None, None, "held", "Held: prices", "resume"),
        (control(), 0, None, None, "empty", "No decision", "Send the first"),
        (control(), 5, None, None, "unknown", "being computed", "Wait"),
        (control(), 5, summary(), "planted", "unknown", "planted", "Wait"),
        (control(), 5, summary(), None, "running", "No control group", "Start a control group"),
        (control(share=0.3), 5, summary(lift(missing="few users")), None, "learning", "few users", "raise the share"),
        (control(share=0.3), 5, summary(lift(-0.1, 0.1)), None, "learning", "No difference", "1,200 more users"),
        (control(share=0.3), 5, summary(lift(-0.2, -0.1)), None, "worse", "Earns less", "hold"),
        (control(share=0.3), 5, summary(lift(0.1, 0.2)), None, "proven", "Earns more", "from 30% to 5%"),
        (control(share=0.05), 5, summary(lift(0.1, 0.2)), None, "proven", "Earns more", "Nothing to do"),
        (control(share=0.3), 5, summary(lift(0.1, 0.2), ["drift", "guardrail"]), None, "alarm", "Do not ship", "Hold"),
        (control(share=0.3), 5, summary(lift(0.1, 0.2), ["drift"]), None, "alarm", "drift message", "changed"),
    ],
)
def test_a_verdict_is_the_first_rule_that_fits(settings, decisions, known, error, state, sentence, next_step):
    verdict = verdict_of(settings, decisions, known, error)
    assert verdict.state == state
    assert sentence in verdict.sentence
    assert next_step in verdict.next_step


def test_every_alarm_has_a_next_step():
    codes = {"sample_ratio", "guardrail", "collapsed", "drift", "late_rewards", "unmatched_rewards"}
    assert NEXT_STEPS.keys() == codes


class FailingReports:
    """Real reports, but for loops that have an error to raise; it counts calls by loop."""

    def __init__(self, reports):
        self.reports = reports
        self.errors = {}
        self.calls = []

    async def call(self, loop, function, *arguments, **options):
        self.calls.append(loop)
        if loop in self.errors:
            raise self.errors[loop]
        return await self.reports.call(loop, function, *arguments, **options)

    def close(self):
        self.reports.close()


async def decide(engine, loop, n=30):
    for k in range(n):
        result = await engine.rank(loop, request(user=f"u{k}"))
        await engine.reward(loop, result.event_id, k % 2)
    await engine.settle()


def test_all_loops_are_in_one_reply_the_most_urgent_first_and_a_failing_one_is_unknown(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            for loop in ("a-empty", "b-running", "c-failing", "z-held"):
                await engine.create_loop(loop, {})
            for loop in ("b-running", "c-failing", "z-held"):
                await decide(engine, loop)
            await engine.hold("z-held", "wrong prices")
            engine.context.reports = reports = FailingReports(engine.context.reports)
            reports.errors["c-failing"] = ApiError(503, "report_timeout", "planted")
            status = MachineStatus(engine.context, "store.db")
            summaries = Summaries(engine.context, status, now=lambda: clock.now / 1e6)
            overview = await summaries.overview()
            states = [(row.loop, row.verdict.state) for row in overview.loops]
            assert states == [
                ("z-held", "held"),
                ("c-failing", "unknown"),
                ("b-running", "running"),
                ("a-empty", "empty"),
                ("default", "empty"),
            ]
            assert overview.counts == {"held": 1, "unknown": 1, "running": 1, "empty": 2}
            held, failing, good = overview.loops[:3]
            assert "wrong prices" in held.verdict.sentence
            assert held.verdict.since is not None
            assert "planted" in failing.verdict.sentence
            assert (good.decisions, good.decisions_day) == (30, 30)
            assert sum(one.share for one in good.actions) == pytest.approx(1, abs=0.01)
            clock.pass_seconds(2)
            assert [row.loop for row in (await summaries.overview(has="HELD")).loops] == ["z-held"]
            only = await summaries.overview(state="empty", limit=1)
            assert (only.total, only.matching, [row.loop for row in only.loops]) == (5, 2, ["a-empty"])
            n_calls = len(reports.calls)
            await summaries.overview()
            assert len(reports.calls) == n_calls  # nothing is new, and the failed one rests
            reports.errors.clear()
            clock.pass_seconds(100)
            assert (await summaries.state("c-failing")).verdict.state == "running"

    asyncio.run(story())


def test_an_alarm_stands_since_it_was_noticed_first(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            await decide(engine, "default")
            for k in range(20):
                await engine.reward("default", f"unknown-{k}", 1.0)
            clock.pass_seconds(1_000)
            await decide(engine, "default", 3)
            summaries = Summaries(engine.context, MachineStatus(engine.context, "store.db"), lambda: clock.now / 1e6)
            first = await summaries.state("default")
            assert (first.verdict.state, [alarm.code for alarm in first.alarms]) == ("alarm", ["unmatched_rewards"])
            clock.pass_seconds(100)
            await decide(engine, "default", 3)
            again = await summaries.state("default")
            assert again.as_of > first.as_of
            assert again.alarms[0].since == first.alarms[0].since
            assert again.verdict.since == first.verdict.since

    asyncio.run(story())


def test_summaries_of_a_machine_are_computed_while_somebody_looks_and_all_rankers_read_them(tmp_path):
    clock = Clock()

    async def story():
        store = tmp_path / "store"
        store.mkdir()
        async with running(store, clock=clock) as engine:
            await decide(engine, "default")
            run = tmp_path / "run"
            run.mkdir()
            (run / "processes.json").write_text("[]")
            status = MachineStatus(engine.context, "store.db", run)
            steps = asyncio.Queue()
            asleep = asyncio.Event()

            async def sleep(seconds):
                asleep.set()
                await steps.get()

            async def step():
                asleep.clear()
                steps.put_nowait(None)
                await asleep.wait()

            asked = Summaries(engine.context, status)
            watch = asyncio.ensure_future(Summaries(engine.context, status, sleep=sleep).watch(run / "lock"))
            await asleep.wait()
            await step()
            assert not (run / SUMMARIES).exists()  # nobody looks
            row = (await asked.overview()).loops[0]
            assert (row.verdict.state, row.as_of) == ("unknown", None)
            assert (run / ASKED).exists()
            await step()
            assert len(json.loads((run / SUMMARIES).read_text())) == 1
            asked._rows = None
            row = (await asked.overview()).loops[0]
            assert (row.verdict.state, row.decisions_day) == ("running", 0)  # the log's clock is long ago
            watch.cancel()

    asyncio.run(story())


def test_the_rows_of_a_loop_are_bounded_whatever_its_ids_are(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", {"control": {"share": 0.3}})
            for k in range(60):
                result = await engine.rank("default", request(user="x" * 190 + str(k), n_actions=2))
                await engine.reward("default", result.event_id, 1.0)
            await engine.settle()
            overview = await Summaries(engine.context, MachineStatus(engine.context, "store.db")).overview()
            assert len(msgspec.json.encode(overview.loops)) < 3_000

    asyncio.run(story())

"""The watch over guardrails: every minute, on one ranker, whatever happens to single loops or looks."""

import asyncio
import contextlib
import fcntl
import json

from machine import Clock, running
from playing import request

from service.errors import ApiError
from service.http.audit import Audit
from service.log.protocol import StoreUnavailable
from service.plugins.reports.guardrails import Guardrails
from service.plugins.reports.reports import Reports

SHOP = {
    "outcomes": {"gone": 500.0},
    "formula": "-gone",
    "reward_range": (-1.0, 1.0),
    "control": {"share": 0.4, "baseline": "uniform"},
    "guardrails": [{"outcome": "gone", "rise": 0.1, "revert": True}],
}


class Minutes:
    """A sleep that ends when told; ``pass_one`` returns once all that the minute brought is over."""

    def __init__(self):
        self.calls, self._over, self._asleep = [], asyncio.Queue(), asyncio.Event()

    async def sleep(self, seconds):
        self.calls.append(seconds)
        self._asleep.set()
        await self._over.get()

    async def pass_one(self):
        await self._asleep.wait()
        self._asleep.clear()
        self._over.put_nowait(None)
        asleep = asyncio.ensure_future(self._asleep.wait())
        await asyncio.wait([asleep, self.watch], return_when=asyncio.FIRST_COMPLETED)
        assert asleep.done(), "the watch has ended"


class FailingReports:
    """Real reports, but for loops that have an error to raise."""

    def __init__(self, reports):
        self.reports, self.errors, self.calls = reports, {}, []

    async def call(self, loop, function, *arguments):
        self.calls.append(loop)
        if loop in self.errors:
            raise self.errors[loop]
        return await self.reports.call(loop, function, *arguments)

    def close(self):
        self.reports.close()


async def harm(engine, clock, loop):
    """Let nearly all users of the treatment leave, and hardly one of control."""
    for k in range(240):
        result = await engine.rank(loop, request(user=f"u{k}"))
        if k % 10 == 0 if result.arm == "control" else k % 10 > 0:
            await engine.reward(loop, result.event_id, outcomes={"gone": 1})
    clock.pass_seconds(700)
    await engine.settle()


@contextlib.asynccontextmanager
async def watched(engine, lock):
    minutes = Minutes()
    minutes.watch = asyncio.ensure_future(Guardrails(engine.admin, Reports(engine.context), minutes.sleep).watch(lock))
    try:
        yield minutes
        assert set(minutes.calls) == {60.0}
    finally:
        minutes.watch.cancel()


def held(engine):
    return [loop for loop in engine.loops() if engine.settings(loop)[1].control.hold]


def test_loops_are_looked_at_every_minute_and_one_that_fails_does_not_keep_others_from_their_turn(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            for loop in ("broken", "down", "refused", "z"):  # "default" comes second, "z" last
                await engine.create_loop(loop, SHOP)
            await engine.put_settings("default", SHOP)
            reports = engine.context.reports = FailingReports(engine.context.reports)
            reports.errors = {
                "broken": RuntimeError("planted"),
                "down": StoreUnavailable("down", "planted"),
                "refused": ApiError(503, "report_timeout", "planted"),
            }
            for loop in ("default", "broken"):
                await harm(engine, clock, loop)
            async with watched(engine, tmp_path / "lock") as minutes:
                assert reports.calls == []
                await minutes.pass_one()
                assert reports.calls == ["broken", "default", "down", "refused", "z"]
                assert held(engine) == ["default"]
                del reports.errors["broken"]
                await minutes.pass_one()
                assert reports.calls[5:] == ["broken", "down", "refused", "z"]  # what is held needs no look
                assert held(engine) == ["broken", "default"]

    asyncio.run(story())


def test_a_guardrail_judges_what_was_decided_after_the_last_hold_and_its_hold_is_audited(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            await engine.put_settings("default", SHOP)
            watch = Guardrails(engine.admin, Reports(engine.context), audit=Audit(tmp_path / "store.db"))
            await harm(engine, clock, "default")
            assert await watch.check() == ["default"]
            [line] = map(json.loads, (tmp_path / "store.db-audit").read_text().splitlines())
            assert (line["key"], line["what"], line["loop"]) == ("guardrails", "hold", "default")
            evidence = await engine.lift("default")
            assert evidence.outcomes[0].absolute.low > 0.1
            assert evidence.held.reason == engine.settings("default")[1].control.hold
            await engine.resume("default")
            assert await watch.check() == []  # the old evidence does not hold the loop again
            assert (await engine.lift("default")).outcomes == evidence.outcomes
            await harm(engine, clock, "default")
            assert await watch.check() == ["default"]

    asyncio.run(story())


def test_only_the_ranker_with_the_lock_looks_and_no_failed_look_ends_the_watch(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", SHOP)
            reports = engine.context.reports = FailingReports(engine.context.reports)
            with open(tmp_path / "lock", "ab") as other:
                fcntl.flock(other, fcntl.LOCK_EX)
                async with watched(engine, tmp_path / "lock") as minutes:
                    await minutes.pass_one()
                    assert reports.calls == []
                    fcntl.flock(other, fcntl.LOCK_UN)
                    names, engine.context.models.names = engine.context.models.names, lambda: 1 / 0
                    await minutes.pass_one()
                    engine.context.models.names = names
                    await minutes.pass_one()
                    assert reports.calls == ["default"]

    asyncio.run(story())

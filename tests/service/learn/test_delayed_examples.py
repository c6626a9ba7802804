"""Loops that are sent clicks and nothing else: silence is learned as failure long before the wait time is over."""

import asyncio

import numpy as np
import pytest
from machine import Clock, running, tell
from playing import refused, request

from service.log.records import RANK, TICK, read_decision
from service.rank.quotas import Quotas

CHANCES = {"a0": 0.05, "a1": 0.05, "a2": 0.5}
SECOND = 1_000_000


class Readers:
    """Users who see something every tenth of a second and click a fifth of a second later, if at all."""

    def __init__(self, engine, clock, seed=0):
        self.engine, self.clock, self.rng = engine, clock, np.random.default_rng(seed)
        self.n, self.clicks, self.shown = 0, {}, []

    async def come(self, n, *, tell_failures=False):
        for k in range(self.n, self.n + n):
            name = f"e{k}"
            answer = await self.engine.rank("default", request(f"u{k % 6}", {"hour": k % 4}, event_id=name))
            self.shown.append(answer.action_id)
            clicked = self.rng.random() < CHANCES[answer.action_id]
            if clicked or tell_failures:
                self.clicks[k + 2] = name, float(clicked)
            if k in self.clicks:
                await self.engine.reward("default", *self.clicks.pop(k))
            self.clock.pass_seconds(0.1)
            await self.engine.settle()
        self.n += n

    async def come_for_the_last_time(self):
        """Let nobody click who has not yet."""
        self.clicks.clear()
        self.clock.pass_seconds(1)
        await self.engine.settle()


def tell_with_readers(folder, story):
    tell(folder, lambda engine, clock: story(engine, clock, Readers(engine, clock)))


def learn_after_of(engine):
    return [read_decision(entry.example).learn_after for entry in engine.logged() if entry.kind == RANK]


def test_what_is_clicked_most_is_found_within_seconds(tmp_path):
    async def story(engine, _, readers):
        await readers.come(300)
        assert engine.view().settings.wait_time == 600
        assert engine.view().statistics.low == 0
        assert readers.shown[-100:].count("a2") > 80
        after = await engine.rank("default", request("u1", {"hour": 1}))
        assert (after.ranking[0].id, after.ranking[0].probability > 0.9) == ("a2", True)
        logged = learn_after_of(engine)
        first = next(k for k, delay in enumerate(logged) if delay is not None)
        assert first >= 8
        assert set(logged[first:]) == {SECOND}  # five times 0.2 s
        assert engine.digest() == engine.rebuilt()

    tell_with_readers(tmp_path, story)


def test_where_failures_are_told_events_are_learned_when_they_are_told(tmp_path):
    async def story(engine, _, readers):
        await readers.come(60, tell_failures=True)
        assert set(learn_after_of(engine)) == {None}
        assert engine.context.loop("default").n_learned == 58

    tell_with_readers(tmp_path, story)


@pytest.mark.parametrize(
    "settings", [{"default_reward": None}, {"aggregation": "sum"}, {"outcomes": {"click": 60.0}, "formula": "click"}]
)
def test_loops_that_settle_otherwise_have_no_learn_after(tmp_path, settings):
    async def story():
        async with running(tmp_path, **settings) as engine:
            view = engine.view()
            view.statistics.ranks, view.statistics.settled, view.statistics.rewarded = 100, 20, 20
            assert view.learn_after is None

    asyncio.run(story())


def test_a_click_after_that_counts_and_is_not_learned_from(tmp_path):
    async def story(engine, clock, readers):
        await readers.come(100)
        await readers.come_for_the_last_time()
        clock.pass_seconds(10)
        await engine.settle()
        assert engine.logged()[-1].kind == TICK  # nothing else said that a second was over
        before, view, digest = engine.context.loop("default").n_learned, engine.view(), engine.digest()
        assert before == view.n_assumed + view.statistics.rewarded
        assert view.n_waiting > view.n_assumed > 30  # the first ones have no learn_after
        silent = next(iter(engine.learner.loops["default"].delayed.assumed_failed))
        await engine.reward("default", silent, 1.0)
        await engine.settle()
        after = engine.view()
        assert after.statistics.rewarded == view.statistics.rewarded + 1
        assert (after.n_assumed, after.n_waiting) == (view.n_assumed - 1, view.n_waiting - 1)
        assert (engine.context.loop("default").n_learned, engine.digest()) == (before, digest)
        clock.pass_seconds(700)
        await engine.settle()
        ended = engine.view()
        assert (ended.n_assumed, ended.statistics.settled) == (0, 100)
        assert engine.context.loop("default").n_learned == 100
        assert engine.digest() == engine.rebuilt()

    tell_with_readers(tmp_path, story)


def test_models_are_those_of_the_log_wherever_it_was_restarted(tmp_path):
    async def story():
        clock = Clock()
        for part in range(8):
            async with running(tmp_path, clock=clock) as engine:
                readers = Readers(engine, clock, seed=part)
                readers.n = 1_000 * part
                await readers.come(37)
                delayed = engine.learner.loops["default"].delayed
                live = engine.digest(), delayed.assumed_failed, delayed.next_time(), engine.view().statistics
                assert live[0] == engine.rebuilt()
            async with running(tmp_path, clock=clock) as engine:
                delayed = engine.learner.loops["default"].delayed
                assert (engine.digest(), delayed.assumed_failed, delayed.next_time(), engine.view().statistics) == live
                assert engine.learner.rebuilt == 0
        assert len(live[1]) > 100

    asyncio.run(story())


def test_nothing_is_learned_of_a_user_who_was_erased_in_the_meantime(tmp_path):
    async def story(engine, clock, readers):
        await readers.come(100)
        await engine.rank("default", request("erased", {"hour": 1}, event_id="last"))
        await engine.erase_user("default", "erased")
        clock.pass_seconds(10)
        await engine.settle()
        assert "last" not in engine.learner.loops["default"].delayed.assumed_failed
        assert await refused(missing(engine)) == (404, "unknown_user")
        assert engine.digest() == engine.rebuilt()

    tell_with_readers(tmp_path, story)


async def missing(engine):
    return engine.user_model("default", "erased")


def test_what_a_click_has_settled_takes_memory_until_it_is_learned_from(tmp_path):
    """Its features are kept until then, so they count towards the quota of bytes."""
    large = {f"number {k}": k for k in range(1, 900)}

    async def story(engine, clock, readers):
        await readers.come(300)
        clock.pass_seconds(1_000)
        await engine.settle()
        assert engine.view().waiting_bytes == 0
        for k in range(10):
            await engine.rank("default", request(context=large, event_id=f"large {k}"))
            await engine.reward("default", f"large {k}", 1.0)
        await engine.settle()
        assert engine.view().n_waiting == 0
        assert 10 * 8 * 899 < engine.view().waiting_bytes < 10 * 10_000
        engine.context.quotas = Quotas(pending_bytes=50_000)
        assert await refused(engine.rank("default", request())) == (429, "too_many_pending_bytes")
        await engine.erase_user("default", "u")
        assert engine.view().waiting_bytes == 0
        await engine.rank("default", request("v", large, event_id="of another user"))
        await engine.reward("default", "of another user", 1.0)
        await engine.settle()
        assert 8 * 899 < engine.view().waiting_bytes < 10_000
        clock.pass_seconds(1_000)
        await engine.settle()
        assert engine.view().waiting_bytes == 0

    tell_with_readers(tmp_path, story)

"""A clock that is ahead removes nothing that is not old, and a retention works by times that requests have shown."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine import SECOND, Clock, running, tell
from playing import head_of, play, request

from service.admin.status import MachineStatus
from service.log.records import LOOP, RANK, Record, encode
from service.models.loop_metadata import Traffic
from service.settings import Settings
from service.times import DAY

DAYS = 86_400  # seconds


def look(engine, n=40):
    for _ in range(n):
        engine.learner.step()


def n_ranks(engine):
    return sum(entry.kind == RANK for entry in engine.logged())


def test_a_start_with_the_clock_far_ahead_removes_nothing_and_says_so(tmp_path):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock, retention=90 * DAYS) as engine:
            await play(engine, 30)
        clock.pass_seconds(100 * DAYS)
        async with running(tmp_path, clock=clock) as engine:
            look(engine)
            assert n_ranks(engine) == 30
            status = MachineStatus(engine.context, "store.db")
            assert "the newest request of loop 'default'" in status.check_ready()
            await engine.rank("default", request("u"))  # one request does not make the clock right
            look(engine)
            assert n_ranks(engine) == 31
        clock.pass_seconds(-100 * DAYS)
        async with running(tmp_path, clock=clock) as engine:
            engine.learner.prunings.clock = clock  # this machine's, while the log's stays ahead
            for day in range(3):
                clock.pass_seconds(DAYS)
                await play(engine, 5, day + 1)
                look(engine)
            assert n_ranks(engine) == 46

    asyncio.run(story())


def test_a_day_of_requests_shows_that_the_time_is_right(tmp_path):
    async def story(engine, clock):
        await play(engine, 30)
        clock.pass_seconds(100 * DAYS)
        for k in range(30):
            clock.pass_seconds(3_600)
            await play(engine, 2, k + 1)
            look(engine, 10)
        clock.pass_seconds(DAYS)
        await play(engine, 2, 99)
        look(engine, 100)
        assert n_ranks(engine) == 62
        assert "newest request" not in (MachineStatus(engine.context, "store.db").check_ready() or "")

    tell(tmp_path, story, retention=90 * DAYS)


@given(st.lists(st.floats(0.001, 5.0), min_size=1, max_size=40))
def test_trusted_times_are_those_of_requests_and_never_behind_by_more_than_the_last_doubtful_ones(gaps):
    traffic, now, times = Traffic(), 1_000 * DAY, []
    for gap in gaps:
        now += round(gap * DAY)
        traffic.note(now)
        times.append(now)
        traffic.note(now - DAY)  # read again after a restart
        assert traffic.newest == now
        assert traffic.trusted in times
        if len(times) == 1 or all(gap <= 1 for gap in gaps[1 : len(times)]):
            assert traffic.trusted == now
        doubtful = [time for time in times if time > traffic.trusted]
        assert not doubtful or doubtful[-1] - doubtful[0] < DAY


def test_a_retention_below_an_hour_is_refused_and_works_as_an_hour_in_an_older_log(tmp_path):
    async def story(engine, clock):
        with pytest.raises(Exception, match="retention must be at least an hour"):
            await engine.patch_settings("default", {"retention": 700.0})
        settings = encode(Settings(wait_time=1.0, retention=1.0))
        engine.log.append([[Record("short", LOOP, "loop after 0", body=settings)]])
        await engine.settle()
        for _ in range(10):
            await play(engine, 3, loop="short", seed=int(clock()) % 1_000_000)
            clock.pass_seconds(200)
            look(engine, 10)
        assert sum(entry.kind == RANK for entry in engine.logged("short")) >= 3
        assert head_of(engine, "short").pruned.begun == 0
        clock.pass_seconds(2 * 3_600)
        await play(engine, 3, loop="short", seed=77)
        look(engine, 40)
        assert head_of(engine, "short").pruned.begun > 0

    tell(tmp_path, story)


def test_a_loop_of_which_nothing_was_removed_has_all_its_events(tmp_path):
    async def story(engine, clock):
        await play(engine, 10)
        n = len(engine.logged())
        look(engine)
        assert (len(engine.logged()), engine.view().events_since) == (n, 0)
        assert engine.events_since("default") is None

    tell(tmp_path, story, retention=7 * DAYS)


def test_a_retention_is_looked_after_once_a_minute_at_most(tmp_path):
    async def story(engine, clock):
        looks = []
        before = engine.learner.prunings._before
        engine.learner.prunings._before = lambda *what: (looks.append(clock()), before(*what))[1]
        for _ in range(300):
            clock.pass_seconds(10)
            await engine.rank("default", request("u"))
            look(engine, 2)
        assert looks
        assert all(later - earlier >= 60 * SECOND for earlier, later in itertools.pairwise(looks))

    tell(tmp_path, story, retention=3_600.0, wait_time=1.0)

"""Wait times, clocks and the order of rewards, from the request to what is learned."""

import asyncio
import time

import pytest
from machine import SECOND, Clock, running
from playing import gauges, logged, play, rebuilt, request

from service.log.opening import steady_clock
from service.log.records import SETTINGS, Record, encode
from service.settings import Settings


def test_wait_times_run_out_by_the_clock_and_a_tick_in_the_log_says_when(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await engine.put_settings("default", {"wait_time": 60, "default_reward": 0.5})
            await engine.rank("default", request(event_id="e"))
            clock.pass_seconds(59)
            await engine.settle()
            assert [event["status"] for event in await engine.events("default")] == ["waiting"]
            clock.pass_seconds(1)
            await engine.settle()
            [event] = await engine.events("default")
            assert (event["status"], event["reward"]) == ("expired", 0.5)
            assert logged(tmp_path)[-1].kind == "tick"
            assert (await gauges(engine))["learned_events"] == 1
            await engine.reward("default", "e", 1.0)
            await engine.settle()
            assert [event["reward"] for event in await engine.events("default")] == [0.5]
            [late] = await engine.unmatched("default")
            assert (late.event_id, late.value, late.status) == ("e", 1.0, "late")
            assert engine.digest("default") == rebuilt(tmp_path)

    asyncio.run(story())


def test_clock_jumps_lose_nothing(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            for k, jump in enumerate([0, -86_400, 400, 7 * 86_400, -30 * 86_400, 1, 90_000]):
                clock.pass_seconds(jump)
                await play(engine, 15, seed=k)
            times = [entry.time for entry in logged(tmp_path)]
            assert times == sorted(times)
            assert engine.digest("default") == rebuilt(tmp_path)
            clock.pass_seconds(60 * 86_400)
            await engine.settle()
            assert (await gauges(engine))["waiting_events"] == 0
            assert (await gauges(engine))["learned_events"] == 7 * 15

    asyncio.run(story())


def test_a_clock_behind_the_log_goes_on_from_there_at_its_own_pace(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await engine.put_settings("default", {"wait_time": 60})
            await engine.rank("default", request(event_id="before"))
        clock.pass_seconds(-86_400)
        async with running(tmp_path, clock=clock) as engine:
            clock.pass_seconds(30)
            await engine.rank("default", request(event_id="after"))
            assert [event["status"] for event in await engine.events("default")] == ["waiting", "waiting"]
            clock.pass_seconds(30)
            await engine.settle()
            assert [event["status"] for event in await engine.events("default")] == ["expired", "waiting"]
            clock.pass_seconds(30)
            await engine.settle()
            assert [event["status"] for event in await engine.events("default")] == ["expired", "expired"]
            assert engine.digest("default") == rebuilt(tmp_path)

    asyncio.run(story())


def test_a_steady_clock_begins_at_the_wall_clock_and_does_not_follow_it():
    wall = Clock()
    steady = steady_clock(wall)
    wall.pass_seconds(86_400)
    first, second = steady(), steady()
    assert wall() - 86_400 * SECOND <= first <= second < wall()


@pytest.mark.parametrize(("aggregation", "reward"), [("earliest", 1.0), ("sum", 1.25)])
def test_rewards_early_repeated_and_at_once_count_as_the_settings_say(tmp_path, aggregation, reward):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await engine.put_settings("default", {"aggregation": aggregation})
            await engine.reward("default", "e", 1.0, "first")
            await engine.rank("default", request(event_id="e"))
            await asyncio.gather(*[engine.reward("default", "e", 0.25, "second") for _ in range(32)])
            await engine.reward("default", "e", 1.0, "first")
            await engine.reward("default", "other", 1.0)
            clock.pass_seconds(601)
            await engine.settle()
            assert [(event["status"], event["reward"]) for event in await engine.events("default")] == [
                ("rewarded", reward)
            ]
            sums = engine.view("default").statistics
            assert (sums.settled, sums.reward) == (1, reward)
            assert [entry.event_id for entry in await engine.unmatched("default")] == ["other"]

    asyncio.run(story())


def test_a_deferred_event_is_learned_only_once_it_is_activated(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await engine.rank("default", request(event_id="e", defer=True))
            await engine.reward("default", "e", 1.0)
            clock.pass_seconds(10_000)
            await engine.settle()
            assert [event["status"] for event in await engine.events("default")] == ["deferred"]
            assert (await gauges(engine))["learned_events"] == 0
            await engine.activate("default", "e")
            await engine.settle()
            assert [(event["status"], event["reward"]) for event in await engine.events("default")] == [
                ("rewarded", 1.0)
            ]
            assert (await gauges(engine))["learned_events"] == 1

    asyncio.run(story())


def test_models_that_take_long_to_publish_are_published_less_often(tmp_path, monkeypatch):
    monkeypatch.setattr("service.learn.publishing.MOST_SECONDS", 60.0)

    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", {"update_interval": 0.005})
            state = engine.learner.loops["default"]
            for k, (seconds, is_published) in enumerate([(60.0, False), (0.0, True)]):
                await engine.rank("default", request("u", event_id=f"e{k}"))
                await engine.reward("default", f"e{k}", 1.0)
                state.publish_seconds = seconds
                time.sleep(0.002)  # longer than the interval
                engine.learner.step(urgent=False)
                assert (engine.view().version == state.metadata.version) is is_published

    asyncio.run(story())


def test_what_was_learned_waits_for_the_update_interval_and_a_change_of_settings_does_not(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", {"update_interval": 60})
            version = engine.view().version
            await engine.rank("default", request("u", event_id="e"))
            await engine.reward("default", "e", 1.0)
            engine.learner.step(urgent=False)
            assert engine.learner.loops["default"].metadata.version > version == engine.view().version
            settings = Settings(epsilon=0.5, update_interval=60)
            engine.log.append([[Record("default", SETTINGS, body=encode(settings))]])
            engine.learner.step(urgent=False)
            assert engine.view().settings.epsilon == 0.5
            assert engine.view().version > version

    asyncio.run(story())

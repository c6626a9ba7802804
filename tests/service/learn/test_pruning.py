"""Removing old events: models keep what they learned, whatever is in use stays, and no crash leaves it half done."""

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from machine import Clock, Engine, LearnerWriter, running, tell
from playing import copied, gauges, head_of, logged, play, rebuilt, relearned, request

from service.admin.exporting import time_or_none
from service.errors import ApiError
from service.learn.learner import Learner
from service.learn.snapshots import Snapshots
from service.log import sqlite
from service.log.records import EraseBody, Record, encode
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.models.published import Publisher

DAY = 86_400
EVENTS = {"rank", "reward", "activate", "tick"}


@pytest.fixture(autouse=True)
def short_steps(monkeypatch):
    monkeypatch.setattr(sqlite, "PRUNED_AT_ONCE", 11)
    monkeypatch.setattr(sqlite, "BASES_AT_ONCE", 3)
    monkeypatch.setattr(sqlite, "PAGES_AT_ONCE", 4)


def ask(engine, seconds=0.0, token="token"):
    """Ask that events older than this go, as ``fedres log prune`` does."""
    before = engine.log.now() - round(seconds * 1e6)
    engine.log.append([[Record("default", "erase", body=encode(EraseBody(token, before)))]])


def finish(engine, most=2_000):
    """Step until nothing is left to prune; return after how many steps that is."""
    for n in range(most):
        engine.learner.step()
        old = head_of(engine).pruned
        if old.done and engine.log.note("pruned default") == str(old.begun) and not head_of(engine).to_prune:
            return n
    raise AssertionError("the pruning does not end")


def events_in(folder):
    return [entry.event for entry in logged(folder) if entry.kind == "rank"]


@contextlib.contextmanager
def another_machine(folder, clock):
    """Lend a learner that follows the same log, and is never the holder."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as run:
        log = SqliteLog(sqlite_file(folder / "store.db"), clock=clock)
        snapshots, publisher = Snapshots(Path(run) / "models"), Publisher(Path(run), 1)
        learner = Learner(log, LearnerWriter(log), snapshots, publisher, snapshot_seconds=1e9, hold=lambda loop: None)
        learner.open()
        yield learner
        learner.close()


def digest_of(learner):
    while learner.step():
        pass
    return learner.digest("default")


@pytest.mark.parametrize("model", ["residual-kalman", "adagrad"])
def test_models_are_the_same_live_rebuilt_and_elsewhere_at_every_step(tmp_path, model):
    async def story(engine, clock):
        with another_machine(tmp_path, clock) as other:
            for seed in range(2):
                await play(engine, 60, seed)
                clock.pass_seconds(200)
                await play(engine, 10, 10 + seed)
                ask(engine, 100, f"token-{seed}")
                for k in range(30):
                    engine.learner.step()
                    if k % 3 == 0:  # an event that is gone may come again, and so may its reward
                        await engine.reward("default", f"{seed}-{k}", 1.0)
                        with contextlib.suppress(ApiError):  # it is still there
                            await engine.rank("default", request("user-1", event_id=f"{seed}-{k}"))
                        await engine.reward("default", f"{seed}-{k + 1}", 0.5)
                    live = engine.digest()
                    assert rebuilt(tmp_path) == live
                    assert digest_of(other) == live
                finish(engine)
                clock.pass_seconds(601)
                await play(engine, 20, 20 + seed)
                assert rebuilt(tmp_path) == engine.digest() == digest_of(other)
                assert other.loops["default"].metadata.statistics.ranks == head_of(engine).statistics.ranks

    tell(tmp_path, story, model=model, **({"bits": 8} if model == "adagrad" else {}))


def test_what_is_left_is_what_is_new_or_no_event(tmp_path):
    async def story(engine, clock):
        await play(engine, 50)
        await engine.put_settings("default", {"wait_time": 60})
        clock.pass_seconds(700)
        await play(engine, 5, 1)
        statistics, n_records = engine.view().statistics, len(engine.logged())
        ask(engine, 600)
        finish(engine)
        assert {event.split("-")[0] for event in events_in(tmp_path)} == {"1"}
        assert {"loop", "settings", "base"} <= {entry.kind for entry in logged(tmp_path)}
        assert len(engine.logged()) < n_records
        assert engine.view().statistics == statistics
        assert [event["event_id"] for event in await engine.events()] == [f"1-{k}" for k in range(5)]
        assert engine.digest() == rebuilt(tmp_path)

    tell(tmp_path, story)


def test_events_that_wait_for_a_reward_stay_and_learn_from_it(tmp_path):
    async def story(engine, clock):
        await play(engine, 30)
        clock.pass_seconds(601)
        await engine.settle()
        await engine.reward("default", "early", 1.0)
        await engine.rank("default", request("user-1", event_id="waiting"))
        await engine.rank("default", request("user-2", event_id="deferred", defer=True))
        await play(engine, 10, 1)
        ask(engine, -10)  # all of them
        finish(engine)
        assert events_in(tmp_path)[:2] == ["waiting", "deferred"]
        await engine.rank("default", request("user-3", event_id="early"))
        await engine.reward("default", "waiting", 1.0)
        await engine.activate("default", "deferred")
        await engine.reward("default", "deferred", 1.0)
        statuses = {event["event_id"]: event["status"] for event in await engine.events()}
        assert [statuses[event] for event in ("early", "waiting", "deferred")] == ["rewarded"] * 3
        assert engine.digest() == rebuilt(tmp_path)

    tell(tmp_path, story)


def test_a_reward_that_came_before_its_event_stays_with_it(tmp_path):
    async def story(engine, clock):
        await engine.reward("default", "both", 1.0)
        clock.pass_seconds(10)
        await play(engine, 4)
        await engine.rank("default", request("user-1", event_id="both"))
        await engine.settle()
        ask(engine, 5)  # between the two
        finish(engine)
        assert [entry.kind for entry in logged(tmp_path) if entry.event == "both"] == ["reward", "rank"]
        clock.pass_seconds(601)
        await engine.settle()
        assert engine.digest() == rebuilt(tmp_path)

    tell(tmp_path, story)


def test_an_id_that_was_pruned_is_new_and_a_reward_for_it_has_no_event(tmp_path):
    async def story(engine, clock):
        first = await engine.rank("default", request("u", event_id="again"))
        await engine.reward("default", "again", 1.0)
        await engine.settle()
        ask(engine, -1)
        finish(engine)
        await engine.reward("default", "again", 0.25)
        assert [one.status for one in await engine.unmatched("default")] == ["early"]
        clock.pass_seconds(3_601)
        await engine.settle()
        assert [one.status for one in await engine.unmatched("default")] == ["unmatched"]
        ranks = engine.view().statistics.ranks
        await engine.rank("default", request("u", {"other": 1}, event_id="again"))
        await engine.settle()
        assert engine.view().statistics.ranks == ranks + 1
        assert first.event_id == "again"
        assert engine.digest() == rebuilt(tmp_path)

    tell(tmp_path, story)


def test_reports_evaluations_and_lift_are_about_what_is_left_and_say_since_when(tmp_path):
    async def story(engine, clock):
        assert (await engine.lift("default")).events_since is None
        await play(engine, 80, n_users=60)
        clock.pass_seconds(601)
        await play(engine, 80, 1, n_users=60)
        clock.pass_seconds(601)
        await engine.settle()
        ask(engine, 900)
        finish(engine)
        since = time_or_none(head_of(engine).pruned.before)
        assert since.startswith("2023-11-14T22:")
        report = msgspec.json.decode(await engine.report("default"))
        assert (report["events_since"], report["funnel"]["ranked"]) == (since, 80)
        lift = await engine.lift("default")
        assert (lift.events_since, lift.control.events + lift.treatment.events) == (since, 80)
        evaluation = await engine.evaluate("default", ["uniform"])
        assert evaluation["events_since"] == since == engine.events_since("default")
        assert (await gauges(engine))["events_since"] == head_of(engine).pruned.before / 1e6

    tell(tmp_path, story, control={"share": 0.5})


def test_a_loop_with_a_retention_prunes_by_itself(tmp_path):
    async def story(engine, clock):
        for day in range(40):
            await play(engine, 6, day)
            clock.pass_seconds(DAY)
            for _ in range(60):
                engine.learner.step()
        days = [int(event.split("-")[0]) for event in events_in(tmp_path)]
        assert 40 - min(days) in (7, 8)
        assert max(days) == 39
        assert sum(entry.kind in ("erase", "erased") for entry in logged(tmp_path)) < 25, "old ones go too"
        assert sum(entry.kind == "base" for entry in logged(tmp_path)) == 7, "one for each user, and the shared one"
        assert engine.view().statistics.ranks == 240
        assert engine.digest() == rebuilt(tmp_path)
        await engine.put_settings("default", {"retention": None})
        clock.pass_seconds(30 * DAY)
        n_records = len(engine.logged())
        for _ in range(60):
            engine.learner.step()
        assert len(engine.logged()) >= n_records

    tell(tmp_path, story, retention=7 * DAY)


def test_a_crash_at_any_moment_is_gone_on_from(tmp_path):
    async def story():
        clock = Clock()
        (tmp_path / "live").mkdir()
        async with running(tmp_path / "live", clock=clock) as engine:
            await play(engine, 80)
            engine.digest()
            clock.pass_seconds(601)
            await play(engine, 10, 1)
            ask(engine, 300)
            moments = []
            for k in range(60):
                engine.learner.step()
                if k % 6 == 0 or k < 5:
                    moments.append(tmp_path / f"moment-{k}")
                    copied(tmp_path / "live", moments[-1])
            finish(engine)
            kept, live = events_in(tmp_path / "live"), engine.digest()
        for k, moment in enumerate(moments):
            if k % 2:
                (moment / "store.db-models").unlink(missing_ok=True)
            after = Engine(moment, clock=clock)
            finish(after)
            assert events_in(moment) == kept
            assert after.digest() == live == rebuilt(moment)
            await after.close()
            shutil.rmtree(moment)

    asyncio.run(story())


@pytest.mark.parametrize("order", ["erase first", "prune first", "between"])
def test_erasing_and_pruning_go_together(tmp_path, order):
    async def story(engine, clock):
        await play(engine, 80)
        clock.pass_seconds(601)
        await play(engine, 20, 1)
        if order == "erase first":
            await engine.erase_user("default", "user-3")
        ask(engine, 300)
        for _ in range(1_000 if order == "prune first" else 4):
            engine.learner.step()
        if order != "erase first":
            await engine.erase_user("default", "user-3")
            assert engine.digest() == rebuilt(tmp_path)
        finish(engine)
        await play(engine, 20, 2, n_users=3)
        assert engine.digest() == rebuilt(tmp_path)
        assert not [entry for entry in logged(tmp_path) if entry.user == "user-3"]
        assert {event.split("-")[0] for event in events_in(tmp_path)} == {"1", "2"}
        with relearned(tmp_path) as learner:
            assert learner.digest("default") == engine.digest()

    tell(tmp_path, story)


def test_a_machine_that_lags_behind_a_pruning_learns_again_from_its_base(tmp_path):
    async def story(engine, clock):
        await play(engine, 40)
        with another_machine(tmp_path, clock) as other:
            await play(engine, 40, 1)
            clock.pass_seconds(601)
            await play(engine, 10, 2)
            ask(engine, 300)
            finish(engine)  # the other one has not read what is gone now
            assert digest_of(other) == engine.digest() == rebuilt(tmp_path)
            assert other.loops["default"].metadata.statistics == head_of(engine).statistics

    tell(tmp_path, story)


def test_a_pruning_of_nothing_is_done_at_once(tmp_path):
    async def story(engine, clock):
        await play(engine, 10)
        n_events = len(events_in(tmp_path))
        ask(engine, 10 * DAY)
        finish(engine)
        assert len(events_in(tmp_path)) == n_events
        assert engine.digest() == rebuilt(tmp_path)

    tell(tmp_path, story)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_events_prunings_erasures_and_restarts_gives_the_same_models(tmp_path, seed):
    async def story():
        rng, clock = np.random.default_rng(seed), Clock()
        engine = Engine(tmp_path, clock=clock, wait_time=300, aggregation="sum" if seed % 2 else "earliest")
        with another_machine(tmp_path, clock) as other:
            for k in range(25):
                with contextlib.suppress(ApiError):  # an id that was pruned may come with another request
                    await play(engine, int(rng.integers(1, 30)), seed=int(rng.integers(12)))
                clock.pass_seconds(float(rng.choice([1, 100, 400, 4_000])))
                if rng.random() < 0.4:
                    ask(engine, float(rng.choice([0, 50, 500])), f"token-{k}")
                if rng.random() < 0.1:
                    await engine.erase_user("default", f"user-{rng.integers(6)}")
                for _ in range(int(rng.integers(30))):
                    engine.learner.step()
                if rng.random() < 0.2:
                    if rng.random() < 0.5:
                        engine.learner.saver.flush(engine.learner.loops)
                    engine.kill()
                    engine = Engine(tmp_path, clock=clock)
                live = engine.digest()
                assert rebuilt(tmp_path) == live
                if rng.random() < 0.5:
                    assert digest_of(other) == live
            assert digest_of(other) == engine.digest()
        await engine.close()

    asyncio.run(story())

"""Snapshots and the log: what a learner finds again after it ended, however it ended."""

import asyncio
import sqlite3

import msgspec
import pytest
from machine import Clock, Engine, running
from playing import SNAPSHOT, STORE, copied, logged, play, raw, rebuilt, relearned, request

from service.learn.join import FinishedEvent
from service.learn.snapshots import Saver, Snapshots, snapshot_damage
from service.log.protocol import StoreUnavailable
from service.rank.requests import Action
from service.roles.learner import save_and_close

CHANGED = {"residual-kalman": {"reward_range": [-1.0, 2.0]}, "adagrad": {"learning_rate": 0.3, "crosses": False}}


@pytest.mark.parametrize("model", CHANGED)
def test_the_model_is_the_same_live_rebuilt_and_after_restarts(tmp_path, model):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock, model=model) as engine:
            await play(engine, 150)
            await engine.erase_user("default", "user-3")
            await engine.put_settings("default", {"aggregation": "sum", **CHANGED[model]})
            await play(engine, 50, seed=1)
            await engine.put_model("default", await engine.model("default"))
            await engine.put_actions("default", [Action("a1", msgspec.Raw(b'{"new": 1}'))])
            await engine.put_settings("default", {"wait_time": 1})
            clock.pass_seconds(700)
            await play(engine, 50, seed=2)
            assert engine.digest("default") == rebuilt(tmp_path)
            await play(engine, 20, seed=3)
            live = engine.digest("default")
            statistics = engine.view("default").statistics
        assert live == rebuilt(tmp_path)
        for remove in (False, True):
            if remove:
                (tmp_path / "store.db-models").unlink()
            async with running(tmp_path) as engine:
                assert engine.digest("default") == live
                assert engine.view("default").statistics == statistics
                assert engine.learner.rebuilt == 0

    asyncio.run(story())


def test_a_crash_at_any_moment_leaves_a_store_that_learns_the_same(tmp_path):
    async def story():
        async with running(tmp_path, snapshot_seconds=0.02) as engine:
            for part in range(6):
                await play(engine, 25, seed=part)
                copied(tmp_path, tmp_path / f"copy{part}")
        for part in range(6):
            async with running(tmp_path / f"copy{part}") as engine:
                await play(engine, 20, seed=100)
                assert engine.digest("default") == rebuilt(tmp_path / f"copy{part}")

    asyncio.run(story())


def pending(learner, loop="default"):
    """Return what waits in a loop: its events, when the next expires, and what was listed."""
    join = learner.loops[loop].join
    events = {name: event for name, event in join.events.items() if not isinstance(event, FinishedEvent)}
    return events, join.n_waiting, join.next_deadline(), [*join.unmatched]


async def leave_pending(engine, clock):
    """Leave events of every kind on their way: waiting, deferred, activated, early, summed, late and unmatched."""
    await engine.put_settings("default", {"wait_time": 60, "default_reward": 0.25})
    await engine.rank("default", request(event_id="expires"))
    await engine.reward("default", "never decided", 1.0)
    clock.pass_seconds(61)
    await engine.settle()
    await engine.reward("default", "expires", 1.0)
    await engine.rank("default", request("ann", event_id="waits"))
    await engine.rank("default", request("bob", event_id="deferred", defer=True))
    await engine.rank("default", request("bob", event_id="rewarded and deferred", defer=True))
    await engine.reward("default", "rewarded and deferred", 1.0)
    await engine.rank("default", request("ann", event_id="activated", defer=True))
    await engine.activate("default", "activated")
    await engine.reward("default", "early", 0.5)
    await engine.activate("default", "activated early")
    await engine.put_settings("default", {"wait_time": 90, "aggregation": "sum"})
    await engine.rank("default", request("cid", event_id="summed"))
    await engine.reward("default", "summed", 0.25, "one")
    await engine.reward("default", "summed", 0.5, "two")
    await engine.settle()


async def finish_pending(engine, clock):
    """Decide, activate and reward the rest, and let the rest expire."""
    await engine.rank("default", request("dan", event_id="early"))
    await engine.rank("default", request("dan", event_id="activated early", defer=True))
    await engine.reward("default", "summed", 0.5, "two")
    await engine.reward("default", "summed", 0.25, "three")
    await engine.activate("default", "rewarded and deferred")
    await engine.reward("default", "waits", 0.75)
    clock.pass_seconds(200)
    await engine.settle()
    await engine.activate("default", "deferred")
    clock.pass_seconds(200)
    await engine.settle()


@pytest.mark.parametrize("ends", ["closed", "killed", "killed with an old snapshot", "without a snapshot"])
def test_events_on_their_way_end_the_same_after_a_restart_as_without_one(tmp_path, ends):
    async def story():
        clock = Clock()
        live = Engine(tmp_path, clock=clock)
        await leave_pending(live, clock)
        if ends == "killed with an old snapshot":
            live.digest()
            await live.rank("default", request("eve", event_id="after the snapshot"))
            await live.settle()
        before = pending(live.learner)
        assert len(before[0]) >= 7
        assert [entry.why for entry in before[3]] == ["unmatched", "late"]
        (tmp_path / "other").mkdir()
        copied(tmp_path, tmp_path / "other", STORE)
        await live.close() if ends == "closed" else live.kill()
        if ends == "without a snapshot":
            (tmp_path / "store.db-models").unlink()
        async with running(tmp_path, clock=clock) as engine:
            assert engine.learner.rebuilt == 0
            assert pending(engine.learner) == before
            await finish_pending(engine, clock)
            digest, sums = engine.digest(), engine.view().statistics
            listed = await engine.unmatched("default")
            assert digest == rebuilt(tmp_path)
            assert engine.view().n_waiting == 0
            with relearned(tmp_path) as learner:
                assert learner.loops["default"].metadata == engine.learner.loops["default"].metadata
                assert pending(learner) == pending(engine.learner)
        if ends != "killed with an old snapshot":
            assert sums.reward == 0.25 + 0.75 + 0.25 + 0.5 + 0.25 + 1.0 + 0.5 + 0.25 * 2
        return digest, listed

    asyncio.run(story())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE personal SET model = zeroblob(40) WHERE user = 'user-1'",
        "UPDATE personal SET user = 'somebody' WHERE user = 'user-1'",
        "DELETE FROM personal WHERE user = 'user-1'",
        "UPDATE shared SET model = zeroblob(20)",
        "DELETE FROM shared",
        "UPDATE loop SET body = substr(body, 2)",
        "UPDATE loop SET name = 'other'",
        "DROP TABLE shared",
    ],
)
def test_a_damaged_snapshot_is_found_and_made_anew(tmp_path, damage, caplog):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 60)
            live = engine.digest("default")
        with sqlite3.connect(tmp_path / "store.db-models") as db:
            assert db.execute(damage).rowcount != 0
        db.close()
        async with running(tmp_path) as engine:
            assert engine.learner.rebuilt == 1
            assert "learned from the log again" in caplog.text
            assert engine.digest("default") == live
        async with running(tmp_path) as engine:
            assert (engine.learner.rebuilt, engine.digest("default")) == (0, live)

    asyncio.run(story())


def test_a_snapshot_of_another_log_is_not_used(tmp_path, caplog):
    async def story():
        for name, seed in (("one", 0), ("other", 1)):
            (tmp_path / name).mkdir()
            async with running(tmp_path / name) as engine:
                await play(engine, 40, seed=seed)
        copied(tmp_path / "one", tmp_path / "other", SNAPSHOT)
        async with running(tmp_path / "other") as engine:
            assert engine.learner.rebuilt == 1
            assert "of another log" in caplog.text
            assert engine.digest("default") == rebuilt(tmp_path / "other")

    asyncio.run(story())


def test_a_snapshot_that_is_longer_than_the_log_is_not_used(tmp_path, caplog):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 20)
            engine.digest()
            copied(tmp_path, tmp_path / "backup", STORE)
            await play(engine, 20, seed=1)
        copied(tmp_path, tmp_path / "backup", SNAPSHOT)
        async with running(tmp_path / "backup") as engine:
            assert engine.learner.rebuilt == 1
            assert "of another log" in caplog.text
            assert engine.digest("default") == rebuilt(tmp_path / "backup")

    asyncio.run(story())


def test_a_snapshot_that_cannot_be_written_is_tried_again_and_nothing_is_missing_in_it(tmp_path, monkeypatch):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 30)
            write = engine.snapshots.write
            monkeypatch.setattr(
                engine.snapshots, "write", lambda *_, **__: (_ for _ in ()).throw(sqlite3.Error("full"))
            )
            with pytest.raises(Exception, match="cannot be written: full"):
                engine.digest()
            await play(engine, 10, seed=1)
            monkeypatch.setattr(engine.snapshots, "write", write)
            live = engine.digest()
            assert live == rebuilt(tmp_path)
        async with running(tmp_path) as engine:
            assert (engine.learner.rebuilt, engine.digest()) == (0, live)

    asyncio.run(story())


def test_a_forked_child_writes_what_the_learner_had_at_that_moment(tmp_path):
    async def story():
        engine = Engine(tmp_path)
        engine.learner.saver = Saver(engine.snapshots, engine.learner.personal, 0.0, fork=True)
        await play(engine, 30)
        position = engine.view().position
        engine.learner.saver._reap(0)
        engine.learner.saver.save_if_due(engine.learner.loops)
        engine.learner.saver._reap(0)
        engine.learner.saver._seconds = 3_600.0
        engine.kill()
        async with running(tmp_path) as again:
            assert again.learner.rebuilt == 0
            assert again.learner.saver._saved["default"] == position
            assert again.digest() == rebuilt(tmp_path)

    asyncio.run(story())


def test_loops_do_not_disturb_each_other_and_a_deleted_one_begins_anew(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("other", {"aggregation": "sum"})
            await asyncio.gather(play(engine, 60), play(engine, 60, seed=1, loop="other"))
            assert engine.digest("default") == rebuilt(tmp_path)
            assert engine.digest("other") == rebuilt(tmp_path, "other")
            await engine.delete_loop("other")
            await engine.create_loop("other")
            with relearned(tmp_path) as learner:
                assert engine.digest("other") == learner.digest("other")
                assert learner.loops["other"].metadata.created_at == logged(tmp_path, "other")[-1].position
            await play(engine, 20, seed=2, loop="other")
            live = engine.digest("other")
            assert live == rebuilt(tmp_path, "other")
        async with running(tmp_path) as engine:
            assert (engine.digest("other"), engine.learner.rebuilt) == (live, 0)

    asyncio.run(story())


def test_a_long_start_says_how_far_it_is(tmp_path, monkeypatch, caplog):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 30)
        monkeypatch.setattr("service.learn.follower.BATCH", 10)
        monkeypatch.setattr("service.learn.learner.TELL_SECONDS", 0.0)
        for file in tmp_path.glob("store.db-models*"):
            file.unlink()
        async with running(tmp_path) as engine:
            n = len(engine.logged())
        assert f"learning from the log: 21 of {n} records" in caplog.text

    asyncio.run(story())


def test_the_catalogue_is_the_same_live_after_restarts_and_after_snapshots_that_failed(tmp_path, monkeypatch):
    """Snapshots have only the actions that changed, unless an earlier one could not be written."""
    written = []
    write = Snapshots.write

    def noted(snapshots, changes, **more):
        if len(written) == 2:
            written.append("failed")
            raise sqlite3.OperationalError("disk I/O error")
        write(snapshots, changes, **more)
        written.append({name: sorted(actions) for name, actions in changes.actions.items()})

    monkeypatch.setattr(Snapshots, "write", noted)

    async def story():
        async with running(tmp_path) as engine:
            await engine.put_actions("default", [Action("a", raw({"x": 1})), Action("b"), Action("c")])
            engine.learner.saver.flush(engine.learner.loops)
            await engine.put_actions("default", [Action("b", raw({"x": 2}))], retire=["c"])
            engine.learner.saver.flush(engine.learner.loops)
            await engine.put_actions("default", [Action("d")], retire=["a"])
            with pytest.raises(StoreUnavailable, match="disk I/O"):
                engine.learner.saver.flush(engine.learner.loops)
            engine.learner.saver.flush(engine.learner.loops)
            await engine.put_actions("default", [Action("e"), Action("b", raw({"x": 3}))])
            engine.learner.saver.flush(engine.learner.loops)
            assert written == [{"default": list("abc")}, {"default": ["b", "c"]}, "failed", *written[3:]]
            assert written[3:] == [{"default": ["b", "d"]}, {"default": ["b", "e"]}]
            live = engine.actions("default")
            engine.kill()
        for remove in (False, True):
            if remove:
                (tmp_path / "store.db-models").unlink()
            async with running(tmp_path) as engine:
                assert engine.actions("default") == live
                assert [action.id for action in live] == ["b", "d", "e"]

    asyncio.run(story())


def test_a_snapshot_that_lacks_an_action_is_learned_again(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_actions("default", [Action("a", raw({"x": 1})), Action("b")])
        with sqlite3.connect(tmp_path / "store.db-models") as db:
            db.execute("DELETE FROM action WHERE id = 'a'")
        db.close()
        assert snapshot_damage(tmp_path / "store.db-models") == ["1 of 2 actions of loop 'default' are there"]
        async with running(tmp_path) as engine:
            assert engine.learner.rebuilt == 1
            assert [action.id for action in engine.actions("default")] == ["a", "b"]

    asyncio.run(story())


def test_a_learner_that_cannot_save_at_its_end_says_so_in_one_line(tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise StoreUnavailable("snapshot", "the snapshot cannot be written: database or disk is full")

    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 5)
            monkeypatch.setattr(engine.learner.saver, "flush", full)
            save_and_close(engine.learner)
            monkeypatch.setattr(engine.learner, "close", lambda: None)

    asyncio.run(story())
    [record] = [record for record in caplog.records if "disk is full" in record.message]
    assert (record.exc_info, "learns the rest from the log" in record.message) == (None, True)

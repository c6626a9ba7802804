"""Who may write the snapshot, and what is in files once a user is erased."""

import os
import sqlite3
from pathlib import Path

import pytest
from machine import SECOND, Clock, Engine, running

from service.learn import loop_state
from service.learn.snapshots import Changes, Saver, Snapshots
from service.log import sqlite
from service.log.protocol import StoreUnavailable
from service.rank.requests import Action, RankRequest


@pytest.fixture
def anyio_backend():
    return "asyncio"


def test_a_snapshot_is_written_by_the_last_learner_that_claimed_it(tmp_path):
    """The child of a learner that was killed may still be writing when the next learner has begun."""
    first, second = Snapshots(tmp_path / "models"), Snapshots(tmp_path / "models")
    first.claim()
    first.write(Changes())
    second.claim()
    with pytest.raises(sqlite3.OperationalError, match="another learner"):
        first.write(Changes())
    second.write(Changes())
    first.close()
    second.close()


def request(event, user):
    return RankRequest(actions=[Action("a"), Action("b")], user=user, event_id=event)


@pytest.mark.anyio
async def test_an_erasure_is_published_once_the_pages_of_the_log_are_overwritten(tmp_path, monkeypatch):
    async with running(tmp_path) as engine:
        await engine.put_actions("default", [Action("a"), Action("b")])
        await engine.rank("default", request("somebody's event", "somebody"))
        await engine.settle()

        def killed(db):
            raise StoreUnavailable("gone", "the log writer was killed")

        with monkeypatch.context() as patch:
            patch.setattr(sqlite, "_empty_wal", killed)
            with pytest.raises(Exception, match="learner has published"):
                await engine.erase_user("default", "somebody")
            assert engine.view().erased == []
            assert b"somebody" in (tmp_path / "store.db-wal").read_bytes()
        await engine.settle()
        assert len(engine.view().erased) == 1
        for file in tmp_path.iterdir():
            assert b"somebody" not in file.read_bytes(), file


@pytest.mark.anyio
async def test_late_rewards_are_listed_once_after_a_restart(tmp_path):
    clock = Clock()
    engine = Engine(tmp_path, clock=clock)
    await engine.put_actions("default", [Action("a"), Action("b")])
    await engine.rank("default", request("e", "u"))
    clock.now += 10**6 * SECOND
    await engine.reward("default", "e", 1.0)
    await engine.settle()
    before = await engine.unmatched("default")
    engine.digest()
    engine.kill()
    async with running(tmp_path, clock=clock) as engine:
        assert await engine.unmatched("default") == before
        assert len(before) == 1


@pytest.mark.anyio
async def test_a_reward_that_counted_is_not_listed_as_unmatched_after_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_state, "REJOINED", 1)  # records: the reward is joined again, its decision is not
    clock = Clock()
    engine = Engine(tmp_path, clock=clock)
    await engine.put_actions("default", [Action("a"), Action("b")])
    await engine.rank("default", request("e", "u"))
    await engine.put_actions("default", [Action("c")])
    await engine.reward("default", "e", 1.0)
    await engine.reward("default", "early", 1.0)
    await engine.settle()
    engine.digest()
    engine.kill()
    async with running(tmp_path, clock=clock) as engine:
        clock.now += 10**6 * SECOND
        await engine.settle()
        assert [reward.event_id for reward in await engine.unmatched("default")] == ["early"]


@pytest.mark.anyio
async def test_an_early_reward_counts_where_its_decision_comes_after_the_snapshot(tmp_path):
    clock = Clock()
    engine = Engine(tmp_path, clock=clock)
    await engine.put_actions("default", [Action("a"), Action("b")])
    await engine.reward("default", "e", 1.0)
    engine.digest()
    await engine.rank("default", request("e", "u"))
    engine.kill()
    async with running(tmp_path, clock=clock) as engine:
        await engine.settle()
        assert engine.view().statistics.rewarded == 1
        assert engine.digest() == engine.rebuilt()


@pytest.mark.anyio
async def test_no_process_is_forked_while_the_snapshot_is_open(tmp_path, monkeypatch):
    """SQLite's locks do not survive a fork, and what it knows of them does."""
    async with running(tmp_path) as engine:
        snapshots, open_files = engine.snapshots, []

        def fork():
            open_files.extend(path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.exists())
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fork", fork)
        with pytest.raises(KeyboardInterrupt):
            Saver(snapshots, engine.learner.personal, 0.0, fork=True).save_if_due(engine.learner.loops)
        assert open_files
        assert not [name for name in open_files if name.startswith(snapshots.path.name)]
        assert engine.digest() == engine.rebuilt()


@pytest.mark.anyio
async def test_the_files_of_the_snapshot_stay_as_large_as_what_is_in_them(tmp_path):
    """Nobody else has the file open, so a writer that leaves its write-ahead log leaves it for ever."""
    async with running(tmp_path) as engine:
        saver = Saver(engine.snapshots, engine.learner.personal, 0.0, fork=True)
        sizes = []
        for k in range(12):
            await engine.rank("default", request(f"e{k}", "u"))
            await engine.reward("default", f"e{k}", 1.0)
            await engine.settle()
            saver.save_if_due(engine.learner.loops)
            saver.finish()
            sizes.append(sum(file.stat().st_size for file in tmp_path.glob("store.db-models*")))
        assert saver.n_written == 12
        assert max(sizes[6:]) <= max(sizes[:6]) + 16_384  # a page
        assert not [file for file in tmp_path.glob("store.db-models-wal") if file.stat().st_size]

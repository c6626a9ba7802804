"""Erasing users: nothing of them is left, and everybody else is as before."""

import asyncio
import shutil
import sqlite3
import time
from types import SimpleNamespace

import pytest
from engines import Clock, Disk, logged, play, rebuilt, refused, request, running
from service.engine import erasing, saving

from service.errors import ApiError


def n_saved(folder, event):
    """Return in how many pages of the saved events an event is, dead or alive."""
    with sqlite3.connect(folder / "store.db-models") as db:
        [(n,)] = db.execute("SELECT count(*) FROM page WHERE instr(body, ?)", (event.encode(),))
    db.close()
    return n


def test_an_erased_user_leaves_no_bytes_and_everybody_else_is_as_before(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await engine.rank("default", request("somebody", {"secret-word": 1}, event_id="private-event"))
            await engine.reward("default", "private-early", 1.0)
            await play(engine, 200)
            engine.digest("default")
            await engine.reward("default", "private-event", 1.0)
            await engine.rank("default", request("somebody", {"secret-word": 1}, event_id="private-early"))
            engine.digest("default")
            assert n_saved(tmp_path, "private-event") == n_saved(tmp_path, "private-early") == 2
            await engine.rank("default", request("somebody", {"secret-word": 2}, event_id="private-waiting"))
            clock.pass_seconds(601)
            await engine.reward("default", "private-waiting", 1.0)
            await engine.settle()
            others = [engine.user_model("default", f"user-{k}")["weights"] for k in range(6)]
            shared = await engine.model("default")
            assert await engine.erase_user("default", "somebody") == 6
            assert [engine.user_model("default", f"user-{k}")["weights"] for k in range(6)] == others
            assert await engine.model("default") == shared
            with pytest.raises(ApiError):
                engine.user_model("default", "somebody")
            assert "private-waiting" not in [entry["event_id"] for entry in await engine.unmatched("default")]
            for file in tmp_path.iterdir():
                for word in (b"somebody", b"private-", b"secret-word"):
                    assert word not in file.read_bytes(), file.name

    asyncio.run(story())


def test_nobody_rests_while_a_user_waits_to_be_erased(tmp_path, monkeypatch):
    slept = []
    clocks = {"perf_counter": time.perf_counter, "monotonic": time.monotonic}
    monkeypatch.setattr(saving, "time", SimpleNamespace(**clocks, sleep=slept.append))
    monkeypatch.setattr(saving, "LONGEST_HOLD", -1.0)  # others get their turn after each page

    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 20)
            await engine.settle()
            await engine.erase_user("default", "user-1")

    asyncio.run(story())
    assert set(slept) == {0.0}


def test_after_erasures_the_model_is_still_a_function_of_the_log(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            for k in range(4):
                await play(engine, 60, seed=k)
                clock.pass_seconds(200)
                await engine.erase_user("default", f"user-{k}")
                assert engine.digest("default") == rebuilt(tmp_path)
            await engine.erase_user("default", "nobody")
            await play(engine, 30, seed=9)
            clock.pass_seconds(601)
            await engine.settle()
            live, sums = engine.digest("default"), engine.view("default").statistics
            assert live == rebuilt(tmp_path)
            assert sum(entry.kind == "base" and entry.user is None for entry in logged(tmp_path)) == 1
            names = [entry.user for entry in logged(tmp_path) if entry.kind == "base"]
            assert len(names) == len(set(names))
        (tmp_path / "store.db-models").unlink()
        async with running(tmp_path, clock=clock) as engine:
            assert (engine.digest("default"), engine.view("default").statistics) == (live, sums)

    asyncio.run(story())


def base_users(folder):
    """Return whose models were logged between two ticks, where there were any; the shared one is nobody's."""
    groups = [[]]
    for entry in logged(folder):
        if entry.kind == "tick":
            groups.append([])
        elif entry.kind == "base":
            groups[-1].append(entry.user)
    return [group for group in groups if group]


def test_an_erasure_holds_others_up_for_a_few_models_at_a_time(tmp_path, monkeypatch):
    async def story():
        monkeypatch.setattr(erasing, "PIECE", 5)
        async with running(tmp_path) as engine:
            await play(engine, 200, n_users=30)
            await engine.erase_user("default", "user-3")
            first = base_users(tmp_path)
            assert max(len(group) for group in first) <= 5
            assert first[-1] == [None]
            assert {user for group in first[:-1] for user in group} == {f"user-{k}" for k in range(30) if k != 3}
            assert engine.digest("default") == rebuilt(tmp_path)
            await play(engine, 100, seed=1, n_users=20)
            await engine.erase_user("default", "user-4")
            names = [user for group in base_users(tmp_path) for user in group]
            assert len(names) == len(set(names)) == 30  # user-3 came again
            live = engine.digest("default")
            assert live == rebuilt(tmp_path)
        (tmp_path / "store.db-models").unlink()
        async with running(tmp_path) as engine:
            assert engine.digest("default") == live

    asyncio.run(story())


def test_others_go_on_during_an_erasure_and_the_models_are_still_those_of_the_log(tmp_path, monkeypatch):
    async def story():
        monkeypatch.setattr(erasing, "PIECE", 5)
        async with running(tmp_path, snapshot_seconds=0.0) as engine:
            await play(engine, 200, n_users=40)
            for k in range(3):
                others = [play(engine, 40, seed=9 * k + j, n_users=40) for j in range(1, 4)]
                await asyncio.gather(engine.erase_user("default", f"user-{k}"), *others)
                assert engine.digest("default") == rebuilt(tmp_path)
            assert engine.learner.rebuilt == 0

    asyncio.run(story())


def test_an_erasure_that_fails_after_its_preparations_changes_nothing(tmp_path, monkeypatch):
    async def story():
        monkeypatch.setattr(erasing, "PIECE", 5)
        disk = Disk(tmp_path / "store.db")
        async with running(tmp_path, connect=disk.connect) as engine:
            await play(engine, 200, n_users=30)
            live, erase = engine.digest("default"), engine._learning.erase
            engine._learning.erase = lambda loop, user: (disk.fill(True), erase(loop, user))
            assert await refused(engine.erase_user("default", "user-3")) == (503, "store_full")
            disk.fill(False)
            assert len(base_users(tmp_path)) > 3
            assert engine.digest("default") == live == rebuilt(tmp_path)
            engine._learning.erase = erase
            assert await engine.erase_user("default", "user-3") > 0
            assert engine.digest("default") == rebuilt(tmp_path)

    asyncio.run(story())


def test_a_snapshot_from_before_an_erasure_is_thrown_away(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 60)
            engine.digest("default")
            for file in ("store.db-models", "store.db-models-wal"):
                shutil.copy(tmp_path / file, tmp_path / f"kept-{file}")
            await engine.erase_user("default", "user-1")
            live = engine.digest("default")
        for file in ("store.db-models", "store.db-models-wal"):
            shutil.move(tmp_path / f"kept-{file}", tmp_path / file)
        async with running(tmp_path) as engine:
            assert engine.learner.rebuilt == 1
            assert engine.digest("default") == live
            assert b"user-1" not in (tmp_path / "store.db-models").read_bytes()

    asyncio.run(story())

"""The engine on PostgreSQL: it learns what it learns on SQLite, on any machine, and says when it has lost the store."""

import asyncio
import contextlib
import json
import threading

import msgspec
import numpy as np
import psycopg
import pytest

from service.engine import Action, Engine, RankRequest
from service.errors import ApiError
from service.store import LeaseHeld
from service.store.postgres import LEASE

START = 1_700_000_000_000_000  # microseconds


@contextlib.asynccontextmanager
async def running(folder, database=None):
    """Lend an engine of a machine that has its own folder."""
    folder.mkdir(exist_ok=True)
    engine = Engine.open(folder / "store", database=database, clock=lambda: START, snapshot_seconds=3_600)
    try:
        yield engine
    finally:
        await engine.close()


def request(user, hour, event):
    actions = [Action(f"a{k}", msgspec.Raw(json.dumps({"topic": f"t{k}"}).encode())) for k in range(3)]
    context = msgspec.Raw(json.dumps({"hour": hour}).encode())
    exclude = ["a0"] if hour == 0 else []  # which has the learner read the record
    return RankRequest(user=user, context=context, actions=actions, event_id=event, exclude=exclude)


async def play(engine, seed):
    """Rank and reward one at a time, so that the log is the same each time, and erase a user."""
    rng = np.random.default_rng(seed)
    for k in range(40):
        await engine.rank("default", request(f"user-{rng.integers(4)}", int(rng.integers(4)), f"{seed}-{k}"))
        await engine.reward("default", f"{seed}-{k}", float(rng.random()))
        await engine.settle()  # so that the next decision knows this reward
    await engine.erase_user("default", f"user-{seed}")


def test_models_on_postgresql_are_those_on_sqlite_on_whatever_machine_they_are_made(tmp_path, database, postgres):
    async def scenario():
        digests = []
        for folder, store in (("sqlite", None), ("first", database)):
            async with running(tmp_path / folder, store) as engine:
                await play(engine, seed=1)
                await play(engine, seed=2)
                digests.append(engine.digest("default"))
        for folder in ("first", "second"):  # with a snapshot, and with nothing
            async with running(tmp_path / folder, database) as engine:
                digests.append(engine.digest("default"))
        return digests

    digests = asyncio.run(scenario())
    assert digests == digests[:1] * 4
    assert postgres.ask("SELECT count(*) > 0 FROM fedres.log WHERE kind = 'given'") == [(True,)]


def test_a_second_engine_on_the_database_is_refused_and_leaves_its_folder_to_others(tmp_path, database):
    async def scenario():
        async with running(tmp_path / "first", database):
            with pytest.raises(LeaseHeld, match="must have one holder, and fedres on"):
                async with running(tmp_path / "second", database):
                    pass
        async with running(tmp_path / "second", database):
            pass

    asyncio.run(scenario())


async def trouble(engine, wanted):
    """Return the engine's trouble once it has some, or has none any more."""
    while (engine.status()["trouble"] is not None) != wanted:
        await asyncio.sleep(0.02)
    return engine.status()["trouble"]


def test_who_lost_the_store_to_another_says_so_unasked_and_goes_on_once_it_is_free(tmp_path, database, postgres):
    async def scenario():
        async with running(tmp_path / "first", database) as engine:
            await engine.rank("default", request("u", 1, "a"))
            with psycopg.connect(database, autocommit=True) as other:
                waiting = threading.Thread(target=other.execute, args=["SELECT pg_advisory_lock(%s)", (LEASE,)])
                waiting.start()
                while postgres.ask("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == []:
                    await asyncio.sleep(0.02)
                await asyncio.to_thread(postgres.end_sessions)
                waiting.join()
                while "must have one holder" not in await trouble(engine, True):
                    await asyncio.sleep(0.02)
                with pytest.raises(ApiError, match="must have one holder") as raised:
                    await engine.rank("default", request("u", 1, "b"))
                assert raised.value.code == "store_taken"
            assert await trouble(engine, False) is None
            await engine.rank("default", request("u", 1, "b"))

    asyncio.run(scenario())


def test_ids_that_postgresql_cannot_store_are_the_callers_mistake_and_nobodys_records(tmp_path, database):
    async def scenario():
        async with running(tmp_path / "first", database) as engine:
            for user, event in (("u", "a\0"), ("u\0", "a")):
                with pytest.raises(ApiError, match="must have no NUL") as raised:
                    await engine.rank("default", request(user, 1, event))
                assert raised.value.status == 422
            assert await engine.erase_user("default", "u\0") == 0

    asyncio.run(scenario())

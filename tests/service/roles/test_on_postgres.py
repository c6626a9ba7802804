"""A ranker and its learner on PostgreSQL: they learn what they learn on SQLite, on any machine."""

import contextlib
import functools
import json

import msgspec
import numpy as np
import pytest
from machine import running

from service.errors import ApiError
from service.learn.loss_check import check_losses
from service.log import postgres
from service.log.opening import Store
from service.log.postgres import PostgresLog
from service.log.protocol import StoreUnavailable
from service.log.records import ERASE, EraseBody, Record, encode
from service.rank.requests import Action, RankRequest

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def request(user, hour, event):
    actions = [Action(f"a{k}", msgspec.Raw(json.dumps({"topic": f"t{k}"}).encode())) for k in range(3)]
    context = msgspec.Raw(json.dumps({"hour": hour}).encode())
    exclude = ["a0"] if hour == 0 else []
    return RankRequest(user=user, context=context, actions=actions, event_id=event, exclude=exclude)


async def play(engine, seed):
    """Rank and reward one at a time, so that the log is the same each time, and erase a user."""
    rng = np.random.default_rng(seed)
    for k in range(40):
        await engine.rank("default", request(f"user-{rng.integers(4)}", int(rng.integers(4)), f"{seed}-{k}"))
        await engine.reward("default", f"{seed}-{k}", float(rng.random()))
        await engine.settle()  # so that the next decision knows this reward
    await engine.erase_user("default", f"user-{seed}")


async def test_models_on_postgresql_are_those_on_sqlite_on_whatever_machine_they_are_made(tmp_path, database):
    digests = []
    on_postgres = {"open_log": functools.partial(PostgresLog, database)}
    for folder, options in (("sqlite", {}), ("first", on_postgres)):
        (tmp_path / folder).mkdir()
        async with running(tmp_path / folder, **options) as engine:
            await play(engine, seed=1)
            await play(engine, seed=2)
            digests.append(engine.digest())
            digests.append(engine.rebuilt())
    (tmp_path / "second").mkdir()
    for folder in ("first", "second"):  # with a snapshot, and with nothing
        async with running(tmp_path / folder, **on_postgres) as engine:
            digests.append(engine.digest())
    assert digests == digests[:1] * 6


async def test_ids_that_postgresql_cannot_store_are_the_callers_mistake_and_nobodys_records(tmp_path, database):
    async with running(tmp_path, open_log=functools.partial(PostgresLog, database)) as engine:
        for user, event in (("u", "a\0"), ("u\0", "a")):
            with pytest.raises(ApiError, match="must have no NUL") as raised:
                await engine.rank("default", request(user, 1, event))
            assert raised.value.status == 422


def models_file(folder):
    return b"".join(file.read_bytes() for file in folder.glob("store.db-models*"))


async def test_a_learner_that_was_behind_an_erasure_begins_again_at_its_base(tmp_path, database):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    on_postgres = {"open_log": functools.partial(PostgresLog, database)}
    async with running(folders[0], **on_postgres) as a, running(folders[1], **on_postgres) as b:
        for k in range(20):
            await a.rank("default", request(f"user-{k % 3}", k % 4, f"e{k}"))
            await b.reward("default", f"e{k}", 1.0)
        assert a.digest() == b.digest()
        assert b"user-1" in models_file(folders[1])
        await a.rank("default", request("user-1", 1, "not read by b"))
        await a.reward("default", "not read by b", 1.0)
        await a.erase_user("default", "user-1")
        assert b"user-1" not in models_file(folders[0])
        await a.rank("default", request("user-2", 2, "after"))
        await a.reward("default", "after", 1.0)
        assert a.digest() == b.digest() == a.rebuilt() == b.rebuilt()
        assert b"user-1" not in models_file(folders[1])


async def test_another_machine_completes_the_erasure_of_one_that_is_gone(tmp_path, database):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    on_postgres = {"open_log": functools.partial(PostgresLog, database)}
    async with running(folders[1], **on_postgres) as b:
        async with running(folders[0], **on_postgres) as a:
            for k in range(6):
                await a.rank("default", request(f"user-{k % 3}", k % 4, f"e{k}"))
                await a.reward("default", f"e{k}", 1.0)
            await a.settle()
            assert a.learner.hold("default") is not None
            assert b.learner.hold("default") is None
            a.log.append([[Record("default", ERASE, user="user-1", body=encode(EraseBody("token")))]])
            await b.settle()
            assert [entry.kind for entry in b.logged()][-1] == "erase"  # which is left to the holder
        while [entry.kind for entry in b.logged()][-1] != "erased":
            await b.settle()
        assert b"user-1" not in models_file(folders[1])
        assert b.digest() == b.rebuilt()


LOSE = "DELETE FROM fedres.log WHERE loop = 'default' AND position > {0}; UPDATE fedres.head SET last = {0}"


@pytest.fixture
def older_backup(postgres, tmp_path, database):
    """A machine's store with a snapshot, and a way to put the database back to how it was at a position."""

    def restore(position):
        postgres.ask(LOSE.format(position))

    return Store(tmp_path / "store.db", database), restore


async def test_a_database_restored_from_an_older_backup_is_refused_by_a_machine_that_knew_more(tmp_path, older_backup):
    store, restore = older_backup
    on_postgres = {"open_log": functools.partial(PostgresLog, store.address)}
    async with running(tmp_path, **on_postgres) as engine:
        await play(engine, seed=1)
        last = engine.log.heads()["default"].last
    assert check_losses(store) == []
    restore(last - 5)
    with pytest.raises(
        StoreUnavailable, match=f"ends at {last - 5}, but its snapshot has learned up to {last}"
    ) as raised:
        check_losses(store)
    assert "--accept-loss" in str(raised.value)
    (tmp_path / "other").mkdir()
    async with running(tmp_path / "other", **on_postgres) as other:  # which has no snapshot, and goes on
        await other.settle()
        for k in range(6):
            await other.rank("default", request("user-3", k % 4, f"new {k}"))
        digest = other.digest()
    with pytest.raises(StoreUnavailable, match=f"record {last} of loop 'default' is not the one"):
        check_losses(store)
    assert len(check_losses(store, accept=True)) == 1
    assert check_losses(store) == []
    async with running(tmp_path, **on_postgres) as engine:
        assert engine.digest() == digest == engine.rebuilt()


async def test_a_learner_learns_no_more_from_a_database_that_lost_what_it_had_learned(tmp_path, older_backup):
    store, restore = older_backup
    async with running(tmp_path, open_log=functools.partial(PostgresLog, store.address)) as engine:
        await play(engine, seed=1)
        position = engine.learner.positions["default"]
        restore(position - 3)
        engine.learner.step()
        for k in range(5):  # they take the places of what was lost
            with contextlib.suppress(ApiError, StoreUnavailable):
                await engine.rank("default", request("user-3", k % 4, f"new {k}"))
            engine.learner.step()
        assert f"ends at {position - 3}, but was learned up to {position}" in str(engine.learner.trouble)
        assert engine.learner.positions["default"] == position


async def test_two_machines_agree_while_events_are_pruned_and_one_goes_on_for_another(tmp_path, database, monkeypatch):
    monkeypatch.setattr(postgres, "PRUNED_AT_ONCE", 9)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    on_postgres = {"open_log": functools.partial(PostgresLog, database)}
    async with running(folders[1], **on_postgres) as b:
        async with running(folders[0], **on_postgres) as a:
            for k in range(60):
                await (a, b)[k % 2].rank("default", request(f"user-{k % 3}", k % 4, f"e{k}"))
                await (a, b)[k % 3 % 2].reward("default", f"e{k}", k % 5 / 5)
            await b.rank("default", request("user-1", 1, "waiting"))
            await a.settle()
            assert a.learner.hold("default") is not None
            ask = EraseBody("token", a.log.now() + 10**9)
            b.log.append([[Record("default", ERASE, body=encode(ask))]])
            for _ in range(6):
                a.learner.step()
                assert a.digest() == b.digest() == b.rebuilt()
            assert any(entry.event == "e59" for entry in b.logged()), "it must not be done"
        while [entry.event for entry in b.logged() if entry.kind == "rank"] != ["waiting"]:
            b.learner.step()
            for wait in (b.learner.prunings._retry, b.learner.log._hold_at):
                wait.clear()  # another machine is no holder before the database has ended the session of the first
            await b.reward("default", "e1", 1.0)
        await b.rank("default", request("user-2", 2, "e1"))
        await b.reward("default", "waiting", 1.0)
        assert b.digest() == b.rebuilt()
    async with running(folders[0], **on_postgres) as a:  # its snapshot is older than the pruning
        assert a.digest() == a.rebuilt()

"""A flipped bit in any file of a store is found, or means nothing; nothing is ever learned from it."""

import asyncio
import random
import shutil
import sqlite3
from contextlib import closing

import pytest
from machine import Engine
from stores import digests, fill, play, records

from service.learn.snapshots import snapshot_damage
from service.log.protocol import StoreUnavailable
from service.log.records import DamagedRecord
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.plugins.tools.verifying import verify_sqlite

FLIPS = [("store.db", 50), ("store.db-wal", 30)]
LONG_FLIPS = [pytest.param(name, 100 * n, marks=pytest.mark.long) for name, n in FLIPS]
N_SNAPSHOT_FLIPS = {"store.db-models": 20, "store.db-models-wal": 10}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return a folder with a store as a kill leaves it: commits are in the write-ahead log, a snapshot is there."""
    folder, left = tmp_path_factory.mktemp("running"), tmp_path_factory.mktemp("left")

    async def run():
        engine = Engine(folder)
        await fill(engine, 30)
        engine.learner.saver.flush(engine.learner.loops)
        engine.snapshots._db.execute("PRAGMA wal_checkpoint")
        await play(engine, 30, seed=7)
        await engine.settle()
        engine.learner.saver.flush(engine.learner.loops)
        for file in folder.glob("store.db*"):
            if not file.name.endswith("-shm"):
                shutil.copyfile(file, left / file.name)
        await engine.close()

    asyncio.run(run())
    return left


@pytest.fixture(scope="module")
def truth(killed, tmp_path_factory):
    """Return the records and the digests of the models."""
    folder = copied(killed, tmp_path_factory.mktemp("truth"))
    return records(folder / "store.db"), digests(folder / "store.db")


def copied(killed, folder):
    for file in killed.iterdir():
        shutil.copyfile(file, folder / file.name)
    return folder


def flip(file, rng):
    data = bytearray(file.read_bytes())
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return at


def read_what_can_be_read(store):
    """Return all entries that the log lends out."""
    readable = []
    try:
        with closing(SqliteLog(sqlite_file(store))) as log:
            for loop, head in log.heads().items():
                after = 0
                while after < min(head.last, 10_000):
                    try:
                        entries = log.read(loop, after, 1)
                    except DamagedRecord as damage:
                        after = max(after + 1, damage.position)
                        continue
                    readable += entries
                    after = entries[-1].position if entries else head.last
    except (StoreUnavailable, ValueError):
        pass
    return readable


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n_flips"), FLIPS + LONG_FLIPS)
def test_a_flipped_bit_of_the_log_is_found_or_changes_nothing(killed, truth, tmp_path, name, n_flips):
    rng, n_found = random.Random(name), 0
    true_records, true_digests = truth
    true_entries = {entry for entries in true_records.values() for entry in entries}
    for k in range(n_flips):
        (tmp_path / str(k)).mkdir()
        store = copied(killed, tmp_path / str(k)) / "store.db"
        at = flip(store.with_name(name), rng)
        if verify_sqlite(store).findings:
            n_found += 1
            assert true_entries.issuperset(read_what_can_be_read(store)), at
        else:
            assert records(store) == true_records, at
            assert digests(store) == true_digests, at
        shutil.rmtree(tmp_path / str(k))
    assert n_found > n_flips // 4


@pytest.mark.slow
@pytest.mark.parametrize("name", N_SNAPSHOT_FLIPS)
def test_a_flipped_bit_of_a_snapshot_is_found_or_changes_nothing_and_is_never_learned_from(
    killed, truth, tmp_path, name
):
    rng, n_found = random.Random(name), 0
    for k in range(N_SNAPSHOT_FLIPS[name]):
        (tmp_path / str(k)).mkdir()
        store = copied(killed, tmp_path / str(k)) / "store.db"
        if not name.endswith("-wal"):  # else its pages are those in the write-ahead log, whatever the file says
            with closing(sqlite3.connect(store.with_name(name))) as snapshot:
                snapshot.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        at = flip(store.with_name(name), rng)
        damage = snapshot_damage(store.with_name("store.db-models"))
        n_found += bool(damage)
        engine = Engine(store.parent)
        assert {loop: engine.digest(loop) for loop in truth[1]} == truth[1], at
        assert bool(damage) or engine.learner.rebuilt == 0, at
        asyncio.run(engine.close())
        shutil.rmtree(tmp_path / str(k))
    assert n_found > N_SNAPSHOT_FLIPS[name] // 4 or name.endswith("-wal")

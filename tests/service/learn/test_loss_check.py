"""A log that is shorter than it was is refused at the start, by what the snapshot beside it has learned."""

import asyncio

import pytest
from machine import running
from playing import play

from service.learn.loss_check import check_losses, lost_records
from service.log.opening import Store
from service.log.protocol import StoreUnavailable

STORE = "store.db"


@pytest.fixture
def store(tmp_path):
    """A store with a snapshot, whose last records are in the write-ahead log alone; and a copy from before."""

    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 5)
            for _ in engine.log.scrub():
                pass
            (tmp_path / "older").write_bytes((tmp_path / STORE).read_bytes())
            await play(engine, 20, seed=1)
            engine.digest()
            for name in ("", "-wal"):
                (tmp_path / f"kept{name}").write_bytes((tmp_path / f"{STORE}{name}").read_bytes())

    asyncio.run(story())
    for name in ("", "-wal"):
        (tmp_path / f"kept{name}").rename(tmp_path / f"{STORE}{name}")
    (tmp_path / f"{STORE}-shm").unlink(missing_ok=True)
    return Store(tmp_path / STORE)


def remove_wal(store):
    store.beside("-wal").unlink()


def remove_database(store):
    store.path.unlink()


def remove_log(store):
    remove_wal(store)
    remove_database(store)


def empty_database(store):
    remove_wal(store)
    store.path.write_bytes(b"")


def older_database(store):
    remove_wal(store)
    store.path.write_bytes(store.path.with_name("older").read_bytes())


def flip_a_bit(store):
    wal = bytearray(store.beside("-wal").read_bytes())
    wal[200] ^= 1
    store.beside("-wal").write_bytes(wal)


LOSSES = {
    "no write-ahead log": (remove_wal, "but its snapshot has learned up to"),
    "no database": (remove_database, "is missing, but"),
    "neither": (remove_log, "is missing, but"),
    "an empty database": (empty_database, "is missing, but"),
    "an older database": (older_database, "but its snapshot has learned up to"),
    "a flipped bit": (flip_a_bit, "does not match its checksum"),
}


def contents(store):
    return {file.name: file.read_bytes() for file in store.path.parent.iterdir() if not file.name.endswith("-shm")}


def test_a_store_that_is_whole_is_not_complained_about(store):
    assert check_losses(store) == []


@pytest.mark.parametrize(("lose", "message"), LOSSES.values(), ids=LOSSES)
def test_what_is_missing_is_said_and_can_be_accepted(store, lose, message):
    lose(store)
    before = contents(store)
    with pytest.raises(StoreUnavailable, match=message) as raised:
        check_losses(store)
    assert "--accept-loss" in str(raised.value)
    assert before.items() <= contents(store).items()
    assert len(check_losses(store, accept=True)) >= 1
    assert not store.beside("-models").exists()
    assert len(list(store.path.parent.glob("*.lost-*"))) == (lose in (remove_database, flip_a_bit))
    if lose is not flip_a_bit:  # that file is opened as it is
        assert lost_records(store) == []


def test_a_snapshot_that_is_damaged_proves_nothing(store):
    remove_wal(store)
    store.beside("-models").write_bytes(b"no database" * 1_000)
    for suffix in ("-wal", "-shm"):
        store.beside(f"-models{suffix}").unlink(missing_ok=True)
    assert lost_records(store) == []


def test_a_store_that_is_new_has_lost_nothing(tmp_path):
    assert check_losses(Store(tmp_path / STORE)) == []

"""Stores that are full, read-only, locked or damaged: 503 while it lasts, and no acknowledgement that is not kept."""

import random
import resource
import sqlite3
from contextlib import asynccontextmanager, contextmanager

import pytest
from fault_clients import EARLIEST, Ledger, path_of, request_for
from fault_run import digests_after_every_way_to_start, judge, load
from fault_server import locked


@contextmanager
def pragmas(service, during, after):
    """Let the server's connections set a pragma before their next transaction, and another at the end."""
    file = service.store.with_name(service.store.name + "-pragmas")
    file.write_text(during)
    yield
    file.write_text(after)


@contextmanager
def file_size(service, most):
    """Let the system refuse the server to write beyond a size."""
    _, hard = resource.prlimit(service.server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.server.pid, resource.RLIMIT_FSIZE, (most, hard))
    yield
    resource.prlimit(service.server.pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def damaged(path):
    """Overwrite all but the first page of a database that nobody writes to."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    good = path.read_bytes()
    overwrite(path, good[:4096] + random.Random(0).randbytes(len(good) - 4096))
    yield
    overwrite(path, good)


def overwrite(path, content):
    with open(path, "r+b") as file:
        file.write(content)


async def refused(service, ledger, event):
    """Return the code with which a rank is refused; those that are not refused go to the ledger."""
    for i in range(10_000):
        answer = await service.ask("POST", "/v1/rank", request_for(f"{event}-{i}"))
        if answer.status == 503:
            assert set(answer.json()["error"]) == {"code", "message", "target"}
            return answer.code()
        assert answer.status == 200, answer
        ledger.ranked(EARLIEST, answer.json())
    return None


@asynccontextmanager
async def loaded(service, **options):
    """Run a service under load and lend its ledger; at the end nothing may contradict it, and all may work again."""
    ledger = Ledger()
    await service.start(busy_seconds=0.05, **options)
    await service.make_loops()
    async with load(service, ledger, seed=2, n_clients=4):
        await ledger.grows()
        yield ledger
        await ledger.grows()
    assert (await service.ask("GET", "/readyz")).status == 200
    assert await judge(service, ledger) == []
    live, *others = await digests_after_every_way_to_start(service)
    assert others == [live] * 3


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (lambda service: pragmas(service, "max_page_count=1", "max_page_count=1000000"), "store_full"),
        (lambda service: pragmas(service, "query_only=1", "query_only=0"), "store_readonly"),
        (lambda service: file_size(service, 8_192), "store_io"),
        (lambda service: locked(service.store), "store_busy"),
    ],
    ids=["full", "read-only", "unwritable", "locked"],
)
def test_requests_are_refused_while_the_store_takes_nothing_and_all_is_well_afterwards(play, fault, code):
    @play
    async def _(service):
        async with loaded(service, snapshot_seconds=0.0) as ledger:
            with fault(service):
                assert await refused(service, ledger, "first") == code
                assert await refused(service, ledger, "second") == code
                assert (await service.ask("GET", "/healthz")).status == 200


def test_a_locked_snapshot_holds_nobody_up(play):
    @play
    async def _(service):
        async with loaded(service, snapshot_seconds=0.0) as ledger:
            with locked(f"{service.store}-models"):
                await ledger.grows()


async def quiet(service, **options):
    """Return the ledger of a service that was under load, and is not any more."""
    ledger = Ledger()
    await service.start(**options)
    await service.make_loops()
    async with load(service, ledger, seed=3, n_clients=4):
        await ledger.grows(by=300)
    await service.settle()
    return ledger


def test_a_database_that_gets_damaged_is_told_and_works_again_once_it_is_restored(play):
    @play
    async def _(service):
        ledger = await quiet(service)
        with damaged(service.store):
            assert await refused(service, ledger, "during") == "store_damaged"
            export = await service.ask("GET", "/v1/events")
            assert export.status == 503, export
            assert export.code() == "store_damaged"
        after = await service.ask("POST", "/v1/rank", request_for("after"))
        ledger.ranked(EARLIEST, after.json())
        assert await judge(service, ledger) == []
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3


def test_a_server_does_not_start_on_a_damaged_database_and_leaves_it_as_it_is(play):
    @play
    async def _(service):
        ledger = await quiet(service)
        await service.kill()
        with damaged(service.store):
            content = service.store.read_bytes()
            await service.begin()
            assert await service.server.ended() == 1
            assert "damaged" in service.server.errors()
            assert service.store.read_bytes() == content
        await service.start()
        assert await judge(service, ledger) == []


DAMAGES = {
    "torn": lambda content: content[: len(content) // 2],
    "overwritten": lambda content: content[:8192] + random.Random(1).randbytes(len(content) - 8192),
    "no database": lambda content: b"x" * len(content),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_snapshot_is_made_anew_from_the_log(play, damage):
    @play
    async def _(service):
        ledger = await quiet(service, snapshot_seconds=0.0)
        digests = await service.server.digests()
        await service.stop(15)
        snapshot = service.store.with_name(service.store.name + "-models")
        snapshot.write_bytes(damage(snapshot.read_bytes()))
        await service.start()
        assert await service.server.digests() == digests
        await service.kill()
        await service.start()
        assert await judge(service, ledger) == []


def test_a_snapshot_damaged_while_it_is_used_is_noticed_and_made_anew(play):
    @play
    async def _(service):
        ledger = await quiet(service, snapshot_seconds=0.0, cache_bytes=1)
        digests = await service.server.digests()
        with damaged(service.store.with_name(service.store.name + "-models")):
            event = (await service.ask("POST", path_of(EARLIEST, "rank"), request_for("x"))).json()
            ledger.ranked(EARLIEST, event)
            status = await service.settle()
            assert status["rebuilt"] == 1
            assert await service.server.digests() == digests
            await service.kill()

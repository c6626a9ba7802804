"""Stores that are full, read-only, locked or damaged: 503 while it lasts, and no acknowledgement that is not kept."""

import random
import resource
import sqlite3
from contextlib import asynccontextmanager, contextmanager

import pytest
from fault_clients import EARLIEST, Ledger, request_for
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
    """Let the system refuse the log writer to write beyond a size."""
    [pid] = service.server.pids("log").values()
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


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
        request = request_for(f"{event}-{i}")
        answer = await service.ask("POST", "/v1/rank", request)
        if answer.status == 503:
            assert set(answer.json()["error"]) == {"code", "message", "target"}
            ledger.refused.append(request)
            return answer.code()
        assert answer.status == 200, answer
        ledger.ranked(EARLIEST, answer.json())
    return None


async def ask_again(service, ledger):
    """Rank what was refused, now that it must be taken."""
    for request in ledger.refused:
        answer = await service.ask("POST", "/v1/rank", request)
        assert answer.status == 200, answer
        ledger.ranked(EARLIEST, answer.json())


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
    await ask_again(service, ledger)
    assert (await service.ask("GET", "/readyz")).status == 200
    assert await judge(service, ledger) == []
    live, *others = await digests_after_every_way_to_start(service)
    assert others == [live] * 3


FAULTS = {
    "full": (lambda service: pragmas(service, "max_page_count=1", "max_page_count=1000000"), "store_full"),
    "read-only": (lambda service: pragmas(service, "query_only=1", "query_only=0"), "store_readonly"),
    "unwritable": (lambda service: file_size(service, 8_192), "store_io"),
    "locked": (lambda service: locked(service.store), "store_busy"),
}


@pytest.mark.parametrize(("fault", "code"), FAULTS.values(), ids=FAULTS)
def test_requests_are_refused_while_the_store_takes_nothing_and_all_is_well_afterwards(play, fault, code):
    @play
    async def _(service):
        async with loaded(service, snapshot_seconds=0.05) as ledger:
            with fault(service):
                assert await refused(service, ledger, "first") == code
                assert await refused(service, ledger, "second") == code
                assert (await service.ask("GET", "/healthz")).status == 200


def changes(model):
    """Return requests that change more than one event, and how they are acknowledged."""
    return [
        ("PUT", "/v1/settings", {"epsilon": 0.2}, 200),
        ("PUT", "/v1/actions", {"put": [{"id": "milk", "features": {"kind": "milk"}}]}, 204),
        ("PUT", "/v1/model", model, 204),
        ("POST", "/v1/loops", {"name": "another"}, 201),
        ("DELETE", "/v1/users/user%200", None, 204),
    ]


@pytest.mark.parametrize(
    ("fault", "code"), [FAULTS["read-only"], FAULTS["unwritable"]], ids=["read-only", "unwritable"]
)
def test_changes_are_refused_as_a_whole_while_the_store_takes_nothing_and_can_be_made_afterwards(play, fault, code):
    @play
    async def _(service):
        await quiet(service)
        model = (await service.ask("GET", "/v1/model")).body
        before = await service.digests()
        with fault(service):
            for method, path, body, _ in changes(model):
                answer = await service.ask(method, path, body)
                assert (answer.status, answer.code()) == (503, code), (path, answer)
        assert await service.digests() == before
        assert (await service.ask("GET", "/v1/settings")).json()["settings"]["epsilon"] == 0.1
        for method, path, body, status in changes(model):
            answer = await service.ask(method, path, body)
            assert answer.status == status, (path, answer)
        events = (await service.ask("GET", "/v1/events")).lines()
        assert [event for event in events if event["user"] == "user 0"] == []
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3


def test_a_locked_snapshot_holds_nobody_up(play):
    @play
    async def _(service):
        async with loaded(service, snapshot_seconds=0.05) as ledger:
            with locked(f"{service.store}-models"):
                await ledger.grows()


async def quiet(service, **options):
    """Return the ledger of a service that was under load, and is not any more."""
    ledger = Ledger()
    await service.start(**options)
    await service.make_loops()
    async with load(service, ledger, seed=3, n_clients=4):
        await ledger.grows(by=150)
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
        await ask_again(service, ledger)
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
        ledger = await quiet(service, snapshot_seconds=0.05)
        digests = await service.digests()
        await service.stop(15)
        snapshot = service.store.with_name(service.store.name + "-models")
        snapshot.write_bytes(damage(snapshot.read_bytes()))
        await service.start()
        assert await service.digests() == digests
        await service.kill()
        await service.start()
        assert await judge(service, ledger) == []


def test_a_snapshot_damaged_while_it_is_used_is_noticed_and_made_anew(play):
    @play
    async def _(service):
        await quiet(service)
        with damaged(service.store.with_name(service.store.name + "-models")):
            assert (await service.ask("DELETE", "/v1/users/user%200")).status == 204  # reads all models of users
            status = await service.settle()
            assert status["rebuilt"] == 1
            live = await service.digests()
            await service.kill()
        assert service.rebuilt_digests() == live

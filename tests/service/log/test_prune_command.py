"""``fedres log prune``, as an operator uses it: on a store that is stopped, and on one that is in use."""

import asyncio
import functools
import threading

import pytest
from machine import SECOND, Engine
from playing import request
from stores import digests, fill, play, records
from test_maintenance import fedres_log, refusal
from typer.testing import CliRunner

from fedres.lease import Lease
from service.cli import app
from service.log.postgres import PostgresLog
from service.plugins.tools.verifying import verify_log, verify_sqlite
from service.times import system_clock


class PassingClock:
    """A clock of the past that tests can put forward."""

    def __init__(self, days):
        self.now = system_clock() - days * 86_400 * SECOND

    def __call__(self):
        return self.now

    def pass_seconds(self, seconds):
        self.now += round(seconds * SECOND)


@pytest.fixture(scope="module")
def old_store(tmp_path_factory):
    """Return a store with events from 40 days ago and from a minute ago."""
    folder = tmp_path_factory.mktemp("old")

    async def make():
        engine = Engine(folder, clock=PassingClock(40))
        await fill(engine)
        engine.own_clock.pass_seconds(40 * 86_400 - 60)
        await play(engine, 20, seed=9)
        await engine.settle()
        await engine.close()

    asyncio.run(make())
    return folder / "store.db"


@pytest.fixture
def store(old_store, tmp_path):
    target = tmp_path / "store.db"
    target.write_bytes(old_store.read_bytes())
    return target


def events(store, loop="default"):
    return [entry.event for entry in records(store)[loop] if entry.kind == "rank"]


def test_a_dry_run_says_what_is_old_and_changes_nothing(store):
    before = store.read_bytes()
    result = fedres_log("prune", store, "--older-than", "30d", "--dry-run")
    assert result.exit_code == 0, result.output
    n_old = sum(not event.startswith("default-9-") for event in events(store))
    assert f"loop 'default': {n_old} events (" in result.stdout
    assert "loop 'news': 30 events (" in result.stdout
    assert store.read_bytes() == before


def test_a_store_that_is_stopped_is_pruned_and_learns_the_same(store):
    learned = digests(store)
    result = fedres_log("prune", store, "--older-than", "30d", "--loop", "default")
    assert result.exit_code == 0, result.output
    assert "are removed" in result.stdout
    assert set(events(store)) == {f"default-9-{k}" for k in range(20)}
    assert len(events(store, "news")) == 30
    assert digests(store) == learned
    assert verify_sqlite(store).findings == []
    assert fedres_log("prune", store, "--older-than", "30d").exit_code == 0
    assert events(store, "news") == []
    assert digests(store) == learned


def test_its_records_have_the_time_of_the_log_so_that_no_pending_event_ends(tmp_path):
    async def make():
        engine = Engine(tmp_path, clock=PassingClock(1))
        for k in range(5):
            await _play_one(engine, f"rewarded {k}")
            await engine.rank("default", request(event_id=f"pending {k}"))
        await engine.settle()
        await engine.close()

    asyncio.run(make())
    store = tmp_path / "store.db"
    last = records(store)["default"][-1]
    assert fedres_log("prune", store, "--older-than", "30d").exit_code == 0
    new = [entry for entry in records(store)["default"] if entry.position > last.position]
    assert {entry.kind for entry in new} == {"erase", "erased", "base"}
    assert {entry.time for entry in new} == {last.time}


def test_a_service_that_runs_does_it_itself(store, tmp_path):
    learned = digests(store)
    engine, stopping = Engine(tmp_path, clock=system_clock), threading.Event()

    def learn():
        while not stopping.wait(0.005):
            engine.learner.step()

    thread = threading.Thread(target=learn)
    with Lease(store):
        thread.start()
        try:
            result = fedres_log("prune", store, "--older-than", "30d")
        finally:
            stopping.set()
            thread.join()
    assert result.exit_code == 0, result.output
    assert {loop: engine.digest(loop) for loop in ("default", "news")} == learned == digests(store)
    asyncio.run(engine.close())
    assert set(events(store)) == {f"default-9-{k}" for k in range(20)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--older-than", "30"], "--older-than must be a number and d, h, m or s, such as 30d, got '30'"),
        (["--older-than", "-1d"], "--older-than must be between 0 and 100 years, got '-1d'"),
        (
            ["--older-than", "30d", "--loop", "nonsense"],
            "loop must be one of the store's (default, news), got 'nonsense'",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(store, words, message):
    assert refusal(fedres_log("prune", store, *words)) == message


def test_a_database_is_pruned_while_no_machine_runs_and_by_the_one_that_does(tmp_path, database):
    async def fill_database():
        engine = Engine(tmp_path, open_log=functools.partial(PostgresLog, database))
        for k in range(30):
            await _play_one(engine, f"e{k}")
        digest = engine.digest()
        await engine.close()
        return digest

    learned = asyncio.run(fill_database())
    command = ["log", "prune", "--older-than", "0s", "--store", database, "--folder", str(tmp_path / "elsewhere")]
    (tmp_path / "elsewhere").mkdir()
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    with PostgresLog(database) as log:
        assert not [entry for entry in log.read("default") if entry.kind == "rank"]
        assert verify_log(log, "log").findings == []
    engine, stopping = Engine(tmp_path, open_log=functools.partial(PostgresLog, database)), threading.Event()
    assert engine.digest() == learned == engine.rebuilt()
    assert engine.learner.hold("default") is not None
    asyncio.run(_play_one(engine, "later"))

    def learn():
        while not stopping.wait(0.005):
            engine.learner.step()

    thread = threading.Thread(target=learn)
    thread.start()
    try:
        result = CliRunner().invoke(app, command)
    finally:
        stopping.set()
        thread.join()
    assert result.exit_code == 0, result.output
    assert not [entry for entry in engine.logged() if entry.kind == "rank"]
    assert engine.digest() == engine.rebuilt()
    asyncio.run(engine.close())


async def _play_one(engine, event):
    from stores import request

    await engine.rank("default", request("anna", event_id=event))
    await engine.reward("default", event, 1.0)
    await engine.settle()

"""Look-ups in the log: what one loop looks up leaves connections for the others, and ends when nobody waits for it."""

import asyncio
import contextlib
import types

import pytest
from machine import running
from playing import refused, request

from service import logs
from service.errors import ApiError
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.plugins.recommend import recommender as recommender_module
from service.rank import look_ups as look_ups_module
from service.rank.look_ups import CONNECTIONS, OF_A_LOOP, LookUps
from service.rank.requests import Action

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@contextlib.contextmanager
def looking_up(tmp_path):
    look_ups = LookUps(lambda: SqliteLog(sqlite_file(tmp_path / "log.db")))
    try:
        yield look_ups
    finally:
        look_ups.close()


def endless(log):
    """Run a statement that ends only if it is interrupted."""
    with log._connection() as db:
        list(db.execute("WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t"))


async def started(look_ups, loop, n):
    """Return look-ups that do not end, once the connections of their loop work on them."""
    tasks = [asyncio.ensure_future(look_ups.call(loop, endless)) for _ in range(n)]
    while look_ups.threads.running[loop] < min(n, OF_A_LOOP):
        await asyncio.sleep(0)
    return tasks


async def cancelled(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_loop_leaves_connections_for_the_others(tmp_path):
    with looking_up(tmp_path) as look_ups:
        tasks = await started(look_ups, "a", 10)
        assert await look_ups.call("b", lambda log: log.heads()) == {}
        assert look_ups.threads.running["a"] == OF_A_LOOP < CONNECTIONS
        await cancelled(tasks)
        assert await look_ups.call("a", lambda log: log.heads()) == {}  # its connections are free again


async def test_a_look_up_is_interrupted_when_its_time_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(look_ups_module, "LOOK_UP_SECONDS", 0.05)
    with looking_up(tmp_path) as look_ups:
        for _ in range(3):
            assert await refused(look_ups.call("a", endless)) == (503, "store_timeout")
        while look_ups.threads.running:
            await asyncio.sleep(0.01)


async def test_a_look_up_is_interrupted_when_the_client_has_gone(tmp_path):
    connection = types.SimpleNamespace(disconnected=False)
    with looking_up(tmp_path) as look_ups:
        logs.serving.set(logs.ServedRequest("POST", connection=connection))
        [task] = await started(look_ups, "a", 1)
        connection.disconnected = True
        assert await refused(task) == (499, "client_gone")
        while look_ups.threads.running:
            await asyncio.sleep(0.01)


async def test_look_ups_that_wait_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(look_ups_module, "MOST_WAITING", 3)
    with looking_up(tmp_path) as look_ups:
        tasks = await started(look_ups, "a", OF_A_LOOP + 3)
        assert await refused(look_ups.call("a", endless)) == (503, "ranker_busy")
        assert await look_ups.call("b", lambda log: log.heads()) == {}
        await cancelled(tasks)


async def test_a_failure_reaches_the_caller_and_frees_the_connection(tmp_path):
    def broken(log):
        raise ApiError(404, "planted", "no")

    with looking_up(tmp_path) as look_ups:
        for _ in range(OF_A_LOOP + 1):
            assert await refused(look_ups.call("a", broken)) == (404, "planted")
        assert not look_ups.threads.running


# what is read


async def test_bodies_beyond_a_time_or_a_size_are_not_decoded(tmp_path, monkeypatch):
    decoded = []
    decode = recommender_module._decode_shown
    monkeypatch.setattr(recommender_module, "_decode_shown", lambda body: decoded.append(1) or decode(body))
    async with running(tmp_path) as engine:
        for k in range(6):
            shown = request(context={"_pad": "x" * 10_000})
            shown.actions[:] = [Action(f"f{k}")]
            await engine.rank("default", shown)
            engine.own_clock.pass_seconds(10)
        created_at, first = engine.view().created_at, engine.own_clock.now - 25 * 1_000_000
        shown_to = recommender_module._shown_to
        assert shown_to(engine.log, "default", "u", created_at, first) == ["f5", "f4"]
        assert len(decoded) == 2
        assert len(shown_to(engine.log, "default", "u", created_at, 0)) == 6
        monkeypatch.setattr(recommender_module, "MOST_SEEN_BYTES", 35_000)
        assert shown_to(engine.log, "default", "u", created_at, 0) == ["f5", "f4", "f3"]
        assert len(decoded) == 2 + 6 + 3


async def test_a_repeat_of_an_event_with_many_rewards_reads_its_decision_only(tmp_path, monkeypatch):
    async with running(tmp_path) as engine:
        first = await engine.rank("default", request(event_id="e"))
        for k in range(50):
            await engine.reward("default", "e", 1.0, f"r{k}")
        read = []
        check = look_ups_module.LookUps.call

        async def counted(self, loop, function):
            def counting(log):
                find = log.find
                log.find = lambda *arguments: read.extend(find(*arguments)) or [*read]
                return function(log)

            return await check(self, loop, counting)

        monkeypatch.setattr(look_ups_module.LookUps, "call", counted)
        assert await engine.rank("default", request(event_id="e")) == first
        assert [entry.kind for entry in read] == ["rank"]

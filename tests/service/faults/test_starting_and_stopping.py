"""One server to a store; one that is told to stop finishes what it has begun."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from fault_clients import Connection, Ledger, request_for
from fault_run import digests_after_every_way_to_start, judge, load
from fault_server import locked
from forked import FEDRES, run

from service.learn.snapshots import Snapshots


def fedres_serve(store):
    """Return how ``fedres serve`` ends that cannot start."""
    return run([FEDRES, "serve", "--port", "0", "--store", f"sqlite:///{store}"])


def test_a_second_server_on_a_store_says_who_has_it_in_one_line_and_ends(play):
    @play
    async def _(service):
        await service.start()
        second = await asyncio.to_thread(fedres_serve, service.store)
        assert second.returncode != 0
        assert second.stdout == ""
        [line] = second.stderr.splitlines()
        assert f"process {service.server.pid} has it" in line
        assert (await service.ask("GET", "/readyz")).status == 200


def test_a_server_that_cannot_open_its_store_says_why_in_one_line(tmp_path):
    store = tmp_path / "store.db"
    store.write_text("a letter to a friend" * 1_000)
    ended = fedres_serve(store)
    assert (ended.returncode != 0, ended.stdout) == (True, "")
    assert len(ended.stderr.splitlines()) == 1
    assert store.read_text().startswith("a letter")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_told_to_stop_under_load_answers_saves_all_and_ends_well(play, number):
    @play
    async def _(service):
        ledger = Ledger()
        await service.start(rankers=2)
        await service.make_loops()
        async with load(service, ledger, seed=4):
            await ledger.grows()
            assert await service.stop(number) == 0
            assert service.server.errors() == ""
            assert saved_positions(service) == last_positions(service)
            await service.start()
        assert await judge(service, ledger) == []
        live, *others = await digests_after_every_way_to_start(service)
        assert others == [live] * 3


def last_positions(service):
    log = service.log()
    try:
        return {loop: head.last for loop, head in log.heads().items()}
    finally:
        log.close()


def saved_positions(service):
    snapshots = Snapshots(service.store.with_name(service.store.name + "-models"))
    try:
        return {saved.metadata.name: saved.position for saved in snapshots.loops()}
    finally:
        snapshots.close()


def test_a_killed_supervisor_takes_its_processes_along_and_the_next_one_cleans_up(play):
    @play
    async def _(service):
        await service.start(rankers=2)
        pids, folder = [one["pid"] for one in service.server.processes()], service.server.folder()
        service.server.signal(signal.SIGKILL)
        await service.server.ended()
        while any(is_running(pid) for pid in pids):
            await asyncio.sleep(0.01)
        await service.start()
        assert not folder.exists()
        assert (await service.ask("GET", "/readyz")).status == 200


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_requests_that_a_stopping_server_has_read_are_answered(play):
    @play
    async def _(service):
        await service.start(busy_seconds=60.0)
        connections = [Connection(service.whereabouts) for _ in range(8)]
        with locked(service.store):
            for i, connection in enumerate(connections):
                await connection.send("POST", "/v1/rank", request_for(f"e{i}"))
            await service.ask("GET", "/healthz")  # it has read what came before
            service.server.signal(signal.SIGTERM)
        answers = [await connection.receive() for connection in connections]
        assert [answer.status for answer in answers] == [200] * 8
        assert await service.server.ended() == 0
        await service.start()
        events = (await service.ask("GET", "/v1/events")).lines()
        decided = {answer.json()["event_id"]: answer.json()["action"] for answer in answers}
        assert {event["event_id"]: event["action"] for event in events} == decided


def test_requests_that_come_while_the_ranker_is_restarted_wait_for_it(play):
    @play
    async def _(service):
        await service.start()
        for i in range(3):
            [pid] = service.server.pids("ranker").values()
            os.kill(pid, signal.SIGKILL)
            connections = [Connection(service.whereabouts) for _ in range(8)]
            for k, connection in enumerate(connections):
                await connection.send("POST", "/v1/rank", request_for(f"{i}-{k}"))
            assert [(await connection.receive()).status for connection in connections] == [200] * 8

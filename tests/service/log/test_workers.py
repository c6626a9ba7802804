"""Long work on the log, in a process of its own."""

import asyncio
import os
import subprocess
import sys
from subprocess import PIPE

import pytest
from machine import running
from playing import refused, request
from work import fails, hangs, n_events, prints, process_id, text

from service.errors import ApiError
from service.log.opening import Store
from service.log.workers import FairTurns, WorkerProcess


@pytest.fixture
def worker(tmp_path):
    """A process for the store of ``tmp_path``; stories close it, as only their event loop can."""
    return WorkerProcess(Store(tmp_path / "store.db"))


async def close(worker):
    process = worker._process
    worker.close()
    await process.wait()


def test_it_reads_the_log_in_another_process(worker, tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            since = engine.view().created_at
            for n in (1, 2):
                await engine.rank("default", request())
                assert await worker.call("default", n_events, since) == n
            assert await worker.call("default", process_id) not in (os.getpid(), None)
        await close(worker)

    asyncio.run(story())


def test_whoever_goes_away_leaves_the_next_one_its_own_answer(worker, tmp_path):
    async def story():
        async with running(tmp_path):
            for n in (10, 10_000_000):  # the second takes a while to arrive
                call = asyncio.ensure_future(worker.call("default", text, n))
                while not worker._turns._is_taken:
                    await asyncio.sleep(0)
                call.cancel()
                assert await worker.call("default", text, 3) == "xxx"
        await close(worker)

    asyncio.run(story())


def test_what_goes_wrong_there_is_raised_here(worker, tmp_path):
    async def story():
        async with running(tmp_path):
            assert await refused(worker.call("default", fails, ApiError(422, "wrong", "it is wrong", "x"))) == (
                422,
                "wrong",
            )
            with pytest.raises(ZeroDivisionError):
                await worker.call("default", fails, ZeroDivisionError())
            assert await worker.call("default", text, 2) == "xx"
        await close(worker)

    asyncio.run(story())


def test_a_call_that_hangs_is_ended_and_the_next_one_succeeds(worker):
    async def story():
        hanging = await worker.call("a", process_id)
        assert await refused(worker.call("a", hangs, seconds=0.2)) == (503, "report_timeout")
        assert await worker.call("b", process_id) != hanging
        with pytest.raises(ProcessLookupError):
            os.kill(hanging, 0)
        await close(worker)

    asyncio.run(story())


def test_prints_do_not_disturb_replies(worker):
    async def story():
        for n in (1, 5_000, 2):
            assert await worker.call("a", prints, n) == n
        await close(worker)

    asyncio.run(story())


def test_a_process_with_too_much_memory_ends_after_its_reply(worker, monkeypatch):
    async def story():
        first = await worker.call("a", process_id)
        assert await worker.call("a", process_id) == first
        monkeypatch.setattr("service.log.workers.MOST_MEMORY", 1)
        process = worker._process
        assert await worker.call("a", text, 3) == "xxx"
        await process.wait()
        assert await worker.call("a", process_id) != first

    asyncio.run(story())


def test_an_idle_process_ends(worker, monkeypatch):
    monkeypatch.setattr("service.log.workers.IDLE_SECONDS", 0.01)

    async def story():
        call = asyncio.ensure_future(worker.call("a", text, 1))
        while worker._process is None:
            await asyncio.sleep(0)
        process = worker._process
        await call
        await process.wait()
        monkeypatch.undo()
        assert await worker.call("a", text, 2) == "xx"
        await close(worker)

    asyncio.run(story())


def test_a_loop_with_many_calls_delays_another_by_one(worker):
    done = []

    async def ask(loop, n):
        await worker.call(loop, text, n)
        done.append(loop)

    async def story():
        await worker.call("a", text, 1)
        of_a = [asyncio.ensure_future(ask("a", 1)) for _ in range(20)]
        await asyncio.sleep(0)
        of_b = [asyncio.ensure_future(ask("b", 1)) for _ in range(2)]
        await asyncio.gather(*of_a, *of_b)
        assert done[:5] == ["a", "b", "a", "b", "a"]
        await close(worker)

    asyncio.run(story())


def test_turns_pass_over_those_that_gave_up():
    async def story():
        turns = FairTurns()
        await turns.acquire("a", 1)
        for loop in ("a", "b"):
            with pytest.raises(TimeoutError):
                await turns.acquire(loop, 0)
        leaving = asyncio.ensure_future(turns.acquire("b", 60))
        waiting = asyncio.ensure_future(turns.acquire("a", 60))
        await asyncio.sleep(0)
        turns.release()
        leaving.cancel()  # just when its turn comes
        await waiting
        with pytest.raises(asyncio.CancelledError):
            await leaving
        turns.release()
        await turns.acquire("c", 0)

    asyncio.run(story())


def test_a_process_ends_with_its_parent_in_the_middle_of_a_call(tmp_path):
    program = f"""
import asyncio, pathlib
from work import hangs
from service.log.opening import Store
from service.log.workers import WorkerProcess

async def main():
    worker = WorkerProcess(Store(pathlib.Path({str(tmp_path / "store.db")!r})))
    call = asyncio.ensure_future(worker.call("a", hangs))
    while worker._process is None:
        await asyncio.sleep(0.01)
    print(worker._process.pid, flush=True)
    await call

asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", program], stdout=PIPE, stderr=PIPE, env=environment) as parent:
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.kill()
        parent.stderr.read()  # ends with the last process that has it, which is the child

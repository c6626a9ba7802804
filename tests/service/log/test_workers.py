"""Long work on the log, in a process of its own."""

import asyncio
import os

import pytest
from machine import running
from playing import refused, request
from work import fails, n_events, process_id, text

from service.errors import ApiError
from service.log.opening import Store
from service.log.workers import WorkerProcess


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
                assert await worker.call(n_events, "default", since) == n
            assert await worker.call(process_id) not in (os.getpid(), None)
        await close(worker)

    asyncio.run(story())


def test_whoever_goes_away_leaves_the_next_one_its_own_answer(worker, tmp_path):
    async def story():
        async with running(tmp_path):
            for n in (10, 10_000_000):  # the second takes a while to arrive
                call = asyncio.ensure_future(worker.call(text, n))
                while not worker._turn.locked():
                    await asyncio.sleep(0)
                call.cancel()
                assert await worker.call(text, 3) == "xxx"
        await close(worker)

    asyncio.run(story())


def test_what_goes_wrong_there_is_raised_here(worker, tmp_path):
    async def story():
        async with running(tmp_path):
            assert await refused(worker.call(fails, ApiError(422, "wrong", "it is wrong", "x"))) == (422, "wrong")
            with pytest.raises(ZeroDivisionError):
                await worker.call(fails, ZeroDivisionError())
            assert await worker.call(text, 2) == "xx"
        await close(worker)

    asyncio.run(story())

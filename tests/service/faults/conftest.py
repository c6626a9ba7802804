"""Lets the tests of this folder import what is beside them, and lends them services that may be killed."""

import asyncio
import sys
from pathlib import Path

import pytest
from waiting import LIMIT

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "tools" / "faults")]


@pytest.fixture(scope="session")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def play(runner, tmp_path):
    """Run a scenario, an async function of a service on a new store."""
    return _player(runner, tmp_path / "store.db")


@pytest.fixture
def play_on_postgres(runner, tmp_path, database):
    """Run a scenario of a service whose log is in PostgreSQL."""
    return _player(runner, tmp_path / "store", database)


def _player(runner, store, database=None):
    from fault_run import Service

    async def run(scenario):
        service = Service(store, database)
        try:
            async with asyncio.timeout(LIMIT):
                await scenario(service)
        finally:
            await service.clear()

    return lambda scenario: runner.run(run(scenario))

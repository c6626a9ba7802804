"""A real service for devices to talk to; lets the tests of this folder import the network beside them."""

import functools
import itertools
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "service")]

from live import run_service  # noqa: E402


@pytest.fixture(scope="session")
def start_service():
    """Start a service on a store in a folder: ``with start_service(folder) as live``."""
    return functools.partial(run_service, model="adagrad")


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A service that the tests of a file share, each with a loop or a client of its own."""
    with run_service(tmp_path_factory.mktemp("service"), model="adagrad") as running:
        yield running


_numbers = itertools.count()


@pytest.fixture
def loop(live):
    """A loop of the test's own."""
    name = f"loop-{next(_numbers)}"
    live.make_loop(name, model="adagrad", update_interval=0.001)
    return name

"""A real service for devices to talk to."""

import functools
import itertools

import pytest
from live import run_service


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
    live.make_loop(name, model="adagrad", update_interval=0.005)
    return name

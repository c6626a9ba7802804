"""A live service on a port of the system's choice and a store of its own."""

import pytest
from live import run_service


@pytest.fixture
def start(tmp_path):
    """Start a service of the test's own: ``with start(limits=...) as live``."""

    def begin(**options):
        return run_service(tmp_path, **options)

    return begin


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A service without keys that the tests of a file share."""
    with run_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def client(live):
    with live.client() as made:
        yield made


@pytest.fixture(scope="session")
def live_service():
    """The context manager itself, for fixtures that are shared by a file."""
    return run_service

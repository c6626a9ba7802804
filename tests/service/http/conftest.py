"""A real service in a thread, on a port of the system's choice and a store of its own."""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager

import httpx
import pytest
import uvloop

from service.app import create_app
from service.engine import Engine
from service.http.keys import Keys
from service.http.limits import Limits
from service.http.server import Server, bound


class Live:
    """What a test needs of a running service."""

    def __init__(self, server, engine, keys):
        self.server, self.engine, self.keys = server, engine, keys
        self.loop = asyncio.get_running_loop()
        self.url = server.url
        host, port = self.url.split("://")[1].split(":")
        self.address = (host, int(port))

    def client(self, key=None):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)


async def _run(store, limits, tls, ready):
    with bound("127.0.0.1", 0) as sock:
        engine = Engine.open(store)
        try:
            keys = Keys(store)
            server = Server(create_app(engine, keys=keys, limits=limits), sock, limits, tls)
            ready.set_result(Live(server, engine, keys))
            await server.serve()
        finally:
            await engine.close()


@contextmanager
def run_service(folder, limits=None, tls=None):
    ready = Future()

    def run():
        try:
            uvloop.run(_run(folder / "store.db", limits or Limits(), tls, ready))
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    live = None
    try:
        live = ready.result(timeout=60)
        yield live
    finally:
        if live is not None:
            live.server.stop()
        thread.join()


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

"""A real service for devices to talk to; lets the tests of this folder import the network beside them."""

import asyncio
import sys
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvloop

from service.app import create_app
from service.engine import Engine
from service.http.keys import Keys
from service.http.limits import Limits
from service.http.server import Server, bound

sys.path.insert(0, str(Path(__file__).parent))


class Live:
    """A running service."""

    def __init__(self, server, engine, keys):
        self.server, self.engine, self.keys, self.url = server, engine, keys, server.url
        self._loop = asyncio.get_running_loop()

    def make_loop(self, name, **settings):
        with httpx.Client(base_url=self.url, trust_env=False, verify=False) as http:
            http.post("/v1/loops", json={"name": name, "settings": settings}).raise_for_status()

    def settle(self, loop="default"):
        """Return once all that was uploaded is learned and published, and the published model's version."""
        asyncio.run_coroutine_threadsafe(self.engine.settle(), self._loop).result(30)
        return self.engine.federated_model(loop, None)[0]


async def _run(store, limits, ready):
    with bound("127.0.0.1", 0) as sock:
        engine = Engine.open(store)
        try:
            keys = Keys(store)
            server = Server(create_app(engine, keys=keys, limits=limits), sock, limits, None)
            ready.set_result(Live(server, engine, keys))
            await server.serve()
        finally:
            await engine.close()


@contextmanager
def run_service(store):
    ready = Future()

    def run():
        try:
            uvloop.run(_run(store, Limits(), ready))
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


@pytest.fixture(scope="session")
def start_service():
    """Start a service on a store file: ``with start_service(path) as live``."""
    return run_service


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A service that the tests of a file share, each with a loop or a client of its own."""
    with run_service(tmp_path_factory.mktemp("service") / "store.db") as running:
        yield running

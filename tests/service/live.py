"""A real service in a thread, on a port of the system's choice and a store of its own; its learner steps in another."""

import asyncio
import contextlib
import functools
import threading
from concurrent.futures import Future
from http.client import HTTPConnection

import httpx
import uvloop
from machine import Engine, InlineLearner
from waiting import LIMIT, be_patient

from service.admin.status import MachineStatus
from service.app import create_app
from service.http.audit import Audit
from service.http.keys import Keys
from service.http.request import Limits
from service.http.server import HttpServer, bind
from service.log.records import LOOP, Record, encode
from service.rank.ranker import RankerContext
from service.settings import Settings
from service.times import system_clock

be_patient()


class LockedLearner(InlineLearner):
    """Asks the learner between two of its steps."""

    def __init__(self, learner, lock):
        super().__init__(learner)
        self.lock = lock

    async def ask(self, what, loop="", since=0):
        with self.lock:
            return await super().ask(what, loop, since)


class LiveEngine(Engine):
    """The machine of a running service: the learner steps by itself, and one at a time have it.

    While it is ``paused``, it steps only for those who settle, or who wait for a change of theirs to be published.
    """

    paused = False

    def __init__(self, folder, **settings):
        super().__init__(folder, clock=system_clock, **settings)
        self.lock, self._stopping = threading.RLock(), threading.Event()
        for name in ("step", "digest"):
            setattr(self.learner, name, _locked(getattr(self.learner, name), self.lock))
        self.context.learner = LockedLearner(self.learner, self.lock)
        self.context.until = self._until
        self._thread = threading.Thread(target=self._learn)
        self._thread.start()

    def _learn(self):
        while not self._stopping.is_set():
            if self.paused or not self.learner.step():
                self._stopping.wait(self.learner.seconds_until_due())

    async def _until(self, published, seconds=LIMIT):
        while self.paused and not published():
            self.learner.step()
        await RankerContext.until(self.context, published, seconds)

    async def close(self):
        self._stopping.set()
        self._thread.join()
        await super().close()


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
        return httpx.Client(base_url=self.url, headers=headers, timeout=LIMIT, trust_env=False, verify=False)

    @contextlib.contextmanager
    def asking(self):
        """Lend a function for thousands of requests without a body, which take httpx four times as long."""

        def ask(method, path, **headers):
            connection.request(method, path, headers=headers)
            with connection.getresponse() as reply:
                reply.read()
            return reply

        with contextlib.closing(HTTPConnection(*self.address, timeout=LIMIT)) as connection:
            yield ask

    def make_loop(self, name, **settings):
        with self.client() as http:
            http.post("/v1/loops", json={"name": name, "settings": settings}).raise_for_status()

    def make_earlier_loop(self, name, **settings):
        """Make a loop as an earlier version did, whose draws depend on the event's id alone."""
        record = Record(name, LOOP, "loop after 0", body=encode(Settings(**settings)))
        self.run(self.engine.context.append_now, record)

    def run(self, function, *arguments):
        """Return what a function of the engine gives, on the engine's own thread."""

        async def call():
            result = function(*arguments)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(LIMIT)

    def weights(self, loop="default"):
        """Return the shared weights as they are published."""
        return self.run(lambda: self.engine.context.loop(loop).weights.copy())

    def settle(self, loop="default"):
        """Return once all that was stored is learned and published, and the published model's version."""
        self.run(self.engine.settle)
        return self.run(self.engine.view, loop).version


def _locked(function, lock):
    @functools.wraps(function)
    def call(*arguments):
        with lock:
            return function(*arguments)

    return call


async def _run(folder, limits, tls, audit, settings, ready, root_path, hosts):
    with bind("127.0.0.1", 0) as sock:
        engine = LiveEngine(folder, **settings)
        try:
            keys = Keys(folder / "store.db")
            noted = Audit(folder / "store.db") if audit else None
            status = MachineStatus(engine.context, "store.db")
            app = create_app(
                engine.context, status, keys=keys, limits=limits, audit=noted, hosts=hosts, root_path=root_path
            )
            server = HttpServer(app.router, sock, limits, tls)
            ready.set_result(Live(server, engine, keys))
            await server.serve()
        finally:
            await engine.close()


@contextlib.contextmanager
def run_service(folder, limits=None, tls=None, audit=False, root_path="", hosts=None, **settings):
    """Serve the store at ``folder / "store.db"`` meanwhile; ``settings`` are of its loop."""
    ready = Future()

    def run():
        try:
            uvloop.run(_run(folder, limits or Limits(), tls, audit, settings, ready, root_path, hosts))
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    live = None
    try:
        live = ready.result(timeout=LIMIT)
        yield live
    finally:
        if live is not None:
            live.server.stop()
        thread.join()

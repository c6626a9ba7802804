"""The process of a ranker: HTTP in, decisions out."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from functools import partial
from typing import Any

import uvloop

from service import metrics
from service.admin.status import MachineStatus
from service.app import create_app
from service.http.audit import Audit
from service.http.hosts import Hosts
from service.http.keys import open_keys
from service.http.server import HttpServer
from service.learn.control import LearnerClient
from service.log.client import WriterClient
from service.log.opening import open_log
from service.log.workers import WorkerProcess
from service.logs import log_failure
from service.models.published import PublishedModels
from service.plugins import plugins
from service.rank.ranker import RankerContext
from service.roles.config import BEAT_SECONDS, Beat, Config

SWITCH_SECONDS = 0.0005  # after which a thread that reads the log lets the one that decides go on
# A ranker waits this long for the log writer, then serves requests anyway.
CONNECT_SECONDS = 1.0
GARBAGE_OBJECTS = 50_000  # between two garbage collections; requests create no cycles
OUT_OF_MEMORY = 71  # status of a process that ended because of it


def end_if_out_of_memory(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End a process if a callback ran out of memory, since requests that depend on it would wait forever.

    The supervisor starts another one.
    """
    if isinstance(context.get("exception"), MemoryError):
        os._exit(OUT_OF_MEMORY)
    loop.default_exception_handler(context)


def run(config: Config, sock: socket.socket, parent: int, beat: Beat = lambda: None) -> None:
    """Serve until SIGTERM, or until ``parent`` ends; then drain."""
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, sock, parent, beat))


def _context(config: Config, client: WriterClient, learner: LearnerClient) -> RankerContext:
    """Return what the parts of a ranker share."""
    return RankerContext(
        PublishedModels(config.run),
        client,
        learner,
        partial(open_log, config.store),
        only=config.loops,
        quotas=config.quotas,
        new_worker=partial(WorkerProcess, config.store),
    )


async def _serve(config: Config, sock: socket.socket, parent: int, beat: Beat) -> None:
    loop = asyncio.get_running_loop()

    def live() -> None:
        beat()
        loop.call_later(BEAT_SECONDS, live)

    live()
    loop.set_exception_handler(end_if_out_of_memory)
    client = WriterClient(config.log_socket)
    connecting = asyncio.ensure_future(client.connect())
    learner = LearnerClient(config.learner_socket)
    context = _context(config, client, learner)
    status = MachineStatus(context, config.store.path.name, config.run, config.store.path.parent)
    keys = await asyncio.to_thread(open_keys, config.store)
    app = create_app(
        context,
        status,
        keys=keys,
        limits=config.limits,
        hosts=Hosts(config.allowed_hosts, config.host, config.allowed_origins),
        audit=Audit(config.store.path),
        root_path=config.root_path,
        access_log=config.access_log,
    )
    server = HttpServer(app.router, sock, config.limits, config.tls, metrics.flush_requests)

    def stop() -> None:
        loop.remove_reader(parent)  # else the callback would repeat after the parent's end
        server.stop()

    def orphaned() -> None:
        context.orphaned = True
        stop()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_reader(parent, orphaned)
    beside = [
        asyncio.ensure_future(plugin.background(app.core, config.run)) for plugin in plugins() if plugin.background
    ]
    for task in beside:
        task.add_done_callback(log_failure)
    await asyncio.wait([connecting], timeout=CONNECT_SECONDS)  # connections wait to be accepted meanwhile
    gc.freeze()  # exclude start-up objects from collections, which would pause for 0.1 s each time
    gc.set_threshold(GARBAGE_OBJECTS)
    try:
        await server.serve()
    finally:
        metrics.flush_requests()
        loop.remove_reader(parent)
        connecting.cancel()
        for task in beside:
            task.cancel()
        await client.close()
        context.close()

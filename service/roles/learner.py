"""The process of the learner."""

from __future__ import annotations

import selectors
import signal
import socket
import time

from service.learn.control import serve_one
from service.learn.learner import Learner
from service.learn.snapshots import Snapshots
from service.log.client import BlockingWriter
from service.log.opening import open_log
from service.models.published import Publisher, new_generation
from service.roles.config import Config

BEHIND_SECONDS = 0.1  # of learning, after which questions are answered even while there is more to learn


def run(config: Config, listener: socket.socket, parent: int) -> None:
    """Learn until SIGTERM, or until ``parent`` ends; then save."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    log = open_log(config.store)
    learner = Learner(
        log,
        BlockingWriter(config.log_socket),
        Snapshots(config.store.beside("-models")),
        Publisher(config.run, new_generation(config.run)),
        fork=True,
        only=config.loops,
        holds=getattr(log, "holds", lambda loop: True),
    )
    learner.open()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ, lambda: serve_one(listener, learner))
        selector.register(parent, selectors.EVENT_READ, stop)
        while not stopping:
            began = time.monotonic()
            more = learner.step()
            wait = 0.0 if more else max(0.0, began + learner.seconds_until_due() - time.monotonic())
            for key, _ in selector.select(wait):
                key.data()
    learner.close()

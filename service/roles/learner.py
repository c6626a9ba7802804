"""The process of the learner."""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import time

from service import metrics
from service.learn.control import serve_one
from service.learn.learner import Learner
from service.learn.snapshots import Snapshots
from service.log.client import BlockingWriter
from service.log.opening import open_log
from service.log.protocol import Log, StoreUnavailable
from service.models.published import Publisher, new_generation
from service.roles.config import PUBLISHED, Beat, Config

POLL_SECONDS = 0.25  # between reads of a log that announces new records
QUIET_SECONDS = 0.025  # without a record, before relying on announcements: not every commit is announced


def run(config: Config, listener: socket.socket, parent: int, beat: Beat = lambda: None) -> None:
    """Learn until SIGTERM, or until ``parent`` ends; then save."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    log = open_log(config.store, listen=True)
    learner = Learner(
        log,
        BlockingWriter(config.log_socket),
        Snapshots(config.store.beside("-models")),
        Publisher(config.run, new_generation(config.run), config.store.beside(PUBLISHED)),
        fork=True,
        only=config.loops,
    )

    def give_sign_of_life() -> None:
        beat()
        learner.publisher.beat()

    learner.beat = give_sign_of_life
    learner.start()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ, lambda: serve_one(listener, learner))
        selector.register(parent, selectors.EVENT_READ, stop)
        n_taken, n_saved, active = learner.n_taken, learner.saver.n_written, 0.0
        while not stopping:
            began = time.monotonic()
            more = learner.step(urgent=False)
            if learner.n_taken != n_taken:
                metrics.batches.observe(learner.n_taken - n_taken)
                n_taken, active = learner.n_taken, began
            metrics.snapshots.inc(learner.saver.n_written - n_saved)
            n_saved = learner.saver.n_written
            wait = 0.0 if more else max(0.0, began + learner.seconds_until_due() - time.monotonic())
            _serve(selector, wait)
            if began - active > QUIET_SECONDS and not stopping and not learner.prunings.busy:
                _wait_for_records(selector, log)
    save_and_close(learner)


def save_and_close(learner: Learner) -> None:
    """Save the models; if that fails, as on a full disk, the next start learns the rest again from the log."""
    try:
        learner.close()
    except StoreUnavailable as error:
        logging.getLogger("fedres.service").warning("%s; the next start learns the rest from the log", error.message)


def _serve(selector: selectors.BaseSelector, seconds: float) -> bool:
    """Serve requests that arrive within this time; return whether any did."""
    ready = selector.select(seconds)
    for key, _ in ready:
        key.data()
    return bool(ready)


def _wait_for_records(selector: selectors.BaseSelector, log: Log) -> None:
    """Wait until the log announces new records, if it can."""
    file = log.notifications()
    if file is not None:
        selector.register(file, selectors.EVENT_READ, lambda: None)
        try:
            _serve(selector, POLL_SECONDS)
        finally:
            selector.unregister(file)

"""The process of the log writer."""

from __future__ import annotations

import signal
import socket
from functools import partial

from service import metrics
from service.log.opening import open_log
from service.log.writer import Writer
from service.roles.config import Beat, Config


def run(config: Config, listener: socket.socket, parent: int, beat: Beat = lambda: None) -> None:
    """Append for the machine until SIGTERM, or until ``parent`` ends."""
    writer = Writer(listener, partial(open_log, config.store), metrics.count_commit)
    wake, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())  # lets a signal end the wait for requests
    signal.signal(signal.SIGTERM, lambda *_: writer.stop())
    writer.watch(wake, lambda: wake.recv(64))
    writer.watch(parent, writer.stop)
    writer.run(beat)

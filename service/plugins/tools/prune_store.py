"""``fedres log prune``: requests that a running learner removes old events, or removes them itself without one."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fedres.lease import Lease
from service.health import RUN_NOTE
from service.learn.learner import Learner
from service.learn.pruning import last_before
from service.learn.snapshots import Snapshots
from service.log.client import BlockingWriter
from service.log.files import LOG_SOCKET
from service.log.opening import Store
from service.log.protocol import Log, live_loop
from service.log.records import ERASE, ERASED, RANK, EraseBody, Record, decode_erased, encode
from service.log.writer import DirectWriter, is_pruned
from service.models.published import Publisher, make_current
from service.plugins.tools.verifying import is_in_use

POLL_SECONDS = 0.2
SHARED_MEMORY = Path("/dev/shm")


def loops_of(log: Log, loop: str | None) -> list[str]:
    """Return all existing loops, or only ``loop``."""
    there = [name for name in sorted(log.heads()) if live_loop(log, name) is not None]
    if loop is None:
        return there
    if loop not in there:
        raise ValueError(f"loop must be one of the store's ({', '.join(there)}), got {loop!r}")
    return [loop]


def count_old(log: Log, loop: str, before: int) -> tuple[int, int]:
    """Return how many events, and how many records in all, are older than a time."""
    cut, position, n_events, n_records = last_before(log, loop, before, 0), 0, 0, 0
    while entries := [entry for entry in log.read(loop, position, 1_000, bodies=False) if entry.position <= cut]:
        position = entries[-1].position
        n_records += len(entries)
        n_events += sum(entry.kind == RANK for entry in entries)
    return n_events, n_records


def _stop_clock(log: Log, store: Store) -> None:
    """Give this command's records the time of the log's end: by a clock that is ahead, pending events would end."""
    if not store.is_shared:
        log.clock = lambda: 0  # type: ignore[attr-defined]


def _writer_of(store: Store, log: Log) -> BlockingWriter | DirectWriter:
    """Return the log writer of the service that uses a store: in SQLite, no other process should commit."""
    run = store.beside(RUN_NOTE)
    if not store.is_shared and run.exists():
        socket = Path(run.read_text().strip()) / LOG_SOCKET
        if socket.exists():
            return BlockingWriter(socket)
    return DirectWriter(log)


def prune_store(store: Store, log: Log, loops: list[str], before: int, show: Callable[[int], None]) -> dict[str, int]:
    """Remove events from before a time; return the number of removed records by loop. ``show`` gets the progress.

    A running service does the work, as its models are in use; otherwise it is done here.
    """
    removed = {loop: log.heads()[loop].removed for loop in loops}
    _stop_clock(log, store)
    with _learner_of(store, log, loops) as learner:
        tokens = {loop: os.urandom(8).hex() for loop in loops}
        append = log.append if learner is not None else _writer_of(store, log).append
        append([[Record(loop, ERASE, body=encode(EraseBody(tokens[loop], before)))] for loop in loops])
        while not all(_is_done(log, loop, tokens) for loop in loops):
            if learner is None:
                time.sleep(POLL_SECONDS)
            else:
                learner.step()
                if learner.trouble is not None:
                    raise learner.trouble
            show(sum(log.heads()[loop].removed - removed[loop] for loop in loops))
    return {loop: log.heads()[loop].removed - removed[loop] for loop in loops}


@contextlib.contextmanager
def _learner_of(store: Store, log: Log, loops: list[str]) -> Iterator[Learner | None]:
    """Yield a learner, None if a running service has one."""
    if not store.is_shared:
        if is_in_use(store.path):
            yield None
            return
        lease: contextlib.AbstractContextManager[object] = Lease(store.path)
    elif any(log.hold(loop) is None for loop in loops):  # a running machine holds it
        yield None
        return
    else:
        lease = contextlib.nullcontext()
    memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with lease, tempfile.TemporaryDirectory(prefix="fedres-", dir=memory) as folder:
        run = Path(folder)
        make_current(run)
        models = run / "models-of-prune" if store.is_shared else store.beside("-models")
        learner = Learner(log, DirectWriter(log), Snapshots(models), Publisher(run, 1), only=loops)
        learner.open()
        try:
            yield learner
        finally:
            learner.saver.flush(learner.loops)
            learner.snapshots.close()
            learner.publisher.close()


def _is_done(log: Log, loop: str, tokens: Mapping[str, str]) -> bool:
    for entry in reversed(log.of_kind(loop, ERASED)):
        body = decode_erased(entry.body)
        if body.cut and body.token == tokens[loop]:
            return is_pruned(log, loop, body.begun)
    return False

"""``fedres log prune``: asks whoever learns from a store to remove old events, or does it where nobody learns."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fedres.lease import Lease
from service.learn.learner import Learner
from service.learn.pruning import last_before
from service.learn.snapshots import Snapshots
from service.log.direct import DirectWriter, is_pruned, live_loop
from service.log.opening import Store
from service.log.protocol import Log
from service.log.records import ERASE, ERASED, RANK, EraseBody, Record, decode_erased, encode
from service.models.published import Publisher, make_current
from service.plugins.tools.verifying import is_in_use

POLL_SECONDS = 0.2
SHARED_MEMORY = Path("/dev/shm")


class OldEvents(NamedTuple):
    """What is older than a time."""

    events: int
    records: int  # these and all others


def loops_of(log: Log, loop: str | None) -> list[str]:
    """Return the loops that are there, or the one that is meant."""
    there = [name for name in sorted(log.heads()) if live_loop(log, name) is not None]
    if loop is None:
        return there
    if loop not in there:
        raise ValueError(f"loop must be one of the store's ({', '.join(there)}), got {loop!r}")
    return [loop]


def old_events(log: Log, loop: str, before: int) -> OldEvents:
    """Count what is older than a time."""
    cut, position, n_events, n_records = last_before(log, loop, before, 0), 0, 0, 0
    while entries := [one for one in log.read(loop, position, 1_000, bodies=False) if one.position <= cut]:
        position = entries[-1].position
        n_records += len(entries)
        n_events += sum(one.kind == RANK for one in entries)
    return OldEvents(n_events, n_records)


def prune_store(store: Store, log: Log, loops: list[str], before: int, show: Callable[[int], None]) -> dict[str, int]:
    """Remove events from before a time; return by loop how many records went. ``show`` is told as they go.

    A service that runs does it; its models are in use. Otherwise it is done here.
    """
    removed = {loop: log.heads()[loop].removed for loop in loops}
    with _learner_of(store, log, loops) as learner:
        tokens = {loop: os.urandom(8).hex() for loop in loops}
        log.append([[Record(loop, ERASE, body=encode(EraseBody(tokens[loop], before)))] for loop in loops])
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
    """Lend a learner of our own, None where a service has one."""
    if not store.is_shared:
        if is_in_use(store.path):
            yield None
            return
        lease: contextlib.AbstractContextManager[object] = Lease(store.path)
    elif any(log.hold(loop) is None for loop in loops):  # a machine that runs holds it
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

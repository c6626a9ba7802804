"""Checks before a start whether records are missing at the end of a log.

A lost write-ahead log or database file opens as a shorter or empty log that looks valid, and so does a database
restored from an older backup. But this machine's snapshot names the positions up to which it has learned, and the
last record there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from service.learn.follower import GONE, entry_at
from service.learn.loop_state import record_checksum
from service.learn.snapshots import FORMAT, SavedLoop
from service.log.files import with_companions
from service.log.opening import Store, open_log
from service.log.protocol import StoreUnavailable
from service.log.sqlite_wal import wal_damage

ADVICE = "restore a newer backup (fedres log restore, pg_restore), or start with --accept-loss to go on without"


def check_losses(store: Store, *, accept: bool = False) -> list[str]:
    """Refuse to start if records are missing; with ``accept``, report the loss and keep a copy of the rest."""
    losses = lost_records(store) if store.is_sqlite else _lost_in_log(store)
    if losses and not accept:
        raise StoreUnavailable("damaged", f"{'; '.join(losses)}: {ADVICE}")
    if losses:
        _keep_rest(store.path)
    return losses


def lost_records(store: Store) -> list[str]:
    """Return the evidence that a SQLite file lost records, before it is opened."""
    damage = wal_damage(store.path)
    losses = [f"{store.path}-wal is damaged: {damage}"] if damage is not None and damage.certain else []
    saved = {name: loop.position for name, loop in _saved_loops(store.beside("-models")).items()}
    if not store.path.exists() or not store.path.stat().st_size:
        left = [str(file) for file in with_companions(store.path)[1:] if file.exists() and file.stat().st_size]
        if saved or left:
            left_files = left or [str(store.beside("-models"))]
            losses.append(f"{store.path} is missing, but {left_files[0]} is there")
        return losses
    last = _last_positions(store.path)
    for loop, position in saved.items():
        if last is not None and last.get(loop, 0) < position:
            losses.append(_ends_early(loop, last.get(loop, 0), position))
    return losses


def _lost_in_log(store: Store) -> list[str]:
    """Return the evidence that a log lost records, whether or not others have taken their positions since."""
    saved, losses = _saved_loops(store.beside("-models")), []
    if not saved:
        return []
    with contextlib.closing(open_log(store)) as log:
        heads = log.heads()
        for name, loop in saved.items():
            last = heads[name].last if name in heads else 0
            if last < loop.position:
                losses.append(_ends_early(name, last, loop.position))
            at = entry_at(log, name, loop.position)  # gone where it was erased, or is damaged: it may have been the one
            if at.kind != GONE and record_checksum(at) != loop.record:
                losses.append(f"record {loop.position} of loop {name!r} is not the one that its snapshot has learned")
    return losses


def _ends_early(loop: str, last: int, position: int) -> str:
    return f"the log of loop {loop!r} ends at {last}, but its snapshot has learned up to {position}"


def _saved_loops(path: Path) -> dict[str, SavedLoop]:
    """Return the loops in the snapshot; a damaged snapshot proves nothing."""
    if not path.exists():
        return {}
    with contextlib.suppress(sqlite3.Error, msgspec.MsgspecError, ValueError), _reading(path) as db:
        if db.execute("PRAGMA user_version").fetchall() == [(FORMAT,)]:
            bodies = [body for (body,) in db.execute("SELECT body FROM loop")]
            loops = [msgspec.msgpack.decode(body, type=SavedLoop) for body in bodies]
            return {loop.metadata.name: loop for loop in loops}
    return {}


def _last_positions(path: Path) -> Mapping[str, int] | None:
    with contextlib.suppress(sqlite3.Error, ValueError), _reading(path) as db:
        return dict(db.execute("SELECT loop, last FROM head").fetchall())
    return None  # not our log; opening it reports the error


def _reading(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0))


def _keep_rest(path: Path) -> None:
    """Copy a write-ahead log that cannot be read to its end; remove the snapshot, which no longer fits the log."""
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size:
        copy = wal.with_name(f"{wal.name}.lost-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
        shutil.copyfile(wal, copy)
        os.chmod(copy, 0o600)
        if not path.exists():
            wal.unlink()
    for file in with_companions(path.with_name(path.name + "-models")):
        file.unlink(missing_ok=True)

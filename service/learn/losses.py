"""Finds out before a start whether records are missing at the end of a log in SQLite.

A lost write-ahead log or database file opens as a shorter or an empty log, in which nothing is wrong by itself. But the
snapshot beside it names the positions up to which it has learned.
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

from service.learn.snapshots import FORMAT, SavedLoop
from service.log.files import with_companions
from service.log.opening import Store
from service.log.protocol import StoreUnavailable
from service.log.sqlite_wal import wal_damage

ADVICE = "restore a backup (fedres log restore), or start with --accept-loss to go on without"


def check_losses(store: Store, *, accept: bool = False) -> list[str]:
    """Refuse to start where records are missing; with ``accept``, return what is lost, and keep a copy of the rest."""
    if store.database is not None:
        return []
    found = lost_records(store)
    if found and not accept:
        raise StoreUnavailable("damaged", f"{'; '.join(found)}: {ADVICE}")
    if found:
        _keep_aside(store.path)
    return found


def lost_records(store: Store) -> list[str]:
    """Return what shows that records are missing."""
    damage = wal_damage(store.path)
    found = [f"{store.path}-wal is damaged: {damage}"] if damage is not None and damage.certain else []
    saved = _saved_positions(store.beside("-models"))
    if not store.path.exists() or not store.path.stat().st_size:
        left = [str(file) for file in with_companions(store.path)[1:] if file.exists() and file.stat().st_size]
        if saved or left:
            known = left or [str(store.beside("-models"))]
            found.append(f"{store.path} is missing, but {known[0]} is there")
        return found
    last = _last_positions(store.path)
    for loop, position in saved.items():
        if last is not None and last.get(loop, 0) < position:
            end = f"the log of loop {loop!r} ends at {last.get(loop, 0)}"
            found.append(f"{end}, but its snapshot has learned up to {position}")
    return found


def _saved_positions(path: Path) -> dict[str, int]:
    """Return how far the snapshot has learned; a damaged one proves nothing."""
    if not path.exists():
        return {}
    with contextlib.suppress(sqlite3.Error, msgspec.MsgspecError, ValueError), _reading(path) as db:
        if db.execute("PRAGMA user_version").fetchall() == [(FORMAT,)]:
            bodies = [body for (body,) in db.execute("SELECT body FROM loop")]
            loops = [msgspec.msgpack.decode(body, type=SavedLoop) for body in bodies]
            return {loop.head.name: loop.position for loop in loops}
    return {}


def _last_positions(path: Path) -> Mapping[str, int] | None:
    with contextlib.suppress(sqlite3.Error, ValueError), _reading(path) as db:
        return dict(db.execute("SELECT loop, last FROM head").fetchall())
    return None  # no log of ours; opening it says what is wrong


def _reading(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0))


def _keep_aside(path: Path) -> None:
    """Copy a write-ahead log that cannot be read to its end, and remove the snapshot, which is of another log now."""
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size:
        aside = wal.with_name(f"{wal.name}.lost-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
        shutil.copyfile(wal, aside)
        os.chmod(aside, 0o600)
        if not path.exists():
            wal.unlink()
    for file in with_companions(path.with_name(path.name + "-models")):
        file.unlink(missing_ok=True)

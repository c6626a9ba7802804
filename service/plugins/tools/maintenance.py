"""Maintenance of a SQLite store: back it up while it is in use, restore it, check for a damaged record."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from pathlib import Path

from fedres.lease import Lease
from fedres.progress import Progress, ignore_progress
from service.log.files import replacing, sync, with_companions
from service.log.protocol import Head, Log
from service.log.records import DamagedRecord
from service.plugins.tools.verifying import Verification, snapshot_of, verify_sqlite

PAGES = 4_096  # copied at a time
DERIVED = "-models"  # beside the store: the models, learned again from the log if missing


def backup(store: Path, target: Path, progress: Progress = ignore_progress) -> Verification:
    """Copy the store as it is at one moment to ``target``, and verify the copy before it takes that name.

    SQLite's backup interface copies pages inside one read transaction, so writers go on and the copy is consistent.
    ``VACUUM INTO`` would sort all rows and build all indices again, which takes several times as long.
    """
    if target.resolve() in [file.resolve() for file in with_companions(store)]:
        raise ValueError(f"the backup must be another file than the store, got {target}")
    with snapshot_of(store) as db, replacing(target) as part:
        copy = sqlite3.connect(part, isolation_level=None)
        try:
            db.backup(copy, pages=PAGES, progress=lambda _, left, total: progress(total - left, total))
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, with nothing beside it
        finally:
            copy.close()
        verified = verify_sqlite(part, progress)
        if verified.findings:
            message = verified.findings[0].message
            raise ValueError(f"no backup was made, for the store is damaged: {message} (see fedres log verify)")
    return verified


def restore(store: Path, source: Path, *, force: bool = False, progress: Progress = ignore_progress) -> list[Path]:
    """Replace the store by a verified copy of the backup; return the new paths of the old store's files."""
    verified = verify_sqlite(source, progress)
    if verified.findings:
        raise ValueError(f"the backup must be whole, got {source}: {verified.findings[0].message}")
    if store.exists() and source.samefile(store):
        raise ValueError(f"the backup must be another file than the store, got {source}")
    with Lease(store):
        there = [file for file in with_companions(store) if file.exists()]
        if there and not force:
            raise ValueError(f"store must not be there yet, got {there[0]}: --force keeps it aside")
        with replacing(store) as part:
            shutil.copyfile(source, part)
            sync(part)
            kept = _set_aside(store, there)
            remove_derived(store)
    return kept


def _set_aside(store: Path, files: list[Path]) -> list[Path]:
    """Rename files of a store, its companions first: the file itself must not be read without them."""
    new_name = f"{store.name}.before-restore-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    kept = []
    for file in reversed(files):
        new = file.with_name(new_name + file.name.removeprefix(store.name))
        if new.exists():
            raise ValueError(f"{new} is there already: wait a second and try again")
        os.replace(file, new)
        kept.append(new)
    return kept


def remove_derived(store: Path) -> None:
    """Remove models that were learned from another log."""
    for file in with_companions(store.with_name(store.name + DERIVED)):
        file.unlink(missing_ok=True)


def is_damaged(log: Log, loop: str, position: int) -> bool:
    """Return whether a record does not match its checksum; raise ``ValueError`` if there is no such record."""
    head = log.heads().get(loop, Head(0, 0, 0))
    try:
        entries = log.read(loop, position - 1, 1) if 1 <= position <= head.last else []
    except DamagedRecord as damage:
        if damage.position == position:
            return True
        entries = []
    if not entries or entries[0].position != position:
        raise ValueError(f"position must be that of a record of loop {loop!r}, got {position}")
    return False

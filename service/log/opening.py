"""Where a store is, and how its log is opened."""

from __future__ import annotations

from pathlib import Path

import msgspec

from service.log.clock import Clock, continued, steady_clock
from service.log.protocol import Log, StoreUnavailable
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.log.sqlite_wal import wal_damage


class Store(msgspec.Struct, frozen=True):
    """A store: ``path`` is its SQLite file, or with a ``database`` what this machine's own files are named after."""

    path: Path
    database: str | None = None
    any_architecture: bool = False  # learn on another one than the database was made on

    def beside(self, suffix: str) -> Path:
        """Return a file of this machine's that belongs to the store."""
        return self.path.with_name(self.path.name + suffix)


def open_log(store: Store, *, verify: bool = False, listen: bool = False, accept_loss: bool = False) -> Log:
    """Return the store's log; its clock never goes backwards. With ``listen``, a database says when there is more."""
    if store.database is not None:
        from service.log.postgres import PostgresLog  # its driver need not be there

        return PostgresLog(store.database, any_architecture=store.any_architecture, listen=listen)
    if verify and not accept_loss and (damage := wal_damage(store.path)) is not None and damage.certain:
        raise StoreUnavailable("damaged", f"{store.path}-wal is damaged: {damage} (fedres log verify)")
    log = SqliteLog(sqlite_file(store.path), verify=verify)
    log.clock = _CLOCKS.get(store.path) or _CLOCKS.setdefault(store.path, _clock_of(log))
    return log


# The supervisor decides what time it is, and its children inherit that: a child that is restarted after the wall clock
# was set goes by the same time as all others.
_CLOCKS: dict[Path, Clock] = {}


def _clock_of(log: SqliteLog) -> Clock:
    return continued(steady_clock(), max([0, *(head.time for head in log.heads().values())]))

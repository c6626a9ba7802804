"""Where a store is, how its log is opened, and the clock that events wait by.

Nobody can set that clock while the service runs, and it never begins before the log's end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from service.log.protocol import Log, StoreUnavailable
from service.log.sqlite import SqliteLog, system_clock
from service.log.sqlite_schema import sqlite_file
from service.log.sqlite_wal import wal_damage

_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps

Clock = Callable[[], int]  # microseconds


def uptime() -> int:
    """Return microseconds by a clock that nobody sets."""
    return time.clock_gettime_ns(_UPTIME) // 1_000


@dataclass(frozen=True, slots=True)
class Shifted:
    """``clock``, and ``by`` microseconds more."""

    clock: Clock
    by: int

    def __call__(self) -> int:
        return self.clock() + self.by


def steady_clock(wall: Clock = system_clock) -> Clock:
    """Return microseconds since 1970 as ``wall`` has them now; that it is set afterwards changes nothing."""
    return Shifted(uptime, wall() - uptime())


def continued(clock: Clock, last: int) -> Clock:
    """Return the clock, put forward to the time ``last`` if it is behind: what waits for it then waits no longer."""
    return Shifted(clock, max(0, last - clock()))


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

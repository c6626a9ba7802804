"""Addresses of stores, opening of logs, and the clock for wait times.

That clock cannot be set while the service runs, and never starts before the time of the log's last record.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import msgspec

from service.log.protocol import Log
from service.times import system_clock

_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps

NO_FOLDER = Path()

Clock = Callable[[], int]  # microseconds


def uptime() -> int:
    """Return microseconds of a monotonic clock."""
    return time.clock_gettime_ns(_UPTIME) // 1_000


def steady_clock(wall: Clock = system_clock) -> Clock:
    """Return a clock in microseconds since 1970 that starts at ``wall``; setting the wall clock later has no effect."""
    ahead = wall() - uptime()
    return lambda: uptime() + ahead


def continued(clock: Clock, last: int) -> Clock:
    """Return the clock, moved forward to the time ``last`` if it is behind: else events would wait for it."""
    ahead = max(0, last - clock())
    return lambda: clock() + ahead


class StoreKind(msgspec.Struct, frozen=True):
    """A kind of store: how its addresses look, and the module with its ``open_store``.

    The log of a file has a ``clock``, which can be set. The module of a database that machines share also has
    ``database_name`` and ``shown_address``.
    """

    example: str
    module: str
    is_shared: bool = False


SQLITE = "sqlite"
_POSTGRESQL = StoreKind("postgresql://HOST/DATABASE", "service.log.postgres", is_shared=True)
KINDS = {  # by the scheme of an address
    SQLITE: StoreKind("sqlite:///PATH", "service.log.sqlite"),
    "postgresql": _POSTGRESQL,
    "postgres": _POSTGRESQL,
}


class Store(msgspec.Struct, frozen=True):
    """A store: ``path`` is its file or, with a shared database, the base name of this machine's own files.

    Without an ``address``, it is the SQLite file at ``path``.
    """

    path: Path
    address: str | None = None
    any_architecture: bool = False  # learn on another one than the database was made on

    @property
    def kind(self) -> StoreKind:
        return KINDS[SQLITE if self.address is None else self.address.partition("://")[0]]

    @property
    def is_sqlite(self) -> bool:
        return self.kind is KINDS[SQLITE]

    @property
    def is_shared(self) -> bool:
        """Whether several machines may use it."""
        return self.kind.is_shared

    def __str__(self) -> str:
        """Return its place for people: without a password; with a shared database, this machine's own folder."""
        if self.address is None or not self.is_shared:
            return str(self.path)
        address = import_module(self.kind.module).shown_address(self.address)
        return f"{address}, snapshots of this machine in {self.path.parent.resolve()}"

    def beside(self, suffix: str) -> Path:
        """Return the path of one of this machine's files for the store."""
        return self.path.with_name(self.path.name + suffix)


def store_at(address: str, folder: Path = NO_FOLDER, *, any_architecture: bool = False) -> Store:
    """Return the store at an address; ``folder`` is for this machine's files if the store is not a file."""
    name, separator, rest = address.partition("://")
    kind = KINDS.get(name if separator else "")
    if kind is not None and kind.is_shared:
        suffix = kind.example.partition(":")[0]
        return Store(folder / f"{_database_name(kind, address)}.{suffix}", address, any_architecture)
    if folder != NO_FOLDER:
        raise ValueError(f"folder must come with a store in PostgreSQL, got {str(folder)!r} and {address!r}")
    path = rest.removeprefix("/")
    if kind is None or path == rest or not path:
        without_password = re.sub(r":[^/:@]*@", ":***@", address)
        examples = " or ".join(dict.fromkeys(kind.example for kind in KINDS.values()))
        raise ValueError(f"store must be {examples}, got {without_password!r}")
    if not Path(path).parent.is_dir():
        raise ValueError(f"store must be in a folder that exists, got {address!r}: create {Path(path).parent}")
    return Store(Path(path), None if name == SQLITE else address)


def _database_name(kind: StoreKind, address: str) -> str:
    """Return the database's name for use in file names, without the rest of the address, such as a password."""
    try:
        module = import_module(kind.module)
    except ImportError:
        raise ValueError("store must be sqlite:///PATH without psycopg: pip install 'fedres[postgres]'") from None
    return re.sub(r"[^\w.-]", "_", module.database_name(address))


def open_log(store: Store, *, verify: bool = False, listen: bool = False) -> Log:
    """Return the store's log; its clock never goes backwards. With ``listen``, a database reports new records.

    ``verify`` reads a file once, to find damage before anything is written to it.
    """
    module = import_module(store.kind.module)  # its driver need not be installed
    opened = module.open_store(store, verify=verify, listen=listen)
    if not store.is_shared:  # else the time is the database's
        if store.path not in _CLOCKS:
            last = max([0, *(head.time for head in opened.heads().values())])
            _CLOCKS.setdefault(store.path, continued(steady_clock(), last))
        opened.clock = _CLOCKS[store.path]
    log: Log = opened
    return log


# The supervisor starts the clock and its children inherit it: a child restarted after the wall clock was set has the
# same time as all others.
_CLOCKS: dict[Path, Clock] = {}

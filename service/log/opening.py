"""Where a store is, how its log is opened, and the clock that events wait by.

Nobody can set that clock while the service runs, and it never begins before the log's end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import msgspec

from service.log.protocol import Log
from service.log.sqlite import system_clock

_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps

NO_FOLDER = Path()

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
KINDS = {  # by what is in front of "://" in an address
    SQLITE: StoreKind("sqlite:///PATH", "service.log.sqlite"),
    "postgresql": _POSTGRESQL,
    "postgres": _POSTGRESQL,
}


class Store(msgspec.Struct, frozen=True):
    """A store: ``path`` is its file, or with a database that is shared what this machine's own files are named after.

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
        """Return where it is, for people: no password, and with a shared database this machine's own folder."""
        if self.address is None or not self.is_shared:
            return str(self.path)
        address = import_module(self.kind.module).shown_address(self.address)
        return f"{address}, snapshots of this machine in {self.path.parent.resolve()}"

    def beside(self, suffix: str) -> Path:
        """Return a file of this machine's that belongs to the store."""
        return self.path.with_name(self.path.name + suffix)


def store_at(address: str, folder: Path = NO_FOLDER, *, any_architecture: bool = False) -> Store:
    """Return the store at an address; ``folder`` is for this machine's files where the store is none itself."""
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
    """Return the database's name as part of a file's; what an address has else, a password too, is not shown."""
    try:
        module = import_module(kind.module)
    except ImportError:
        raise ValueError("store must be sqlite:///PATH without psycopg: pip install 'fedres[postgres]'") from None
    return re.sub(r"[^\w.-]", "_", module.database_name(address))


def open_log(store: Store, *, verify: bool = False, listen: bool = False, accept_loss: bool = False) -> Log:
    """Return the store's log; its clock never goes backwards. With ``listen``, a database says when there is more.

    ``verify`` reads a file once, to find damage before anything is written to it, and refuses one that has lost records
    for sure unless the caller would ``accept_loss``.
    """
    module = import_module(store.kind.module)  # its driver need not be installed
    opened = module.open_store(store, verify=verify, listen=listen, accept_loss=accept_loss)
    if not store.is_shared:  # else the time is the database's
        opened.clock = _CLOCKS.get(store.path) or _CLOCKS.setdefault(store.path, _clock_of(opened))
    log: Log = opened
    return log


# The supervisor decides what time it is, and its children inherit that: a child that is restarted after the wall clock
# was set goes by the same time as all others.
_CLOCKS: dict[Path, Clock] = {}


def _clock_of(log: Log) -> Clock:
    return continued(steady_clock(), max([0, *(head.time for head in log.heads().values())]))

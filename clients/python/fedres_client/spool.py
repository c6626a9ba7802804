"""Rewards on disk until the service has them: the next process sends those that one leaves behind.

Each client has a file of its own in the folder, so that the processes of a web server can share one folder. A file is
locked as long as its process lives; a client that starts takes over the files of processes that have ended.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from fedres_client.event_ids import new_event_id

try:
    import fcntl
except ImportError:  # Windows has other locks
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("fedres.client")

SUFFIXES = ("", "-wal", "-shm", "-lock")


class Spool:
    """One client's file; for one thread at a time."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if fcntl is None:
            raise RuntimeError(
                "spool needs the file locks of Linux or macOS, which this system lacks: "
                "leave spool out, and rewards wait in memory"
            )
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path = self._folder / f"rewards-{new_event_id()}.db"
        self._lock = _lock(self._path)
        self._db = _opened(self._path)
        self._works = True

    def add(self, path: str, body: bytes) -> int:
        """Keep a request, and return its number; it survives any end of the process.

        If it cannot be kept, for example on a full disk, the number is 0.
        """
        try:
            number = self._insert(path, body)
        except sqlite3.Error as error:
            self._failed(error)
            return 0
        self._works = True
        return number

    def _insert(self, path: str, body: bytes) -> int:
        number = self._db.execute("INSERT INTO waiting (path, body) VALUES (?, ?)", (path, body)).lastrowid
        assert number is not None
        return number

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove requests that were sent; those that cannot be removed are sent twice, which counts once."""
        try:
            self._db.execute(f"DELETE FROM waiting WHERE number IN ({','.join('?' * len(numbers))})", numbers)
        except sqlite3.Error as error:
            self._failed(error)

    def _failed(self, error: sqlite3.Error) -> None:
        if self._works:
            log.error("the spool %s does not keep rewards, which wait in memory only: %s", self._path, error)
        self._works = False

    def take_over(self) -> list[tuple[int, str, bytes]]:
        """Take over the requests that ended processes left in the folder; return them, oldest first."""
        rewards = []
        for path in sorted(self._folder.glob("rewards-*.db")):
            lock = _lock(path)
            if lock is None:
                continue
            try:
                rewards += [(self._insert(*row), *row) for row in _left_in(path)]
                _unlink(path)  # a crash before this lets them be sent twice, which counts once
            except sqlite3.Error as error:
                log.error("the rewards in %s cannot be taken over, and stay there: %s", path, error)
            finally:
                os.close(lock)
        return rewards

    def close(self) -> None:
        """Close the file, and leave the rest to the next client."""
        try:
            [n_left] = self._db.execute("SELECT count(*) FROM waiting").fetchone()
        except sqlite3.Error as error:
            self._failed(error)
            n_left = None
        self._db.close()
        if n_left == 0:
            _unlink(self._path)
        self.let_go()

    def let_go(self) -> None:
        """Give up the lock, or a forked child's copy of it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(path: Path) -> int | None:
    """Return the lock on a file, None if another holds it."""
    file = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _left_in(path: Path) -> list[tuple[str, bytes]]:
    if not path.exists():  # another client has taken it over this moment
        return []
    with closing(_opened(path)) as db:
        return db.execute("SELECT path, body FROM waiting ORDER BY number").fetchall()


def _unlink(path: Path) -> None:
    for suffix in SUFFIXES:
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def _opened(path: Path) -> sqlite3.Connection:
    """Open a file for this user alone, as it has ids of users' events; SQLite's other files take over its mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the newest; the end of the process loses none
    db.execute("CREATE TABLE IF NOT EXISTS waiting (number INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT, body BLOB)")
    return db

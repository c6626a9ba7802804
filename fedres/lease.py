"""A lease on a store: one process at a time, freed by the operating system when its holder dies."""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path

from fedres.checks import not_negative

try:
    import fcntl
except ImportError:  # Windows has other locks
    fcntl = None  # type: ignore[assignment]

POLL_SECONDS = 0.05  # flock can wait forever or not at all
LAST_BATCH_SECONDS = 10.0  # within which the writer of a holder that was killed ends: it has the lease too


class LeaseHeld(Exception):  # noqa: N818
    """Another process has the lease; ``pid`` is its number, None if not written yet."""

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(path, pid)
        self.path, self.pid = path, pid

    def __str__(self) -> str:
        return f"{self.path} must have one holder, and process {self.pid or 'unknown'} has it"


class Lease:
    """The lease on the store file ``path``: a lock on a file beside it that names its holder's process."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if fcntl is None:
            raise RuntimeError("stores and devices need the file locks of Linux or macOS, which this system lacks")
        store = Path(path).resolve()  # one file, one lease, by whatever link it is reached
        self.path = store.with_name(store.name + "-lease")
        self._file: int | None = None

    def acquire(self, wait_seconds: float = 0.0) -> None:
        """Hold the lease from here on; raise ``LeaseHeld`` if another has it for ``wait_seconds`` more.

        After a holder's death, wait as long as its remaining processes may need to write their last batch.
        """
        not_negative("wait_seconds", wait_seconds)
        began = time.monotonic()
        while not self._try():
            patience = wait_seconds if self._is_alive() else max(wait_seconds, LAST_BATCH_SECONDS)
            left = began + patience - time.monotonic()
            if left <= 0:
                raise LeaseHeld(self.path, self._holder())
            time.sleep(min(POLL_SECONDS, left))

    @property
    def file(self) -> int:
        """The open file that is the lease: a process that inherits it holds the lease too."""
        assert self._file is not None
        return self._file

    def release(self) -> None:
        """Give the lease back; without one, do nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            _held.discard(self)

    def remove(self) -> None:
        """Remove the file of a held lease for a store that was never created."""
        assert self._file is not None
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _try(self) -> bool:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_there(file):  # its holder has removed it: this lock has no effect
                os.close(file)
                return self._try()
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())
        except BlockingIOError:
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        self._file = file
        _held.add(self)
        return True

    def _is_there(self, file: int) -> bool:
        try:
            return os.stat(self.path).st_ino == os.fstat(file).st_ino
        except FileNotFoundError:
            return False

    def _is_alive(self) -> bool:
        """Return whether the holder may be running; False only if it has certainly died."""
        holder = self._holder()
        if holder is None:
            return True
        try:
            os.kill(holder, 0)
            return Path(f"/proc/{holder}/stat").read_text().rpartition(")")[2].split()[0] != "Z"  # a zombie has died
        except ProcessLookupError:
            return False
        except (OSError, IndexError):  # another user's process, or a system without /proc
            return True

    def _holder(self) -> int | None:
        try:
            text = self.path.read_text().strip()
        except FileNotFoundError:  # removed meanwhile
            return None
        return int(text) if text.isdigit() else None


_held: weakref.WeakSet[Lease] = weakref.WeakSet()


def _let_go() -> None:
    """Close a forked child's copies of the locks, which would outlive the parent; the parent keeps its own."""
    for lease in list(_held):
        lease.release()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_let_go)

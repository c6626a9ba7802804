"""Takes snapshots without stopping: a forked child writes them while its parent goes on learning."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sqlite3
import time
from collections.abc import Mapping

import msgspec

from fedres.checks import Array
from service.learn.loop_state import LoopState
from service.learn.snapshots import ActionRows, Changes, SavedLoop, Snapshots
from service.log.protocol import StoreUnavailable
from service.models.personal import PersonalModels
from service.models.protocol import ModelKind

DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
FAILED = "a snapshot could not be written, and the next one tries again: %s"

log = logging.getLogger(__name__)


class Saver:
    """Knows what the snapshot does not have yet. With ``fork``, others write; ``flush`` always writes at once."""

    def __init__(self, snapshots: Snapshots, personal: PersonalModels, seconds: float, *, fork: bool) -> None:
        self._snapshots, self._personal, self._seconds, self._fork = snapshots, personal, seconds, fork
        self._due = time.monotonic() + seconds
        self._saved: dict[str, int] = {}  # position of each loop in the file
        self._versions: dict[str, int] = {}  # version of the shared model in the file
        self._has_actions: set[str] = set()  # loops of whose actions the file lacks only ``unsaved_actions``
        self._dropped: list[str] = []
        self._erased: list[tuple[str, str]] = []  # loop and user
        self.n_written = 0  # snapshots so far
        self._child: tuple[int, _Pending] | None = None  # the process that writes, and what

    def note_saved(self, state: LoopState) -> None:
        self._saved[state.metadata.name], self._versions[state.metadata.name] = state.position, state.metadata.version
        self._has_actions.add(state.metadata.name)

    def has(self, loop: str) -> bool:
        """Return whether the file has a loop, and is to keep it."""
        return loop in self._saved

    def drop(self, loop: str) -> None:
        """Forget a loop that was deleted."""
        self._saved.pop(loop, None)
        self._versions.pop(loop, None)
        self._has_actions.discard(loop)
        self._dropped.append(loop)

    def erase(self, loop: str, user: str) -> None:
        """Leave nothing of a user in the next snapshot."""
        self._erased.append((loop, user))

    def finish(self) -> None:
        """Wait for the snapshot that is being written."""
        self._reap(0)

    @property
    def is_unclean(self) -> bool:
        """Whether the file may have what was erased or deleted."""
        return bool(self._erased or self._dropped)

    def save_if_due(self, loops: Mapping[str, LoopState]) -> None:
        self._reap(os.WNOHANG)
        if time.monotonic() < self._due or self._child is not None:
            return
        self._due = time.monotonic() + self._seconds
        if self._fork:
            self._start(loops)
        else:
            self.flush(loops)

    def flush(self, loops: Mapping[str, LoopState], *, scrub: bool = False) -> None:
        """Bring the file up to date; with ``scrub``, leave nothing in it of what it had before."""
        self._reap(0)
        pending = self._gather(loops)
        try:
            self._snapshots.write(pending.changes(), scrub=scrub)
        except sqlite3.Error as error:
            self._give_back(pending)
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE:
                raise  # ends the learner; the next one rebuilds
            raise StoreUnavailable("snapshot", f"the snapshot cannot be written: {error}") from error
        except BaseException:
            self._give_back(pending)
            raise
        self._written(pending)

    def _start(self, loops: Mapping[str, LoopState]) -> None:
        pending = self._gather(loops)
        self._snapshots.release()
        pid = os.fork()
        if pid == 0:
            _write_and_exit(self._snapshots, pending)
        self._child = (pid, pending)

    def _reap(self, options: int) -> None:
        if self._child is None:
            return
        pid, pending = self._child
        with contextlib.suppress(InterruptedError):
            ended, status = os.waitpid(pid, options)
            if ended:
                self._child = None
                if status == 0:
                    self._written(pending)
                else:
                    if os.WIFSIGNALED(status):  # else the child has said why
                        log.warning(FAILED, f"the process that wrote it ended with signal {os.WTERMSIG(status)}")
                    self._give_back(pending)

    def _gather(self, loops: Mapping[str, LoopState]) -> _Pending:
        names = {state.metadata.id: name for name, state in loops.items()}
        pending = _Pending(self._dropped, self._erased, self._personal.unsaved)
        self._dropped, self._erased, self._personal.unsaved = [], [], set()
        for name, state in loops.items():
            if self._saved.get(name) != state.position:
                pending.loops[name] = _saved_loop(state)
                catalogue, unsaved = state.metadata.catalogue, state.unsaved_actions
                if name not in self._has_actions:
                    pending.whole.append(name)
                    unsaved = set(catalogue)
                pending.actions[name] = {action: catalogue.get(action) for action in unsaved}
                state.unsaved_actions = set()
                if self._versions.get(name) != state.metadata.version:
                    pending.shared[name] = (state.metadata.version, state.shared.to_bytes())
        for loop, user in pending.unsaved:
            data = self._personal.data(loop, user) if loop in names else None
            if data is not None:
                name = names[loop]
                pending.personal.append((name, user, loops[name].kind, data))
        return pending

    def _written(self, pending: _Pending) -> None:
        self.n_written += 1
        for name, saved in pending.loops.items():
            self._saved[name] = saved.position
            self._has_actions.add(name)
        for name, (version, _) in pending.shared.items():
            self._versions[name] = version

    def _give_back(self, pending: _Pending) -> None:
        self._dropped = [*pending.dropped, *self._dropped]
        self._erased = [*pending.erased, *self._erased]
        self._personal.unsaved |= pending.unsaved
        self._has_actions -= pending.loops.keys()


class _Pending:
    """What one snapshot has to write: copies, so that learning can go on."""

    def __init__(self, dropped: list[str], erased: list[tuple[str, str]], unsaved: set[tuple[str, str]]) -> None:
        self.dropped, self.erased, self.unsaved = dropped, erased, unsaved
        self.loops: dict[str, SavedLoop] = {}
        self.shared: dict[str, tuple[int, bytes]] = {}
        self.personal: list[tuple[str, str, ModelKind, Array]] = []  # loop, user and the data of the block
        self.actions: dict[str, ActionRows] = {}
        self.whole: list[str] = []

    def changes(self) -> Changes:
        rows = []
        for loop, user, kind, data in self.personal:
            changed, model = kind.read_personal(data)
            rows.append((loop, user, changed, model.to_bytes()))
        shared = {loop: model for loop, (_, model) in self.shared.items()}
        return Changes(self.loops, shared, rows, self.erased, self.dropped, self.actions, self.whole)


def _saved_loop(state: LoopState) -> SavedLoop:
    bare = msgspec.structs.replace(state.metadata, catalogue={})
    metadata, unmatched = (
        msgspec.msgpack.decode(msgspec.msgpack.encode(bare), type=type(bare)),
        list(state.join.unmatched),
    )
    n_actions = len(state.metadata.catalogue)
    return SavedLoop(
        metadata, state.position, state.time, state.record_checksum, state.pending_from(), 0, n_actions, unmatched
    )


def _write_and_exit(snapshots: Snapshots, pending: _Pending) -> None:
    """Write in a forked child, on a connection of its own; closing that empties the write-ahead log."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        with contextlib.closing(Snapshots(snapshots.path, exist=True)) as own:
            own.epoch = snapshots.epoch
            own.write(pending.changes())
        code = 0
    except Exception as error:
        log.warning(FAILED, error)
    finally:
        os._exit(code)

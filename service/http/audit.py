"""The audit log of admin calls: one line of JSON for each call that changes something, in a file beside the store.

A line names the key, the route and the loop, but no user: erased users must leave no trace here. Refused calls are in
a file of their own, at most one line a minute for each key: nobody can push changes out of the log by calls that are
refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from service import metrics

MOST_BYTES = 10_000_000  # then the file is renamed, and a new one begins
KEPT = 9  # renamed files of changes
KEPT_REFUSED = 1  # the same of refused calls
REFUSED_SECONDS = 60.0  # between two lines about refused calls of a key, in each process


class RefusedCalls(msgspec.Struct):
    """The refused calls of a key since its last line."""

    count: int = 0
    next_line: float = 0.0  # by the clock, when the next line may be written


class Audit:
    """Appends to files beside ``store``; None keeps nothing."""

    def __init__(self, store: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changes = None if store is None else store.with_name(f"{store.name}-audit")
        self._refusals = None if store is None else store.with_name(f"{store.name}-audit-refused")
        self._refused: dict[str, RefusedCalls] = {}  # by key

    def note(self, key: str, what: str, loop: str | None = None, status: int | None = None) -> None:
        """Append a line; processes may share the files. A failure to write does not fail the call.

        ``key`` is the id of a key, empty without keys and for the command line. ``what`` is a method and
        a route, or a command, which has no ``status``.
        """
        line = {"time": round(time.time(), 3), "key": key, "what": what, "loop": loop, "status": status}
        if status is None or not 400 <= status < 500:  # from 500 on, the change may have been made
            _append(self._changes, line, KEPT)
            return
        metrics.refused_changes.labels(key).inc()
        calls = self._refused.setdefault(key, RefusedCalls())
        calls.count += 1
        now = self._clock()
        if now >= calls.next_line:
            _append(self._refusals, {**line, "refused": calls.count}, KEPT_REFUSED)
            self._refused[key] = RefusedCalls(next_line=now + REFUSED_SECONDS)


def _append(path: Path | None, line: dict[str, Any], kept: int) -> None:
    """Append a line to a file; a file that is too large gets the number 1 behind its name, and older ones the next."""
    if path is None:
        return
    try:
        with open(path, "ab", buffering=0, opener=partial(os.open, mode=0o600)) as file:
            file.write(msgspec.json.encode(line) + b"\n")
            if file.tell() > MOST_BYTES:
                fcntl.flock(file, fcntl.LOCK_EX)
                with contextlib.suppress(FileNotFoundError):  # another process renames it
                    if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                        _rename(path, kept)
    except OSError as error:
        logging.getLogger("fedres.service").error("the audit log cannot be written: %s", error)


def _rename(path: Path, kept: int) -> None:
    for number in range(kept, 0, -1):
        older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        with contextlib.suppress(FileNotFoundError):
            os.replace(older, path.with_name(f"{path.name}.{number}"))

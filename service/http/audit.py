"""The audit log of admin calls: one line of JSON for each call that changes something, in a file beside the store.

A line names the key, the route and the loop, but no user: erased users must leave no trace here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from functools import partial
from pathlib import Path

import msgspec

MOST_BYTES = 10_000_000  # then the file is renamed, and the previous one is deleted


class Audit:
    """Appends to the file beside ``store``; None keeps nothing."""

    def __init__(self, store: Path | None) -> None:
        self._path = None if store is None else store.with_name(f"{store.name}-audit")

    def note(self, key: str, what: str, loop: str | None = None, status: int | None = None) -> None:
        """Append a line; processes may share the file. A failure to write does not fail the call.

        ``key`` is the id of a key, empty without keys and for the command line. ``what`` is a method and
        a route, or a command, which has no ``status``.
        """
        if self._path is None:
            return
        line = {"time": round(time.time(), 3), "key": key, "what": what, "loop": loop, "status": status}
        try:
            with open(self._path, "ab", buffering=0, opener=partial(os.open, mode=0o600)) as file:
                file.write(msgspec.json.encode(line) + b"\n")
                size = file.tell()
            if size > MOST_BYTES:
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    os.replace(self._path, f"{self._path}.1")
        except OSError as error:
            logging.getLogger("fedres.service").error("the audit log cannot be written: %s", error)

"""A log of what admins did: one line of JSON for each call that changes something, in a file beside the store.

A line names the key, the route and the loop, but no user: a user who was erased must not be found here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path

import msgspec

SUFFIX = "-audit"
MOST_BYTES = 10_000_000  # then the file is renamed, and the one before goes


class AuditLine(msgspec.Struct):
    time: float  # seconds since 1970
    key: str  # its id; empty where the service has no keys, and for the command line
    what: str  # method and route, or a command
    loop: str | None
    status: int | None  # of the response, None for a command


class Audit:
    """Appends to the file at ``path``; None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def note(self, key: str, what: str, loop: str | None = None, status: int | None = None) -> None:
        """Append a line; processes may share the file. A call does not fail because of it."""
        if self.path is None:
            return
        line = msgspec.json.encode(AuditLine(round(time.time(), 3), key, what, loop, status)) + b"\n"
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, line)
                size = os.fstat(file).st_size
            finally:
                os.close(file)
            if size > MOST_BYTES:
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    os.replace(self.path, self.path.with_name(f"{self.path.name}.1"))
        except OSError as error:
            logging.getLogger("fedres.service").error("the audit log cannot be written: %s", error)


def audit_of(store: Path) -> Audit:
    """Return the audit log of a store."""
    return Audit(store.with_name(store.name + SUFFIX))

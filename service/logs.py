"""Log lines of all processes: time, level, role of the process, message, and the request that a line is about.

Lines go to standard error, as text or as JSON. ``serving`` holds the current request; lines logged meanwhile have its
id.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import msgspec

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
OURS = ("fedres", "service")  # loggers whose level is the chosen one; of others, warnings are shown
MOST_A_SECOND = 10  # lines about failed requests

log = logging.getLogger("fedres.service")


class ServedRequest(msgspec.Struct):
    """A request that is being answered."""

    method: str
    path: str = "unknown"  # the route's path: it names no user
    client_id: bytes | None = None  # its ``X-Request-Id``
    own_id: str | None = None
    connection: object = None  # of the server; its ``disconnected`` is whether the client has gone

    @property
    def id(self) -> str:
        """Its ``X-Request-Id``, or a generated one, made on first use."""
        if self.client_id is not None:
            return shown(self.client_id)
        if self.own_id is None:
            self.own_id = secrets.token_hex(8)
        return self.own_id

    @property
    def has_id(self) -> bool:
        return self.client_id is not None or self.own_id is not None


serving: ContextVar[ServedRequest | None] = ContextVar("serving", default=None)


def log_failure(task: asyncio.Future[Any]) -> None:
    """Log why a background task failed; it is a callback for the end of one that nobody waits for."""
    if not task.cancelled() and task.exception() is not None:
        log.error("a background task failed", exc_info=task.exception())


def shown(value: bytes) -> str:
    """Return a header's value for the log: on one line, without control characters for terminals."""
    text = value.decode("latin-1")
    return text if text.isprintable() else ascii(text)[1:-1]


class _Process:
    """The fields of log lines about their process."""

    role = "supervisor"
    form = "text"


def check(form: str, level: str) -> None:
    """Refuse an unknown format or level."""
    for name, value, values in (("log-format", form, FORMATS), ("log-level", level, LEVELS)):
        if value not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, got {value!r}")


def set_up(form: str, level: str) -> None:
    """Send log lines of this process and of those that it forks to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.getLogger().handlers[:] = [handler]
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
    _Process.form = form


def set_role(role: str) -> None:
    """Set the role in all later lines of this process."""
    _Process.role = role


def say(message: str) -> None:
    """Print a message for the user at the terminal; with JSON logs, as a log line."""
    if _Process.form == "json":
        log.info("%s", message)
    else:
        print(message, flush=True)


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z WARNING ranker-0 the message (request 5f3c…)``, and a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        request = serving.get()
        about = f" (request {request.id})" if request is not None else ""
        line = f"{_moment(record)} {record.levelname} {_Process.role} {record.getMessage()}{about}"
        return line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, role, pid, logger, message; request_id and traceback if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        request = serving.get()
        line = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "role": _Process.role,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request is not None:
            line["request_id"] = request.id
        line |= getattr(record, "fields", {})
        if record.exc_info is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class Flood:
    """Limits the lines about failed requests: a full disk must not be flooded with lines about it."""

    def __init__(self) -> None:
        self._second, self._n = 0, 0

    def allows(self) -> bool:
        """Return whether one more line may be written this second; log how many were left out before."""
        second = int(time.monotonic())
        if second != self._second:
            left_out, self._second, self._n = self._n - MOST_A_SECOND, second, 0
            if left_out > 0:
                log.warning("%d more requests failed; these lines are bounded to %d a second", left_out, MOST_A_SECOND)
        self._n += 1
        return self._n <= MOST_A_SECOND


failed_requests = Flood()

"""Log lines of all processes: time, level, role of the process, message, and the request that a line is about.

Lines go to standard error, as text or as JSON. ``serving`` holds the request that is being answered; what is logged
meanwhile names its id.
"""

from __future__ import annotations

import logging
import secrets
import sys
import time
from contextvars import ContextVar
from datetime import UTC, datetime

import msgspec

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
OURS = ("fedres", "service")  # loggers whose level is the chosen one; of others, warnings are shown
MOST_A_SECOND = 10  # lines about failed requests

log = logging.getLogger("fedres.service")


class Request(msgspec.Struct):
    """A request that is being answered."""

    method: str
    path: str = "unknown"  # the route's path: it names no user
    client_id: bytes | None = None  # its ``X-Request-Id``
    own_id: str | None = None

    @property
    def id(self) -> str:
        """Its ``X-Request-Id``, or one of ours that is made when it is first needed."""
        if self.client_id is not None:
            return shown(self.client_id)
        if self.own_id is None:
            self.own_id = secrets.token_hex(8)
        return self.own_id

    @property
    def has_id(self) -> bool:
        return self.client_id is not None or self.own_id is not None


serving: ContextVar[Request | None] = ContextVar("serving", default=None)


def shown(value: bytes) -> str:
    """Return a header's value as it is logged: on one line, with nothing that a terminal would obey."""
    text = value.decode("latin-1")
    return text if text.isprintable() else ascii(text)[1:-1]


class _Process:
    """What log lines say of the process that they come from."""

    role = "supervisor"
    form = "text"


def check(form: str, level: str) -> None:
    """Refuse a format or a level that there is not."""
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
    """Say from here on that lines come from a process of this role."""
    _Process.role = role


def say(message: str) -> None:
    """Tell the user at the terminal something; where logs are for machines, it is one of their lines."""
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
    """One object a line: time, level, role, pid, logger, message; request_id and traceback where there are such."""

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
    """Bounds the lines about failed requests: a disk that is full must not be filled with lines that say so."""

    def __init__(self) -> None:
        self._second, self._n = 0, 0

    def allows(self) -> bool:
        """Return whether one more line may be written this second; say how many of the last were left out."""
        second = int(time.monotonic())
        if second != self._second:
            left_out, self._second, self._n = self._n - MOST_A_SECOND, second, 0
            if left_out > 0:
                log.warning("%d more requests failed; these lines are bounded to %d a second", left_out, MOST_A_SECOND)
        self._n += 1
        return self._n <= MOST_A_SECOND


failed_requests = Flood()

"""One service that fails as a test says, in a process of its own: ``python faulty_service.py OPTIONS``, in JSON.

It prints where it listens. Connections to its log do what a file says, whatever process they are in.
"""

import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from service.learn.learner import Learner
from service.log import opening, sqlite
from service.log.opening import Store, steady_clock
from service.log.sqlite_schema import sqlite_file
from service.roles import learner, supervisor
from service.roles.config import Config
from service.times import system_clock


def run(store, rankers=1, database=None, **faults):
    """Serve until told to stop, and print where; return the exit status."""
    try:
        install(Path(store), **faults)
        config = Config(store=Store(Path(store), database), port=0, rankers=rankers)
        supervisor.serve(config, say=listening, welcome=lambda url: url)
        return 0
    except Exception as error:
        os.write(2, f"{error!r}\n".encode())
        return 1


def listening(text):
    if text.startswith("http"):
        os.write(1, f"{text}\n".encode())


def install(store, busy_seconds=5.0, snapshot_seconds=10.0):
    """Let connections to the log do what ``<store>-pragmas`` says, and the wall clock be ``<store>-ahead`` off."""
    pragmas, ahead = store.with_name(store.name + "-pragmas"), store.with_name(store.name + "-ahead")

    def wall():
        return system_clock() + int(ahead.read_text() if ahead.exists() else 0)

    sqlite.sqlite_file = lambda path: partial(connect, path, busy_seconds, pragmas)
    opening.steady_clock = lambda: steady_clock(wall)
    learner.Learner = partial(Learner, snapshot_seconds=snapshot_seconds)


def connect(store, busy_seconds, pragmas):
    """Return a connection that does what the file ``pragmas`` says."""
    return Obedient(sqlite_file(store, busy_seconds)(), pragmas)


class Obedient:
    """A connection that reads a file before each transaction, and sets the pragmas that it names."""

    def __init__(self, connection, pragmas):
        self._connection, self._pragmas, self._said = connection, pragmas, ""
        self.close = connection.close

    def execute(self, sql, parameters=()):
        if sql.startswith("BEGIN"):
            self._obey(self._pragmas.read_text() if self._pragmas.exists() else "")
        return self._connection.execute(sql, parameters)

    def _obey(self, said):
        if said != self._said:
            for pragma in said.splitlines():
                self._connection.execute(f"PRAGMA {pragma}").fetchall()
            self._said = said


def end_with_parent():
    """Let this process be killed when the one that started it ends, however that ends (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    end_with_parent()
    sys.exit(run(**json.loads(sys.argv[1])))

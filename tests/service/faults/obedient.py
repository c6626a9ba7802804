"""Connections that a test can steer from outside, in whatever process they are."""

from service.log.sqlite_schema import sqlite_file


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

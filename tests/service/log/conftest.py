"""Lends tests each kind of log."""

import shutil
import sqlite3
from contextlib import closing

import psycopg
import pytest

from service.log.postgres import PostgresLog
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.times import system_clock


class SqliteBackend:
    """The log in a SQLite file."""

    def __init__(self, folder):
        self.file = folder / "log.db"

    def open(self, clock=system_clock):
        """Return a log; all that are opened are the same one."""
        return SqliteLog(sqlite_file(self.file), clock=clock)

    def read_for_ever(self, log):
        """Run a statement on the log's connection that does not end."""
        with log._connection() as db:
            list(db.execute("WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t"))

    def execute(self, sql, *parameters):
        """Change the database behind the log's back; ``?`` stands for a parameter."""
        with closing(sqlite3.connect(self.file, isolation_level=None)) as db:
            db.execute(sql, parameters)


class PostgresBackend:
    """The log in a database of PostgreSQL."""

    def __init__(self, address):
        self.address = address

    def open(self, clock=None):
        if clock is not None:
            pytest.skip("time is the database's: see test_postgres.py")
        return PostgresLog(self.address)

    def read_for_ever(self, log):
        with log._session.lend() as db:
            db.silence_seconds = 3_600.0
            db.execute("SELECT pg_sleep(3600)")

    def execute(self, sql, *parameters):
        sql = sql.replace("log SET user", 'log SET "user"').replace("UPDATE log", "UPDATE fedres.log")
        with psycopg.connect(self.address, autocommit=True) as db:
            db.execute(sql.replace("?", "%s"), parameters)


@pytest.fixture(params=["sqlite", "postgres"])  # one name for each backend
def backend(request, tmp_path):
    backends = {
        "sqlite": lambda: SqliteBackend(tmp_path),
        "postgres": lambda: PostgresBackend(request.getfixturevalue("database")),
    }
    return backends[request.param]()


@pytest.fixture
def log(backend):
    with backend.open() as log:
        yield log


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def writer(tmp_path):
    from writers import running_writer

    with running_writer(tmp_path) as writer:
        yield writer


@pytest.fixture(scope="session")
def made_store(tmp_path_factory):
    """Return a folder with a store that was closed: do not write to it."""
    import asyncio

    from stores import make_store

    folder = tmp_path_factory.mktemp("made")
    asyncio.run(make_store(folder))
    return folder


@pytest.fixture
def store(made_store, tmp_path):
    """Return the file of a store of one's own, without models."""
    shutil.copyfile(made_store / "store.db", tmp_path / "store.db")
    return tmp_path / "store.db"

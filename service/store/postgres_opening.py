"""Opening the log in PostgreSQL: what the server must promise, how the log is made, and what its errors mean.

All is in a schema of its own, ``fedres``; the rest of the database is left alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from service.store.opening import StoreUnavailable

SCHEMA_VERSION = "2"
MAKING = int.from_bytes(b"fedres\0\2")  # the advisory lock of who makes the tables

# Who is gone is found out within about ten seconds, by both sides; an address may say otherwise.
PARAMETERS = {
    "connect_timeout": 5,  # seconds
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds
    "client_encoding": "utf8",
}
SETTINGS = {
    "synchronous_commit": "on",  # whatever the server's default is
    "lock_timeout": "5s",
    "idle_session_timeout": "0",  # the lease is as old as the session
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
    # Every question has its index; without samples of users and events the planner would not know.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
# A server that waits for its standbys to apply a commit promises more than "on"; older ones lack some settings.
SET = """SELECT set_config(given.name, given.value, false)
    FROM unnest(%s::text[], %s::text[]) AS given (name, value) JOIN pg_settings USING (name)
    WHERE setting <> 'remote_apply'"""

# Finds the records of an event and keeps those of these kinds unique (NULLs are distinct).
KIND_OF_UPLOAD = "CASE kind WHEN 'rank' THEN 0 WHEN 'residual' THEN 1 WHEN 'update' THEN 2 WHEN 'join' THEN 3 END"
# STATISTICS 0: the planner would keep samples, which would outlive who is erased.
# COLLATE "C": an index in the order of a language breaks when the system's idea of that order changes.
TABLES = f"""
CREATE TABLE fedres.meta (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO fedres.meta VALUES ('application', 'fedres'), ('schema', '{SCHEMA_VERSION}');
CREATE TABLE fedres.log (
    seq bigint PRIMARY KEY,
    time bigint NOT NULL,
    loop text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    event text COLLATE "C",
    "user" text COLLATE "C",
    body text,
    raw bytea,
    CHECK ((body IS NULL) <> (raw IS NULL))
) WITH (autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0);
COMMENT ON COLUMN fedres.log.time IS 'microseconds since 1970, never less than in the row before';
COMMENT ON COLUMN fedres.log."user" IS 'needs its quotes: without them it is the name of your own role';
COMMENT ON COLUMN fedres.log.body IS 'where it is text (JSON is)';
COMMENT ON COLUMN fedres.log.raw IS 'where it is not';
ALTER TABLE fedres.log ALTER event SET STATISTICS 0, ALTER "user" SET STATISTICS 0,
    ALTER body SET STATISTICS 0, ALTER raw SET STATISTICS 0;
CREATE INDEX log_by_loop ON fedres.log (loop, seq);
CREATE INDEX log_by_user ON fedres.log (loop, "user", seq) WHERE "user" IS NOT NULL;
CREATE UNIQUE INDEX log_by_event ON fedres.log (loop, event, ({KIND_OF_UPLOAD})) WHERE event IS NOT NULL;
"""
# Version 1 is the same, but every rank has the features that came with its request: who knows no others takes what
# version 2 has elsewhere for none.
FROM_VERSION_1 = f"UPDATE fedres.meta SET value = '{SCHEMA_VERSION}' WHERE name = 'schema' AND value = '1'"
FOUND = """SELECT to_regnamespace('fedres') IS NOT NULL,
    (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('fedres'))"""

CODES = {
    "25006": "readonly",
    "42501": "readonly",  # a role that may not
    "40001": "busy",
    "40P01": "busy",
    "53300": "busy",  # too many connections
    "55P03": "busy",  # lock_timeout
    "53100": "full",
    "XX001": "damaged",
    "XX002": "damaged",
    "23505": "taken",  # another has written at our position
}

Database: TypeAlias = psycopg.Connection[tuple[Any, ...]]


def opened(address: str) -> Database:
    """Return a session with a log of ours, made if need be; tables of others are refused and left as they are."""
    who = f"fedres on {socket.gethostname()[:40]}, process {os.getpid()}"
    wanted: dict[str, Any] = {**PARAMETERS, "application_name": who, **conninfo_to_dict(address)}
    db: Database = psycopg.connect(**wanted, autocommit=True)
    try:
        _prepare(db)
    except BaseException:
        db.close()
        raise
    return db


def name_of(db: Database) -> str:
    """Return what to call the database, without its password."""
    return f"{db.info.host}:{db.info.port}/{db.info.dbname}"


def unavailable(error: psycopg.Error) -> StoreUnavailable:
    """Return what an error means to callers."""
    message = " ".join(str(error).split())
    if error.sqlstate is None or error.sqlstate[:2] in ("08", "57", "58"):  # no server, or it is going
        return StoreUnavailable("io", message)
    return StoreUnavailable(CODES.get(error.sqlstate, "failed"), message)


def _prepare(db: Database) -> None:
    _check_server(db)
    db.execute(SET, (list(SETTINGS), list(SETTINGS.values())))
    if _is_empty(db):
        _create(db)
    _check_kind(db)


def _check_server(db: Database) -> None:
    for setting, wanted in (("fsync", "on"), ("server_encoding", "UTF8")):
        [(got,)] = db.execute(f"SHOW {setting}")
        if got != wanted:
            raise StoreUnavailable("io", f"{setting} of {name_of(db)} must be {wanted}, got {got}")


def _is_empty(db: Database) -> bool:
    [(_, n_relations)] = db.execute(FOUND)
    return int(n_relations) == 0


def _create(db: Database) -> None:
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (MAKING,))
        [(has_schema, n_relations)] = db.execute(FOUND)
        if not has_schema:
            db.execute("CREATE SCHEMA fedres")
        if n_relations == 0:  # else another process was faster
            db.execute(TABLES)


def _check_kind(db: Database) -> None:
    """Refuse what is not a log of ours, and bring an older one up to date."""
    found: dict[str, str] = {}
    with contextlib.suppress(psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
        found = dict(db.execute("SELECT name, value FROM fedres.meta").fetchall())
    if found.get("application") != "fedres":
        raise StoreUnavailable("foreign", f"schema fedres of {name_of(db)} must be a store of fedres, got another")
    got = found.get("schema", "none")
    if got == "1":
        db.execute(FROM_VERSION_1)
    elif got != SCHEMA_VERSION:
        raise StoreUnavailable("version", f"{name_of(db)} must have schema version 1 or {SCHEMA_VERSION}, got {got}")

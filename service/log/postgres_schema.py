"""The log's tables in PostgreSQL, and how a session is opened. docs/operate/postgresql.md is the reference.

Everything is in a schema of its own, ``fedres``; the rest of the database is not touched.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import socket
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.waiting import Ready, Wait

from service.log.protocol import StoreUnavailable
from service.log.records import ONCE, RARE

SCHEMA_VERSION = "1"
CHANNEL = "fedres_log"  # of NOTIFY
CREATING = int.from_bytes(b"fedres\0\2")  # the advisory lock of the session that creates the tables

# Both sides detect a dead peer within about ten seconds; the address may override this.
PARAMETERS = {
    "connect_timeout": 3,  # seconds
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds
    "client_encoding": "utf8",
    "target_session_attrs": "read-write",  # the primary: a replica may lag
}
SETTINGS = {
    "synchronous_commit": "on",  # independent of the server's default
    "lock_timeout": "3s",
    "idle_session_timeout": "0",  # advisory locks live as long as the session
    "idle_in_transaction_session_timeout": "2s",  # a paused or unreachable writer must not hold up the others
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
    # Every query has its index; without statistics about users and events the planner would not know.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
# remote_apply promises more than "on" and stays; older servers lack some of the settings.
SET = """SELECT set_config(given.name, given.value, false)
    FROM unnest(%s::text[], %s::text[]) AS given (name, value) JOIN pg_settings USING (name)
    WHERE setting <> 'remote_apply'"""

_ONCE = " ".join(f"WHEN '{kind}' THEN {number}" for number, kind in enumerate(ONCE))
_NUMBER = f"CASE kind {_ONCE} END"  # of a kind that an event has once
# STATISTICS 0: the planner would keep samples of users and events, which would outlive an erasure.
# COLLATE "C": an index in the order of a language breaks when the operating system changes that order.
TABLES = f"""
CREATE TABLE fedres.meta (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO fedres.meta VALUES
    ('application', 'fedres'), ('schema', '{SCHEMA_VERSION}'), ('architecture', '{platform.machine()}');
CREATE TABLE fedres.head (
    loop text COLLATE "C" PRIMARY KEY,
    last bigint NOT NULL DEFAULT 0,
    time bigint NOT NULL DEFAULT 0,
    removed bigint NOT NULL DEFAULT 0,
    epoch bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
COMMENT ON TABLE fedres.head IS 'where each loop''s log ends; an append locks the row';
COMMENT ON COLUMN fedres.head.removed IS 'records that were erased';
COMMENT ON COLUMN fedres.head.epoch IS 'rises whenever another machine becomes the holder of the loop';
CREATE TABLE fedres.log (
    loop text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    time bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    event text COLLATE "C",
    "user" text COLLATE "C",
    checksum bytea NOT NULL,
    example bytea,
    body text,
    raw bytea,
    PRIMARY KEY (loop, position),
    CHECK ((body IS NULL) <> (raw IS NULL))
) WITH (autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0);
COMMENT ON COLUMN fedres.log.position IS 'from 1 in each loop, in the order of commits';
COMMENT ON COLUMN fedres.log.time IS 'microseconds since 1970, never less than in the record before';
COMMENT ON COLUMN fedres.log."user" IS 'needs its quotes: without them it is the name of your own role';
COMMENT ON COLUMN fedres.log.checksum IS '8 bytes for all columns but the body, 8 for the body';
COMMENT ON COLUMN fedres.log.example IS 'what the learner needs, hashed';
COMMENT ON COLUMN fedres.log.body IS 'where it is text (JSON is)';
COMMENT ON COLUMN fedres.log.raw IS 'where it is not';
ALTER TABLE fedres.log ALTER event SET STATISTICS 0, ALTER "user" SET STATISTICS 0,
    ALTER checksum SET STATISTICS 0, ALTER example SET STATISTICS 0,
    ALTER body SET STATISTICS 0, ALTER raw SET STATISTICS 0;
CREATE UNIQUE INDEX log_by_event ON fedres.log (loop, event, ({_NUMBER})) WHERE event IS NOT NULL;
CREATE INDEX log_by_user ON fedres.log (loop, "user", position) WHERE "user" IS NOT NULL;
CREATE INDEX log_by_kind ON fedres.log (loop, kind, position) WHERE kind IN {RARE};
CREATE TABLE fedres.keys (number bigint GENERATED ALWAYS AS IDENTITY, id text PRIMARY KEY, key text NOT NULL);
COMMENT ON COLUMN fedres.keys.key IS 'what is known of a key, as JSON: its hash, not the key';
"""

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"  # microseconds since 1970
# One group commit. The caller says where it expects each loop's log to end; the function checks that under the locks
# of the head rows, taken in one order by everybody, and stores all records or none. (LOOP is a keyword of PL/pgSQL.)
APPEND = f"""
CREATE FUNCTION fedres.append(
    loops text[], lasts bigint[], times bigint[], counts bigint[], epochs bigint[],
    of_loop text[], of_position bigint[], of_time bigint[], of_kind text[], of_event text[], of_user text[],
    of_checksum bytea[], of_example bytea[], of_body text[], of_raw bytea[], tell boolean
) RETURNS TABLE (stored boolean, now bigint, head_loop text, head_last bigint, head_time bigint, head_epoch bigint)
LANGUAGE plpgsql AS $$
DECLARE
    locked record;
    k int;
    n_locked int := 0;
    fits boolean := true;
BEGIN
    FOR locked IN SELECT * FROM fedres.head WHERE head."loop" = ANY (loops) ORDER BY head."loop" FOR UPDATE LOOP
        k := array_position(loops, locked."loop");
        n_locked := n_locked + 1;
        IF locked.last <> lasts[k] OR times[k] < locked.time OR epochs[k] <> locked.epoch
            OR (times[k] > locked.time AND abs(times[k] - {NOW}) > 1000000)
        THEN
            fits := false;
        END IF;
    END LOOP;
    fits := fits AND n_locked = cardinality(loops);
    IF fits THEN
        INSERT INTO fedres.log ("loop", position, time, kind, event, "user", checksum, example, body, raw)
            SELECT * FROM unnest(of_loop, of_position, of_time, of_kind, of_event, of_user,
                of_checksum, of_example, of_body, of_raw);
        UPDATE fedres.head SET last = new.last + new.n, time = new.time
            FROM unnest(loops, lasts, times, counts) AS new ("loop", last, time, n) WHERE head."loop" = new."loop";
        IF tell THEN
            PERFORM pg_notify('{CHANNEL}', '');
        END IF;
    END IF;
    RETURN QUERY SELECT fits, {NOW},
        head."loop", head.last, head.time, head.epoch FROM fedres.head WHERE head."loop" = ANY (loops);
END $$
"""
FOUND = """SELECT to_regnamespace('fedres') IS NOT NULL,
    (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('fedres'))"""

CODES = {
    "25006": "readonly",
    "42501": "readonly",  # a role without the privilege
    "25P03": "busy",  # idle_in_transaction_session_timeout
    "40001": "busy",
    "40P01": "busy",
    "53300": "busy",  # too many connections
    "55P03": "busy",  # lock_timeout
    "53100": "full",
    "XX001": "damaged",
    "XX002": "damaged",
}

T = TypeVar("T")

_EVENTS = {Wait.R: select.POLLIN, Wait.W: select.POLLOUT, Wait.RW: select.POLLIN | select.POLLOUT}


def is_kind(kind: str) -> str:
    """Return the condition for records of a kind, by the index of events where that has the kind."""
    return f"({_NUMBER}) = {ONCE.index(kind)}" if kind in ONCE else f"kind = '{kind}'"


class Session(psycopg.Connection[tuple[Any, ...]]):
    """A session that gives up on a server that is silent: a partition need not break the connection."""

    silence_seconds = 5.0

    def wait(self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Drive one of psycopg's generators, which yield the events to wait for and are sent those that occurred."""
        file, poll = self.pgconn.socket, select.poll()
        seconds = self.silence_seconds if timeout is None else timeout
        try:
            poll.register(file, _EVENTS[next(gen)])
            while True:
                polled = poll.poll(seconds * 1e3)
                if not polled:
                    raise psycopg.OperationalError(f"the server has been silent for {seconds:g} s")
                [(_, events)] = polled
                ready = bool(events & ~select.POLLOUT) * Ready.R | bool(events & ~select.POLLIN) * Ready.W
                poll.modify(file, _EVENTS[gen.send(Ready(ready))])
        except StopIteration as ended:
            result: T = ended.value
            return result


def opened(address: str, *, any_architecture: bool = False) -> Session:
    """Return a session with our log, created if missing; foreign tables are refused and left unchanged."""
    who = f"fedres on {socket.gethostname()[:40]}, process {os.getpid()}"
    options: dict[str, Any] = {**PARAMETERS, "application_name": who, **conninfo_to_dict(address)}
    db = Session.connect(**options, autocommit=True)
    try:
        _prepare(db, any_architecture)
    except BaseException:
        db.close()
        raise
    return db


def name_of(db: Session) -> str:
    """Return the database's name for messages, without its password."""
    return f"{db.info.host}:{db.info.port}/{db.info.dbname}"


def unavailable(error: psycopg.Error) -> StoreUnavailable:
    """Return a database error as a ``StoreUnavailable``."""
    message = " ".join(str(error).split())
    code = CODES.get(error.sqlstate or "")
    if code is None:  # classes 08, 57 and 58: there is no server, or it is shutting down
        code = "io" if error.sqlstate is None or error.sqlstate[:2] in ("08", "57", "58") else "failed"
    return StoreUnavailable(code, message)


def _prepare(db: Session, any_architecture: bool) -> None:
    for setting, needed in (("fsync", "on"), ("server_encoding", "UTF8")):
        [(got,)] = db.execute(f"SHOW {setting}")
        if got != needed:
            raise StoreUnavailable("io", f"{setting} of {name_of(db)} must be {needed}, got {got}")
    db.execute(SET, (list(SETTINGS), list(SETTINGS.values())))
    [(_, n_relations)] = db.execute(FOUND)
    if n_relations == 0:
        _create(db)
    _check_kind(db, any_architecture)


def _create(db: Session) -> None:
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (CREATING,))
        [(has_schema, n_relations)] = db.execute(FOUND)
        if not has_schema:
            db.execute("CREATE SCHEMA fedres")
        if n_relations == 0:  # else another process was faster
            db.execute(TABLES)
            db.execute(APPEND)


def _check_kind(db: Session, any_architecture: bool) -> None:
    meta: dict[str, str] = {}
    with contextlib.suppress(psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
        meta = dict(db.execute("SELECT name, value FROM fedres.meta").fetchall())
    if meta.get("application") != "fedres":
        raise StoreUnavailable("foreign", f"schema fedres of {name_of(db)} must be a store of fedres, got another")
    got = meta.get("schema", "none")
    if got != SCHEMA_VERSION:
        raise StoreUnavailable("version", f"{name_of(db)} must have schema version {SCHEMA_VERSION}, got {got}")
    made_on, here = meta.get("architecture"), platform.machine()
    if made_on != here and not any_architecture:
        message = f"{name_of(db)} was made on {made_on}, and models learned on {here} may differ in their last bits"
        raise StoreUnavailable("foreign", f"{message}: --any-architecture accepts that")

"""The log in PostgreSQL: what the contract leaves open. Sessions and servers end, leases get lost."""

import random
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import psycopg
import pytest

from service.store import Duplicate, LeaseHeld, Record, StoreUnavailable, postgres_opening
from service.store.postgres import PostgresLog


def rank(event, user="u", loop="shop", body=b"{}"):
    return Record(loop, "rank", event, user, body)


@pytest.fixture
def log(database):
    with PostgresLog(database) as log:
        yield log


@contextmanager
def refused(code, message=None):
    with pytest.raises(StoreUnavailable, match=message) as raised:
        yield
    assert raised.value.code == code


def test_other_tools_can_read_the_log_while_it_is_in_use(log, postgres):
    log.append([rank("e", body=b'{"context": {"hour": 7}}'), rank("f", body=b"\xff")])
    assert postgres.ask(
        "SELECT seq, \"user\", body::json -> 'context' ->> 'hour', raw FROM fedres.log ORDER BY seq"
    ) == [
        (1, "u", "7", None),
        (2, "u", None, b"\xff"),
    ]
    assert postgres.ask("SELECT abs(extract(epoch FROM now() - to_timestamp(time / 1e6))) < 60 FROM fedres.log") == [
        (True,),
        (True,),
    ]


TABLES = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"


def test_the_rest_of_the_database_is_left_alone(database, postgres):
    postgres.ask("DROP TABLE IF EXISTS log; CREATE TABLE log (mine int); INSERT INTO log VALUES (7)")
    with PostgresLog(database) as log:
        log.append([rank("a")])
    assert sorted(postgres.ask(TABLES)) == [("fedres", "log"), ("fedres", "meta"), ("public", "log")]
    assert postgres.ask("TABLE log; DROP TABLE log RESTRICT") == []


OTHERS = {
    "another's tables": ("CREATE SCHEMA fedres; CREATE TABLE fedres.meta (mine int)", "foreign"),
    "another's table": ("CREATE SCHEMA fedres; CREATE TABLE fedres.thing (mine int)", "foreign"),
    "a newer log": (
        "CREATE SCHEMA fedres; CREATE TABLE fedres.meta (name text, value text);"
        "INSERT INTO fedres.meta VALUES ('application', 'fedres'), ('schema', '9')",
        "version",
    ),
}


@pytest.mark.parametrize(("made", "code"), OTHERS.values(), ids=OTHERS)
def test_a_schema_that_is_not_ours_is_refused_and_left_as_it_is(database, postgres, made, code):
    postgres.ask(made)
    before = postgres.ask(TABLES)
    with refused(code, "postgres must "):
        PostgresLog(database)
    assert postgres.ask(TABLES) == before


def test_an_empty_schema_that_was_made_for_us_is_used(database, postgres):
    postgres.ask("CREATE SCHEMA fedres")
    with PostgresLog(database) as log:
        assert log.append([rank("a")]) == [1]


def test_a_log_from_before_features_were_stored_apart_is_brought_up_to_date(database, postgres):
    with PostgresLog(database) as log:
        log.append([rank("a")])
    postgres.ask("UPDATE fedres.meta SET value = '1' WHERE name = 'schema'")
    with PostgresLog(database) as log:
        assert [entry.event for entry in log.read()] == ["a"]
    assert postgres.ask("SELECT value FROM fedres.meta WHERE name = 'schema'") == [("2",)]


def test_many_can_make_the_same_log_at_once(database):
    start, found = threading.Barrier(8), []

    def make():
        start.wait()
        with PostgresLog(database) as log:
            found.append(log.last())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0] * 8


def test_a_commit_is_synced_whatever_the_default_is_and_a_stronger_promise_is_kept(postgres):
    found = {}
    for setting in ("off", "local", "remote_apply"):
        with closing(postgres_opening.opened(postgres.session_with(f"synchronous_commit={setting}"))) as session:
            [(found[setting],)] = session.execute("SHOW synchronous_commit")
    assert found == {"off": "on", "local": "on", "remote_apply": "remote_apply"}


UNSTORABLE = {
    "NUL": ({"event": "b\0"}, "event must have no NUL"),
    "long key": ({"user": "ö" * 1_300}, "user with loop and kind must take at most 2500 bytes, got 2608"),
    "long body": ({"body": bytes(250_000_001)}, "body must have at most 250000000 bytes, got 250000001"),
}


@pytest.mark.parametrize(("wrong", "message"), UNSTORABLE.values(), ids=UNSTORABLE)
def test_what_postgresql_cannot_store_does_not_harm_its_neighbours(log, wrong, message):
    first, other, last = log.append([rank("a"), rank("b")._replace(**wrong), rank("c")])
    assert message in str(other)
    assert [(first, "a"), (last, "c")] == [(entry.seq, entry.event) for entry in log.read()]


def test_what_postgresql_cannot_store_is_not_found(log):
    log.append([rank("a")])
    assert log.of_event("shop", "a\0") + log.of_events("shop", ["\0"]) + log.of_user("\0", "u") == []
    assert (log.events_of("shop", "u\0", "rank"), log.erase("shop", "u\0")) == ([], 0)


READ = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_all_tables WHERE schemaname = 'fedres' AND relname = 'log'"


def test_no_question_makes_postgresql_walk_the_whole_log(database, postgres):
    with PostgresLog(database) as log:
        log.append([rank(f"e{i}", f"u{i}") for i in range(5_000)])
    postgres.ask("VACUUM ANALYZE fedres.log")
    [(before,)] = postgres.ask(READ)
    with PostgresLog(database) as log:
        assert [log.last(), len(log.read(after=4_990)), log.read(loop="news")] == [5_000, 10, []]
        assert len(log.of_event("shop", "e7") + log.of_user("shop", "u9")) == 2
        assert len(log.of_events("shop", [f"e{i}" for i in range(300)])) == 300
        assert log.events_of("shop", "u9", "rank") == ["e9"]
        assert {type(outcome) for outcome in log.append([rank(f"e{i}") for i in range(300)])} == {Duplicate}
        assert log.erase("shop", "u7", [Record("shop", "base", None, "u1", b"{}")]) == 1
    [(after,)] = postgres.ask(READ)  # a session reports before it ends
    assert 600 < after - before < 1_500


def test_appending_goes_on_after_the_session_was_lost_and_nothing_is_lost_with_it(log, postgres):
    log.append([rank("a")])
    postgres.end_sessions()
    with refused("io"):
        log.append([rank("b")])
    assert log.append([rank("b"), rank("a"), rank("c")])[::2] == [2, 3]
    postgres.end_sessions()
    with refused("io"):
        log.read()
    assert [entry.event for entry in log.read()] == ["a", "b", "c"]


def test_a_server_that_crashed_or_does_not_sync_is_told_and_all_is_well_once_it_is_back(log, postgres):
    log.append([rank("a")])
    postgres.stop("immediate")
    for _ in range(2):
        with refused("io"):
            log.append([rank("b")])
    postgres.start("fsync=off")
    try:
        with refused("io", "fsync of .*postgres must be on, got off"):
            log.append([rank("b")])
    finally:
        postgres.stop()
        postgres.start()
    assert log.append([rank("b"), rank("c")]) == [2, 3]


def test_a_locked_or_read_only_log_is_told(log, postgres, monkeypatch):
    monkeypatch.setitem(postgres_opening.SETTINGS, "lock_timeout", "10ms")
    with psycopg.connect(postgres.address) as other, PostgresLog(postgres.address) as hasty:
        other.execute("LOCK TABLE fedres.log")
        with refused("busy", "lock timeout"):
            hasty.append([rank("a")])
    read_only = postgres.session_with("default_transaction_read_only=on")
    with PostgresLog(read_only) as reader, refused("readonly", "read-only"):
        reader.append([rank("a")])
    assert log.append([rank("a")]) == [1]


def test_one_log_has_the_lease_until_it_is_closed_and_others_may_read(database):
    with PostgresLog(database) as first, PostgresLog(database) as second:
        first.append([rank("a")])
        assert second.last() == 1
        with refused("taken", r"/postgres must have one holder, and fedres on .*, process \d+ has it"):
            second.append([rank("b")])
        with pytest.raises(LeaseHeld, match="must have one holder"):
            second.acquire(wait_seconds=0.01)
        first.close()
        assert second.append([rank("b")]) == [2]


def test_who_lost_the_lease_with_the_session_cannot_append_until_it_is_free_again(database, postgres):
    with PostgresLog(database) as first, PostgresLog(database) as second:
        first.append([rank("a")])
        postgres.end_sessions()
        with refused("io"):
            second.last()
        assert second.append([rank("b"), rank("c")]) == [2, 3]
        with refused("io"):
            first.append([rank("d")])  # it had a session, and finds out
        with refused("taken"):
            first.append([rank("d")])
        second.close()
        assert first.append([rank("d")]) == [4]
        assert [entry.event for entry in first.read()] == ["a", "b", "c", "d"]


HOLDER = """
import sys
from service.store import Record
from service.store.postgres import PostgresLog
log = PostgresLog(sys.argv[1])
log.acquire()
log.append([Record("shop", "rank", "a", "u", b"{}")])
print("holds", flush=True)
sys.stdin.read()
"""


def test_the_lease_of_a_killed_process_goes_to_who_waits_for_it(database):
    command = [sys.executable, "-c", HOLDER, database]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"holds\n"
        with PostgresLog(database) as log:
            waiting = threading.Thread(target=log.acquire, args=[30])
            waiting.start()
            process.kill()
            waiting.join()
            assert log.append([rank("b")]) == [2]


def test_who_waits_for_the_lease_outlives_a_restart_of_the_server(database, postgres):
    with PostgresLog(database) as first, PostgresLog(database) as second:
        first.acquire()
        waiting = threading.Thread(target=second.acquire, args=[30])
        waiting.start()
        postgres.stop()
        postgres.start()
        waiting.join()
        assert second.append([rank("a")]) == [1]


def test_nothing_of_the_erased_is_left_in_the_tables_once_they_are_written_anew(database, postgres):
    rng = random.Random(0)
    users = [f"user-{rng.getrandbits(64):016x}" for _ in range(20)]
    with PostgresLog(database) as log:
        log.append([rank(f"{user}-{i}", user, body=user.encode() * i) for user in users for i in (1, 10, 400)])
        postgres.ask("ANALYZE fedres.log")
        for user in users[:10]:
            assert log.erase("shop", user) == 3
        for command in ("VACUUM FULL fedres.log", "CHECKPOINT"):
            postgres.ask(command)
        left = b"".join(file.read_bytes() for file in (postgres.data / "base").rglob("*") if file.is_file())
    assert [user for user in users if user.encode() in left] == users[10:]

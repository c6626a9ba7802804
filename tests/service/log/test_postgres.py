"""The log in PostgreSQL: what the contract leaves open. Sessions and servers end, machines compete, holders change."""

import random
import select
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import psycopg
import pytest
from waiting import LIMIT, until

from service.log import postgres_schema, postgres_session
from service.log.postgres import PostgresLog
from service.log.protocol import Duplicate, StoreUnavailable
from service.log.records import Record


def rank(event, user="u", loop="shop", body=b"{}"):
    return Record(loop, "rank", event, user, b"example", body)


def append(log, *records, **options):
    return log.append([[record] for record in records], **options)


def body_of_erased(n_erased):
    return b'{"records":%d}' % n_erased


@pytest.fixture
def log(database):
    with PostgresLog(database) as log:
        yield log


@contextmanager
def refused(code, message=None):
    with pytest.raises(StoreUnavailable, match=message) as raised:
        yield
    assert raised.value.code == code


# tables


def test_other_tools_can_read_the_log_while_it_is_in_use(log, postgres):
    append(log, rank("e", body=b'{"context": {"hour": 7}}'), rank("f", body=b"\xff"))
    question = "SELECT position, \"user\", body::json -> 'context' ->> 'hour', raw FROM fedres.log ORDER BY position"
    assert postgres.ask(question) == [(1, "u", "7", None), (2, "u", None, b"\xff")]


TABLES = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"


def test_the_rest_of_the_database_is_left_alone(database, postgres):
    postgres.ask("DROP TABLE IF EXISTS log; CREATE TABLE log (mine int); INSERT INTO log VALUES (7)")
    with PostgresLog(database) as log:
        append(log, rank("a"))
    ours = [("fedres", name) for name in ("head", "keys", "log", "meta")]
    assert sorted(postgres.ask(TABLES)) == [*ours, ("public", "log")]
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
        assert append(log, rank("a")) == [1]


def test_many_can_make_the_same_log_at_once(database):
    start, heads = threading.Barrier(8), []

    def make():
        start.wait()
        with PostgresLog(database) as log:
            heads.append(log.heads())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heads == [{}] * 8


def test_a_commit_is_synced_whatever_the_default_is_and_a_stronger_promise_is_kept(postgres):
    settings = {}
    for setting in ("off", "local", "remote_apply"):
        with closing(postgres_schema.opened(postgres.session_with(f"synchronous_commit={setting}"))) as session:
            [(settings[setting],)] = session.execute("SHOW synchronous_commit")
    assert settings == {"off": "on", "local": "on", "remote_apply": "remote_apply"}


UNSTORABLE = {
    "NUL": ({"event": "b\0"}, "event must have no NUL"),
    "long key": ({"user": "ö" * 1_300}, "user with loop and kind must take at most 2500 bytes, got 2608"),
    "long body": ({"body": bytes(250_000_001)}, "body must have at most 250000000 bytes, got 250000001"),
}


@pytest.mark.parametrize(("wrong", "message"), UNSTORABLE.values(), ids=UNSTORABLE)
def test_what_postgresql_cannot_store_does_not_harm_its_neighbours(log, wrong, message):
    first, other, last = append(log, rank("a"), rank("b")._replace(**wrong), rank("c"))
    assert message in str(other)
    assert [(first, "a"), (last, "c")] == [(entry.position, entry.event) for entry in log.read("shop")]


def test_what_postgresql_cannot_store_is_not_found(log):
    append(log, rank("a"))
    assert log.find("shop", ["a\0"]) + log.find("\0", ["a"]) + log.read("\0") + log.of_kind("\0", "base") == []
    assert log.erase("shop", "u\0", body_of_erased) == 0


READ = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_all_tables WHERE schemaname = 'fedres' AND relname = 'log'"


def test_no_question_makes_postgresql_walk_the_whole_log(database, postgres):
    with PostgresLog(database) as log:
        append(log, *(rank(f"e{i}", f"u{i}") for i in range(5_000)))
    postgres.ask("VACUUM ANALYZE fedres.log")
    [(before,)] = postgres.ask(READ)
    with PostgresLog(database) as log:
        assert (log.heads()["shop"].last, len(log.read("shop", 4_990)), log.read("news")) == (5_000, 10, [])
        assert (log.of_kind("shop", "erase"), log.of_kind("shop", "base")) == ([], [])
        assert len(log.find("shop", [f"e{i}" for i in range(300)])) == 300
        assert {type(outcome) for outcome in append(log, *(rank(f"e{i}") for i in range(300)))} == {Duplicate}
        assert log.erase("shop", "u7", body_of_erased) == 1
    [(after,)] = postgres.ask(READ)  # a session reports before it ends
    assert 600 < after - before < 1_500


# failures


def test_appending_goes_on_after_the_session_was_lost_and_nothing_is_lost_with_it(log, postgres):
    append(log, rank("a"))
    postgres.end_sessions()
    with refused("io"):
        append(log, rank("b"))
    assert append(log, rank("b"), rank("a"), rank("c"))[::2] == [2, 3]
    postgres.end_sessions()
    assert [entry.event for entry in log.read("shop")] == ["a", "b", "c"]  # reading can be repeated


def test_a_server_that_crashed_or_does_not_sync_is_told_and_all_is_well_once_it_is_back(log, postgres, monkeypatch):
    monkeypatch.setattr(postgres_session, "RETRY_SECONDS", 0.0)
    append(log, rank("a"))
    postgres.stop("immediate")
    for _ in range(2):
        with refused("io"):
            append(log, rank("b"))
    postgres.start("fsync=off")
    try:
        with refused("io", "fsync of .*postgres must be on, got off"):
            append(log, rank("b"))
    finally:
        postgres.stop()
        postgres.start()
    assert append(log, rank("b"), rank("c")) == [2, 3]


def test_a_locked_or_read_only_log_is_told(log, postgres, monkeypatch):
    append(log, rank("a"))
    monkeypatch.setitem(postgres_schema.SETTINGS, "lock_timeout", "10ms")
    with psycopg.connect(postgres.address) as other, PostgresLog(postgres.address) as hasty:
        other.execute("LOCK TABLE fedres.log")
        with refused("busy", "lock timeout"):
            append(hasty, rank("b"))
    assert append(log, rank("b")) == [2]
    with refused("io", "read-only"):  # such as a replica
        PostgresLog(postgres.session_with("default_transaction_read_only=on"))


# several machines


def test_machines_that_append_to_the_same_loops_get_true_positions_and_no_deadlock(database):
    positions = {}

    def fill(name):
        rng = random.Random(name)
        with PostgresLog(database) as log:
            for k in range(40):
                loops = rng.sample(["shop", "news", "home"], 3)
                outcomes = append(log, *(rank(f"{name}-{k}", loop=loop) for loop in loops))
                positions.update({(loop, f"{name}-{k}"): at for loop, at in zip(loops, outcomes, strict=True)})

    threads = [threading.Thread(target=fill, args=[name]) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with PostgresLog(database) as log:
        entries = [entry for loop in ("shop", "news", "home") for entry in log.read(loop)]
    assert {(entry.loop, entry.event): entry.position for entry in entries} == positions
    assert [entry.position for entry in entries] == [*range(1, 121)] * 3


def test_time_comes_from_the_database_and_never_goes_back(log, postgres):
    append(log, rank("a"))
    assert postgres.ask("SELECT abs(extract(epoch FROM now() - to_timestamp(time / 1e6))) < 60 FROM fedres.log") == [
        (True,)
    ]
    ahead = log.now() + 3_600_000_000
    postgres.ask(f"UPDATE fedres.head SET time = {ahead}")
    for event in ("b", "c", "d"):
        append(log, rank(event))
    assert [entry.time for entry in log.read("shop", 1)] == [ahead] * 3


def test_a_writer_whose_idea_of_time_is_wrong_is_put_right(log):
    append(log, rank("a"))
    append(log, rank("b"))  # from here on positions and time are predicted
    log._clock.offset += 3_600_000_000
    append(log, rank("c"))
    log._clock.offset -= 3_600_000_000
    append(log, rank("d"))
    times = [entry.time for entry in log.read("shop")]
    assert times == sorted(times)
    assert times[-1] - times[0] < 60_000_000


SLOW = """
CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.2); RETURN NULL; END';
CREATE TRIGGER slowly BEFORE DELETE ON fedres.log FOR EACH STATEMENT EXECUTE FUNCTION slowly()
"""


def test_a_user_whose_records_take_seconds_to_delete_is_erased(log, database):
    append(log, rank("a", "anna"), rank("b", "bert"))
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(SLOW)
    assert log.erase("shop", "anna", body_of_erased) == 1
    assert [entry.user for entry in log.read("shop")] == ["bert", None]


@pytest.mark.parametrize("again", [False, True])
def test_a_batch_that_is_a_second_late_gets_another_time(log, postgres, again, monkeypatch):
    append(log, rank("a"))
    postgres.ask("UPDATE fedres.head SET time = 0")  # long ago
    log._alone = False
    sent, late = ([rank("a"), rank("b")], [0, 2_000_000, 0]) if again else ([rank("b")], [2_000_000, 0])
    now = log._clock.now
    monkeypatch.setattr(log._clock, "now", lambda: now() - late.pop(0))
    assert append(log, *sent)[-1] == 2
    assert late == []


def test_a_writer_that_stops_in_a_transaction_holds_the_others_up_for_two_seconds(log, database):
    append(log, rank("a"))
    with closing(postgres_schema.opened(database)) as stopped:
        stopped.execute("BEGIN")
        stopped.execute("SELECT * FROM fedres.head FOR UPDATE")
        assert append(log, rank("b")) == [2]
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            stopped.execute("COMMIT")


def test_a_notification_says_that_there_is_more(log, database):
    with PostgresLog(database, listen=True) as listening:
        assert listening.notifications() is not None
        assert log.notifications() is None
        append(log, rank("a"))
        poll = select.poll()
        poll.register(listening.notifications())
        assert poll.poll(1_000 * LIMIT)


# holding a loop


def held(log, loop="shop"):
    return until(lambda: log.hold(loop), "holding the loop")


def test_one_log_holds_a_loop_until_its_session_ends(log, database, postgres):
    append(log, rank("a"), rank("b", loop="news"))
    with PostgresLog(database) as first, PostgresLog(database) as second:
        assert (first.hold("shop"), first.hold("shop"), second.hold("shop")) == (1, 1, None)
        assert second.hold("news") == 1
        first.close()
        assert held(second) == 2


def test_a_holder_that_lost_its_loop_can_neither_erase_nor_log_a_base(log, database):
    append(log, rank("a"))
    with PostgresLog(database) as first, PostgresLog(database) as second:
        old = first.hold("shop")
        first.close()
        new = held(second)
        for epoch, fenced in ((old, True), (new, False)):
            for call in (
                lambda epoch=epoch: append(log, Record("shop", "base", body=b"{}"), epochs={"shop": epoch}),
                lambda epoch=epoch: log.erase("shop", "u", body_of_erased, epoch),
            ):
                if fenced:
                    with refused("fenced", "another machine has become the holder of loop 'shop'"):
                        call()
                else:
                    call()
    assert [entry.kind for entry in log.read("shop")] == ["base", "erased"]


HOLDER = """
import sys
from service.log.postgres import PostgresLog
log = PostgresLog(sys.argv[1])
print("holds", log.hold("shop"), flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_held_goes_to_who_asks_for_it(log, database):
    append(log, rank("a"))
    command = [sys.executable, "-c", HOLDER, database]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"holds 1\n"
        assert log.hold("shop") is None
        process.kill()
        assert held(log) == 2


def test_nothing_of_the_erased_is_left_in_the_tables_once_they_are_written_anew(database, postgres):
    rng = random.Random(0)
    users = [f"user-{rng.getrandbits(64):016x}" for _ in range(20)]
    with PostgresLog(database) as log:
        append(log, *(rank(f"{user}-{i}", user, body=user.encode() * i) for user in users for i in (1, 10, 400)))
        postgres.ask("ANALYZE fedres.log")
        for user in users[:10]:
            assert log.erase("shop", user, body_of_erased) == 3
        for command in ("VACUUM FULL fedres.log", "CHECKPOINT"):
            postgres.ask(command)
        left = b"".join(file.read_bytes() for file in (postgres.data / "base").rglob("*") if file.is_file())
    assert [user for user in users if user.encode() in left] == users[10:]

"""The log in SQLite: what the contract leaves open. Other tools can read it; other files stay as they are."""

import random
import re
import sqlite3
import threading
from contextlib import closing

import pytest

from service.store import Duplicate, Log, Record, StoreUnavailable, sqlite_file


def rank(event, user="u", loop="shop", body=b"{}"):
    return Record(loop, "rank", event, user, body)


def reward(event, loop="shop", body=b"1.0"):
    return Record(loop, "reward", event, None, body)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "log.db"


@pytest.fixture
def log(file):
    with Log(sqlite_file(file)) as log:
        yield log


def test_other_tools_can_read_the_log_while_it_is_in_use(log, file):
    log.append([rank("e", body=b'{"context": {"hour": 7}}')])
    with closing(sqlite3.connect(file)) as tool:
        row = tool.execute(
            "SELECT seq, loop, kind, event, user, json_extract(body, '$.context.hour') FROM log"
        ).fetchone()
        assert row == (1, "shop", "rank", "e", "u", 7)
        assert tool.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone() == ("4",)
        log.append([reward("e")])
        assert tool.execute("SELECT count(*) FROM log").fetchone() == (2,)


def test_a_body_too_long_for_sqlite_does_not_harm_its_neighbours(file):
    def connect():
        connection = sqlite_file(file)()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 50_000)
        return connection

    with Log(connect) as log:
        first, refused, last = log.append([rank("a"), rank("b", body=bytes(60_000)), rank("c")])
        assert "got 60000 bytes" in str(refused)
        assert [entry.seq for entry in log.read()] == [first, last]


def ask_everything(log):
    """Ask and change all that can be, but for what is read from the log's end."""
    log.read(after=3), log.read(loop="news"), log.of_event("shop", "b"), log.of_events("shop", ["b"])
    log.of_user("shop", "v"), log.events_of("shop", "v", "rank")
    assert isinstance(log.append([rank("a")])[0], Duplicate)
    log.drop_older("shop", "base", ["v"])
    assert log.erase("shop", "u", instead=[Record("shop", "base", None, "v", b"{}")], needless=9) == 1


@pytest.mark.parametrize("analyzed", [False, True])  # by its owner: SQLite then plans with what it has counted
def test_no_question_makes_sqlite_walk_the_whole_log(file, analyzed):
    asked = []
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        log = Log(lambda: connection)
        log.append([rank("a"), *[rank(f"{k}", "v") for k in range(3_000)]])
        if analyzed:
            connection.execute("ANALYZE")
            connection.execute("ANALYZE sqlite_master")  # takes the counts into use
        connection.set_trace_callback(asked.append)
        ask_everything(log)
        connection.set_trace_callback(None)
        questions = [sql for sql in asked if " WHERE " in sql and "FROM log" in sql and "LIMIT 1)" not in sql]
        plans = [str(connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()) for sql in questions]
    assert len(plans) == 11
    walked = {table for plan in plans for table in re.findall(r"(?:SCAN|BLOOM FILTER ON) (\w+)", plan)}
    assert walked == {"json_each", "stretches", "own"}


def fill(log, rng, n_users):
    """Append shuffled ranks and rewards, so that pages split in their middle, and return the users."""
    users = [f"user-{rng.getrandbits(64):016x}" for _ in range(n_users)]
    for _ in range(20):
        ranks = [rank(f"event-{rng.getrandbits(40)}-of-{user}", user) for user in rng.sample(users, n_users)]
        log.append([record._replace(body=record.user.encode() * rng.choice((1, 10, 400))) for record in ranks])
        log.append([reward(record.event) for record in ranks])
    return users


def test_erasing_leaves_nothing_of_the_user_in_any_file(tmp_path):
    rng = random.Random(0)
    with Log(sqlite_file(tmp_path / "log.db")) as log:
        users = fill(log, rng, 30)
        for user in users[:10]:
            assert log.erase("shop", user) == 40
            assert log.of_user("shop", user) == []
        bytes_left = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert [user for user in users if user.encode() in bytes_left] == users[10:]


def test_erasing_says_so_when_a_reader_keeps_the_old_pages(file):
    with Log(sqlite_file(file, busy_seconds=0)) as log, closing(sqlite3.connect(file, isolation_level=None)) as reader:
        log.append([rank("a")])
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM log").fetchall()
        with pytest.raises(StoreUnavailable, match="erase again"):
            log.erase("shop", "u")
        reader.execute("COMMIT")
        assert log.erase("shop", "u") == 0
        assert log.of_user("shop", "u") == []


def other_database(file):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE meta (name, value)")


def newer_log(file):
    Log(sqlite_file(file)).close()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET value = '5'")


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (other_database, "foreign", r"log\.db must be a store of fedres, got another SQLite database"),
        (newer_log, "version", r"log\.db must have schema version 1 to 4, got 5"),
        (lambda file: file.write_text("dear diary " * 100), "foreign", "not a database"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_left_as_it_is(file, make, code, message):
    make(file)
    before = file.read_bytes()
    with pytest.raises(StoreUnavailable, match=message) as raised:
        Log(sqlite_file(file))
    assert raised.value.code == code
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        Log(sqlite_file(tmp_path / "missing" / "log.db"))


def test_many_can_make_and_fill_the_same_log_at_once(file):
    start, outcomes = threading.Barrier(8), []

    def make_and_append(name):
        start.wait()
        with Log(sqlite_file(file, busy_seconds=30)) as log:
            outcomes.extend(log.append([rank(name)]))

    threads = [threading.Thread(target=make_and_append, args=[f"e{i}"]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [1, 2, 3, 4, 5, 6, 7, 8]

"""The log in SQLite: what the contract leaves open. Other tools can read it; other files stay as they are."""

import itertools
import random
import re
import sqlite3
import threading
from contextlib import closing

import pytest

from service.log.opening import Store, open_log, steady_clock
from service.log.protocol import Duplicate, Pruning, StoreUnavailable
from service.log.records import DamagedRecord, Record
from service.log.sqlite import LARGE_ROW, ROWS_PER_STATEMENT, SqliteLog
from service.log.sqlite_schema import SCHEMA_VERSION, sqlite_file


def rank(event, user="u", loop="shop", body=b"{}"):
    return Record(loop, "rank", event, user, b"example", body)


def reward(event, loop="shop", body=b"1.0"):
    return Record(loop, "reward", event, None, None, body)


def append(log, *records):
    return log.append([[record] for record in records])


def erase(log, user):
    return log.erase("shop", user, lambda n_erased: b"%d" % n_erased)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "log.db"


@pytest.fixture
def log(file):
    with SqliteLog(sqlite_file(file)) as log:
        yield log


def test_other_tools_can_read_the_log_while_it_is_in_use(log, file):
    append(log, rank("e", body=b'{"context": {"hour": 7}}'))
    with closing(sqlite3.connect(file)) as tool:
        row = tool.execute(
            "SELECT position, loop, kind, event, user, json_extract(body, '$.context.hour') FROM log"
        ).fetchone()
        assert row == (1, "shop", "rank", "e", "u", 7)
        assert tool.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone() == (str(SCHEMA_VERSION),)
        append(log, reward("e"))
        assert tool.execute("SELECT count(*) FROM log").fetchone() == (2,)


def test_nothing_of_a_record_goes_to_files_in_the_folder_for_temporary_files(log):
    append(log, rank("e"))
    assert list(log._db.execute("PRAGMA temp_store")) == [(2,)]  # in memory


class Remembering:
    """A connection that notes how many bytes each prepared statement was last given: SQLite keeps them."""

    def __init__(self, connection):
        self.connection, self.kept = connection, {}

    def execute(self, sql, parameters=()):
        self.kept[sql] = sum(len(value) for value in parameters if isinstance(value, (str, bytes)))
        return self.connection.execute(sql, parameters)

    def close(self):
        self.connection.close()


@pytest.mark.parametrize("size", [1_000, LARGE_ROW - 100, 100_000])
def test_what_sqlite_keeps_of_rows_is_bounded_whatever_numbers_of_rows_are_stored_together(file, size):
    connections = []

    def connect():
        connections.append(Remembering(sqlite_file(file)()))
        return connections[-1]

    body, n = b'"%s"' % (b"x" * size), 0
    with SqliteLog(connect) as log:
        for n_groups in (*range(1, 101, 3), 100):
            append(log, *[rank(f"{n + k}", body=body) for k in range(n_groups)])
            n += n_groups
        assert log.heads()["shop"].last == n
        insertions = [kept for sql, kept in connections[0].kept.items() if sql.startswith("INSERT INTO log")]
    most_rows = sum(insertions) / size
    assert most_rows < 2 if size > LARGE_ROW else most_rows < 2 * ROWS_PER_STATEMENT * 1.1
    assert sum(insertions) < 2 * ROWS_PER_STATEMENT * (LARGE_ROW + 1_000)


def test_a_body_too_long_for_sqlite_does_not_harm_its_neighbours(file):
    def connect():
        connection = sqlite_file(file)()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 50_000)
        return connection

    with SqliteLog(connect) as log:
        first, refused, last = append(log, rank("a"), rank("b", body=bytes(60_000)), rank("c"))
        assert "got 60000 bytes" in str(refused)
        assert [entry.position for entry in log.read("shop")] == [first, last]


def ask_everything(log):
    """Ask and change all that can be."""
    log.read("shop", 3), log.read("news"), log.read("shop", 7, bodies=False), log.find("shop", ["b", "c"])
    log.of_kind("shop", "erased"), log.of_kind("shop", "base"), log.heads()
    assert isinstance(append(log, rank("a"))[0], Duplicate)
    append(log, Record("shop", "base", user="v"), Record("shop", "base", user="v"))
    assert erase(log, "u") == 1
    log.drop("shop", 5)


@pytest.mark.parametrize("analyzed", [False, True])  # by its owner: SQLite then plans with what it has counted
def test_no_question_makes_sqlite_walk_the_whole_log(file, analyzed):
    statements = []
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        log = SqliteLog(lambda: connection)
        append(log, rank("a"), *[rank(f"{k}", "v") for k in range(3_000)])
        if analyzed:
            connection.execute("ANALYZE")
            connection.execute("ANALYZE sqlite_master")  # takes the counts into use
        connection.set_trace_callback(statements.append)
        ask_everything(log)
        connection.set_trace_callback(None)
        questions = [sql for sql in statements if " WHERE " in sql and "FROM log" in sql]
        plans = [str(connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()) for sql in questions]
    assert len(plans) == 10
    walked = {table for plan in plans for table in re.findall(r"(?:SCAN|BLOOM FILTER ON) (\w+|\(subquery)", plan)}
    assert walked <= {"json_each", "(subquery"}, [plan for plan in plans if "SCAN" in plan]  # of base records
    assert [plan for plan in plans if "(loop=?)" in plan] == [], "walks a whole loop"


def fill(log, rng, n_users):
    """Append shuffled ranks and rewards, so that pages split in their middle, and return the users."""
    users = [f"user-{rng.getrandbits(64):016x}" for _ in range(n_users)]
    for _ in range(20):
        ranks = [rank(f"event-{rng.getrandbits(40)}-of-{user}", user) for user in rng.sample(users, n_users)]
        append(log, *[record._replace(body=record.user.encode() * rng.choice((1, 10, 400))) for record in ranks])
        append(log, *[reward(record.event) for record in ranks])
    return users


def test_erasing_leaves_nothing_of_the_user_in_any_file(tmp_path):
    rng = random.Random(0)
    with SqliteLog(sqlite_file(tmp_path / "log.db")) as log:
        users = fill(log, rng, 30)
        for user in users[:10]:
            assert erase(log, user) == 40
        assert {entry.user for entry in log.read("shop", 0, 10_000)} == {None, *users[10:]}
        bytes_left = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert [user for user in users if user.encode() in bytes_left] == users[10:]


def test_erasing_says_so_when_a_reader_keeps_the_old_pages(file):
    opened = SqliteLog(sqlite_file(file, busy_seconds=0))
    with opened as log, closing(sqlite3.connect(file, isolation_level=None)) as reader:
        append(log, rank("a"))
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM log").fetchall()
        with pytest.raises(StoreUnavailable, match="erase again"):
            erase(log, "u")
        reader.execute("COMMIT")
        assert erase(log, "u") == 0
        assert [entry.kind for entry in log.read("shop")] == ["erased", "erased"]


def test_a_text_that_is_no_unicode_is_damage_to_its_record(log, file):
    append(log, rank("a"), rank("b"), rank("c"))
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("UPDATE log SET user = CAST(x'ff41' AS TEXT) WHERE position = 2")
    with pytest.raises(DamagedRecord) as raised:
        log.read("shop")
    assert (raised.value.loop, raised.value.position) == ("shop", 2)


def other_database(file):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE meta (name, value)")


def changed(name, value):
    def make(file):
        SqliteLog(sqlite_file(file)).close()
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))

    return make


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (other_database, "foreign", r"log\.db must be a store of fedres, got another SQLite database"),
        (changed("schema", "9"), "version", rf"log\.db must have schema version {SCHEMA_VERSION}, got 9"),
        (changed("architecture", "vax"), "foreign", r"log\.db was made on vax, .* fedres log export and import it"),
        (lambda file: file.write_text("dear diary " * 100), "foreign", "not a database"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_left_as_it_is(file, make, code, message):
    make(file)
    before = file.read_bytes()
    with pytest.raises(StoreUnavailable, match=message) as raised:
        SqliteLog(sqlite_file(file))
    assert raised.value.code == code
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        SqliteLog(sqlite_file(tmp_path / "missing" / "log.db"))


def test_many_can_make_and_fill_the_same_log_at_once(file):
    start, outcomes = threading.Barrier(8), []

    def make_and_append(name):
        start.wait()
        with SqliteLog(sqlite_file(file, busy_seconds=30)) as log:
            outcomes.extend(append(log, rank(name)))

    threads = [threading.Thread(target=make_and_append, args=[f"e{i}"]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_store_whose_clock_was_ahead_is_opened_with_a_clock_that_goes_on_from_there(file):
    ahead = steady_clock()() + 3_600_000_000
    with SqliteLog(sqlite_file(file), clock=lambda: ahead) as log:
        append(log, rank("a"))
    log = open_log(Store(file))
    append(log, rank("b"))
    first, second = log.read("shop")
    log.close()
    assert ahead == first.time <= second.time < ahead + 600_000_000


def test_pruning_shortens_the_file_step_by_step(log, file):
    for k in range(8):
        log.append([[rank(f"{k}-{i}", body=b'{"padding":"%s"}' % (b"x" * 1_000))] for i in range(500)])
    append(log, Record("shop", "erase"), Record("shop", "erased"))
    with closing(sqlite3.connect(file)) as tool:
        tool.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before, after, sizes = file.stat().st_size, 0, []
    while after is not None:
        after = log.prune("shop", Pruning(3_000, 4_001, 4_002), after)
        with closing(sqlite3.connect(file)) as tool:
            sizes.append(tool.execute("PRAGMA page_count").fetchone()[0])
    assert max(one - other for one, other in itertools.pairwise(sizes)) <= 101
    assert file.stat().st_size < before / 2
    assert [entry.position for entry in log.read("shop", 0, 10_000)] == list(range(3_001, 4_003))
    with closing(sqlite3.connect(file)) as tool:
        assert tool.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_file_that_cannot_be_shortened_uses_its_free_pages_again(file):
    SqliteLog(sqlite_file(file)).close()
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode=DELETE").fetchall()
        db.execute("PRAGMA auto_vacuum=NONE").fetchall()
        db.execute("VACUUM")
        assert db.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    with SqliteLog(sqlite_file(file)) as log:
        append(log, *(rank(f"{k}", body=bytes(2_000)) for k in range(200)))
        append(log, Record("shop", "erase"), Record("shop", "erased"))
        after = 0
        while after is not None:
            after = log.prune("shop", Pruning(190, 201, 202), after)
        n_bytes = log.size()
        append(log, *(rank(f"new {k}", body=bytes(2_000)) for k in range(100)))
        assert log.size() <= n_bytes + 20_000

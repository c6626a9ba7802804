"""A store that an older version has made is brought up to date when it is opened, as a whole or not at all."""

import random
import sqlite3
from contextlib import closing
from functools import partial

import pytest
from power_cut_vfs import Disk, recovered

from service.store import Duplicate, Log, Record, StoreUnavailable, sqlite_file
from service.store.opening import APPLICATION_ID

OLD_TABLES = f"""
PRAGMA journal_mode = WAL;
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE log (seq INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, loop TEXT NOT NULL, kind TEXT NOT NULL,
    event TEXT, user TEXT, body NOT NULL);
CREATE INDEX log_by_loop ON log (loop);
"""
BY_USER = "CREATE INDEX log_by_user ON log (loop, user) WHERE user IS NOT NULL;"
BY_EVENT = """CREATE UNIQUE INDEX log_by_event ON log (loop, event,
        CASE kind WHEN 'rank' THEN 0 WHEN 'residual' THEN 1 WHEN 'update' THEN 2 WHEN 'join' THEN 3 END)
        WHERE event IS NOT NULL;"""
OLD_INDICES = {
    1: f"""{BY_USER}
        CREATE UNIQUE INDEX log_by_event ON log (loop, event, CASE kind WHEN 'rank' THEN 0 END)
        WHERE event IS NOT NULL""",
    2: BY_USER + BY_EVENT,
    3: f"""CREATE INDEX log_by_user ON log (loop, seq >> 10, user) WHERE user IS NOT NULL;
        CREATE INDEX log_by_kind ON log (loop, kind, user) WHERE event IS NULL AND user IS NOT NULL;{BY_EVENT}""",
}
LOOPS, USERS = ("shop", "news"), ("ann", "bob", "cleo")
EVERYTHING = 100_000

older = pytest.mark.parametrize("version", OLD_INDICES)


def some_records(n_records):
    """Return decisions and models of users, and rewards."""
    rng = random.Random(0)
    for k in range(n_records):
        kind = rng.choice(("rank", "rank", "reward", "reward", "base"))
        event = {"rank": f"e{k}", "reward": f"e{rng.randrange(n_records)}", "base": None}[kind]
        yield Record(rng.choice(LOOPS), kind, event, None if kind == "reward" else rng.choice(USERS), b'{"a": 1}')


def make(new, old, version, n_records=3_000):
    """Make a store of today in ``new``, and one of ``version`` with the same records in ``old``."""
    with Log(sqlite_file(new)) as log:
        log.append(list(some_records(n_records)))
    with closing(sqlite3.connect(old, isolation_level=None)) as db:
        db.executescript(OLD_TABLES + OLD_INDICES[version])
        db.execute("INSERT INTO meta VALUES ('schema', ?)", (version,))
        db.execute("ATTACH ? AS new", (str(new),))
        db.execute("INSERT INTO log SELECT * FROM new.log")


@pytest.fixture
def files(tmp_path):
    return tmp_path / "new.db", tmp_path / "old.db"


def layout(file):
    """Return the version of a store and its indices."""
    with closing(sqlite3.connect(file)) as db:
        indices = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' ORDER BY name").fetchall()
        return db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchall(), indices


def asked(log):
    """Return what a log answers to everything that can be asked about users and events."""
    of_users = [(log.of_user(loop, user), log.events_of(loop, user, "rank")) for loop in LOOPS for user in USERS]
    return of_users, log.of_events("shop", ["e1", "e2", "e3"]), log.read(limit=EVERYTHING), log.last()


def changed(log):
    """Return what is left when models were replaced and somebody was erased."""
    log.drop_older("shop", "base", ["bob"])
    n_erased = log.erase("shop", "ann", instead=[Record("shop", "base", None, "cleo", b"new")])
    return n_erased, [entry._replace(time=0) for entry in log.read(limit=EVERYTHING)]


@older
def test_an_older_store_answers_as_one_that_was_made_today(files, version):
    new, old = files
    make(new, old, version)
    assert layout(old) != layout(new)
    with Log(sqlite_file(old), check=True) as log, Log(sqlite_file(new)) as of_today, Log(sqlite_file(old)) as reader:
        assert asked(log) == asked(reader) == asked(of_today)
        assert changed(log) == changed(of_today)
        residual = Record("shop", "residual", "a", "u", b"{}")
        assert [type(outcome) for outcome in log.append([residual, residual])] == [int, Duplicate]
    assert layout(old) == layout(new)


@older
def test_a_store_that_is_up_to_date_is_left_as_it_is(files, version):
    new, old = files
    make(new, old, version)
    Log(sqlite_file(old)).close()
    before = old.read_bytes()
    Log(sqlite_file(old)).close()
    assert old.read_bytes() == before


class Failing:
    """A connection that breaks at the statement with these words."""

    def __init__(self, file, words):
        self.db, self.words = sqlite_file(file)(), words

    def execute(self, sql, parameters=()):
        if self.words in sql:
            raise sqlite3.OperationalError("disk I/O error")
        return self.db.execute(sql, parameters)

    def close(self):
        self.db.close()


@older
@pytest.mark.parametrize("words", ["DROP INDEX log_by_user", "INDEX log_by_stretch", "UPDATE meta", "COMMIT"])
def test_a_store_that_could_not_be_brought_up_to_date_is_what_it_was(files, version, words):
    new, old = files
    make(new, old, version)
    before = layout(old)
    with pytest.raises(StoreUnavailable, match="disk I/O error"):
        Log(partial(Failing, old, words))
    assert layout(old) == before
    with closing(sqlite3.connect(old)) as tool, Log(sqlite_file(new)) as of_today:
        of_ann = "SELECT seq FROM log INDEXED BY log_by_user WHERE loop = 'shop' AND user = 'ann' ORDER BY seq"
        assert [seq for (seq,) in tool.execute(of_ann)] == [entry.seq for entry in of_today.of_user("shop", "ann")]
    Log(sqlite_file(old)).close()
    assert layout(old) == layout(new)


@older
def test_no_power_cut_while_a_store_is_brought_up_to_date_loses_a_record(files, version):
    new, old = files
    make(new, old, version, n_records=600)
    with Log(sqlite_file(new)) as log:
        entries = log.read(limit=EVERYTHING)
    disk, rng = Disk({"log": old.read_bytes()}), random.Random(version)
    Log(disk.connect).close()
    disk.unregister()
    assert len(disk.trace) > 20
    for point in range(len(disk.trace) + 1):
        assert recovered(disk.cut(point, rng)) == entries


@older
def test_a_damaged_older_store_is_left_as_it_is(files, version):
    new, old = files
    make(new, old, version)
    content = bytearray(old.read_bytes())
    content[20 * 4096 : 21 * 4096] = bytes(4096)
    old.write_bytes(content)
    before = layout(old)
    with pytest.raises(StoreUnavailable, match="damaged"):
        Log(sqlite_file(old))
    assert layout(old) == before

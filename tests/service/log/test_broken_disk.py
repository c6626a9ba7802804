"""Disks that are full, fail, are read-only, damaged or locked: nothing is acknowledged that is not stored."""

import random
import sqlite3
import subprocess
import sys

import apsw
import pytest
from power_cut_vfs import EVERYTHING, Disk, recovered

from service.log.protocol import StoreUnavailable
from service.log.records import Record
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file


def rank(event, body=b"{}"):
    return Record("shop", "rank", event, "u", None, body)


def code_of(log, record):
    """Return why a record was not stored."""
    with pytest.raises(StoreUnavailable) as raised:
        log.append([[record]])
    return raised.value.code


@pytest.fixture
def disk():
    disk = Disk()
    yield disk
    disk.unregister()


@pytest.mark.parametrize(
    ("operation", "error", "code"),
    [
        ("write", apsw.SQLITE_FULL, "full"),
        ("write", apsw.SQLITE_IOERR_WRITE, "io"),
        ("sync", apsw.SQLITE_IOERR_FSYNC, "io"),
    ],
)
def test_a_failure_is_told_and_the_store_works_again_once_it_has_passed(disk, operation, error, code):
    with SqliteLog(disk.connect) as log:
        assert log.append([[rank("before")]]) == [1]
        disk.faults[operation] = apsw.exception_for(error)
        assert code_of(log, rank("during")) == code
        assert log.append([[rank("after")]]) == [2]
        assert [entry.event for entry in log.read("shop")] == ["before", "after"]


def append_through_a_failure(disk, at, error):
    """Return (event, length of the trace) for each acknowledged rank, of pairs; operation ``at`` fails."""
    disk.faults[at] = apsw.exception_for(error)
    log, acknowledged, n_failures = None, [], 0
    for pair in ((rank(f"{i}a"), rank(f"{i}b", bytes(9_000))) for i in range(7)):
        try:
            log = log or SqliteLog(disk.connect)
            log.append([pair])
            acknowledged += [(record.event, len(disk.trace)) for record in pair]
        except StoreUnavailable:
            n_failures += 1
    log.close()
    return acknowledged, n_failures


@pytest.mark.parametrize("error", [apsw.SQLITE_FULL, apsw.SQLITE_IOERR])
def test_whichever_operation_fails_nothing_acknowledged_is_lost_even_by_a_power_cut_later(error):
    rng = random.Random(0)
    for at in range(1, EVERYTHING):
        disk = Disk()
        acknowledged, n_failures = append_through_a_failure(disk, at, error)
        for point in (len(disk.trace), rng.randint(0, len(disk.trace))):
            kept = [entry.event for entry in recovered(disk.cut(point, rng))]
            assert [event for event, when in acknowledged if when <= point and event not in kept] == []
            assert [event[0] for event in kept[::2]] == [event[0] for event in kept[1::2]], "half a group"
        disk.unregister()
        assert n_failures <= 1
        if at in disk.faults:  # the run had fewer operations
            break
    assert at > 100


def test_a_full_store_accepts_records_again_when_there_is_room(tmp_path):
    room = {"pages": 20}

    def connect():
        connection = sqlite_file(tmp_path / "log.db")()
        list(connection.execute(f"PRAGMA max_page_count = {room['pages']}"))
        return connection

    with SqliteLog(connect) as log:
        assert log.append([[rank("small")]]) == [1]
        assert code_of(log, rank("large", bytes(100_000))) == "full"
        room["pages"] = 1_000
        assert log.append([[rank("large", bytes(100_000))]]) == [2]


LIMITED = """
import resource, sys
from service.log.protocol import StoreUnavailable
from service.log.records import Record
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file

group = lambda event, size: [Record("shop", "rank", event, None, None, bytes(size))]
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
with SqliteLog(sqlite_file(sys.argv[1])) as log:
    print(*log.append([group("a", 10)]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most))
    try:
        log.append([group("b", 300_000)])
    except StoreUnavailable as error:
        print(error.code)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    print(*log.append([group("b", 300_000)]))
"""


def test_a_write_that_the_system_refuses_is_told_and_can_be_tried_again(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "log.db")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["1", "io", "2"]
    with SqliteLog(sqlite_file(tmp_path / "log.db"), verify=True) as log:
        assert [entry.event for entry in log.read("shop")] == ["a", "b"]


def test_a_read_only_file_can_be_read_and_says_why_it_takes_nothing(tmp_path):
    file = tmp_path / "log.db"
    mode = {"mode": "rwc"}

    def connect():
        return sqlite3.connect(f"{file.as_uri()}?mode={mode['mode']}", uri=True, isolation_level=None)

    with SqliteLog(connect) as log:
        log.append([[rank("a")]])
    mode["mode"] = "ro"
    with SqliteLog(connect) as log:
        assert [entry.event for entry in log.read("shop")] == ["a"]
        with pytest.raises(StoreUnavailable, match="readonly") as raised:
            log.append([[rank("b")]])
        assert raised.value.code == "readonly"
        mode["mode"] = "rw"
        assert log.append([[rank("b")]]) == [2]


@pytest.mark.parametrize("where", [0.25, 0.5, 0.75])
def test_damage_in_the_middle_of_the_file_is_found_when_asked_for_and_left_as_it_is(tmp_path, where):
    file = tmp_path / "log.db"
    with SqliteLog(sqlite_file(file)) as log:
        log.append([[rank(f"e{i}", bytes(500)) for i in range(300)]])
    damaged = bytearray(file.read_bytes())
    start = int(where * len(damaged))
    damaged[start : start + 8_192] = random.Random(0).randbytes(8_192)
    file.write_bytes(damaged)
    with pytest.raises(StoreUnavailable, match=r"log\.db is damaged") as raised:
        SqliteLog(sqlite_file(file), verify=True)
    assert raised.value.code == "damaged"
    assert file.read_bytes() == damaged
    with SqliteLog(sqlite_file(file)) as log, pytest.raises(StoreUnavailable) as raised:
        log.read("shop", 0, EVERYTHING)
    assert raised.value.code == "damaged"


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_lock_of_another_process_is_waited_for_and_then_told(tmp_path):
    file = tmp_path / "log.db"
    with SqliteLog(sqlite_file(file, busy_seconds=0.05)) as log:
        command = [sys.executable, "-c", HOLDER, str(file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout.readline() == b"locked\n"
            assert code_of(log, rank("a")) == "busy"
            assert log.read("shop") == []
        assert log.append([[rank("a")]]) == [1]

"""Only one connection at a time commits to a file of the store or checkpoints it, in all processes of a service.

Versions of SQLite before 3.51.3 may lose pages where one connection checkpoints while another commits
(https://sqlite.org/wal.html#walresetbug).
"""

import itertools
import sys

from serving import serving, until

TRACED = """
import itertools, os, re, sqlite3, sys, time
from pathlib import Path

FILE = os.open(sys.argv.pop(), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
CHANGES = re.compile(
    r"\\s*(BEGIN IMMEDIATE|COMMIT|INSERT|REPLACE|UPDATE|DELETE|CREATE|PRAGMA (wal_ch|incremental))", re.I)
connect, numbers = sqlite3.connect, itertools.count()


def traced(path, *more, **options):
    db = connect(path, *more, **options)
    name = f"{os.getpid()}-{next(numbers)}"

    def note(statement):
        if CHANGES.match(statement):
            line = f"{time.monotonic_ns()} {name} {Path(path).name} {statement[:30]!r}\\n"
            os.write(FILE, line.encode())

    db.set_trace_callback(note)
    return db


sqlite3.connect = traced
from service.__main__ import main
main()
"""
ACTIONS = [{"id": "tea"}, {"id": "juice"}]


def spans(trace):
    """Return by file the time from the first to the last change of each connection."""
    files = {}
    for line in trace.read_text().splitlines():
        at, connection, file, _ = line.split(" ", 3)
        first, _ = files.setdefault(file, {}).get(connection, (int(at), 0))
        files[file][connection] = first, int(at)
    return files


def overlapping(spans_of_file):
    ordered = sorted(spans_of_file.values())
    return [pair for pair in itertools.pairwise(ordered) if pair[0][1] > pair[1][0]]


def test_connections_are_told_apart():
    assert overlapping({"a": (1, 3), "b": (4, 4)}) == []
    assert overlapping({"a": (1, 3), "b": (2, 2)})


def test_one_connection_at_a_time_changes_each_file(tmp_path):
    trace = tmp_path / "trace"
    with serving(tmp_path, str(trace), command=(sys.executable, "-c", TRACED)) as service:
        for k in range(30):
            rank = {"actions": ACTIONS, "user": f"u{k % 5}", "event_id": f"e{k}"}
            assert service.ask("/v1/rank", "POST", json=rank).status_code == 200
            assert service.ask(f"/v1/events/e{k}/reward", "POST", json={"value": 1}).status_code == 204
        for k in range(3):
            assert service.ask(f"/v1/users/u{k}", "DELETE").status_code == 204
        snapshots = "fedres_snapshots_total"
        until(
            lambda: any(
                line.startswith(snapshots) and not line.endswith(" 0.0")
                for line in service.ask("/metrics").text.splitlines()
            )
        )
        assert service.ask("/v1/rank", "POST", json={"actions": ACTIONS}).status_code == 200
    changes = spans(trace)
    log, models = (next(changes[name] for name in changes if name.endswith(end)) for end in (".db", "-models"))
    assert len(log) >= 1
    assert len(models) >= 2, "the learner and the process that writes a snapshot for it"
    assert {file: overlapping(found) for file, found in changes.items()} == {key: [] for key in changes}

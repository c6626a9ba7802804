"""The process that writes: every answer true, from whatever thread it is asked, and whoever dies."""

import asyncio
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from functools import partial

import pytest

from service.store import Duplicate, Lease, Log, Record, Refused, StoreUnavailable, Writer, sqlite_file, writer
from service.store.writing import MOVE_AFTER, MOVE_ANYWAY, Append, Done, Erase, Failed, Frames, Stored, Writing, framed

SOON = 30  # seconds after which an answer is not waited for any more


def rank(event, body=b"{}", user=None):
    return Record("shop", "rank", event, user, body)


def stored(file):
    with Log(sqlite_file(file)) as log:
        return [entry.event for entry in log.read(0, 10_000)]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "log.db"


@pytest.fixture
def writing(file):
    with Writer(sqlite_file(file), clock=iter(range(1_000)).__next__) as writer:
        yield writer


@contextmanager
def locked(file):
    """Keep others from writing."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


async def outcomes(futures):
    return await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), SOON)


def test_a_thread_that_waits_is_told_the_positions(writing, file):
    assert writing.append([rank("a"), rank("b")]) == [1, 2]
    assert stored(file) == ["a", "b"]


def test_what_an_event_loop_submits_is_answered_each_on_its_own_and_in_order(writing, file):
    async def story():
        bad = [rank("a"), rank("\ud800"), Record("", "rank", "c", None, b"{}")]
        records = [rank("a"), *bad, rank("b", b"x" * 5_000), rank("c")]
        return await outcomes([writing.submit_async(record) for record in records])

    first, *refused, b, c = asyncio.run(story())
    assert (first, b, c) == (1, 2, 3)
    assert [type(error) for error in refused] == [Duplicate, Refused, Refused]
    assert refused[0].seq == 1
    assert stored(file) == ["a", "b", "c"]


def test_those_who_listen_are_told_what_is_durable_with_the_time_of_the_log(file):
    heard = []
    with Writer(sqlite_file(file), clock=iter([7, 5, 9]).__next__) as writing:
        writing.appended = heard.extend
        for event in "abc":
            writing.append([rank(event)])
    with Log(sqlite_file(file)) as log:
        assert heard == log.read()
    assert [entry.time for entry in heard] == [7, 7, 9]


class Marked(bytes):
    """A body that carries something for those who are told of it."""


def test_a_body_of_a_class_derived_from_bytes_is_stored_and_those_who_listen_get_it_back(writing, file):
    heard, body = [], Marked(b'{"a": 1}')
    writing.appended = heard.extend
    writing.append([rank("a", body)])
    assert heard[0].body is body
    with Log(sqlite_file(file)) as log:
        assert heard == log.read()


def test_more_than_a_socket_holds_goes_through_from_loop_and_thread(writing, file):
    bodies = [bytes([97 + k]) * 3_000_000 for k in range(4)]

    async def story():
        futures = [writing.submit_async(rank(f"l{k}", body)) for k, body in enumerate(bodies)]
        return await outcomes(futures)

    assert asyncio.run(story()) == [1, 2, 3, 4]
    assert writing.append([rank(f"t{k}", body) for k, body in enumerate(bodies)]) == [5, 6, 7, 8]
    with Log(sqlite_file(file)) as log:
        assert [entry.body for entry in log.read()] == bodies * 2


def test_a_thread_is_answered_while_the_event_loop_is_held_up(writing):
    async def story():
        pending = writing.submit_async(rank("loop"))
        await asyncio.sleep(0)  # it is sent at the end of this turn
        thread = threading.Thread(target=writing.append, args=([rank("thread")],))
        thread.start()
        thread.join(SOON)
        assert not thread.is_alive()
        return await asyncio.wait_for(pending, SOON)

    assert asyncio.run(story()) == 1


def test_it_can_be_used_from_one_event_loop_after_another(writing):
    async def story(event):
        return await asyncio.wait_for(writing.submit_async(rank(event)), SOON)

    assert [asyncio.run(story(event)) for event in "abc"] == [1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no such policy to ask for")
def test_the_process_takes_no_processor_from_who_runs_and_who_asks_is_as_before(writing):
    before = os.sched_getscheduler(0)
    writing.append([rank("a")])
    assert os.sched_getscheduler(writing.pid) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == before


def test_a_user_is_erased_and_others_are_kept(writing, file):
    writing.append([rank("a", user="ann"), rank("b", user="ben"), Record("shop", "reward", "a", None, b"1")])
    assert writing.erase("shop", "ann", [Record("shop", "base", None, "ben", b"model")], 0) == 2
    with Log(sqlite_file(file)) as log:
        assert [(entry.kind, entry.user) for entry in log.read()] == [
            ("rank", "ben"),
            ("base", "ben"),
            ("erased", None),
        ]


def test_a_store_that_is_locked_is_a_failure_of_these_records_alone(file):
    with Writer(sqlite_file(file, busy_seconds=0.01), clock=lambda: 0) as writing:
        writing.append([rank("a")])
        with locked(file), pytest.raises(StoreUnavailable) as refused:
            writing.append([rank("b")])
        assert refused.value.code == "busy"
        assert writing.append([rank("c")]) == [2]


def test_who_waits_for_a_process_that_is_killed_is_told_and_the_next_one_finds_another(file, monkeypatch):
    monkeypatch.setattr(writer, "REST", 0.0)

    async def story(writing):
        await writing.submit_async(rank("a"))
        with locked(file):
            pending = [writing.submit_async(rank(event)) for event in "bc"]
            await asyncio.sleep(0)
            os.kill(writing.pid, signal.SIGKILL)
            lost = await outcomes(pending)
        assert [error.code for error in lost] == ["gone", "gone"]
        return await asyncio.wait_for(writing.submit_async(rank("d")), SOON)

    with Writer(sqlite_file(file), clock=lambda: 0) as writing:
        assert asyncio.run(story(writing)) == 2
    assert stored(file) == ["a", "d"]


def test_a_process_that_cannot_live_is_not_started_all_the_time(file, monkeypatch):
    monkeypatch.setattr(writer, "REST", 3_600.0)
    with Writer(sqlite_file(file), clock=lambda: 0) as writing:
        process = writing.pid
        os.kill(process, signal.SIGKILL)
        for event in "ab":
            with pytest.raises(StoreUnavailable) as refused:
                writing.append([rank(event)])
            assert refused.value.code == "gone"
        assert writing.pid is None


def test_too_many_that_wait_are_refused_and_after_the_end_all_are(file):
    with Writer(sqlite_file(file), clock=lambda: 0, max_waiting=2) as writing:
        with pytest.raises(StoreUnavailable) as refused:
            writing.append([rank(event) for event in "abc"])
        assert refused.value.code == "overloaded"
    with pytest.raises(StoreUnavailable) as refused:
        writing.append([rank("d")])
    assert refused.value.code == "closed"


def test_closing_answers_all_that_was_taken(file):
    async def story():
        writing = Writer(sqlite_file(file), clock=lambda: 0)
        pending = [writing.submit_async(rank(str(k))) for k in range(500)]
        await asyncio.to_thread(writing.close)
        return await outcomes(pending)

    assert asyncio.run(story()) == list(range(1, 501))


HOLDER = """
import os, sys
from service.store import Lease, Record, Writer, sqlite_file
from service.store.waiting import Blocking, Submitted

lease = Lease(sys.argv[1])
lease.acquire()
writing = Writer(sqlite_file(sys.argv[1]), clock=lambda: 0, files=[lease.file])
writing.append([Record("shop", "rank", "a", None, b"{}")])
print("stored", flush=True)
os.read(0, 1)
writing._gather(Submitted([Record("shop", "rank", "b", None, b"{}")], Blocking()))
writing._send_gathered()
os.kill(os.getpid(), 9)
"""


def test_the_lease_outlives_a_killed_holder_until_its_last_batch_is_written(file):
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(file)], stdin=-1, stdout=-1) as holder:
        assert holder.stdout.readline() == b"stored\n"
        with locked(file):
            holder.communicate(b"!")
            assert is_held(Lease(file).path)
        with Lease(file):  # waits for what the dead one left behind
            assert stored(file) == ["a", "b"]


def is_held(path):
    with path.open() as lease:
        try:
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_messages_are_cut_where_they_end_however_they_come():
    messages = [framed(Append(k, [rank("a", b"x" * k)])) for k in (0, 10, 300)]
    data, frames = b"".join(messages), Frames()
    found = [frame for k in range(0, len(data), 7) for frame in frames.feed(data[k : k + 7])]
    assert found == [message[4:] for message in messages]


def test_appends_that_come_together_are_one_transaction_and_are_answered_each(file):
    begun = []

    class Counted(sqlite3.Connection):
        def execute(self, sql, parameters=()):
            begun.extend([sql] * sql.startswith("BEGIN"))
            return super().execute(sql, parameters)

    writing = Writing(partial(sqlite_file(file), factory=Counted))
    begun.clear()
    first = writing.carry_out([Append(1, [rank("a"), rank("b")]), Append(2, [rank("a"), rank("c")])])
    assert first == [Stored(2, [1, 2]), Stored(2, [(first[1].outcomes[0][0], 1), 3])]
    assert len(begun) == 2  # the tables, and these
    assert writing.carry_out([Erase(3, "shop", "ann", [], 0), Append(3, [])]) == [Done(0), Stored(3, [])]


def test_what_was_written_is_moved_to_the_file_when_there_is_much_of_it_and_nobody_waits(file):
    writing = Writing(sqlite_file(file))
    writing.carry_out([Append(0, [rank("a", b"moved" * (MOVE_AFTER // 5))])])
    assert not writing.should_move(lambda: False)
    writing.carry_out([Append(0, [rank("b", b"moved")])])
    assert not writing.should_move(lambda: True)
    assert writing.should_move(lambda: False)
    assert b"movedmoved" not in file.read_bytes()
    writing.move()
    assert b"movedmoved" in file.read_bytes()
    assert not writing.should_move(lambda: False)


def test_very_much_is_moved_whoever_waits(file):
    writing = Writing(sqlite_file(file))
    writing.carry_out([Append(0, [rank("a", b"a" * MOVE_ANYWAY)])])
    assert writing.should_move(lambda: True)


def test_a_store_that_cannot_be_opened_is_tried_again_with_the_next_order(tmp_path):
    folder = tmp_path / "later"
    writing = Writing(sqlite_file(folder / "log.db"))
    [failed] = writing.carry_out([Append(0, [rank("a")])])
    assert isinstance(failed, Failed)
    assert failed.code == "io"
    folder.mkdir()
    assert writing.carry_out([Append(0, [rank("a")])]) == [Stored(0, [1])]

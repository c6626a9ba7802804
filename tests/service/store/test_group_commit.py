"""Group commit: many submitters, one sync, and every answer true."""

import asyncio
import random
import subprocess
import sys
import threading
from concurrent.futures import wait

import pytest

from service.store import Duplicate, GroupCommit, Log, Record, Refused, StoreUnavailable, sqlite_file

SOON = 30  # seconds after which an answer is not waited for any more


def rank(event, body=b"{}"):
    return Record("shop", "rank", event, None, body)


@pytest.fixture
def log(tmp_path):
    with Log(sqlite_file(tmp_path / "log.db")) as log:
        yield log


class HeldLog:
    """A log whose appends wait for ``go``, so that a test can fill the queue; counts the batches."""

    def __init__(self, log):
        self.log, self.go, self.started, self.sizes = log, threading.Event(), threading.Event(), []

    def append(self, records):
        self.started.set()
        assert self.go.wait(SOON)
        self.sizes.append(len(records))
        return self.log.append(records)


def occupied(held, commits):
    """Return the future of a record that is being committed, so that the next ones have to wait."""
    future = commits.submit(rank("first"))
    assert held.started.wait(SOON)
    return future


def test_a_lone_record_is_committed_at_once(log):
    with GroupCommit(log) as commits:
        assert commits.submit(rank("a")).result(SOON) == 1
        assert [entry.event for entry in log.read()] == ["a"]


def test_records_that_gather_during_a_commit_share_the_next_one(log):
    held = HeldLog(log)
    with GroupCommit(held, max_batch=70) as commits:
        futures = [occupied(held, commits)] + [commits.submit(rank(f"e{i}")) for i in range(100)]
        held.go.set()
        assert [future.result(SOON) for future in futures] == list(range(1, 102))
    assert held.sizes == [1, 70, 30]


def test_answers_come_in_the_order_of_submission(log):
    answered = []
    with GroupCommit(log, max_batch=7) as commits:
        for i in range(100):
            commits.submit(rank(f"e{i}")).add_done_callback(lambda future: answered.append(future.result()))
    assert answered == list(range(1, 101))


def test_one_bad_record_fails_alone(log):
    held = HeldLog(log)
    with GroupCommit(held) as commits:
        first = occupied(held, commits)
        others = [commits.submit(rank(f"e{i}")) for i in range(99)]
        twice, wrong = commits.submit(rank("first")), commits.submit(rank("x", body=None))
        held.go.set()
        assert first.result(SOON) == twice.exception(SOON).seq == 1
        assert isinstance(twice.exception(), Duplicate)
        assert type(wrong.exception(SOON)) is Refused
        assert [future.result(SOON) for future in others] == list(range(2, 101))
    assert held.sizes == [1, 101]


def test_eight_threads_get_true_answers(log):
    seqs = {}
    with GroupCommit(log, max_batch=5) as commits:

        def submit(name):
            for i in range(50):
                seqs[f"{name}-{i}"] = commits.submit(rank(f"{name}-{i}")).result(SOON)

        threads = [threading.Thread(target=submit, args=[name]) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {entry.event: entry.seq for entry in log.read()} == seqs
    assert len(seqs) == 400


def test_closing_answers_all_that_were_taken_and_takes_no_more(log):
    held = HeldLog(log)
    commits = GroupCommit(held, max_batch=10)
    futures = [occupied(held, commits)] + [commits.submit(rank(f"e{i}")) for i in range(95)]
    closing = threading.Thread(target=commits.close)
    closing.start()
    held.go.set()
    closing.join(SOON)
    assert all(future.done() for future in futures)
    assert [entry.seq for entry in log.read()] == [future.result() for future in futures]
    with pytest.raises(StoreUnavailable, match="no more records") as raised:
        commits.submit(rank("late"))
    assert raised.value.code == "closed"


def test_too_many_waiting_records_are_turned_away_at_once(log):
    held = HeldLog(log)
    with GroupCommit(held, max_waiting=3) as commits:
        taken = [occupied(held, commits)] + [commits.submit(rank(f"e{i}")) for i in range(3)]
        with pytest.raises(StoreUnavailable, match="3 records are waiting") as raised:
            commits.submit(rank("too many"))
        assert raised.value.code == "overloaded"
        held.go.set()
        assert wait(taken, SOON).not_done == set()
        assert commits.submit(rank("again")).result(SOON) == 5


def test_a_cancelled_record_is_not_stored_and_disturbs_nobody(log):
    held = HeldLog(log)
    with GroupCommit(held) as commits:
        first, cancelled, last = occupied(held, commits), commits.submit(rank("b")), commits.submit(rank("c"))
        assert cancelled.cancel()
        held.go.set()
        assert [first.result(SOON), last.result(SOON)] == [1, 2]
    assert [entry.event for entry in log.read()] == ["first", "c"]


def test_an_unforeseen_error_reaches_every_caller_and_stops_nothing(tmp_path):
    times = iter([1])
    with Log(sqlite_file(tmp_path / "log.db"), clock=lambda: next(times)) as log, GroupCommit(log) as commits:
        assert commits.submit(rank("a")).result(SOON) == 1
        for event in "bc":
            error = commits.submit(rank(event)).exception(SOON)
            assert (type(error), error.code) == (StoreUnavailable, "failed")
        times = iter([2])
        assert commits.submit(rank("d")).result(SOON) == 2


def test_an_event_loop_is_woken_once_per_batch(log):
    held, wakes = HeldLog(log), []

    async def submit_many():
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *call: (wakes.append(1), wake(*call))
        first = commits.submit_async(rank("a"))
        assert held.started.wait(SOON)
        rest = [commits.submit_async(rank(event)) for event in "bcad"]
        rest[1].cancel()
        held.go.set()
        return await asyncio.gather(first, *rest, return_exceptions=True)

    with GroupCommit(held) as commits:
        a, b, c, again, d = asyncio.run(submit_many())
    assert [a, b, d] == [1, 2, 3]
    assert isinstance(c, asyncio.CancelledError)
    assert isinstance(again, Duplicate)
    assert len(wakes) == len(held.sizes) == 2


class Noting:
    """Notes what it is told, and where; stops the event loop with the last of ``n``, and may break."""

    def __init__(self, loop, heard, n, *, broken=False):
        self._loop, self._heard, self._n, self._broken = loop, heard, n, broken

    def get_loop(self):
        return self._loop

    def starts(self):
        return True

    def settle(self, outcomes):
        self._heard.append((list(outcomes), asyncio.get_running_loop() is self._loop))
        if len(self._heard) == self._n:
            self._loop.stop()
        if self._broken:
            raise RuntimeError("a broken waiter")


def test_what_an_event_loop_hands_over_is_committed_together_and_all_are_told(log, caplog):
    held, heard, loop = HeldLog(log), [], asyncio.new_event_loop()

    def submit():
        for n in range(3):
            commits.submit_all([rank(f"e{n}{k}") for k in range(2)], Noting(loop, heard, 3, broken=n == 0))
        held.go.set()

    with GroupCommit(held) as commits:
        occupied(held, commits)
        loop.call_soon(submit)
        loop.call_later(SOON, loop.stop)
        loop.run_forever()
        loop.close()
    assert heard == [([2, 3], True), ([4, 5], True), ([6, 7], True)]
    assert held.sizes == [1, 6]
    assert "an answer was lost" in caplog.text


def test_records_submitted_together_are_in_one_commit_however_full_it_is(log):
    async def story():
        first = asyncio.wrap_future(occupied(held, commits))
        others = [commits.submit_async(rank(f"e{i}")) for i in range(2)]
        together = [commits.submit_together([rank(f"{name}{i}") for i in range(4)]) for name in "tu"]
        held.go.set()
        assert await asyncio.gather(first, *others, *together) == [1, 2, 3, 7, 11]

    held = HeldLog(log)
    with GroupCommit(held, max_batch=3) as commits:
        asyncio.run(story())
    assert held.sizes == [1, 6, 4]


def test_records_submitted_together_are_turned_away_together(log):
    async def story():
        first = asyncio.wrap_future(occupied(held, commits))
        with pytest.raises(StoreUnavailable, match="3 records are waiting"):
            commits.submit_together([rank(f"t{i}") for i in range(4)])
        held.go.set()
        await first

    held = HeldLog(log)
    with GroupCommit(held, max_waiting=3) as commits:
        asyncio.run(story())
    assert [entry.event for entry in log.read()] == ["first"]


def test_who_submits_together_hears_of_the_first_failure_and_withdraws_nothing(log):
    async def story():
        first = asyncio.wrap_future(occupied(held, commits))
        cancelled = commits.submit_together([rank("a"), rank("b")])
        failed = commits.submit_together([rank("c"), rank("first"), rank("d", body=None)])
        cancelled.cancel()
        held.go.set()
        await first
        with pytest.raises(Duplicate, match="got 'first'"):
            await failed

    held = HeldLog(log)
    with GroupCommit(held) as commits:
        asyncio.run(story())
    assert [entry.event for entry in log.read()] == ["first", "a", "b", "c"]


def test_an_event_loop_that_ended_is_no_hindrance(log):
    held = HeldLog(log)

    async def submit_and_leave():
        commits.submit_async(rank("a"))
        assert held.started.wait(SOON)

    with GroupCommit(held) as commits:
        asyncio.run(submit_and_leave())
        held.go.set()
        assert commits.submit(rank("b")).result(SOON) == 2


def test_erasing_takes_turns_with_commits(log):
    with GroupCommit(log, max_batch=3) as commits:
        futures = [commits.submit(rank(f"e{i}")._replace(user=f"u{i % 2}")) for i in range(60)]
        futures[30].result(SOON)
        n_erased = log.erase("shop", "u0")
        assert wait(futures, SOON).not_done == set()
    assert n_erased + len(log.of_user("shop", "u0")) == 30
    assert n_erased >= 15
    assert len(log.of_user("shop", "u1")) == 30


SUBMITTER = """
import itertools, sys, threading
from service.store import GroupCommit, Log, Record, sqlite_file

def submit(name):
    for i in itertools.count():
        event = f"{sys.argv[2]}-{name}-{i}"
        seq = commits.submit(Record("shop", "rank", event, None, bytes(2_000))).result()
        sys.stdout.write(f"{seq} {event}\\n")
        sys.stdout.flush()

with Log(sqlite_file(sys.argv[1])) as log, GroupCommit(log) as commits:
    threads = [threading.Thread(target=submit, args=[name]) for name in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path):
    file, rng, told = tmp_path / "log.db", random.Random(0), {}
    for attempt in range(3):
        command = [sys.executable, "-c", SUBMITTER, str(file), str(attempt)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            lines = [process.stdout.readline() for _ in range(rng.randint(20, 200))]
            process.kill()
            lines += process.stdout.readlines()
        told |= dict(line.split() for line in lines if line.endswith("\n"))
    with Log(sqlite_file(file), check=True) as log:
        stored = {str(entry.seq): entry.event for entry in log.read(limit=100_000)}
    assert len(told) >= 60
    assert told.items() <= stored.items()

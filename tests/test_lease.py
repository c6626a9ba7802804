"""The lease: one holder, in whatever process, freed when that process dies."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from fedres.lease import Lease, LeaseHeld

HOLDER = """
import os, sys
from fedres.lease import Lease
lease = Lease(sys.argv[1])
lease.acquire()
if sys.argv[2] == "alone" or os.fork() == 0:
    os.write(1, b"%d\\n" % os.getpid())
os.read(0, 1)
"""


@contextmanager
def holder(store, how):
    """Yield a process that holds the lease, and the process that said so: itself ("alone"), or its child ("forked")."""
    command = [sys.executable, "-c", HOLDER, str(store), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process, int(process.stdout.readline())


@pytest.fixture
def store(tmp_path):
    return tmp_path / "log.db"


def test_the_second_holder_is_told_who_is_the_first_and_gets_the_lease_when_that_is_killed(store):
    with holder(store, "alone") as (process, _):
        with pytest.raises(LeaseHeld, match=f"one holder, and process {process.pid} has it") as raised:
            Lease(store).acquire()
        assert raised.value.pid == process.pid
        lease = Lease(store)
        waiting = threading.Thread(target=lease.acquire, args=[30])
        waiting.start()
        process.send_signal(signal.SIGKILL)
        waiting.join()
    with pytest.raises(LeaseHeld) as raised:
        Lease(store).acquire()
    assert raised.value.pid == os.getpid()
    lease.release()


def test_a_fork_of_the_holder_does_not_keep_the_lease_alive(store):
    with holder(store, "forked") as (process, child):
        with pytest.raises(LeaseHeld) as raised:
            Lease(store).acquire()
        assert raised.value.pid == process.pid != child
        process.kill()
        process.wait()
        os.kill(child, 0)  # still runs
        with Lease(store):
            pass


def test_a_lease_is_free_after_its_release_and_by_whatever_name_the_store_goes(store, tmp_path):
    store.touch()
    (tmp_path / "link.db").symlink_to(store)
    with Lease(store) as lease, pytest.raises(LeaseHeld):
        Lease(tmp_path / "link.db").acquire(wait_seconds=0.01)
    lease.release()
    with Lease(tmp_path / "link.db"), Lease(tmp_path / "another.db"):
        pass


def test_a_lease_refuses_to_wait_a_negative_time(store):
    with pytest.raises(ValueError, match="wait_seconds must be at least 0 and finite, got -1"):
        Lease(store).acquire(wait_seconds=-1)


def test_a_lease_that_was_removed_is_taken_anew_by_whoever_waits(store):
    lease, other, third = Lease(store), Lease(store), Lease(store)
    lease.acquire()
    waiting = threading.Thread(target=other.acquire, args=(60.0,))
    waiting.start()
    lease.remove()
    lease.release()
    waiting.join()
    with pytest.raises(LeaseHeld):
        third.acquire()
    other.release()
    assert other.path.exists()

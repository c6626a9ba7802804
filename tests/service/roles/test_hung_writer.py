"""A log writer that does not answer, or whose disk is full: callers are told, and the service can be ended."""

import os
import resource
import signal
import sys
from contextlib import contextmanager

import pytest
from serving import has_ended, serving
from waiting import LIMIT, until

IMPATIENT = """
from service.log import client
from service.roles import supervisor
client.DEADLINE_SECONDS, client.LOOK_SECONDS = 0.5, 0.05
supervisor.DRAIN_SECONDS = 2.0
from service.__main__ import main
main()
"""
RANK = {"actions": [{"id": "tea", "features": {"hot": True}}]}


@contextmanager
def impatient_service(folder):
    with serving(folder, command=(sys.executable, "-c", IMPATIENT)) as running:
        yield running


@contextmanager
def stopped(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def full_disk(pid):
    """Let the system refuse the log writer to write at all."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def is_ready(service):
    return service.ask("/readyz").status_code == 200


def decides(service):
    return service.ask("/v1/rank", "POST", json=RANK).status_code == 200


def refusal(service):
    """Return status and code of a decision that was refused, None if it was not."""
    reply = service.ask("/v1/rank", "POST", json=RANK)
    return None if reply.status_code == 200 else (reply.status_code, reply.json()["error"]["code"])


FAULTS = {"stopped": (stopped, "store_timeout"), "full disk": (full_disk, "store_io")}


@pytest.mark.parametrize(("fault", "code"), FAULTS.values(), ids=FAULTS)
def test_callers_are_told_that_nothing_is_stored_and_a_load_balancer_too(tmp_path, fault, code):
    with impatient_service(tmp_path) as service:
        until(lambda: is_ready(service))
        with fault(service.pid("log")):
            until(lambda: refusal(service) == (503, code), code)  # a slow machine may have another reason before
            assert service.ask("/readyz").json()["error"]["code"] == "not_ready"
            assert service.ask("/healthz").status_code == 200
        until(lambda: is_ready(service))
        until(lambda: decides(service))


def test_a_writer_that_stops_while_nobody_asks_is_noticed(tmp_path):
    with impatient_service(tmp_path) as service:
        with stopped(service.pid("log")):
            until(lambda: not is_ready(service))
        until(lambda: is_ready(service))


def test_a_signal_ends_the_service_although_its_writer_is_stopped(tmp_path):
    with impatient_service(tmp_path) as service:
        pids = [process["pid"] for process in service.processes().values()]
        os.kill(service.pid("log"), signal.SIGSTOP)
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(LIMIT)
        until(lambda: all(map(has_ended, pids)))

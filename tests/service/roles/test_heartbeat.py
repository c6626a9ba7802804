"""A process that gives no sign of life is killed and started again; one that works for long gives signs meanwhile."""

import os
import signal
import sys

import pytest
from serving import serving
from waiting import until

from service.roles.supervisor import Child, Supervisor

IMPATIENT = """
from service.roles import supervisor
supervisor.SILENCE = dict.fromkeys(supervisor.SILENCE, 5.0)
from service.__main__ import main
main()
"""
SPINNING = """
import sys
from pathlib import Path

import numpy as np
from numba import njit

from service.learn.learner import Learner
from service.models.published import PublishedModels

FOLDER = Path(sys.argv.pop())


@njit
def spin(turns):
    while turns[0] >= 0:
        turns[0] = (turns[0] + 1) % 1_000


def spins(role, work):
    def working(*arguments):
        order = FOLDER / f"spin-{role}"
        if order.exists():
            order.unlink()
            spin(np.zeros(1))
        return work(*arguments)

    return working


spin(np.full(1, -1.0))
PublishedModels.loop, Learner.step_log = spins("ranker", PublishedModels.loop), spins("learner", Learner.step_log)
"""
RANK = {"actions": [{"id": "tea"}, {"id": "juice"}]}


@pytest.mark.parametrize("role", ["ranker", "learner", "log"])
def test_a_process_that_hangs_is_started_again(tmp_path, role):
    with serving(tmp_path, command=(sys.executable, "-c", IMPATIENT)) as service:
        pid = service.pid(role)
        os.kill(pid, signal.SIGSTOP)  # as one that hangs in compiled code: no handler of signals runs
        until(lambda: service.pid(role) not in (0, pid))
        assert service.ask("/v1/rank", "POST", json=RANK).status_code == 200
        until(lambda: service.ask("/readyz").status_code == 200)
        assert f"{role} 0 has given no sign of life" in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize("role", ["ranker", "learner"])
def test_a_process_that_spins_in_compiled_code_is_started_again(tmp_path, role):
    """It holds the interpreter, so that no other thread of it runs, and takes all the time it gets."""
    with serving(tmp_path, str(tmp_path), command=(sys.executable, "-c", SPINNING + IMPATIENT)) as service:
        pid = service.pid(role)
        (tmp_path / f"spin-{role}").touch()
        service.ask("/v1/rank", "POST", json=RANK)  # tried again where the ranker that takes it ends
        until(lambda: service.pid(role) not in (0, pid))
        assert not (tmp_path / f"spin-{role}").exists()
        until(lambda: service.ask("/readyz").status_code == 200)
        assert service.ask("/v1/rank", "POST", json=RANK).status_code == 200
        assert f"{role} 0 has given no sign of life" in (tmp_path / "stderr").read_text()


@pytest.fixture
def supervisor(tmp_path):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)}
    made = []

    def make(*children):
        made.append(Supervisor(tmp_path, list(children)))
        return made[0]

    yield make
    made[0].close()
    for number, handler in before.items():
        signal.signal(number, handler)


def spinning(silence, pid):
    return Child("ranker", 0, lambda parent, beat: None, silence=silence, pid=pid)


def test_only_a_process_that_is_silent_for_longer_than_it_may_is_killed_and_only_once(supervisor, monkeypatch):
    killed = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    silent, patient, gone = spinning(-1.0, 11), spinning(1e9, 12), spinning(-1.0, 0)
    watching = supervisor(silent, patient, gone)
    watching.end_silent()
    watching.end_silent()
    assert killed == [(11, signal.SIGKILL)]


def test_a_supervisor_that_was_stopped_itself_kills_nobody(supervisor, monkeypatch):
    killed = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    child = spinning(1e6, 11)
    watching = supervisor(child)
    watching._looked -= 1e7
    child.last_beat.value -= 1e7
    watching.end_silent()
    assert killed == []
    child.last_beat.value -= 1e7
    watching.end_silent()
    assert killed == [11]

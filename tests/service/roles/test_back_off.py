"""How long the supervisor waits before it starts a process again."""

import os

from service.roles.supervisor import BACK_OFF, KILLED_BACK_OFF, back_off

FAILED, KILLED = 1 << 8, 9  # statuses as ``os.wait`` has them


def test_a_process_that_fails_again_and_again_is_started_less_and_less_often():
    assert os.WEXITSTATUS(FAILED) == 1
    waits = [back_off(n, FAILED) for n in range(100)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.0, BACK_OFF[-1])
    assert BACK_OFF[-1] >= 60


def test_a_process_that_was_killed_is_started_again_soon():
    assert max(back_off(n, KILLED) for n in range(100)) == KILLED_BACK_OFF

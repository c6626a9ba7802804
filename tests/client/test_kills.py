"""A device that is killed at any place goes on as if nothing had happened."""

import re
import sys
from pathlib import Path

import forked
import pytest

SCRIPT = Path(__file__).with_name("killed_device.py")


@pytest.mark.parametrize(
    ("learner", "rule", "timing"),
    [
        ("vw", "fedres-adagrad", "immediate"),
        ("linear", "fedres-adagrad", "aligned"),
        ("linear", "fedomd", "aligned"),
    ],
)
def test_a_killed_device_has_lost_nothing_and_resumes_to_the_bit(tmp_path, learner, rule, timing):
    command = [sys.executable, SCRIPT, tmp_path, learner, rule, timing, "0"]
    done = forked.run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"killed (\d+) times", done.stdout)[1]) > 5

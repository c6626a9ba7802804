"""The campaigns that ``make test`` leaves out start, and say what they do."""

import sys
from pathlib import Path

import forked
import pytest

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.mark.parametrize("path", ["faults", "faults/learning_lag.py", "faults/two_machines.py", "hardening"])
def test_a_campaign_has_a_help(path, tmp_path):
    done = forked.run([sys.executable, str(TOOLS / path), "--help"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout

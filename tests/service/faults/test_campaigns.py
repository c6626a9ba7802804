"""The campaigns that ``make test`` leaves out start, and say what they do."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.mark.parametrize("path", ["faults", "faults/learning_lag.py", "faults/two_machines.py", "hardening"])
def test_a_campaign_has_a_help(path, tmp_path):
    command = [sys.executable, str(TOOLS / path), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout

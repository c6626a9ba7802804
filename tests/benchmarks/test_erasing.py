"""The benchmark of erasing runs, and measures something."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_cost_of_erasing_is_printed():
    command = [sys.executable, BENCHMARKS / "erasing.py", "--records", "500"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    figures = {name: float(value) for name, value in (line.split(": ") for line in lines)}
    assert figures["megabytes"] > 0.5
    assert figures["seconds per gigabyte"] > 0

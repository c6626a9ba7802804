"""Runs benchmarks in this process, and what they start as processes that are forked."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from forked import Forked

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture
def run_benchmark(monkeypatch, tmp_path):
    """Return a function that runs a benchmark with options, and returns the figures that it writes."""

    def run(name, *options):
        out = tmp_path / "figures.json"
        module = import_module(name)
        monkeypatch.setattr(subprocess, "Popen", Forked)
        monkeypatch.setattr(sys, "argv", [name, *options, "--json", str(out)])
        module.main()
        return json.loads(out.read_text())

    return run

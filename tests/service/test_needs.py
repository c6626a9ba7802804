"""What a machine lacks skips tests with a reason, and the end of a run counts them."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from needs import needs_program, npm_folder
from proxies import no_service

ROOT = Path(__file__).parents[2]


def test_a_run_ends_with_what_is_missing_and_how_many_tests_that_skipped(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "tests/scoring/test_features.py",
    ]
    env = {**os.environ, "PATH": str(tmp_path)}
    ended = subprocess.run(
        [*command, "-k", "javascript"], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    *_, heading, reason, total = ended.stdout.splitlines()
    assert "skipped tests, by reason" in heading
    assert reason == "    1  needs node (apt-get install nodejs)"
    assert total.startswith("1 skipped")


@needs_program("npm")
def test_a_registry_that_cannot_be_reached_skips_and_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with no_service() as url:
        monkeypatch.setenv("npm_config_registry", url)
        with pytest.raises(pytest.skip.Exception) as skipped:
            npm_folder("unreachable", "typescript@5.9.3")
    assert str(skipped.value) == "needs the registry of npm (ECONNREFUSED)"

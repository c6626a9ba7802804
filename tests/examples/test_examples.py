"""The examples run as they are against a real service."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked import FEDRES, Forked, run

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def url(tmp_path):
    command = [FEDRES, "serve", "--port", "0"]
    with Forked(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        try:
            yield next(found[1] for line in process.stdout if (found := re.search(r"page +(http://\S+)/", line)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (
            ["sh", EXAMPLES / "walkthrough.sh"],
            ['"explanations"', '"results"', '"side"', '"epsilon":0.2', '"constant:tea"'],
        ),
        (
            [sys.executable, EXAMPLES / "walkthrough.py"],
            ["shared by all", "in a batch", "on a page", "epsilon 0.2", "valued"],
        ),
    ],
)
def test_a_walk_through_runs_and_exports_what_evaluate_reads(url, tmp_path, command, shown):
    done = subprocess.run([*command, url], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(text in done.stdout for text in shown)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert sum(event["status"] == "rewarded" for event in events) > 20
    valued = run([FEDRES, "evaluate", "events.jsonl", "--policy", "constant:tea"], cwd=tmp_path, check=True)
    assert "constant:tea" in valued.stdout


def test_a_bandit_in_one_process_learns_what_visitors_like():
    done = subprocess.run([sys.executable, EXAMPLES / "bandit.py"], capture_output=True, text=True, check=True)
    first, last = map(float, re.findall(r"\d\.\d\d", done.stdout))
    assert first < last > 0.8, done.stdout


def test_two_devices_with_one_shared_model_are_each_better_than_alone(url):
    command = [sys.executable, EXAMPLES / "device.py", url]
    done = run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(Ann|Ben) +(\S+) +(\S+)$", done.stdout, re.MULTILINE)
    assert len(rows) == 2
    assert all(float(together) > float(alone) for _, alone, together in rows), done.stdout


def test_prompts_routed_to_language_models_earn_more_than_any_of_these_alone(url):
    done = run([sys.executable, EXAMPLES / "model_routing.py", url])
    assert done.returncode == 0, done.stdout + done.stderr
    rewards = {name: float(reward) for name, reward in re.findall(r"^(\w+) +(-?\d\.\d+) ", done.stdout, re.MULTILINE)}
    assert set(rewards) == {"routed", "small", "large", "coder"}
    assert rewards.pop("routed") > max(rewards.values()) + 0.03, done.stdout

"""The pages on the service and on devices keep their word: their commands run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import forked
from serving import served
from waiting import LIMIT

FOLDER = Path(__file__).parents[2] / "docs"
PAGES = (
    "reference/api.md",
    "reference/slots.md",
    "guides/recommend.md",
    "guides/lift.md",
    "guides/dashboard.md",
    "operate/operations.md",
    "operate/keys.md",
)  # the last one ends with keys, which close the service
DOCS = "".join((FOLDER / name).read_text(encoding="utf-8") for name in PAGES)
DEVICE_PAGES = ("guides/devices.md", "reference/device-protocol.md")
DEVICES = "".join((FOLDER / name).read_text(encoding="utf-8") for name in DEVICE_PAGES)
BLOCKS = re.findall(r"```sh\n(.*?)```", DOCS, flags=re.DOTALL)
STARTS = [block for block in BLOCKS if block.startswith("fedres serve")]
USES = [block for block in BLOCKS if block not in STARTS]


def run(block, url, folder, language="sh"):
    """Run a block of the docs against a service; it must end well and complain of nothing."""
    script = block.replace("http://127.0.0.1:8000", url).replace("curl -s", "curl -sS --fail-with-body")
    if language == "python":
        done = forked.run([sys.executable, "-c", script], cwd=folder)
    else:
        env = {**os.environ, "PATH": forked.path()}
        done = subprocess.run(["sh", "-e", "-c", script], capture_output=True, text=True, cwd=folder, env=env)
    assert (done.returncode, done.stderr) == (0, ""), block + done.stdout
    return done.stdout


def test_its_commands_run_one_after_the_other(tmp_path):
    first, *others = STARTS
    with served(first.split(), tmp_path) as (url, _):
        for block in USES:
            run(block, url, tmp_path)
    for number, command in enumerate(others):
        folder = tmp_path / str(number)
        folder.mkdir()
        with served(command.split(), folder):
            pass
    assert (tmp_path / "model.bin").stat().st_size > 100
    [event] = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines()[-1:])
    assert (event["event_id"], event["reward"]) == ("cup-20", 0.0)


def test_the_commands_and_examples_for_devices_run_one_after_the_other(tmp_path):
    blocks = re.findall(r"```(sh|python)\n(.*?)```", DEVICES, flags=re.DOTALL)
    with served(["fedres", "serve"], tmp_path) as (url, _):
        answers = [
            run(block, url, tmp_path, language)
            for language, block in blocks
            if "examples/" not in block and "benchmarks/" not in block  # those have tests of their own
        ]
    assert re.match(r"(tea|juice) 0\.\d+\n", answers[0])
    assert (tmp_path / "shared.safetensors").stat().st_size > 100


def test_the_examples_of_the_client_run_one_after_the_other(tmp_path):
    page = (FOLDER / "reference" / "client.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    with served(["fedres", "serve"], tmp_path) as (url, _):
        patient = f'Client("{url}", timeout={LIMIT}'  # on a busy machine, the first decision of a process takes long
        script = [block.replace('Client("http://127.0.0.1:8000"', patient) for block in blocks]
        answers = [run_python(block.replace("http://127.0.0.1:8000", url), tmp_path) for block in script]
    assert re.match(r"(tea|juice) 0\.\d+\n", answers[0])
    assert "sent=1, refused=0, dropped=0" in answers[2]
    assert answers[2].startswith("rank 200\n")


def run_python(block, folder):
    """Run an example; what it warns of, such as a service that is not there, is not looked at."""
    done = forked.run([sys.executable, "-c", block], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout

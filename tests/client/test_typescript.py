"""The TypeScript client against a real service, by Node's own test runner; and that its types are not stale."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_proxy import DROP, MUTE, PASS, REPEAT, TWICE, FaultyProxy

FOLDER = Path(__file__).parents[2] / "clients" / "typescript"


needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="node is not installed: the TypeScript client is not tested"
)


@needs_node
def test_the_client_keeps_its_word_in_node(live):
    live.make_loop("typescript")
    rng = random.Random(5)
    fault = lambda request: rng.choices([PASS, DROP, MUTE, TWICE, REPEAT], [6, 1, 1, 1, 1])[0]  # noqa: E731
    with FaultyProxy(live.address, fault) as proxy:
        env = {**os.environ, "FEDRES_URL": live.url, "FEDRES_FAULTY_URL": proxy.url, "FEDRES_LOOP": "typescript"}
        command = ["node", "--test", "--test-reporter", "tap"]
        done = subprocess.run(command, cwd=FOLDER, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = re.findall(r"decided (\[\[.*\]\])", done.stdout)
    entries = live.engine.logged("typescript")
    assert sorted(entry.event for entry in entries if entry.kind == "rank") == sorted(
        name for name, _ in json.loads(line)
    )
    assert len({(entry.event, entry.example) for entry in entries if entry.kind == "reward"}) == 40


@needs_node
def test_the_examples_of_its_readme_run(live):
    examples = re.findall(r"```js\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) == 2
    live.make_loop("readme", model="residual-kalman")  # as the loop default of a new store
    for example in examples:
        code = example.replace("http://127.0.0.1:8000", live.url).replace('"browser-7"', '"browser-7", loop: "readme"')
        command = ["node", "--input-type=module", "--eval", code]
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert re.match(r"(tea|juice) false|\{ sent: 1, dropped: 0, version: \d+, trouble: null \}", done.stdout)


def test_its_types_are_those_of_the_service():
    command = [sys.executable, "generate_types.py", "--check"]
    env = {**os.environ, "PYTHONPATH": str(FOLDER.parents[1])}
    assert subprocess.run(command, cwd=FOLDER, env=env, check=False).returncode == 0, "run generate_types.py"

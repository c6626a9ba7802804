"""docs/service.md keeps its word."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec

from service.engine.deciding import LONGEST_ID
from service.engine.settings import Settings
from service.http.limits import Limits
from service.scoring.features import Limits as FeatureLimits

DOCS = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", DOCS, flags=re.DOTALL)
STARTS = [block for block in BLOCKS if block.startswith("fedres serve")]
USES = [block for block in BLOCKS if block not in STARTS]


@contextmanager
def started(command, folder):
    words = [*command.split(), "--port", "0"]
    words[0] = Path(sys.executable).with_name(words[0])
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            yield next(found[1] for line in process.stdout if (found := re.search(r"page +(http://\S+)/", line)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
    assert process.returncode == 0


def test_its_commands_run_one_after_the_other(tmp_path):
    first, *others = STARTS
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with started(first, tmp_path) as url:
        for block in USES:
            script = block.replace("http://127.0.0.1:8000", url).replace("curl -s", "curl -sS --fail-with-body")
            done = subprocess.run(["sh", "-e", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=env)
            assert (done.returncode, done.stderr) == (0, ""), block + done.stdout
    for command in others:
        folder = tmp_path / "other"
        folder.mkdir()
        with started(command, folder):
            pass
    assert (tmp_path / "model.bin").stat().st_size > 1_000_000
    [event] = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines()[-1:])
    assert (event["event_id"], event["reward"]) == ("cup-12", 1.0)


def test_its_table_has_every_setting_and_its_default():
    shown = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", DOCS, flags=re.MULTILINE))
    assert shown == {name: json_of(value) for name, value in msgspec.structs.asdict(Settings()).items()}


def json_of(value):
    return msgspec.json.encode(value).decode()


def test_its_table_has_every_limit():
    section = DOCS.partition("\n## Limits\n")[2].partition("\n## ")[0]
    shown = sorted(float(number.replace(",", "")) for number in re.findall(r"\| ([\d,]+)", section))
    limits, features = Limits(), FeatureLimits()
    known = [getattr(limits, name) for name in Limits.__dataclass_fields__]
    known += [features.features, features.depth, features.name, features.crosses, LONGEST_ID]
    assert shown == sorted(map(float, known))

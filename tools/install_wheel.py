"""Installs both wheels with each extra into an empty environment, and runs what users run first: ``make dist-test``.

python tools/install_wheel.py dist           # all extras
python tools/install_wheel.py dist serve vw  # some; "base" is none, and "client" the wheel of the client alone
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENT = """
from {} import Client
assert Client("http://127.0.0.1:1", deadline=0.1).rank(actions=["tea", "juice"]).fallback
"""
DEVICE = """
from fedres.client import DeviceClient
with DeviceClient("http://127.0.0.1:1", "phone", "phone", learner="linear", sync_seconds=None) as device:
    device.reward(device.decide({"hour": 9}, ["tea"], private={"age": 33}).event_id, 1.0)
"""
REPLAY = "from libsvm_tasks import replay; assert len(replay('digits', clients=4, rounds=10, rollouts=1)) == 3"
GRID = """
from libsvm_tasks.grid import cluster, run
if __name__ == "__main__":
    with cluster({!r}, jobs=2):
        assert run(abs, [-1, 2], jobs=2) == [1, 2]
"""
SMOKE = {
    "client": CLIENT.format("fedres_client"),
    "base": CLIENT.format("fedres.client"),
    "learn": DEVICE,
    "vw": "from fedres import VWLearner\nwith VWLearner() as vw:\n    vw.learn([1.0], label=1.0)",
    "serve": None,  # the service itself, below
    "postgres": "import service.log.postgres",
    "bench": REPLAY,
    "ray": GRID.format("ray"),
    "dask": GRID.format("dask"),
    "docs": "import furo, myst_parser, sphinx",
}


def check(dist: Path, extra: str, folder: Path) -> None:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    [client] = map(str, dist.glob("fedres_client-*.whl"))
    [wheel] = map(str, dist.glob("fedres-*.whl"))
    extras = "" if extra == "base" else f"[{extra}]"
    requirements = [client] if extra == "client" else [client, wheel + extras]
    options = ["--quiet", "--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([python, "-m", "pip", "install", *options, *requirements], check=True, cwd=folder)
    code = SMOKE[extra]
    if code is None:
        serve(folder)
    else:
        (folder / "smoke.py").write_text(code)
        subprocess.run([python, "smoke.py"], check=True, cwd=folder, timeout=600)


def serve(folder: Path) -> None:
    """Start the service, decide, reward, and stop it."""
    command = [folder / "bin" / "fedres", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = next(match[1] for line in process.stdout if (match := re.search(r"dashboard +(http://\S+)/", line)))
            for path, body in (
                ("/v1/rank", b'{"event_id": "e", "actions": [{"id": "tea"}, {"id": "juice"}]}'),
                ("/v1/events/e/reward", b'{"value": 1}'),
            ):
                sent = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(sent, timeout=60) as reply:
                    assert reply.status in (200, 204)
        finally:
            process.terminate()
            process.stdout.read()
    assert process.returncode == 0


def main() -> None:
    dist, *chosen = sys.argv[1:]
    for extra in chosen or SMOKE:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(dist).resolve(), extra, Path(folder))
        print(f"{extra}: installed, and its smoke test passed", flush=True)


if __name__ == "__main__":
    main()

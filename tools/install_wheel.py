"""Installs both wheels with each extra into an empty environment, and runs what users run first: ``make dist-test``.

python tools/install_wheel.py dist           # all extras
python tools/install_wheel.py dist serve vw  # some; "base" is none, and "client" the wheel of the client alone
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 300_000  # of the client's wheel
OF_CLIENT = {"anyio", "certifi", "fedres-client", "h11", "httpcore", "httpx", "idna", "msgspec"}
OF_OLDER_PYTHON = {"exceptiongroup", "typing_extensions"}
# The client runs on this version of Python; it is tried if it is installed.
OLDEST = "python3.9"

BASE = """
from fedres.client import Client
assert Client("http://127.0.0.1:1", timeout=0.1).rank(actions=["tea", "juice"]).fallback
"""
# A shop with packages of our names, which uses the client alone.
SHOP = """
import sys
import bandits, service
from fedres_client import Client
with Client(sys.argv[1], timeout=60, fallback=None) as client:
    decision = client.rank(actions=["tea", "juice"])
    decision.reward(1.0)
    assert client.flush(60)
assert service.name == bandits.name == "of the shop"
assert not {"fedres", "numpy", "numba", "libsvm_tasks"} & set(sys.modules)
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
    "client": None,  # in a shop, below
    "base": BASE,
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
    """Install the wheels with an extra into an environment in a folder, and try it."""
    [client] = dist.glob("fedres_client-*.whl")
    [wheel] = dist.glob("fedres-*.whl")
    if extra == "client":
        check_client(client, folder)
        return
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    install(python, str(client), str(wheel) if extra == "base" else f"{wheel}[{extra}]")
    code = SMOKE[extra]
    if code is None:
        command = [str(python.with_name("fedres")), "serve", "--port", "0"]
        with served(command, folder) as url:
            for path, body in (
                ("/v1/rank", b'{"event_id": "e", "actions": [{"id": "tea"}, {"id": "juice"}]}'),
                ("/v1/events/e/reward", b'{"value": 1}'),
            ):
                request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as reply:
                    assert reply.status in (200, 204)
    else:
        (folder / "smoke.py").write_text(code)
        subprocess.run([python, "smoke.py"], check=True, cwd=folder, timeout=600)


def install(python: Path, *requirements: str) -> None:
    options = ["--quiet", "--disable-pip-version-check"]
    if python.parents[1].name != OLDEST:  # some of the tested versions need a newer Python
        options += ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([python, "-m", "pip", "install", *options, *requirements], check=True, cwd=python.parents[2])


def check_client(wheel: Path, folder: Path) -> None:
    """Check what the client's wheel has and brings, and decide with it, on this Python and on the oldest."""
    assert wheel.stat().st_size < MOST_BYTES, wheel.stat().st_size
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"fedres_client", wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}, tops
    for package in ("service", "bandits"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("name = 'of the shop'\n")
    (folder / "shop.py").write_text(SHOP)
    command = [str(Path(sys.executable).with_name("fedres")), "serve", "--port", "0"]
    (folder / "store").mkdir()
    with served(command, folder / "store") as url:
        for name in (sys.executable, OLDEST):
            environment = folder / Path(name).name
            make = [shutil.which(name) or "false", "-m", "venv", str(environment)]
            if subprocess.run(make, check=False, stderr=subprocess.DEVNULL).returncode:
                print(f"client: {name} is not installed, and was not tried")
                continue
            python = environment / "bin" / "python"
            install(python, str(wheel))
            listed = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
            brought = set(re.findall(r"^[\w-]+", listed, re.MULTILINE))
            assert brought - OF_OLDER_PYTHON == OF_CLIENT, brought
            subprocess.run([python, "shop.py", url], check=True, cwd=folder, timeout=300)


@contextmanager
def served(command: list[str], folder: Path) -> Iterator[str]:
    """Start a service in a folder, lend its address when it is ready, and stop it."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(match[1] for line in process.stdout if (match := re.search(r"dashboard +(http://\S+)/", line)))
        finally:
            process.terminate()
            process.stdout.read()
    assert process.returncode == 0


def main() -> None:
    dist, *chosen = sys.argv[1:]
    for extra in chosen or SMOKE:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            check(Path(dist).resolve(), extra, Path(folder))
        print(f"{extra}: installed, and its smoke test passed, in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

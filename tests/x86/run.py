"""Run the tests that may depend on the architecture on x86-64, and say what came out. Not part of ``make test``.

    .venv/bin/python tests/x86/run.py

On an x86-64 machine that is all: the tests run natively, with this Python. On another machine they run under qemu-user,
in an amd64 Python that is unpacked into a cache folder. Give two folders, filled on any machine with network access:

    apt-get download python3.12-minimal:amd64 libpython3.12-stdlib:amd64 ...    # an amd64 Python and its libraries
    pip download --platform manylinux_2_28_x86_64 --only-binary=:all: -d wheels '.[vw,serve,bench,dev]'
    python tests/x86/run.py --debs debs --wheels wheels

The native way was run; THE WAY THROUGH QEMU IS UNTESTED in this form.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = {
    "twin against Vowpal Wabbit": ["tests/local_learners/test_parity.py", "tests/local_learners/test_vw.py"],
    "shared model against Vowpal Wabbit": ["tests/global_learners/test_fedres_adagrad.py"],
    "engine against VW workspaces": ["tests/libsvm_tasks/test_engine.py"],
    "compiled against readable bandits": ["tests/bandits/test_replay.py", "tests/bandits/test_models.py"],
    "scoring": ["tests/scoring"],
}


def main() -> None:
    """Run every group, then a rank and a reward over HTTP; exit with 1 if anything failed."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument(
        "--debs", type=Path, help="folder with amd64 Debian packages of Python; on other machines only"
    )
    options.add_argument("--wheels", type=Path, help="folder with x86-64 wheels of what fedres needs; likewise")
    options.add_argument("--only", choices=[*TESTS, "http"], help="one group")
    given = options.parse_args()
    python = native() if platform.machine().lower() in {"x86_64", "amd64"} else emulated(given.debs, given.wheels)
    failed = []
    for name, paths in TESTS.items():
        if given.only in (None, name) and subprocess.run([*python, "-m", "pytest", "-q", *paths], cwd=ROOT).returncode:
            failed.append(name)
    if given.only in (None, "http") and not rank_and_reward(python):
        failed.append("http")
    print(f"{platform.machine()}: failed: {', '.join(failed)}" if failed else f"{platform.machine()}: all passed")
    sys.exit(bool(failed))


def native() -> list[str]:
    return [sys.executable]


def emulated(debs: Path | None, wheels: Path | None) -> list[str]:
    """Unpack Python and wheels into a cache folder, once; return the command that runs it."""
    if debs is None or wheels is None:
        sys.exit("give --debs and --wheels: this is no x86-64 machine (see the top of this file)")
    files = sorted([*debs.glob("*.deb"), *wheels.glob("*.whl")])
    name = hashlib.sha256("".join(file.name for file in files).encode()).hexdigest()[:16]
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedres" / f"x86-{name}"
    if not (root / "complete").exists():
        for file in files:
            if file.suffix == ".deb":
                subprocess.run(["dpkg-deb", "-x", file, root], check=True)
            else:
                zipfile.ZipFile(file).extractall(root / "wheels")
        (root / "complete").touch()
    python = next(iter(sorted((root / "usr/bin").glob("python3.*"))))
    os.environ["PYTHONPATH"] = f"{root / 'wheels'}:{ROOT}"
    return ["qemu-x86_64", "-cpu", "max", "-L", str(root), str(python)]


@contextmanager
def service(python: list[str], folder: str):
    command = [*python, "-m", "service", "serve", "--port", "0", "--store", f"sqlite:///{folder}/store.db"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield next(found[1] for line in process.stdout if (found := re.search(r"page +(http://\S+)/", line)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()


def rank_and_reward(python: list[str]) -> bool:
    """Return whether a service decides, takes the reward, and has learned from it."""
    import httpx

    with tempfile.TemporaryDirectory() as folder, service(python, folder) as url, httpx.Client(base_url=url) as client:
        client.post("/v1/loops", json={"name": "x86"}).raise_for_status()
        asked = {"user": "anna", "context": {"weather": "hot"}, "actions": [{"id": "tea"}, {"id": "juice"}]}
        decision = client.post("/v1/loops/x86/rank", json=asked).raise_for_status().json()
        path = f"/v1/loops/x86/events/{decision['event_id']}/reward"
        reply = client.post(path, json={"value": 1.0}).raise_for_status()
        print(f"http: rank {decision['action']} with probability {decision['probability']}, reward {reply.status_code}")
        return 0 < decision["probability"] <= 1


if __name__ == "__main__":
    main()

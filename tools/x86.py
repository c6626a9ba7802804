"""Run the tests that may depend on the architecture on x86-64, and say what came out. Not part of ``make test``.

    .venv/bin/python tools/x86.py

On an x86-64 machine they run natively, with this Python. On another one, or with ``--emulate``, they run under
qemu-user (``apt-get install qemu-user``) in Debian's amd64 Python with x86-64 wheels, which are downloaded into a cache
folder once; apt must know the architecture (``dpkg --add-architecture amd64; apt-get update``).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from requirements import requirements

ROOT = Path(__file__).parents[1]
SECONDS = 1800  # for an answer: an emulated service compiles its kernels first
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
    options.add_argument("--emulate", action="store_true", help="use qemu-user on an x86-64 machine, too")
    options.add_argument("--only", choices=[*TESTS, "http"], help="one group")
    arguments = options.parse_args()
    native = platform.machine().lower() in {"x86_64", "amd64"} and not arguments.emulate
    python = sys.executable if native else emulated_python()
    failed = []
    for name, paths in TESTS.items():
        if arguments.only in (None, name):
            print(f"{name}:", flush=True)
            if subprocess.run([python, "-m", "pytest", "-q", *paths], cwd=ROOT).returncode:
                failed.append(name)
    if arguments.only in (None, "http") and not rank_and_reward(python):
        failed.append("http")
    where = "x86-64" if native else "x86-64 under qemu-user"
    print(f"{where}: failed: {', '.join(failed)}" if failed else f"{where}: all passed")
    sys.exit(bool(failed))


def emulated_python() -> str:
    """Return an amd64 Python under qemu-user, with what fedres needs in a cache folder; delete that to renew it."""
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedres" / "x86"
    complete = root / "complete"  # names the Python
    if not complete.exists():
        print(f"downloading an amd64 Python into {root}", flush=True)
        root.mkdir(parents=True, exist_ok=True)
        unpack_debian_python(root)
        name = next(path.name for path in (root / "usr/bin").glob("python3.*") if path.name[8:].isdigit())
        install_wheels(root / "wheels", name.removeprefix("python"))
        complete.write_text(name)
    # argv[0] becomes sys.executable, so that processes that Python starts are emulated as well
    python = root / "usr/bin/python-under-qemu"
    emulator = f'exec qemu-x86_64 -cpu max -L "{root}" -0 "$0" "{root}/usr/bin/{complete.read_text()}" "$@"'
    sources = f"{ROOT}:{ROOT / 'clients' / 'python'}"
    paths = f"export PYTHONPATH='{sources}:{root / 'wheels'}' NUMBA_CACHE_DIR='{root / 'kernels'}'"
    python.write_text(f"#!/bin/sh\n{paths}\n{emulator}\n")
    python.chmod(0o755)
    return str(python)


def unpack_debian_python(root: Path) -> None:
    no = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    listing = subprocess.run(
        ["apt-cache", "depends", "--recurse", *no, "python3:amd64", "libstdc++6:amd64", "libgomp1:amd64"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    names = {line.removesuffix(":amd64") for line in listing.splitlines() if re.match(r"[a-z]", line)}
    with tempfile.TemporaryDirectory() as folder:
        packages = [f"{name}:amd64" for name in sorted(names) if name.startswith(("python3", "lib", "zlib"))]
        subprocess.run(["apt-get", "download", "-qq", *packages], check=True, cwd=folder)
        for file in sorted(Path(folder).glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", file, root], check=True)
    for link in root.rglob("*"):  # an absolute link would lead to this machine's own files
        if link.is_symlink() and (target := os.readlink(link)).startswith("/"):
            link.unlink()
            link.symlink_to(os.path.relpath(root / target[1:], link.parent))


def install_wheels(folder: Path, version: str) -> None:
    needed = requirements("vw", "serve", "bench")
    platforms = [f"--platform={name}_x86_64" for name in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", f"--python-version={version}"]
    rest = ["--target", str(folder), "--constraint", str(ROOT / "constraints.txt"), "pytest", "hypothesis", *needed]
    subprocess.run([*command, *platforms, *rest], check=True)
    # Installed for their versions only: the sources come first in the path.
    itself = ["--quiet", "--no-deps", "--target", str(folder), str(ROOT / "clients" / "python"), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", "install", *itself], check=True)


@contextmanager
def service(python: str, folder: str):
    command = [python, "-m", "service", "serve", "--port", "0", "--store", f"sqlite:///{folder}/store.db"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield next(match[1] for line in process.stdout if (match := re.search(r"dashboard +(http://\S+)/", line)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()


def rank_and_reward(python: str) -> bool:
    """Return whether a service decides, takes the reward, and has learned from it."""
    import httpx

    with (
        tempfile.TemporaryDirectory() as folder,
        service(python, folder) as url,
        httpx.Client(base_url=url, timeout=SECONDS) as client,
    ):
        client.post("/v1/loops", json={"name": "x86"}).raise_for_status()
        request = {"user": "anna", "context": {"weather": "hot"}, "actions": [{"id": "tea"}, {"id": "juice"}]}
        decision = client.post("/v1/loops/x86/rank", json=request).raise_for_status().json()
        path = f"/v1/loops/x86/events/{decision['event_id']}/reward"
        reply = client.post(path, json={"value": 1.0}).raise_for_status()
        print(f"http: rank {decision['action']} with probability {decision['probability']}, reward {reply.status_code}")
        return 0 < decision["probability"] <= 1


if __name__ == "__main__":
    main()

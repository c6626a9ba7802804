"""What every extra adds to an install, and how long its main entry takes to start.

    python benchmarks/install_size.py            # sizes and times, as Markdown
    python benchmarks/install_size.py vw serve   # some extras only; "" is the base, "client" is fedres-client

Makes a fresh virtual environment for each extra in a temporary folder and installs the pinned versions of
constraints.txt. Sizes are `du -sm` of site-packages, less that of an empty environment. Times are the median of
five new processes, less that of a Python that does nothing, with bytecode cached.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNS = 5
IMPORTS = {  # extras, by commas: what their users run first
    "client": ("import fedres_client", "from fedres_client import Client"),
    "": ("import fedres", "from fedres.client import Client"),
    "learn": ("from fedres import Federation", "from fedres.client import DeviceClient"),
    "vw": ("from fedres import VWLearner; VWLearner()",),
    "serve": ("import service.cli", "import service.roles.ranker"),
    "postgres": ("import service.log.postgres",),
    "bench": ("import libsvm_tasks.task_replay, libsvm_tasks.plots",),
    "vw,serve,postgres,bench": ("import service.cli",),
}


def measure(extras: str, folder: Path, source: Path) -> tuple[int, list[float]]:
    """Return the megabytes of an install, and the seconds of its imports."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    empty = megabytes(folder)
    client = str(source / "clients" / "python")
    requirements = [client] if extras == "client" else [client, f"{source}[{extras}]" if extras else str(source)]
    options = ["--quiet", "--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([python, "-m", "pip", "install", *options, *requirements], check=True, cwd=folder)
    size = megabytes(folder) - empty
    nothing = seconds(python, "pass", folder)
    return size, [seconds(python, code, folder) - nothing for code in IMPORTS[extras]]


def megabytes(folder: Path) -> int:
    (packages,) = folder.glob("lib/python*/site-packages")
    done = subprocess.run(["du", "-sm", str(packages)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def seconds(python: str, code: str, folder: Path) -> float:
    """Return the median time of a process that runs ``code``, after one that fills the caches."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run([python, "-I", "-c", code], check=True, cwd=folder)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    chosen = sys.argv[1:] or list(IMPORTS)
    print("| install | MB | import | ms |\n|---|---:|---|---:|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")  # a copy: building leaves files behind
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
        for number, extras in enumerate(chosen):
            size, times = measure(extras, Path(folder, str(number)), source)
            names = {"client": "fedres-client", "": "fedres"}
            first = f"| `{names.get(extras, f'fedres[{extras}]')}` | {size} |"
            for line, (code, lasted) in enumerate(zip(IMPORTS[extras], times, strict=True)):
                print(f"{'| | |' if line else first} `{code}` | {1000 * lasted:.0f} |", flush=True)


if __name__ == "__main__":
    main()

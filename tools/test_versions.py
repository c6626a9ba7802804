"""Runs tests with the oldest, or with the newest, versions that pyproject.toml allows.

    python tools/test_versions.py lowest                     # all tests but the slow ones: make test-lowest
    python tools/test_versions.py newest tests/client -n 2   # other arguments are for pytest

Each has an environment of its own, .venv-lowest or .venv-newest, with its own compiled kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from requirements import ROOT, lowest, requirements

EXTRAS = ("vw", "serve", "postgres", "bench")
# Of the extra dev; schemathesis needs a newer rich than fedres.
NOT_TESTED = ("azure", "build", "codespell", "import-linter", "mypy", "playwright", "ruff", "schemathesis")
SCHEMATHESIS = "tests/service/http/test_schema.py"
QUICK = ("-n", "2", "--dist", "worksteal", "-m", "not slow")


def install(which: str, folder: Path) -> None:
    """Make an environment with the oldest or newest versions of what users install, and the newest tools for tests."""
    ours = requirements(*EXTRAS)
    tools = [line for line in requirements("dev") if line not in ours and not line.startswith(NOT_TESTED)]
    chosen = [lowest(line) for line in ours] if which == "lowest" else ours
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--only-binary=:all:", *chosen, *tools], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", "clients/python", "--editable", "."], check=True, cwd=ROOT)
    (folder / "installed").touch()


def main() -> None:
    which, *words = sys.argv[1:]
    if which not in ("lowest", "newest"):
        raise SystemExit(f"the versions must be lowest or newest, got {which!r}")
    folder = ROOT / f".venv-{which}"
    if not (folder / "installed").exists():
        install(which, folder)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "check"], check=True)
    # Kernels of other versions of numba must not replace those beside the sources.
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "numba")}
    command = [python, "-m", "pytest", "--ignore", SCHEMATHESIS, *(words or QUICK)]
    raise SystemExit(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()

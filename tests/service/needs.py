"""What tests need and a machine may lack. They are skipped with a reason, and the end of a run names what is missing.

``@needs_node`` and the like skip a test before its fixtures; ``lacks`` skips it from a fixture or from within.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import LIMIT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def needs(what, where, found):
    """Return a mark that skips tests unless ``what`` was ``found``; ``where`` says how to get it."""
    return pytest.mark.skipif(not found, reason=f"needs {what} ({where})")


def needs_program(name, package=None):
    return needs(name, f"apt-get install {package or name}", shutil.which(name))


needs_node = needs_program("node", "nodejs")
needs_chromium = needs("chromium", "apt-get install chromium", CHROMIUM)


def lacks(what, where):
    """Skip the test that runs, because of what is missing."""
    pytest.skip(f"needs {what} ({where})")


def npm_folder(name, *packages):
    """Return a folder with packages of npm, installed once for all runs of this user; skip if npm cannot get them."""
    npm = shutil.which("npm")
    if npm is None:
        lacks("npm", "apt-get install npm")
    folder = Path(tempfile.gettempdir()) / f"fedres-{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    done = folder / f"has {' '.join(packages)}".replace("/", "+")
    with _alone_in(folder):  # other processes of this run may want the same
        if not done.exists():
            reason = _install(npm, folder, packages)
            if reason is not None:
                lacks("the registry of npm", reason)
            done.touch()
    return folder


@contextmanager
def _alone_in(folder):
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(npm, folder, packages):
    """Install packages; return why that failed, None if it did not."""
    options = ["--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    command = [npm, "install", "--prefix", str(folder), *options, *packages]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"no packages within {LIMIT:g} s"
    if ended.returncode == 0:
        return None
    failed = re.search(r"npm (?:error|ERR!) (?:code )?(.+)", ended.stderr)
    return failed[1] if failed else f"npm ended with {ended.returncode}"

"""Builds an sdist and a wheel of fedres and of its client: ``make dist``.

    python tools/build_dist.py dist

They have the tracked files of the last commit, and its time: a commit gives the same bytes whenever it is built.
"""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (".", "clients/python")  # in this order: building leaves files behind in the folder


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def build(dist: Path) -> list[Path]:
    """Build both distributions into a folder, and return their files."""
    seconds = int(git("log", "-1", "--format=%ct"))
    os.umask(0o022)  # modes of files are part of a wheel
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as sources:
            sources.extractall(folder, filter="tar")
        for part in FOLDERS:
            command = [sys.executable, "-m", "build", "--outdir", str(dist), str(Path(folder, part))]
            subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(seconds)})
    for sdist in dist.glob("*.tar.gz"):
        sdist.write_bytes(without_times(sdist.read_bytes(), seconds))
    return sorted(dist.iterdir())


def without_times(sdist: bytes, seconds: int) -> bytes:
    """Return an sdist whose files all have one time and no owner: setuptools writes the present ones."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=seconds) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            content = old.extractfile(member)
            member.mtime = seconds
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            new.addfile(member, content)
    return packed.getvalue()


def main() -> None:
    [dist] = sys.argv[1:]
    changed = git("status", "--porcelain").decode().splitlines()
    if changed:
        print(f"the last commit is built, without the changes of {len(changed)} files", file=sys.stderr)
    for file in build(Path(dist).resolve()):
        print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

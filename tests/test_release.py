"""The version is the same everywhere, and what `make dist` packs does not depend on when it is built."""

import io
import json
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

from build_dist import without_times  # noqa: E402


def project(folder):
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


VERSION = project(".")["version"]


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("clients/python/pyproject.toml", r'^version = "(.*)"'),
        ("pyproject.toml", r'"fedres-client==([^"]*)"'),
        ("CITATION.cff", r"^version: (.*)"),
        ("deploy/Dockerfile", r'image\.version="(.*)"'),
        ("CHANGELOG.md", r"^## (\S+)"),
    ],
)
def test_every_file_has_the_version_of_the_project(file, pattern):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(pattern, text, re.MULTILINE)[1] == VERSION


def test_the_client_for_javascript_has_the_version_of_the_project():
    package = json.loads((ROOT / "clients" / "typescript" / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == VERSION


def sdist(members, seconds):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mtime = seconds
            member.uid = int(seconds)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def test_an_sdist_is_the_same_whenever_and_by_whomever_it_is_built():
    files = [("fedres/PKG-INFO", b"one"), ("fedres/code.py", b"pass\n")]
    first = without_times(sdist(files, 1000.25), 7)
    later = without_times(sdist(files[::-1], 2000.5), 7)
    assert first == later
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        read = {member.name: (archive.extractfile(member).read(), member.mtime) for member in archive}
    assert read == {name: (content, 7) for name, content in files}


def test_the_sdist_leaves_no_tracked_file_out_that_a_build_or_the_tests_need():
    """MANIFEST.in names folders; a new one beside them would be missing in an sdist."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").split()
    packages = {name.partition(".")[0] for name in project_packages()}
    by_default = {"LICENSE", "README.md", "pyproject.toml", "MANIFEST.in", ".gitignore"}
    missing = {path for path in tracked if path.partition("/")[0] not in {*manifest, *packages, *by_default}}
    assert missing - set(manifest) == set()


def project_packages():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["setuptools"]["packages"]

"""The distribution fedres-client: alone, without what Windows lacks, and beside a shop with packages of our names."""

import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from waiting import LIMIT

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "clients" / "python"
SOURCES = sorted((FOLDER / "fedres_client").glob("*.py"))
OURS = ("fedres", "service", "bandits", "libsvm_tasks", "research")
WITHOUT_WINDOWS_LACKS = """
import os, sys
sys.modules["fcntl"] = None
for name in ("register_at_fork", "fork", "O_CLOEXEC"):
    delattr(os, name)
"""


def run(code, *words, folder=None):
    """Run code in another process, in a folder whose packages come first; return what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(code), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_fedres_needs_the_client_of_its_own_version_with_its_license():
    assert f"fedres-client=={project(FOLDER)['version']}" in project(ROOT)["dependencies"]
    assert (FOLDER / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_it_needs_httpx_and_msgspec_only_and_is_small():
    assert [re.match(r"\w+", need)[0] for need in project(FOLDER)["dependencies"]] == ["httpx", "msgspec"]
    assert sum(source.stat().st_size for source in SOURCES) < 300_000


def test_it_imports_nothing_of_the_other_packages():
    modules = [f"fedres_client.{source.stem}" for source in SOURCES if source.stem != "__init__"]
    code = f"""
        import importlib, sys
        for module in {modules}:
            importlib.import_module(module)
        print([name for name in ("numpy", "numba", *{OURS}) if name in sys.modules])
    """
    assert run(code).strip() == "[]"


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_its_syntax_is_that_of_python_3_9(source):
    tree = ast.parse(source.read_text(encoding="utf-8"), feature_version=(3, 9))
    # These are calls, which a grammar cannot tell: later versions of Python have them.
    words = [word.arg for call in ast.walk(tree) if isinstance(call, ast.Call) for word in call.keywords]
    assert not [word for word in words if word in ("strict", "slots")]


def test_types_that_are_evaluated_have_no_union_of_python_3_10():
    """msgspec evaluates the fields of what it reads, and frameworks those of what a program returns."""
    code = """
        import typing
        from fedres_client import answers, reward_batches, types, wire

        for module in (answers, reward_batches, types, wire):
            for thing in vars(module).values():
                if isinstance(thing, type) and thing.__module__ == module.__name__:
                    for field, hint in getattr(thing, "__annotations__", {}).items():
                        if "|" in str(hint):
                            print(module.__name__, thing.__name__, field, hint)
    """
    assert run(code) == ""


def test_without_locks_and_forks_it_decides_and_a_spool_is_refused(live, loop, tmp_path):
    code = f"""
        import asyncio
        from fedres_client import AsyncClient, Client

        url, loop, folder = sys.argv[1:]
        with Client(url, loop=loop, timeout={LIMIT}, fallback=None) as client:
            client.rank(actions=["tea", "juice"]).reward(1.0)
            assert client.flush({LIMIT})

        async def decide():
            async with AsyncClient(url, loop=loop, timeout={LIMIT}, fallback=None) as client:
                return (await client.rank(actions=["tea", "juice"])).fallback

        print(asyncio.run(decide()))
        try:
            Client(url, spool=folder)
        except RuntimeError as error:
            print(error)
    """
    printed = run(WITHOUT_WINDOWS_LACKS + textwrap.dedent(code), live.url, loop, str(tmp_path / "spool"))
    fallback, refusal = printed.splitlines()
    assert fallback == "False"
    assert refusal.startswith("spool needs the file locks of Linux or macOS")
    assert not (tmp_path / "spool").exists()


def test_without_locks_a_device_and_a_store_say_what_they_need():
    code = """
        from fedres.lease import Lease
        try:
            Lease("store.db")
        except RuntimeError as error:
            print(error)
    """
    assert "need the file locks of Linux or macOS" in run(WITHOUT_WINDOWS_LACKS + textwrap.dedent(code))


def test_a_shop_with_packages_of_our_names_decides(live, loop, tmp_path):
    for package in ("service", "bandits"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"name = 'the {package} of the shop'\n")
    code = f"""
        import sys
        import bandits, service
        from fedres_client import Client

        with Client(sys.argv[1], loop=sys.argv[2], timeout={LIMIT}, fallback=None) as client:
            decision = client.rank(actions=["tea", "juice"])
            decision.reward(1.0)
        print(decision.action in ("tea", "juice"), service.name, bandits.name, sep=", ")
    """
    printed = run(code, live.url, loop, folder=tmp_path)
    assert printed.strip() == "True, the service of the shop, the bandits of the shop"

"""The command beside other packages, its version, and code that is cached somewhere else, or nowhere."""

import os
import subprocess
import sys
import textwrap

import pytest
from waiting import LIMIT

import fedres


def run(*words, cwd=None, **env):
    named = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | env
    return subprocess.run(words, cwd=cwd, env=named, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_the_command_runs_as_a_module_and_knows_its_version():
    done = run(sys.executable, "-m", "fedres", "--version")
    assert (done.returncode, fedres.__version__ in done.stdout) == (0, True)


def test_another_package_named_service_is_named_in_one_line(tmp_path):
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").touch()
    done = run(sys.executable, "-m", "fedres", "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"another package has the name service, and hides that of fedres: {tmp_path}" in done.stderr


KERNEL = """
    import sys, warnings
    from numba.core import caching

    if sys.argv[1] != "as usual":  # as another user than who installed it, without a home
        caching.CacheImpl._locator_classes = caching.CacheImpl._locator_classes[:1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from fedres.compiling import kernel

        sys.path.insert(0, sys.argv[2])
        import made
        assert made.twice(2.0) == 4.0
        assert made.thrice(2.0) == 6.0
    print([str(one.message) for one in caught])
    print(sum(made.twice.stats.cache_hits.values()))
"""
MADE = """
from fedres.compiling import kernel

@kernel
def twice(x):
    return 2.0 * x

@kernel
def thrice(x):
    return 3.0 * x
"""


@pytest.fixture
def compiled(tmp_path):
    """Lend a function that compiles two kernels in a new process, and returns the warnings and the cache's hits."""
    (tmp_path / "made.py").write_text(MADE)

    def compile_there(where, **env):
        done = run(sys.executable, "-c", textwrap.dedent(KERNEL), where, str(tmp_path), **env)
        assert done.returncode == 0, done.stderr
        warned, hits = done.stdout.splitlines()
        return warned, int(hits)

    return compile_there


def test_without_a_folder_for_compiled_code_it_is_in_a_private_temporary_one(tmp_path, compiled):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    first, hits = compiled("nowhere", TMPDIR=str(temporary))
    again, more_hits = compiled("nowhere", TMPDIR=str(temporary))
    assert (first.count("NUMBA_CACHE_DIR"), hits, more_hits) == (1, 0, 1)
    assert again == first
    [folder] = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)  # somebody else may have written there
    assert compiled("nowhere", TMPDIR=str(temporary))[1] == 0


def test_without_any_folder_it_is_compiled_each_time(tmp_path, compiled):
    (tmp_path / "sitecustomize.py").write_text("import tempfile\ntempfile.tempdir = '/proc/nowhere'\n")
    warned, hits = compiled("nowhere", PYTHONPATH=str(tmp_path))
    assert (warned.count("NUMBA_CACHE_DIR"), hits) == (1, 0)


def test_a_folder_that_can_be_written_causes_no_warning(tmp_path, compiled):
    assert compiled("as usual", NUMBA_CACHE_DIR=str(tmp_path / "cache")) == ("[]", 0)
    assert compiled("as usual", NUMBA_CACHE_DIR=str(tmp_path / "cache")) == ("[]", 1)


def test_a_backup_needs_no_numba():
    code = """
        import sys
        sys.modules["numba"] = None
        import service.plugins.tools.maintenance
    """
    done = run(sys.executable, "-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr


def test_what_is_cached_is_loaded_and_nothing_is_compiled_at_a_start(tmp_path):
    """A first start that was stopped has cached a part: the next one must not compile the rest before it is ready."""
    (tmp_path / "made.py").write_text(MADE)
    code = """
        import sys
        from pathlib import Path
        from service.roles.warm_up import load_rest

        sys.path.insert(0, sys.argv[1])
        import made
        calls = {"first": [made.twice], "both": [made.twice, made.thrice]}
        if sys.argv[2] == "compile":
            made.twice(2.0)
        else:
            print(load_rest(Path("."), lambda _: [function(2.0) for function in calls[sys.argv[2]]]))
            print(len(made.twice.signatures), len(made.thrice.signatures))
    """
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def start(what):
        done = run(sys.executable, "-c", textwrap.dedent(code), str(tmp_path), what, **cache)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert start("first") == ["False", "0", "0"]
    start("compile")
    assert start("first") == ["True", "1", "0"]
    assert start("both") == ["False", "1", "0"]


def test_a_verification_that_fails_is_not_a_damaged_store(tmp_path):
    """Status 1 is for damage; 2 is for a store that was not checked."""
    code = f"""
        import sys
        from service.log.sqlite import SqliteLog
        from service.log.sqlite_schema import sqlite_file
        from service.plugins.tools import verifying

        SqliteLog(sqlite_file({str(tmp_path / "store.db")!r})).close()

        def fails(*_):
            raise RuntimeError("no locator")

        verifying.verify_sqlite = fails
        sys.argv = ["fedres", "log", "verify", "--store", "sqlite:///{tmp_path / "store.db"}"]
        from service.__main__ import main
        main()
    """
    done = run(sys.executable, "-c", textwrap.dedent(code))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "fedres: the store was not checked: RuntimeError: no locator",
    )

"""The command beside other packages, its version, and code that is cached somewhere else, or nowhere."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waiting import LIMIT

import fedres
from fedres.__main__ import PACKAGES


def run(*words, cwd=None, **env):
    named = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | env
    return subprocess.run(words, cwd=cwd, env=named, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_the_command_runs_as_a_module_and_knows_its_version():
    done = run(sys.executable, "-m", "fedres", "--version")
    assert (done.returncode, fedres.__version__ in done.stdout) == (0, True)


@pytest.mark.parametrize("package", PACKAGES)
def test_another_package_with_a_name_of_ours_is_named_in_one_line(tmp_path, package):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    done = run(sys.executable, "-m", "fedres", "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"another package has the name {package}, and hides that of fedres: {tmp_path}" in done.stderr


@pytest.fixture
def installed(tmp_path):
    """Return a folder with our packages as a wheel installs them, and a function that installs files of others."""
    root = Path(fedres.__file__).parents[1]
    for package in ("fedres", *PACKAGES):
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))

    def install(name, files):
        for path, text in files.items():
            (tmp_path / path).write_text(text)
        information = tmp_path / f"{name}-0.1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 0.1.0\n")
        rows = [f"{path},,{(tmp_path / path).stat().st_size}" for path in files]
        (information / "RECORD").write_text("\n".join(rows))

    files = [path for package in PACKAGES for path in (tmp_path / package).rglob("*.py")]
    install("fedres", {str(path.relative_to(tmp_path)): path.read_text() for path in files})
    return install


def version_there(folder):
    return run(sys.executable, "-m", "fedres", "--version", cwd=folder)


def test_a_distribution_that_has_replaced_a_file_of_ours_is_named_in_one_line(tmp_path, installed):
    assert version_there(tmp_path).returncode == 0
    installed("myshop", {"service/__main__.py": "print('the shop')\n"})
    done = version_there(tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the distribution myshop has replaced service/__main__.py of fedres" in done.stderr


def test_a_file_of_ours_that_another_distribution_has_taken_along_is_named_in_one_line(tmp_path, installed):
    (tmp_path / "service" / "__main__.py").unlink()
    done = version_there(tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the file service/__main__.py of fedres is missing" in done.stderr


def test_a_file_of_ours_that_somebody_has_edited_is_nobodys_fault(tmp_path, installed):
    installed("myshop", {"shop.py": ""})
    with (tmp_path / "bandits" / "__init__.py").open("a") as file:
        file.write("# edited\n")
    assert version_there(tmp_path).returncode == 0


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

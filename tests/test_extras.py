"""What works without the extras, and what is said where one is missing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedres.loading import LEARN
from service.__main__ import BENCH_COMMANDS, COMMAND_LINE, EXTRAS
from service.cli import app

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTIONS = {"sklearn": "scikit-learn", "fastapi_offline": "fastapi-offline"}  # where names differ
BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""
COMMAND = "from service.__main__ import main\nmain()"
EVERY_EXTRA = (*EXTRAS, *COMMAND_LINE, "starlette", "pydantic", "click", "psycopg")


def run(code, modules, *words, cwd=None):
    """Run code in a Python that has none of the modules."""
    command = [sys.executable, "-c", BLOCK.format(modules=set(modules)) + code, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.parametrize(
    ("missing", "line", "said"),
    [
        (
            "vowpalwabbit",
            "replay digits --rounds 2 --clients 2 --rollouts 1 --jobs 1 --local-learner vw",
            "vowpalwabbit vw",
        ),
        ("fastapi", "serve", "fastapi serve"),
        ("uvloop", "bench service", "uvloop serve"),
        ("sklearn", "replay digits", "sklearn bench"),
        ("joblib", "reproduce --list", "joblib bench"),
        ("typer", "", "typer serve"),
        ("typer", "replay digits", "typer bench"),
        ("rich", "datasets list", "rich bench"),
    ],
)
def test_a_command_without_its_extra_is_one_line_and_status_2(tmp_path, monkeypatch, missing, line, said):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run(COMMAND, [missing], *line.split(), cwd=tmp_path)
    module, extra = said.split()
    assert done.stderr.strip() == f"fedres: this command needs {module}: pip install 'fedres[{extra}]'"
    assert (done.returncode, done.stdout) == (2, "")


def test_a_store_in_postgresql_without_its_extra_is_one_line_and_status_2(tmp_path):
    done = run(COMMAND, ["psycopg"], "serve", "--store", "postgresql://localhost/shop", cwd=tmp_path)
    assert done.stderr.startswith("fedres: store must be ")
    assert done.stderr.endswith("pip install 'fedres[postgres]'\n")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_module_that_no_extra_has_is_an_error_like_any_other(tmp_path):
    done = run(COMMAND, ["sqlite3"], "serve", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'sqlite3'\n")


@pytest.mark.parametrize(
    "code",
    [
        "from fedres import VWLearner\nVWLearner()",
        "from fedres.client import DeviceClient\nDeviceClient('http://127.0.0.1:1', 'phone', 'phone', learner='vw')",
    ],
)
def test_vowpal_wabbit_without_its_extra_names_it_and_writes_nothing(tmp_path, code):
    done = run(code, ["vowpalwabbit"], cwd=tmp_path)
    assert "ModuleNotFoundError: Vowpal Wabbit is not installed: pip install 'fedres[vw]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_clients_of_a_service_need_no_extra(tmp_path):
    code = """
from fedres.client import AsyncClient, Client, RankRequest

assert Client("http://127.0.0.1:1", timeout=0.1).rank(actions=["tea", "juice"]).action == "tea"
"""
    done = run(code, [*EVERY_EXTRA, *LEARN], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "code", ["from fedres import Federation", "from fedres.client import DeviceClient", "from bandits import policy"]
)
def test_what_learns_names_its_extra_where_that_is_missing(tmp_path, code):
    done = run(code, LEARN, cwd=tmp_path)
    assert re.search(r"ModuleNotFoundError: \w+ is not installed: pip install 'fedres\[learn\]'", done.stderr)


def test_the_extra_learn_installs_what_it_is_named_for():
    assert set(LEARN) == distributions("learn")
    assert all("fedres[learn]" in PROJECT["optional-dependencies"][extra] for extra in ("vw", "serve", "bench"))


def test_a_device_needs_learn_alone(tmp_path):
    code = """
from fedres.client import DeviceClient

with DeviceClient("http://127.0.0.1:1", "phone", "phone", sync_seconds=None, open_seconds=0) as device:
    decision = device.decide({"weather": "cold"}, {"tea": {"hot": True}}, private={"age": 33})
    device.reward(decision.event_id, 1.0)
    print(decision.action)
"""
    done = run(code, EVERY_EXTRA, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("tea\n", "")


@pytest.mark.parametrize("module", EXTRAS)
def test_the_extra_that_is_named_installs_the_module(module):
    assert DISTRIBUTIONS.get(module, module) in distributions(EXTRAS[module])


@pytest.mark.parametrize("extra", ["serve", "bench"])
def test_both_extras_with_commands_install_the_command_line(extra):
    assert set(COMMAND_LINE) <= distributions(extra)


def test_every_command_of_bench_exists():
    groups = {group.name for group in app.registered_groups}
    commands = {command.callback.__name__ for command in app.registered_commands}
    assert (
        set(BENCH_COMMANDS)
        | {"serve", "status", "config", "loops", "users", "catalogue", "feedback", "evaluate", "keys", "log", "report"}
        == groups | commands
    )


@pytest.mark.parametrize(
    ("folder", "tops"),
    [(".", ("fedres", "bandits", "libsvm_tasks", "service")), ("clients/python", ("fedres_client",))],
)
def test_a_wheel_has_every_package(folder, tops):
    root = Path(__file__).parents[1] / folder
    listed = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    folders = [file.parent.relative_to(root) for top in tops for file in (root / top).rglob("__init__.py")]
    assert sorted(listed) == sorted(".".join(folder.parts) for folder in folders)


def distributions(extra):
    return {re.match(r"[\w-]+", line)[0] for line in PROJECT["optional-dependencies"][extra]}

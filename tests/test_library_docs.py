"""docs/research/library.md keeps its word: its examples learn, its commands run, and its table names every learner."""

import csv
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedres.global_learners import GLOBAL_LEARNERS
from service.cli import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "research" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
EXAMPLES, COMMANDS = ([code for language, code in BLOCKS if language == kind] for kind in ("python", "sh"))


def test_its_example_learns(capsys):
    [code] = EXAMPLES
    exec(compile(code, "library.md", "exec"), {})
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[-1] < 0.02 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("code", COMMANDS, ids=["experiments"])
def test_its_commands_run_one_after_the_other(code, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for line in code.splitlines():
        command, *words = shlex.split(line, comments=True)
        assert command == "fedres"
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"{line}: {done.output}"
        assert len(done.output.splitlines()) > 5
        for word in words:
            if word.endswith((".json", ".png", ".jsonl")):
                assert (tmp_path / word).stat().st_size > 0


def test_its_table_names_every_learner_and_files_that_exist():
    for name in GLOBAL_LEARNERS:
        assert f"| `{name}` |" in PAGE
    for file in re.findall(r"`(\w+\.py)` ?[|,]", PAGE):
        assert (ROOT / "fedres" / file).is_file() or (ROOT / "fedres" / "global_learners" / file).is_file(), file


def test_fedres_is_ahead_of_both_baselines_in_all_cells_of_the_committed_result():
    text = " ".join((ROOT / "docs/results/README.md").read_text("utf-8").split())
    assert "FedRes is ahead of both baselines in all 48 cells" in text
    with (ROOT / "docs" / "results" / "beyond.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cells = {(row["dataset"], row["clients"], row["delay"]) for row in rows if row["scheme"] == "fedres"}
    assert len(cells) == 48
    for dataset, clients, delay in cells:
        there = [row for row in rows if (row["dataset"], row["clients"]) == (dataset, clients)]
        accuracy = {row["scheme"]: float(row["accuracy"]) for row in there if row["delay"] in (delay, "", "0")}
        [ours] = [float(row["accuracy"]) for row in there if (row["scheme"], row["delay"]) == ("fedres", delay)]
        assert ours > max(accuracy["independent"], accuracy["central"]), (dataset, clients, delay)

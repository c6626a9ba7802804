"""The README keeps its word."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from serving import served
from typer.testing import CliRunner

from research.fair.table import EXPERIMENTS
from research.reproduce.registry import read_claims
from research.reproduce.registry import summary as summary_of
from service.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)


def test_the_commands_it_shows_are_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_counts_of_claims_and_cells_are_those_of_the_results():
    summary = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    claims = summary_of(read_claims(ROOT / "docs" / "results" / "claims.csv"))
    whole = re.sub(r"\s+", " ", summary)
    [counts] = re.findall(r"Of (\d+) claims, (\d+) are reproduced, (\d+) partly, and (\d+) not", whole)
    said = "Claims of the papers: {} ({} reproduced, {} partly, {} not reproduced)."
    assert claims.startswith(said.format(*counts))
    fair = (ROOT / "docs" / "results" / "fair.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| fedres, all \|[^|]*\| (\d+) / (\d+) / (\d+) \| (\d+) / (\d+) / (\d+) \|", fair, flags=re.MULTILINE
    )
    ahead, level, behind, _, _, behind_ridge = (sum(map(int, column)) for column in zip(*rows, strict=True))
    assert f"ahead of a client alone in {ahead} of {ahead + level + behind} cells" in whole
    assert behind == 0
    assert f"and behind in none, and behind ridge regression in {behind_ridge} (" in whole


def test_its_figures_are_those_of_the_pages_they_link_to():
    rows = re.findall(r"^\| ([^|]*) \| ([^|]*) \| \[\w+\]\(([^)]*)\) \|$", README, flags=re.MULTILINE)
    assert len(rows) == 6
    for what, figure, page in rows:
        text = (ROOT / page).read_text(encoding="utf-8")
        for number in re.findall(r"\d[\d,]*\d", f"{what} {figure}"):
            assert number in text, (number, page)


def test_it_reports_no_method_that_only_an_experiment_has():
    assert "prior of the personal parts" not in README
    fair = (ROOT / "docs" / "results" / "fair.md").read_text(encoding="utf-8")
    assert "\n".join(EXPERIMENTS) in fair


TABLE = re.findall(r"`(fedres (?:replay|bandit|delays) [^`]*)`", README)
EXPERIMENTS_SHOWN = [
    line for lang, code in BLOCKS if lang == "console" for line in code.splitlines() if line.startswith("fedres ")
]


def test_it_names_every_paper_and_the_parts_of_the_mission():
    for words in (
        "federated",
        "FedRes",
        "FedOMD",
        "FedSEA",
        "OFedIQ",
        "dynamic FedAvg",
        "ε-greedy federated bandit",
        "FastAPI endpoint",
        "Vowpal Wabbit as local learner",
        "LIBSVM",
        "Replay",
        "Delay",
        "residual-kalman",
    ):
        assert words in README, words
    assert len(README.splitlines()) <= 130


def test_the_files_of_its_table_of_papers_exist():
    [table] = re.findall(r"^\| part \|.*?\n\n", README, flags=re.DOTALL | re.MULTILINE)
    files = re.findall(r"`([\w/]+\.py)`", table)
    assert len(files) >= 9
    for file in files:
        assert (ROOT / file).exists() or (ROOT / "fedres" / "global_learners" / file).exists(), file


@pytest.mark.slow
@pytest.mark.parametrize("command", [*TABLE, *EXPERIMENTS_SHOWN])
def test_the_commands_of_its_papers_run(command, tmp_path, monkeypatch):
    """Figures in the text are those that the experiments print, but for rounding on other processors."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    printed = [float(number) for number in re.findall(r"(?<![\w.])0\.\d{4}\b", done.output)]
    if command in EXPERIMENTS_SHOWN:
        name = command.split()[1].replace("delays", "delay").capitalize()
        [text] = re.findall(rf"^- \*\*{name}\.\*\*(.*?)(?=^- |\n\n)", README, flags=re.DOTALL | re.MULTILINE)
        figures = [float(number) for number in re.findall(r"0\.\d{3}", text)]
        assert figures
        for figure in figures:
            assert min(abs(figure - one) for one in printed) < 0.002, (figure, printed)


def test_it_has_three_experiments_and_commands_for_all_learners():
    assert len(EXPERIMENTS_SHOWN) == 3
    for name in ("fedomd", "fedsea", "ofediq", "dynamic-fedavg"):
        assert any(f"--global-learner {name}" in command for command in TABLE)


@pytest.mark.slow
def test_its_curl_lines_and_its_python_work_as_printed(tmp_path):
    [python] = [code for lang, code in BLOCKS if lang == "py"]
    lines = [line for lang, code in BLOCKS if lang == "sh" for line in code.splitlines() if line.startswith("curl")]
    with served([forked.FEDRES, "serve"], tmp_path) as (url, _):
        answers = [
            subprocess.run(
                [*shlex.split(line.replace("http://127.0.0.1:8000", url)), "--fail-with-body"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for line in lines
        ]
        code = python.replace("http://127.0.0.1:8000", url) + "    assert client.flush() and not decision.fallback\n"
        forked.run([sys.executable, "-c", code], check=True)
    assert '"action":' in answers[0]
    assert answers[1] == ""
    assert all(answer.endswith("\n") for answer in answers if answer)
    assert any('"event_id":"first"' in answer.replace(" ", "") for answer in answers[2:])

"""The README keeps its word."""

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedres.global_learners import GLOBAL_LEARNERS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", [code for language, code in BLOCKS if language == "python"])
def test_its_examples_run(code, capsys):
    exec(compile(code, "README.md", "exec"), {})


def test_its_first_example_learns(capsys):
    exec(compile(BLOCKS[0][1], "README.md", "exec"), {})
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[-1] < 0.02 * losses[0]


@pytest.mark.parametrize(
    "line", [line for language, code in BLOCKS if language == "sh" for line in code.splitlines() if "python" in line]
)
def test_its_python_lines_run(line):
    words = shlex.split(line)
    done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "levels=3, blocks=777, participation=0.0861" in done.stdout


def test_its_table_names_every_algorithm_and_files_that_exist():
    for name in GLOBAL_LEARNERS:
        assert f"| `{name}` |" in README
    for path in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / path).is_file(), path


def test_the_commands_it_shows_are_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_its_table_of_accuracies_is_the_committed_result():
    with (ROOT / "docs" / "results" / "beyond.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["clients"] == "50"]
    for row in rows:
        if row["scheme"] == "central" and row["delay"] != "0":
            continue
        shown = f"{float(row['accuracy']):.3f} ± {float(row['standard_error']):.3f}".replace("0.", ".")
        (line,) = re.findall(rf"^\| {row['dataset']} \|.*$", README, flags=re.MULTILINE)
        assert shown in line


def fedres_lines(code):
    return [line for line in code.splitlines() if line.startswith("fedres")]


@pytest.mark.slow
@pytest.mark.parametrize("lines", [fedres_lines(code) for lang, code in BLOCKS if lang == "sh" and fedres_lines(code)])
def test_its_fedres_lines_run_one_after_the_other(lines, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for line in lines:
        command, *words = shlex.split(line, comments=True)
        done = subprocess.run(
            [Path(sys.executable).with_name(command), *words], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) > 5
        for word in words:
            if word.endswith((".json", ".png", ".jsonl")):
                assert (tmp_path / word).stat().st_size > 0


@pytest.mark.slow
def test_its_curl_lines_work_as_printed(tmp_path):
    lines = [line for lang, code in BLOCKS if lang == "sh" for line in code.splitlines() if line.startswith("curl")]
    command = [Path(sys.executable).with_name("fedres"), "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            said = iter(server.stdout.readline, "")
            url = next(found[0] for line in said if (found := re.search(r"http://[\d.]+:\d+", line)))
            answers = [
                subprocess.run(
                    [*shlex.split(line.replace("http://127.0.0.1:8000", url)), "--fail-with-body"],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
                for line in lines
            ]
        finally:
            server.terminate()
    assert '"action":' in answers[0]
    assert answers[1] == ""
    assert '"event_id":"first"' in answers[-1].replace(" ", "")

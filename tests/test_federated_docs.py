"""The pages of docs/federated: their commands run, their figures are those that the commands print."""

import csv
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from forked import FEDRES, run
from guides import blocks, follow
from serving import served
from waiting import LIMIT

from libsvm_tasks.plots import line_style

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "federated"
PAPERS = {  # page: names of its figures begin with this
    "fedres.md": ("fedres", "beyond"),
    "fedomd.md": ("fedomd",),
    "fedsea.md": ("fedsea",),
    "ofediq.md": ("ofediq",),
    "dynamic-fedavg.md": ("dynfed",),
}
EXPERIMENTS = ("replay.md", "delay.md")
WITH_SERVICE = "loop.md"  # its other command is in tests/examples/test_examples.py


def commands(page):
    """Return the commands of a page, each as a line."""
    return [line for block in blocks(FOLDER / page) if block.language == "sh" for line in block.code.splitlines()]


def invoke(line, folder):
    """Run a command of fedres in a folder; return its output. Its pools of processes need one that is not forked."""
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "200"}
    words = [sys.executable, str(Path(sys.executable).with_name("fedres")), *shlex.split(line)[1:]]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=2 * LIMIT)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "line"), [(page, line) for page in PAPERS for line in commands(page)], ids=lambda part: part.split()[-1]
)
def test_the_commands_about_a_paper_run(page, line, tmp_path):
    output = invoke(line, tmp_path)
    if line.startswith("fedres reproduce"):
        assert (tmp_path / "results" / f"{line.split()[2]}.png").stat().st_size > 0
        assert "reproduced" in output


@pytest.mark.slow
@pytest.mark.parametrize("page", EXPERIMENTS)
def test_the_figures_of_experiments_are_those_that_are_printed(page, tmp_path):
    printed = set()
    for block in blocks(FOLDER / page):
        if block.file:
            (tmp_path / block.file).write_text(block.code)
        elif block.language == "sh":
            for line in block.code.splitlines():
                if line.startswith("python "):
                    run([sys.executable, *line.split()[1:]], cwd=tmp_path, check=True)
                else:
                    output = invoke(line, tmp_path)
                    printed |= {float(number) for number in re.findall(r"(?<![\w.])0\.\d{4}\b", output)}
    text = (FOLDER / page).read_text(encoding="utf-8").partition("## Measure it on your data")
    tables = re.findall(r"^\| (?:independent|central|fedres).*$", text[2] or text[0], flags=re.MULTILINE)
    figures = [float(number) for row in tables for number in re.findall(r"0\.\d{3}", row)]
    assert len(figures) >= 6
    for figure in figures:
        assert min(abs(figure - one) for one in printed) < 0.002, figure


@pytest.mark.slow
def test_the_loop_of_the_paper_takes_a_device_with_vowpal_wabbit(tmp_path):
    pytest.importorskip("vowpalwabbit")
    with served([FEDRES, "serve"], tmp_path) as (url, _):
        _, decision = follow(FOLDER / WITH_SERVICE, tmp_path, None, {"8000": url})
    assert re.fullmatch(r"(tea|juice) 0\.\d+ None\n", decision)


def test_counts_of_claims_on_the_pages_of_the_papers_are_those_of_the_results():
    with (ROOT / "docs" / "results" / "claims.csv").open(encoding="utf-8") as file:
        claims = list(csv.DictReader(file))
    counts = {}
    for page, names in PAPERS.items():
        ours = [claim for claim in claims if claim["figure"].startswith(names)]
        counts[page] = Counter(claim["verdict"] for claim in ours if not claim["source"].startswith("ours"))
    assert sum(map(len, PAPERS.values())) == 6
    assert counts["fedres.md"] == {"reproduced": 7, "partly": 6, "not reproduced": 7}
    assert counts["fedomd.md"] == {"reproduced": 4}
    assert counts["fedsea.md"] == {}
    assert counts["ofediq.md"] == {"reproduced": 7, "partly": 2}
    assert counts["dynamic-fedavg.md"] == {"reproduced": 6, "not reproduced": 2}


def test_accuracies_lost_to_delay_are_those_of_the_claims():
    claims = (ROOT / "docs" / "results" / "claims.csv").read_text(encoding="utf-8")
    table = (FOLDER / "delay.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (letter|pendigits|mnist|satimage|sensorless|usps) \| (\S+) \| .*?(\S+) \|$", table, re.M)
    rows = [(name, aligned, arrival) for name, aligned, arrival in rows]
    assert len(rows) == 6
    for _, aligned, arrival in rows:
        assert f"-{aligned}" in claims
        assert f"-{arrival}" in claims or f"+{arrival}" in claims


def test_a_page_about_a_paper_is_short_and_shows_a_figure():
    for name in PAPERS:
        text = (FOLDER / name).read_text(encoding="utf-8")
        # Further figures of the paper follow the page.
        page, *_ = text.split("## More figures")
        assert len(page.splitlines()) <= 60
        assert re.search(r"!\[[^\]]+\]\(\.\./results/[\w-]+\.png\)", text)


def test_lines_of_our_plots_have_the_styles_of_the_figures():
    assert [line_style("fedres", "aligned"), line_style("fedres", "on-arrival")] == ["-", "--"]
    assert line_style("central", "on-arrival") == "-"

"""Reproduction as a whole: the list, the files, resuming; and the FedRes figures in their quick form."""

import csv
import json
import os
import re
from pathlib import Path

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from research.reproduce.figure import Claim, Figure, Run, verdict
from research.reproduce.registry import FIGURES, read_claims, reproduce, summary, table
from research.reproduce.statements import OURS, STATEMENTS, Statement
from service.cli import app

RESULTS = Path(__file__).parents[2] / "docs/results"


def test_every_figure_the_papers_number_is_on_the_list():
    expected = {f"fedres-{n}" for n in range(1, 13)} | {
        "fedomd-1-left",
        "fedomd-1-right",
        "fedomd-rate",
        "fedsea-speedup",
    }
    expected |= {f"ofediq-{n}" for n in (2, 3, 4)} | {f"dynfed-1{part}" for part in "abcd"} | {"beyond"}
    assert expected == set(FIGURES)
    listed = CliRunner().invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in expected)


@pytest.fixture(scope="module", params=["of each kind one", pytest.param("all", marks=pytest.mark.long)])
def quick(request, tmp_path_factory):
    """FedRes figures of the engine, made once: bars, curves over clients and over delays, or all of them."""
    os.environ.pop("FEDRES_DATA", None)
    run = Run(tmp_path_factory.mktemp("results"), quick=True, jobs=1)
    names = [name for name in FIGURES if name.startswith("fedres-") and name not in ("fedres-6", "fedres-7")]
    names = names if request.param == "all" else ["fedres-1", "fedres-8", "fedres-9"]
    return run, names, reproduce([*names, "beyond"], run)


def test_each_figure_is_a_picture_a_table_and_claims_with_verdicts(quick):
    run, names, claims = quick
    for name in names:
        picture = imread(run.picture(name))
        assert picture.shape[0] > 200
        assert picture.std() > 0.05
        with (run.out / f"{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert {row["scheme"] for row in rows} == {"independent", "central", "fedres"}
        assert all(0.4 < float(row["accuracy"]) <= 1 for row in rows)
    assert {claim.figure for claim in claims} == {*names, "beyond"}
    assert all(claim.measured and claim.verdict in ("reproduced", "partly", "not reproduced") for claim in claims)


def test_the_table_of_claims_lists_them_all(quick):
    run, _, claims = quick
    lines = (run.out / "claims.md").read_text().splitlines()
    assert len(lines) == 4 + len(claims)
    assert lines[0].startswith(summary(claims))
    assert lines[2] == "| figure | source | claim | measured | verdict |"
    with (run.out / "claims.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(claims)


def test_aligned_timing_collapses_under_delay_and_learning_on_arrival_does_not(quick):
    """What we found on every dataset holds on digits too."""
    claims = [claim for claim in quick[2] if claim.figure == "fedres-9"]
    assert [claim.verdict for claim in claims] == ["not reproduced", "reproduced"]


def test_a_figure_that_is_there_is_not_made_again_unless_made_another_way(tmp_path, monkeypatch):
    made = []

    def make(run):
        made.append(run.quick)
        return [Claim("fake", "ours", "a claim", "a rule", "never", "1", "reproduced", "x86_64")]

    monkeypatch.setitem(FIGURES, "fake", Figure("fake", "ours", "nothing", make))
    for is_quick in (True, True, False, False):
        assert len(reproduce(["fake"], Run(tmp_path, quick=is_quick))) == 1
    assert made == [True, False]
    record = tmp_path / "fake.json"
    record.write_text(record.read_text().replace('"rule": "a rule",', ""))  # as an earlier version wrote it
    assert reproduce(["fake"], Run(tmp_path))[0].rule == "a rule"
    assert json.loads((tmp_path / "fake.json").read_text())["quick"] is False


def test_an_unknown_figure_is_refused_before_any_is_made(tmp_path):
    with pytest.raises(ValueError, match=r"figure must be one of fedres-1, .*, got 'fedres-99'"):
        reproduce(["fedres-1", "fedres-99"], Run(tmp_path / "out", quick=True))
    assert not (tmp_path / "out").exists()


def test_every_statement_names_its_source_rule_and_refutation():
    """Ours are marked; the papers' name a section, a figure or a theorem."""
    for key, statement in STATEMENTS.items():
        assert key.split("/")[0] in FIGURES
        assert all(statement)
        place = re.search(r"(section|figure|appendix|theorem) [A-Z\d]", statement.source)
        assert statement.source.startswith(OURS) or place
    by_paper = {"fedsea", "beyond"}  # no experiments in the paper; no paper
    ours = {key.split("/")[0].split("-")[0] for key, one in STATEMENTS.items() if one.source.startswith(OURS)}
    assert by_paper < ours


def test_the_published_table_has_every_statement_once_and_counts_itself():
    claims = read_claims(RESULTS / "claims.csv")
    published = {(claim.figure, *(getattr(claim, name) for name in Statement._fields)) for claim in claims}
    assert published == {(key.split("/")[0], *statement) for key, statement in STATEMENTS.items()}
    assert len(claims) == len(STATEMENTS)
    lines = table(claims).splitlines()
    assert lines[0].startswith(summary(claims))
    assert [line.count(" | ") for line in lines[4:]] == [4] * len(claims)
    assert {claim.machine for claim in claims} <= {"aarch64", "x86_64"}


def test_verdicts():
    assert verdict([True, True]) == "reproduced"
    assert verdict([True, False]) == "partly"
    assert verdict([False]) == "not reproduced"

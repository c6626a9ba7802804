"""OFedIQ's figures 2 to 4 on digits, as `--quick` makes them."""

import csv

import numpy as np
import pytest

from libsvm_tasks.data import Data
from libsvm_tasks.load import load
from libsvm_tasks.streams import online_partition
from research.reproduce.figure import Run
from research.reproduce.ofediq_figures import (
    AT_COST,
    BEST,
    FEDOGD,
    FIGURES,
    UNBLOCKED,
    Cell,
    Method,
    hyperparameters,
    model_of,
    play,
    points,
)


@pytest.fixture(scope="module", params=["one", pytest.param("all", marks=pytest.mark.long)])
def made(request, tmp_path_factory):
    """Return a quick run, its figures (the one that compares all methods, or all three), and each one's claims."""
    run = Run(tmp_path_factory.mktemp("figures"), quick=True, jobs=1)
    figures = FIGURES if request.param == "all" else FIGURES[-1:]
    return run, figures, {figure.name: figure.make(run) for figure in figures}


def rows_of(run, name):
    with (run.out / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_figure_is_a_picture_a_table_and_claims(made):
    run, _, claims = made
    assert list(claims)[-1] == "ofediq-4"
    for name, own in claims.items():
        assert run.picture(name).read_bytes().startswith(b"\x89PNG")
        assert {(row["dataset"], row["metric"], row["seeds"]) for row in rows_of(run, name)} == {
            ("digits", "accuracy", "2")
        }
        for claim in own:
            assert claim.figure == name
            assert "±" in claim.measured
            assert "digits" in claim.measured


@pytest.mark.slow
def test_the_methods_come_out_in_the_papers_order(made):
    last = [row for row in rows_of(made[0], "ofediq-4") if row["t"] == "100"]
    at = {(row["method"], row["ccr"]): float(row["value"]) for row in last}
    for reduction in ("90%", "99%"):
        order = [at["FedOGD", "0%"], *(at[method, reduction] for method in ("OFedIQ", "OFedAvg", "FedOMD"))]
        assert order == sorted(order, reverse=True)
    assert at["FedOGD", "0%"] > 0.85
    assert at["OFedIQ", "99%"] > at["OFedAvg", "99%"] + 0.05


@pytest.mark.slow
def test_methods_of_one_reduction_send_as_many_bits(made):
    shares = {(row["method"], row["ccr"]): float(row["share_of_bits"]) for row in rows_of(made[0], "ofediq-4")}
    assert shares["FedOGD", "0%"] == 1
    for reduction, gamma in (("90%", 0.1), ("99%", 0.01)):
        for method in ("OFedIQ", "OFedAvg", "FedOMD"):
            # 4.5 standard errors of 1,000 coins a round with chance 0.01 or more; s = 3 packs 3 bits into 2.81
            assert 0.9 < shares[method, reduction] / gamma < 1.15


@pytest.mark.slow
def test_a_second_run_reads_the_journal(made):
    run, figures, claims = made
    before = run.journal.read_bytes()
    assert {figure.name: figure.make(run) for figure in figures} == claims
    assert run.journal.read_bytes() == before


def test_the_curve_is_the_papers_running_accuracy():
    """At w_1 = 0 all scores are equal and class 0 is predicted."""
    curve, digits = play(Cell("digits", FEDOGD, 5, seed=3)), load("digits")
    first = online_partition(digits, 1000, 5, 3)[:, 0]
    assert points(5).tolist() == [1, 2, 3, 4, 5]
    assert curve["metric"][0] == pytest.approx((digits.label[first] == 0).mean())
    assert curve["bits"] == 1


def test_hyperparameters_are_those_of_the_paper_at_its_size():
    best = hyperparameters(BEST, 34_826, 0)
    assert (best["levels"], best["blocks"], round(best["participation"], 3)) == (3, 777, 0.086)
    other = hyperparameters(UNBLOCKED, 34_826, 0)
    assert (other["levels"], other["blocks"], other["participation"]) == (7, 1, best["participation"])
    longer = hyperparameters(BEST._replace(period=5), 34_826, 0)
    assert longer["participation"] / longer["period"] == pytest.approx(best["participation"])
    assert [hyperparameters(methods[2], 100, 0) for methods in AT_COST.values()] == [{"sync": 10}, {"sync": 100}]
    assert hyperparameters(Method("ofedavg", 0.1), 100, 7) == {"participation": 0.1, "seed": 7}


@pytest.mark.parametrize(
    ("name", "n_features", "classes", "dim"),
    [("mnist", 784, 10, 34_990), ("occupancy", 16, 4, 5508), ("airquality", 11, 0, 4993), ("digits", 65, 10, 650)],
)
def test_models_have_about_the_papers_sizes(name, n_features, classes, dim):
    data = Data(name, np.zeros((1, n_features)), np.zeros(1), np.arange(classes) if classes else None)
    assert model_of(data).dim == dim

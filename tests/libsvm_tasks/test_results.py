"""Records of experiments as summaries, tables and pictures."""

from io import StringIO

import pytest
from matplotlib import pyplot
from rich.console import Console

from libsvm_tasks import Table, bandit, delays
from libsvm_tasks.bandit_replay import Setup, make_scheme, run
from libsvm_tasks.report import bandit_table, replay_table
from libsvm_tasks.schemes import Scheme
from libsvm_tasks.task_replay import Setup as ReplaySetup
from libsvm_tasks.task_replay import replay

RECORDS = Table(
    {"dataset": "birds", "scheme": scheme, "delay": delay, "rollout": k, "seed": k, "accuracy": accuracy, "gain": gain}
    for scheme, delay, accuracies in (
        ("independent", 0, (0.5, 0.7)),
        ("fedres", 0, (0.8, 0.8)),
        ("fedres", 9, (0.7, 0.9)),
    )
    for k, accuracy in enumerate(accuracies)
    for gain in [None if scheme == "independent" else 0.1]
)


def printed(table, width=200):
    console = Console(width=width, file=StringIO())
    console.print(table)
    return console.file.getvalue()


def test_a_summary_has_means_and_standard_errors_of_several_rollouts():
    independent, fedres, late = RECORDS.summary()
    assert (independent["scheme"], independent["accuracy"]) == ("independent", pytest.approx(0.6))
    assert independent["accuracy_se"] == pytest.approx(0.1)
    assert (independent["gain"], fedres["gain"], late["delay"]) == (None, 0.1, 9)
    assert "accuracy_se" not in Table(RECORDS[:1]).summary()[0]


def test_a_notebook_shows_what_differs_and_its_means():
    page = RECORDS._repr_html_()
    assert "<caption>dataset birds; 2 rollouts</caption>" in page
    assert "0.6000 ± 0.1000" in page
    assert "+0.1000 ± 0.0000" in page
    assert "±" not in Table(RECORDS[:1])._repr_html_()
    assert Table()._repr_html_() == "<p>no records</p>"


def test_a_picture_has_lines_over_delays_or_bars():
    axes = RECORDS.plot()
    assert [line.get_label() for line in axes.lines] == ["independent", "fedres"]
    assert [list(line.get_ydata()) for line in axes.lines] == [pytest.approx([0.6, 0.6]), pytest.approx([0.8, 0.8])]
    bars = Table(record for record in RECORDS if record["delay"] == 0).plot()
    assert [bar.get_height() for bar in bars.patches] == pytest.approx([0.6, 0.8])
    pyplot.close("all")


def test_delays_that_no_message_survives_are_refused_or_left_out():
    small = {"clients": 2, "rounds": 30, "rollouts": 1}
    with pytest.raises(
        ValueError, match=r"^delays must be below the number of rounds, 30, or no message arrives, got 40: "
    ):
        delays("digits", [0, 40], **small)
    assert {row["delay"] for row in delays("digits", **small)} == {0, 20}


def test_policies_side_by_side_gain_on_independent_with_the_same_policy():
    setup = Setup("digits", 2, 100, 1)
    names = ["squarecb:gamma=20,floor=0.02", "epsilon-greedy"]
    result = run(setup, [make_scheme(scheme, name, {}) for name in names for scheme in ("independent", "fedres")])
    by_hand = bandit("digits", policies=names, clients=2, rounds=100, rollouts=1, schemes=["independent", "fedres"])
    assert [one.gain.tolist() for one in result.results] == [[row["gain"]] for row in by_hand]
    text = printed(bandit_table(result))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    assert "±" not in text  # one rollout shows no spread
    assert "squarecb" in text
    assert "epsilon-greedy" in text


def test_tables_of_replays_fit_100_columns_and_one_rollout_shows_no_spread():
    learners = ("fedres-sgd", "ofedavg:participation=0.2")
    schemes = [Scheme("independent"), Scheme("central", delay=5)]
    schemes += [
        Scheme("fedres", name, timing=timing, delay=5) for name in learners for timing in ("on-arrival", "aligned")
    ]
    for rollouts in (1, 2):
        text = printed(replay_table(replay(ReplaySetup("digits", 2, 20, rollouts), schemes, jobs=1)))
        assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
        assert ("±" in text) == (rollouts > 1)

"""Experiments from Python: tidy records, one's own data and learners."""

import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from sklearn.datasets import load_digits

import libsvm_tasks
from bandits import EpsilonGreedy, Greedy
from fedres.global_learners import GLOBAL_LEARNERS, FedOGD, global_learner, learner_names
from libsvm_tasks import Data, bandit, delays, replay
from libsvm_tasks.task_replay import Setup
from libsvm_tasks.task_replay import replay as play

SMALL = {"clients": 4, "rounds": 30, "rollouts": 2}


def fedres_rows(table):
    return [row for row in table if row["scheme"] == "fedres"]


def test_a_replay_has_a_record_for_each_scheme_and_rollout():
    table = replay("digits", **SMALL)
    assert [(row["scheme"], row["rollout"]) for row in table] == [
        (scheme, k) for scheme in ("independent", "central", "fedres") for k in range(2)
    ]
    accuracy = {(row["scheme"], row["rollout"]): row["accuracy"] for row in table}
    for row in table:
        assert row["gain"] == accuracy[row["scheme"], row["rollout"]] - accuracy["independent", row["rollout"]]


def test_a_class_or_a_function_with_hyperparameters_is_the_learner_of_that_name():
    """Also in other processes, which know nothing of this file."""
    own = [
        partial(FedOGD, step_size=0.01),
        lambda model, n_clients: FedOGD(model=model, n_clients=n_clients, step_size=0.01),
    ]
    learners = ["fedogd:step_size=0.01", *own]
    table = replay("digits", **SMALL, schemes=["fedres"], global_learners=learners, jobs=2)
    by_name, by_class, by_function = np.array([row["accuracy"] for row in table]).reshape(3, 2)
    np.testing.assert_array_equal(by_name, by_class)
    np.testing.assert_array_equal(by_name, by_function)
    assert [row["global_learner"] for row in table[::2]] == [
        "fedogd:step_size=0.01",
        "FedOGD:step_size=0.01",
        "<lambda>",
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Still(FedOGD):
    """Never learns."""

    step_size: float = 1e-12


def test_one_s_own_learner_is_played():
    table = replay("digits", **SMALL, global_learners=[Still, "fedogd"])
    still, learned = (fedres_rows(table)[k : k + 2] for k in (0, 2))
    assert [row["accuracy"] for row in still] != [row["accuracy"] for row in learned]
    assert [row["gain"] for row in still] == [0, 0]  # nothing shared: each client alone


def test_columns_in_memory_are_replayed_as_their_file_is(tmp_path):
    features, label = load_digits(return_X_y=True)
    columns = {f"pixel {k}": features[:, k] for k in range(20, 40)} | {"digit": [f"d{n}" for n in label]}
    path = tmp_path / "digits.csv"
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines))
    in_memory, in_file = replay(columns, label="digit", **SMALL), replay(path, label="digit", **SMALL)
    assert [row["accuracy"] for row in in_memory] == [row["accuracy"] for row in in_file]
    data = Data("mine", features / 16, label, np.arange(10))
    assert [row["accuracy"] for row in replay(data, **SMALL)] == [row["accuracy"] for row in replay("digits", **SMALL)]


def test_delays_are_those_of_the_command_line():
    table = delays("digits", [0, 8], **SMALL)
    assert [(row["timing"], row["delay"]) for row in fedres_rows(table)[::2]] == [
        ("on-arrival", 0),
        ("on-arrival", 8),
        ("aligned", 0),
        ("aligned", 8),
    ]
    assert sum(row["scheme"] == "independent" for row in table) == 2


def test_policies_of_a_bandit_are_names_objects_or_classes():
    table = bandit("digits", policies=["squarecb", EpsilonGreedy(1.0), Greedy], clients=2, rounds=60, rollouts=2)
    rewards = {}
    for row in table:
        rewards.setdefault((row["policy"], row["scheme"]), []).append(row["reward"])
    assert {name for name, _ in rewards} == {"squarecb", "epsilon-greedy:epsilon=1", "greedy"}
    assert len(rewards) == 9
    assert len({tuple(values) for (name, _), values in rewards.items() if "epsilon=1" in name}) == 1  # chance alone
    columns = {"x": [0.0, 1.0] * 50, "y": ["left", "right"] * 50}
    [row] = bandit(columns, label="y", clients=1, rounds=80, rollouts=1, schemes=["independent"])
    assert row["reward"] > 0.6


def test_a_table_becomes_a_data_frame():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = replay("digits", **SMALL).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.groupby("scheme").accuracy.count().tolist() == [2, 2, 2]


def test_an_installed_package_may_offer_a_learner(tmp_path, monkeypatch):
    (tmp_path / "still_learner.py").write_text("from fedres.global_learners import FedOGD\nclass Still(FedOGD): pass\n")
    info = tmp_path / "still_learner-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: still-learner\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fedres.global_learners]\nstill = still_learner:Still\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert learner_names() == [*GLOBAL_LEARNERS, "still"]
    assert type(global_learner("still", dim=2, step_size=0.5)).__name__ == "Still"
    table = replay("digits", **SMALL, global_learners=["fedogd:step_size=0.01", "still:step_size=0.01"])
    by_name, plugged_in = np.array([row["accuracy"] for row in fedres_rows(table)]).reshape(2, 2)
    np.testing.assert_array_equal(by_name, plugged_in)


def test_what_is_no_learner_and_what_has_no_label_is_refused():
    with pytest.raises(ValueError, match="global_learner must be a name or a class, got 3"):
        replay("digits", **SMALL, global_learners=[3])
    with pytest.raises(ValueError, match="label must name one of the columns x, y; none was given"):
        replay({"x": [1], "y": [2]}, **SMALL)
    with pytest.raises(ValueError, match="label must come with columns or a file"):
        replay(Data("d", np.ones((2, 2)), np.ones(2)), label="y")


def test_the_package_offers_its_names_without_loading_anything():
    code = "import sys, libsvm_tasks; assert 'numpy' not in sys.modules; print(libsvm_tasks.replay.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "libsvm_tasks.experiments\n"
    with pytest.raises(AttributeError, match="'libsvm_tasks' has no attribute 'replays'"):
        libsvm_tasks.replays  # noqa: B018


def test_the_records_are_those_of_a_replay():
    from libsvm_tasks.schemes import Scheme

    result = play(Setup("digits", 4, 30, 2), [Scheme()], jobs=1).results[0]
    assert [row["accuracy"] for row in replay("digits", **SMALL, schemes=["fedres"])] == result.accuracy.tolist()

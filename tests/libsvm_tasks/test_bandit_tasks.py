"""Datasets as bandits."""

import numpy as np
import pytest

from libsvm_tasks.bandit_tasks import TASKS, bandit_task
from libsvm_tasks.load import load


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.mark.parametrize("task", TASKS)
def test_exactly_one_action_earns_in_every_round(digits, task):
    stream = bandit_task(digits, 4, 50, task=task, seed=1)
    rewards = np.concatenate([chunk.rewards for chunk in stream])
    assert rewards.shape == (50, 4, 10)
    assert (rewards.sum(axis=2) == 1).all()


def test_one_client_for_as_many_rounds_as_rows_sees_every_row_once(digits):
    stream = bandit_task(digits, 1, len(digits.label), seed=3)
    assert sorted(stream.rows[:, 0]) == list(range(len(digits.label)))


def test_same_tasks_keep_the_names_and_permuted_ones_move_at_most_three(digits):
    same = bandit_task(digits, 30, 10, task="same")
    permuted = bandit_task(digits, 30, 10, task="permuted")
    assert (same.names == np.arange(10)).all()
    moved = (permuted.names != np.arange(10)).sum(axis=1)
    assert moved.max() == 3
    assert len(set(moved)) > 1
    for names in permuted.names:
        assert sorted(names) == list(range(10))


def test_under_drift_no_class_keeps_its_action_from_half_time_on(digits):
    stream = bandit_task(digits, 3, 101, task="drift", seed=2)
    named = np.concatenate([chunk.rewards for chunk in stream]).argmax(axis=2)
    label = digits.label[stream.rows].astype(int)
    assert (named[:50] == label[:50]).all()
    assert (named[50:] != label[50:]).all()
    for name in range(10):
        assert len(set(named[50:][label[50:] == name])) == 1  # for all clients alike


def test_shuffled_clients_agree_no_more_than_by_chance(digits):
    names = bandit_task(digits, 400, 2, task="shuffled").names
    agreement = (names[::2] == names[1::2]).mean()  # 2,000 pairs of chance 1/10: s.e. .007
    assert abs(agreement - 0.1) < 0.03


def test_clients_of_subsets_meet_half_of_the_classes(digits):
    stream = bandit_task(digits, 6, 400, task="subsets")
    met = [set(digits.label[stream.rows[:, client]]) for client in range(6)]
    assert {len(classes) for classes in met} == {5}
    assert len(set.union(*met)) > 5


@pytest.mark.parametrize(("shared", "local", "sizes"), [("half", "all", (33, 65)), ("all", "half", (65, 33))])
def test_features_are_split_as_asked_and_both_sides_get_a_constant(digits, shared, local, sizes):
    stream = bandit_task(digits, 2, 5, shared_features=shared, local_features=local)
    chunk = next(iter(stream))
    assert (chunk.shared.shape[-1], chunk.private.shape[-1]) == sizes
    assert (chunk.shared[..., -1] == 1).all()
    if local == "half":
        halves = bandit_task(digits, 2, 5, shared_features="half", local_features="half")
        assert not set(halves.shared_columns) & set(halves.private_columns)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "other"}, "task must be one of"),
        ({"shared_features": "most"}, "shared_features must be one of"),
        ({"local_features": "none"}, "local_features must be one of"),
    ],
)
def test_bad_options_are_named(digits, options, words):
    with pytest.raises(ValueError, match=words):
        bandit_task(digits, 2, 5, **options)

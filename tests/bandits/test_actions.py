"""What can be chosen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandits import Actions, arms, rows, sparse
from bandits.actions import as_actions, none

small = st.integers(-3, 3).map(float)


def dense(actions):
    """Return all actions' features as rows over all weights."""
    table = np.zeros((actions.n, actions.dim))
    for a, row in enumerate(table):
        actions.take(a).add_to(row)
    return table


def test_an_arm_has_weights_and_a_constant_of_its_own():
    actions = arms([2.0, 3.0], 3)
    assert (actions.n, actions.dim) == (3, 9)
    assert dense(actions).tolist() == [
        [2, 3, 1, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 2, 3, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 2, 3, 1],
    ]


@given(st.lists(st.lists(small, min_size=4, max_size=4), min_size=1, max_size=5))
def test_rows_and_sparse_hold_the_same_numbers(table):
    values = np.array(table)
    pairs = [(np.flatnonzero(row), row[row != 0]) for row in values]
    assert dense(rows(values)).tolist() == dense(sparse(pairs, dim=4)).tolist() == values.tolist()


def test_an_index_that_comes_twice_adds_up():
    assert dense(sparse([([1, 1], [2.0, 3.0]), ([], [])], dim=3)).tolist() == [[0, 5, 0], [0, 0, 0]]


def test_a_table_of_numbers_is_taken_as_rows():
    actions = as_actions([[1, 2], [3, 4]])
    assert dense(actions).tolist() == [[1, 2], [3, 4]]
    assert as_actions(actions) is actions


def test_no_features_are_allowed():
    assert dense(none(4)).shape == (4, 0)


def test_the_callers_table_may_change_afterwards():
    table = np.ones((2, 3))
    actions = rows(table)
    table[:] = 9
    assert dense(actions).max() == 1


@pytest.mark.parametrize("actions", [rows(np.eye(9, 4)), sparse([([a % 4], [1.0 + a]) for a in range(9)], dim=4)])
def test_a_kept_action_does_not_keep_the_others_in_memory(actions):
    kept = actions.keep(5)
    one, same = np.zeros(4), np.zeros(4)
    kept.take(5).add_to(one)
    actions.take(5).add_to(same)
    assert one.tolist() == same.tolist()
    assert not np.shares_memory(kept.values, actions.values)
    assert len(actions.indices) == 1 or not np.shares_memory(kept.indices, actions.indices)


def test_arms_have_one_context_and_are_kept_as_they_are():
    actions = arms([1.0, 2.0], 3)
    assert actions.keep(2) is actions


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: arms([1.0], 0), "n_actions must be an integer of at least 1, got 0"),
        (lambda: arms([1.0], 2.5), "n_actions must be an integer of at least 1, got 2.5"),
        (lambda: arms([[1.0]], 2), r"context must have 1 axes, got shape \(1, 1\)"),
        (lambda: arms(["a"], 2), "context must be numbers"),
        (lambda: arms([np.nan], 2), "context must be finite in 32 bits, got NaN, infinity or more"),
        (lambda: rows([[np.inf]]), "actions must be finite in 32 bits"),
        (lambda: sparse([([0], [-1e39])], 3), "values must be finite in 32 bits"),
        (lambda: rows([1.0, 2.0]), r"actions must have 2 axes, got shape \(2,\)"),
        (lambda: rows([[1.0], [1.0, 2.0]]), "actions must be numbers"),
        (lambda: rows(np.zeros((0, 3))), "actions must hold at least one action, got none"),
        (lambda: sparse([], 3), "actions must hold at least one action, got none"),
        (lambda: sparse([([0], [1.0])], 0), "dim must be an integer of at least 1, got 0"),
        (lambda: sparse([([0], [1.0]), ([3], [1.0])], 3), r"indices must be in \[0, 3\), got \[3\] for action 1"),
        (lambda: sparse([([-1], [1.0])], 3), r"indices must be in \[0, 3\), got \[-1\] for action 0"),
        (lambda: sparse([([0, 1], [1.0])], 3), "indices must be as many as values, 1, got 2 for action 0"),
        (lambda: sparse([([0.5], [1.0])], 3), "indices must be integers, got float64"),
        (lambda: sparse([([0], ["a"])], 3), "values must be numbers"),
    ],
)
def test_what_is_no_set_of_actions_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_actions_are_plain_values():
    assert isinstance(rows([[1.0]]), Actions)

"""Weights: how large they can be, where they are cut, and which cannot be trusted."""

import math

import numpy as np
import pytest

from bandits.evaluation.logs import LoggedEvent
from bandits.evaluation.table import table
from bandits.evaluation.weights import (
    effective_sample_size,
    possible_weights,
    user_warning,
    weight_cap,
    weight_warning,
)


def make_log(chosen, logging, all_probabilities=True):
    """Return a log of the actions a and b, with the probability of a given for each event."""
    events = []
    for i, (k, p) in enumerate(zip(chosen, logging, strict=True)):
        both = (p, 1 - p)
        events.append(
            LoggedEvent(str(i), {}, ("a", "b"), ({}, {}), k, both[k], 0.0, both if all_probabilities else None)
        )
    return table(events)


def test_effective_sample_size_is_n_for_equal_weights_and_1_for_a_single_one():
    assert effective_sample_size(np.full(40, 2.5)) == pytest.approx(40)
    assert effective_sample_size(np.array([0.0, 3.0, 0.0])) == 1
    assert effective_sample_size(np.zeros(5)) == 0


def test_a_weight_could_be_that_of_any_action_and_is_infinite_for_one_that_could_not_be_taken():
    log = make_log([0, 1, 1], [0.5, 0.1, 0.0])
    always_a = np.tile([1.0, 0.0], 3)
    assert possible_weights(log, always_a).tolist() == [2.0, 0.0, 10.0, 0.0, math.inf, 0.0]


def test_probabilities_that_the_log_does_not_say_are_taken_to_be_the_smallest_it_says():
    always_b = np.tile([0.0, 1.0], 3)
    assert possible_weights(
        make_log([0, 1, 0], [0.5, 0.8, 0.9], all_probabilities=False), always_b
    ).max() == pytest.approx(5)
    never_b = make_log([0, 0, 0], [0.5, 0.8, 0.9], all_probabilities=False)
    assert np.isinf(possible_weights(never_b, always_b)[1::2]).all()


def test_weights_are_cut_where_few_events_are_expected_to_have_more():
    log = make_log([0] * 1000, [0.001] * 100 + [0.5] * 900)  # weights 1000 and 2: 0.1 events with 1000 are expected
    weight = possible_weights(log, np.tile([1.0, 0.0], 1000))
    assert weight_cap(log, weight, 3.7) == 2
    assert weight_cap(log, weight, 0.05) == weight_cap(log, weight, 0.0) == 1000
    assert weight_cap(log, weight, 2000.0) == 0


def test_nothing_is_cut_where_the_log_does_not_say_how_probable_actions_were():
    log = make_log([0] * 1000, [0.01] + [0.5] * 999, all_probabilities=False)
    assert weight_cap(log, possible_weights(log, np.tile([1.0, 0.0], 1000)), 3.7) == pytest.approx(100)


def test_weights_that_can_be_trusted_raise_no_warning():
    weight = np.random.default_rng(0).choice([1 / 7, 1, 5, 10], p=[0.7, 0.2, 0.06, 0.04], size=2000)
    assert weight_warning(weight) == ""
    assert weight_warning(np.ones(100)) == weight_warning(np.full(100, 0.996)) == ""


@pytest.mark.parametrize(
    ("weight", "unsupported", "text"),
    [
        (np.ones(49), 0.0, "effective sample size 49.0 is below 50 events"),
        (np.append(np.zeros(1940), np.full(60, 2000 / 60)), 0.0, "size 60 is below 5% of 2,000 events"),
        (np.append(np.full(999, 0.9), 101.0), 0.0, "one event carries 10.1% of all weight"),
        (np.tile([0.2, 0.8], 500), 0.0, "weights average 0.5 instead of 1"),
        (np.ones(100), 0.25, "25.0% of the target's choices are actions that the log never took"),
        (np.zeros(100), 0.0, "weights average 0 instead of 1"),
    ],
)
def test_weights_that_cannot_be_trusted_are_called_out(weight, unsupported, text):
    assert text in weight_warning(weight, unsupported)


def test_few_users_with_many_events_are_called_out():
    assert "10 users are few" in user_warning(10, 1000)
    assert user_warning(10, 10) == user_warning(30, 1000) == ""

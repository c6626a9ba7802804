"""What a client's contexts have in common, taken away before a personal model sees them."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bandits import policy
from bandits.actions import arms, rows
from bandits.models.centre import Centre
from bandits.replay import replay
from bandits.streams import Multiclass


def test_arms_look_at_the_context_less_the_mean_of_those_learned_from():
    rng = np.random.default_rng(0)
    centre, contexts = Centre(), rng.normal(3.0, 1.0, size=(20, 4))
    assert centre.of(arms(contexts[0], 3)).values.tolist() == [[*contexts[0], 1.0]]
    for n, context in enumerate(contexts, 1):
        centre.add(arms(context, 3))
        moved = centre.of(arms(contexts[-1], 3))
        assert moved.values[0, :-1] == pytest.approx(contexts[-1] - contexts[:n].mean(axis=0), abs=1e-12)
        assert moved.values[0, -1] == 1
        assert (moved.n, moved.dim, moved.stride) == (3, 15, 5)


def test_rows_of_features_are_left_as_they_are():
    centre, table = Centre(), rows(np.ones((3, 2)))
    centre.add(table)
    assert centre.of(table) is table


def digits(n_clients, n_rounds, level=0.0, seed=0):
    """Return digits in random order, and ``level`` added to every pixel."""
    data, rng = load_digits(), np.random.default_rng(seed)
    order = np.stack([rng.permutation(len(data.target))[:n_rounds] for _ in range(n_clients)], axis=1)
    names, columns = np.tile(np.arange(10), (n_clients, 1)), np.arange(64)
    return Multiclass(data.data / 16 + level, data.target, order, names, columns[::2], columns)


@pytest.mark.parametrize(("name", "least"), [("epsilon-greedy", 0.75), ("squarecb", 0.77)])
def test_a_client_alone_learns_digits_in_one_pass(name, least):
    """They earn .785 and .80 with standard errors of .006; .72 and .735 where contexts keep their mean."""
    outcome = replay(digits(20, 1797), policy(name), "independent")
    assert outcome.reward.mean() > least


def test_a_level_that_all_contexts_share_is_no_trouble():
    """.71, and .30 where contexts keep their mean."""
    outcome = replay(digits(20, 1797, level=1.0), policy("epsilon-greedy"), "independent")
    assert outcome.reward.mean() > 0.65

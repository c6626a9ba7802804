import numpy as np
import pytest

from fedres import draws


def test_a_client_draws_the_same_alone_and_among_others():
    together = draws.uniform(7, 3, np.arange(50))
    alone = [draws.uniform(7, 3, np.array([k]))[0] for k in range(50)]
    assert together.tolist() == alone


def test_draws_are_uniform_over_clients_rounds_and_seeds():
    who = np.arange(1000)
    for sample in (
        draws.uniform(0, 1, np.arange(100_000)),
        np.concatenate([draws.uniform(0, t, who) for t in range(100)]),
        np.concatenate([draws.uniform(seed, 1, who) for seed in range(100)]),
    ):
        counts = np.histogram(sample, bins=20, range=(0, 1))[0]
        assert ((counts - 5000) ** 2 / 5000).sum() < 60  # χ², 19 degrees of freedom: 60 is beyond 1 in 10^5
        assert abs(np.corrcoef(sample[:-1], sample[1:])[0, 1]) < 0.015


def test_the_hash_is_fixed_for_ever():
    """Client and server agree only while both compute the same numbers."""
    assert draws.uniform(1, 2, np.array([3, 4])) == pytest.approx([0.814259011529328, 0.7620173286502624], abs=0)


def test_a_subset_is_uniform_sorted_and_of_its_size():
    hits = np.zeros(6)
    for t in range(6000):
        subset = draws.subset(5, t, 6, 2)
        assert len(subset) == 2
        assert subset[0] < subset[1]
        hits[subset] += 1
    assert np.abs(hits - 2000).max() < 5 * np.sqrt(6000 * 1 / 3 * 2 / 3)


def test_a_subset_is_of_the_smallest_draws():
    for t, n_clients, size in ((1, 10, 3), (2, 1000, 999), (3, 7, 1), (4, 5, 5)):
        order = np.argsort(draws.uniform(3, t, np.arange(n_clients)), kind="stable")
        np.testing.assert_array_equal(draws.subset(3, t, n_clients, size), np.sort(order[:size]))

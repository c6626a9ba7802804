"""A few seeds of the simulation, and that it finds what it is there to find. ``make hardening`` runs many more."""

import pytest
from judging import expected, simulate
from planting import BUGS

from service.log.records import Entry, encode_reward

SEEDS = range(6)
MOST_SEEDS = 40  # until a planted bug must have been found


@pytest.mark.parametrize("seed", SEEDS)
def test_what_clients_were_told_is_true_whatever_happens(seed):
    assert simulate(seed).wrong == []


def test_the_same_seed_gives_the_same_trace():
    first, second = simulate(3), simulate(3)
    assert first.trace == second.trace
    assert len(first.trace) > 80
    assert simulate(4).trace != first.trace


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug):
    with bug() as options:
        assert any(simulate(seed, **options).wrong for seed in range(100, 100 + MOST_SEEDS))


def entry(position, seconds, kind, reward="r0"):
    example = encode_reward(1.0, reward) if kind == "reward" else None
    return Entry("default", position, seconds * 1_000_000, kind, "e", "u", example, b"")


STORIES = [
    ([(0, "rank")], (0, 0)),
    ([(0, "rank"), (599, "reward")], (1, 1)),
    ([(0, "rank"), (600, "reward")], (1, 0)),
    ([(0, "reward"), (599, "rank")], (1, 1)),
    ([(0, "reward"), (600, "rank")], (0, 0)),
    ([(0, "reward"), (500, "reward", "r1"), (1_000, "rank")], (1, 1)),
    ([(0, "reward"), (500, "reward"), (1_000, "rank")], (0, 0)),  # a repeat does not make it wait longer
    ([(0, "rank"), (1, "reward"), (2, "reward"), (700, "tick")], (1, 1)),
]


@pytest.mark.parametrize(("story", "counts"), STORIES)
def test_the_judges_own_join_by_hand(story, counts):
    assert expected([entry(k, *what) for k, what in enumerate(story)]) == counts

"""What section 5 of the FedRes paper says of its bandit, on a problem whose expected rewards are known.

[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest

from bandits import policy
from bandits.replay import make_player
from bandits.streams import Realizable


@cache
def regrets(names, n_rounds, n_clients, seed, schemes=("fedres",), delays=(0,)):
    """Return a client's mean regret over all rounds, by name, scheme and delay: all meet the same stream, made once."""
    stream, players, totals = Realizable(n_rounds=n_rounds, n_clients=n_clients, seed=seed), {}, {}
    for chunk in stream:
        best = chunk.expected.max(axis=2).sum()
        for name, scheme, delay in product(names, schemes, delays):
            key = name, scheme, delay
            if key not in players:
                players[key] = make_player(stream, chunk, policy(name), scheme, delay=delay, seed=seed)
            action, _ = players[key].play(chunk)
            earned = np.take_along_axis(chunk.expected, action[..., None], axis=2).sum()
            totals[key] = totals.get(key, 0) + (best - earned) / n_clients
    return totals


FAST = "explore-every", "epsilon-greedy", "squarecb"


def test_a_clients_regret_falls_with_the_number_of_clients():
    """With more seeds where there are fewer clients to average over."""
    for name in FAST:  # in one test, for the runs are shared
        few, some, many = (
            np.mean([regrets(FAST, 2000, p, seed)[name, "fedres", 0] for seed in range(n)])
            for p, n in ((2, 6), (8, 3), (50, 1))
        )
        assert many < some < few, name


@pytest.mark.slow
@pytest.mark.parametrize(("names", "n_rounds", "most"), [(("linucb",), 800, 0.75), (FAST, 6_000, 0.7)])
def test_shared_and_personal_models_together_beat_either_alone_by_far(names, n_rounds, most):
    regret = regrets(names, n_rounds, 20, 0, ("fedres", "independent", "central"))
    for name in names:
        together, alone, common = (regret[name, scheme, 0] for scheme in ("fedres", "independent", "central"))
        assert together < most * min(alone, common)


@pytest.mark.slow
def test_a_delay_of_fifty_rounds_costs_little():
    regret = regrets(FAST, 3_000, 20, 0, delays=(0, 50))
    for name in FAST:
        assert regret[name, "fedres", 50] < 1.15 * regret[name, "fedres", 0], name

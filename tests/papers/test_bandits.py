"""What section 5 of the FedRes paper says of its bandit, on a problem whose expected rewards are known.

[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020.
"""

import numpy as np
import pytest

from bandits import policy
from bandits.replay import replay
from bandits.streams import Realizable


def regret(name, n_rounds, n_clients, scheme="fedres", delay=0, seeds=(0,)):
    """Return a client's regret over all rounds, averaged over clients and seeds."""
    streams = [(Realizable(n_rounds=n_rounds, n_clients=n_clients, seed=seed), seed) for seed in seeds]
    totals = [replay(stream, policy(name), scheme, delay=delay, seed=seed).regret.sum() for stream, seed in streams]
    return np.mean(totals) / n_clients


@pytest.mark.parametrize("name", ["explore-every", "epsilon-greedy", "squarecb"])
def test_a_clients_regret_falls_with_the_number_of_clients(name):
    """With more seeds where there are fewer clients to average over: each fall is more than 4 standard errors."""
    few, some, many = (regret(name, 2000, p, seeds=range(n)) for p, n in ((5, 16), (20, 8), (50, 6)))
    assert many < some < few


SLOW = pytest.mark.slow


@pytest.mark.parametrize("n_clients", [20, 50])
@pytest.mark.parametrize(
    ("name", "n_rounds"),
    [
        ("linucb", 3000),
        pytest.param("epsilon-greedy", 16_000, marks=SLOW),
        pytest.param("squarecb", 16_000, marks=SLOW),
    ],
)
def test_shared_and_personal_models_together_beat_either_alone_by_far(name, n_rounds, n_clients):
    together, alone, common = (
        regret(name, n_rounds, n_clients, scheme) for scheme in ("fedres", "independent", "central")
    )
    assert together < 0.6 * min(alone, common)


@pytest.mark.slow
def test_a_delay_of_fifty_rounds_costs_little():
    prompt, late = (regret("explore-every", 16_000, 50, delay=delay) for delay in (0, 50))
    assert late < 1.05 * prompt

"""FedSEA: the speed-up from more clients, and what takes it away."""

import numpy as np
import pytest

from fedres import Federation, Squared, bounds, global_learner, regret, step_sizes
from fedres.federation import Example

DISTANCE, SIGMA, HORIZON = 2.0, 6.0, 4000


def expected_regret(n_clients, period, swing, seed):
    """Return regret on expected losses ½(x − c_t)², c_t = 2 ± swing in turn, and the theorem's bound.

    Samples are c_t plus noise of variance 36; then K̄² = swing²/2, ζ̄² = 0 and L = 1.
    """
    rng = np.random.default_rng(seed)
    centre = DISTANCE + swing * np.where(np.arange(HORIZON) % 2 == 0, 1.0, -1.0)
    sample = centre[:, None] + SIGMA * rng.normal(size=(HORIZON, n_clients))
    constants = {
        "n_rounds": HORIZON,
        "n_clients": n_clients,
        "distance": DISTANCE,
        "smoothness": 1.0,
        "variance": SIGMA**2,
        "temporal": swing**2 / 2,
        "period": period,
    }
    eta = step_sizes.fedsea_convex(**constants)
    learner = global_learner("fedsea", dim=1, n_clients=n_clients, loss=Squared(0.5), step_size=eta, period=period)
    federation, one = Federation(learner), np.ones((n_clients, 1))
    models = np.array([federation.play(Example(one, y)).weights[:, 0] for y in sample])
    paid = ((models - centre[:, None]) ** 2).mean(axis=1) / 2
    final = (paid - (DISTANCE - centre) ** 2 / 2).sum()
    return final, bounds.fedsea_convex(**constants, spatial=0.0, step_size=eta)


def mean_regret(n_clients, period, swing, seeds):
    runs = np.array([expected_regret(n_clients, period, swing, seed) for seed in range(seeds)])
    assert runs[:, 0].mean() < runs[0, 1]
    return runs[:, 0].mean()


@pytest.mark.slow
def test_regret_falls_with_the_root_of_the_number_of_clients_while_nothing_drifts():
    clients = np.array([1, 2, 4, 8, 16, 32])
    curve = np.array([mean_regret(m, 1, 0.0, 5) for m in clients])
    assert regret.log_log_slope(clients, curve)[0] == pytest.approx(-0.5, abs=0.05)


@pytest.mark.slow
def test_temporal_variation_takes_the_speed_up_away():
    """K̄² = 18."""
    clients = np.array([1, 4, 16, 32])
    curve = np.array([mean_regret(m, 1, 6.0, 4) for m in clients])
    assert -0.1 < regret.log_log_slope(clients, curve)[0] < 0.02


@pytest.mark.slow
def test_rare_averages_take_the_speed_up_away_beyond_a_few_clients():
    """τ = 5: from 8 to 32 clients little is gained, and more than half of the regret at τ = 1 comes on top."""
    few, many = mean_regret(8, 5, 0.0, 6), mean_regret(32, 5, 0.0, 6)
    assert many > 0.75 * few
    assert many > 2 * mean_regret(32, 1, 0.0, 6)

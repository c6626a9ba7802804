"""FedSEA: its bound and lemma 1; the figure `fedsea-speedup` of `fedres reproduce` has what more clients bring."""

import numpy as np
import pytest
from side_by_side import HalfSquaredDistance, Itself

from fedres import Federation, Linear, Squared, bounds, global_learner, regret, step_sizes
from fedres.federation import Example

DISTANCE = 2.0
PROBLEMS = 24


def federation(model, loss, n_clients, period, step_size):
    return Federation(
        global_learner("fedsea", model=model, loss=loss, n_clients=n_clients, step_size=step_size, period=period)
    )


def test_problems_side_by_side_are_each_what_they_are_alone():
    together = federation(HalfSquaredDistance(PROBLEMS), Itself(), 4, 3, 0.1)
    alone = federation(Linear(1), Squared(0.5), 4, 3, 0.1)
    for sample in np.random.default_rng(1).normal(size=(30, 4, PROBLEMS)):
        weights = together.play(Example(sample, np.zeros(4))).weights
        expected = alone.play(Example(np.ones((4, 1)), sample[:, 7])).weights
        assert weights[:, 7] == pytest.approx(expected[:, 0], abs=1e-12)


@pytest.mark.parametrize("period", [1, 5])
def test_strongly_convex_losses_stay_under_the_bound_of_theorem_2(period):
    """½(x − c_{t,m})² with c apart in time and among clients, steps 2/(μ(t + t_s)): 24 problems side by side."""
    rng, M, T, swing, apart, sigma = np.random.default_rng(2), 8, 1000, 1.0, 3.0, 2.0
    constants = {"mu": 1.0, "smoothness": 1.0, "period": period}
    steps = step_sizes.fedsea_strongly_convex(**constants)
    server = federation(HalfSquaredDistance(PROBLEMS), Itself(), M, period, steps)
    shift, total = apart * np.where(np.arange(M) % 2 == 0, 1.0, -1.0)[:, None], 0.0
    for t in range(T):
        centre = DISTANCE + swing * (-1) ** t
        sample = centre + shift + sigma * rng.normal(size=(M, PROBLEMS))
        models = server.play(Example(sample, np.zeros(M))).weights
        total += ((models - centre) ** 2).mean() / 2 - (DISTANCE - centre) ** 2 / 2
    bound = bounds.fedsea_strongly_convex(
        **constants,
        n_rounds=T,
        n_clients=M,
        distance=DISTANCE,
        variance=sigma**2,
        spatial=apart**2,
        temporal=swing**2 / 2,
    )
    assert 0 < total < bound < 60 * total


def test_regret_is_that_of_the_average_iterate_and_the_clients_distance_to_it(stream, run):
    """Lemma 1, an equality for ½(x − c)²: L = 1 and x_{t,m} play, x_t is their mean."""
    learner = global_learner("fedsea", dim=1, n_clients=4, loss=Squared(0.5), step_size=0.2, period=5)
    samples = np.random.default_rng(3).normal(2, 3, size=(60, 4))
    rounds, _ = run(learner, [Example(np.ones((4, 1)), row) for row in samples])
    weights, ones = np.array([r.weights for r in rounds]), np.ones((60, 4, 1))
    best = np.array([samples.mean()])
    played = regret.mean_regret(weights, ones, samples, best, Squared(0.5))
    average = regret.average_iterate_regret(weights, ones, samples, best, Squared(0.5))
    distance = ((weights - weights.mean(axis=1, keepdims=True)) ** 2).sum(axis=2).mean(axis=1)
    assert played == pytest.approx(average + np.cumsum(distance) / 2)
    assert played[-1] > average[-1] + 1

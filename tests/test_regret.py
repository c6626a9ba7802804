"""Regret curves against sums written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedres.losses import Logistic, Softmax, Squared
from fedres.models import Linear
from fedres.regret import average_regret, log_log_slope, mean_regret, sum_regret

LOSSES = [Squared(0.5), Logistic(), Softmax(3)]


def test_sum_regret_adds_over_rounds_and_clients():
    losses, best = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.5, 0.5], [1.0, 5.0]])
    np.testing.assert_allclose(sum_regret(losses, best), [2.0, 3.0])


def test_average_regret_divides_by_clients_and_rounds_so_far():
    losses, best = np.array([[1.0, 2.0], [3.0, 4.0]]), np.zeros((2, 2))
    np.testing.assert_allclose(average_regret(losses, best), [3 / 2, 10 / 4])
    np.testing.assert_allclose(average_regret(losses, best, np.array([2.0, 1.0])), [4 / 2, 14 / 4])


def test_losses_of_unlike_shape_are_refused():
    with pytest.raises(ValueError, match="comparator_losses must have shape"):
        sum_regret(np.zeros((3, 2)), np.zeros((2, 3)))


@pytest.mark.parametrize("loss", LOSSES, ids=["squared", "logistic", "softmax"])
def test_mean_regret_scores_every_model_on_every_client(loss):
    rng = np.random.default_rng(1)
    model = Linear(2, 3 if isinstance(loss, Softmax) else 0)
    features, weights = rng.normal(size=(5, 4, 2)), rng.normal(size=(5, 4, model.dim))
    label = rng.integers(0, 3, (5, 4)).astype(float) if model.outputs else rng.choice([-1.0, 1.0], (5, 4))
    comparator = rng.normal(size=model.dim)

    def at(t: int, w: np.ndarray) -> float:  # ℓ_t
        return float(loss.value(model.predict(w, features[t]), label[t]).mean())

    gaps = [np.mean([at(t, w) for w in weights[t]]) - at(t, comparator) for t in range(5)]
    np.testing.assert_allclose(mean_regret(weights, features, label, comparator, loss), np.cumsum(gaps))


def test_mean_regret_is_zero_for_models_equal_to_the_comparator():
    rng = np.random.default_rng(2)
    comparator = rng.normal(size=3)
    weights = np.broadcast_to(comparator, (6, 4, 3))
    curve = mean_regret(weights, rng.normal(size=(6, 4, 3)), rng.normal(size=(6, 4)), comparator, Squared())
    np.testing.assert_allclose(curve, 0, atol=1e-12)


def test_sampled_mean_regret_has_the_same_expectation():
    rng = np.random.default_rng(3)
    problem = (
        rng.normal(size=(10, 8, 2)),
        rng.normal(size=(10, 8, 2)),
        rng.normal(size=(10, 8)),
        np.zeros(2),
    )
    full = mean_regret(*problem, Squared())[-1]
    draws = np.array([mean_regret(*problem, Squared(), sample=2, rng=rng)[-1] for _ in range(400)])
    assert draws.std() > 0
    assert abs(draws.mean() - full) < 4.5 * draws.std() / 20  # 4.5 standard errors: 1 in 10^5
    everyone = mean_regret(*problem, Squared(), sample=8, rng=rng)
    np.testing.assert_allclose(everyone[-1], full)


@pytest.mark.parametrize(("sample", "rng"), [(2, None), (0, np.random.default_rng(0)), (9, np.random.default_rng(0))])
def test_a_sample_needs_a_generator_and_enough_clients(sample, rng):
    with pytest.raises(ValueError, match="sample must be from 1 to 3"):
        mean_regret(
            np.zeros((1, 3, 1)),
            np.zeros((1, 3, 1)),
            np.zeros((1, 3)),
            np.zeros(1),
            Squared(),
            sample=sample,
            rng=rng,
        )


def test_log_log_slope_reads_a_power_law_exactly():
    x = np.array([10.0, 100.0, 1000.0, 5000.0])
    slope, error = log_log_slope(x, 3 * x**-0.5)
    assert slope == pytest.approx(-0.5)
    assert error == pytest.approx(0, abs=1e-12)


def test_log_log_slope_error_is_the_textbook_one():
    rng = np.random.default_rng(4)
    x, y = np.exp(np.arange(6.0)), np.exp(rng.normal(size=6))
    slope, error = log_log_slope(x, y)
    fit, covariance = np.polyfit(np.arange(6.0), np.log(y), 1, cov=True)
    assert slope == pytest.approx(fit[0])
    assert error == pytest.approx(np.sqrt(covariance[0, 0]))


@pytest.mark.parametrize("y", [[1.0, 0.0, 1.0], [1.0, -1.0, 2.0]])
def test_log_log_slope_refuses_what_has_no_logarithm(y):
    with pytest.raises(ValueError, match="positive"):
        log_log_slope(np.array([1.0, 2.0, 3.0]), np.array(y))

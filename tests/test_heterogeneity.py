"""Heterogeneity against written-out gradients, grids and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from fedres.heterogeneity import sigma_diff2, spatial, temporal
from fedres.losses import Logistic, Softmax, Squared
from fedres.models import Linear


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax(4)], ids=["squared", "logistic", "softmax"])
def test_sigma_diff2_is_the_mean_squared_gradient(loss):
    rng = np.random.default_rng(1)
    model = Linear(3, 4 if isinstance(loss, Softmax) else 0)
    features, comparator = rng.normal(size=(6, 5, 3)), rng.normal(size=model.dim)
    label = rng.integers(0, 4, (6, 5)).astype(float) if model.outputs else rng.choice([-1.0, 1.0], (6, 5))
    rows = features.reshape(-1, 3)
    slope = loss.slope(model.predict(comparator, rows), label.ravel())
    gradients = model.gradient(comparator, rows, slope)
    assert sigma_diff2(features, label, comparator, loss) == pytest.approx((gradients**2).sum(axis=1).mean())


def quadratics(seed: int, rounds: int, clients: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(rounds, clients, dim, dim))
    return (
        roots @ roots.swapaxes(2, 3),
        rng.normal(size=(rounds, clients, dim)),
        rng.normal(size=(rounds, clients)),
    )


def disc(radius: float) -> np.ndarray:
    angle, length = np.meshgrid(np.linspace(0, 2 * np.pi, 2001), np.linspace(0, radius, 41))
    return np.stack([length * np.cos(angle), length * np.sin(angle)], axis=-1).reshape(-1, 2)


def test_spatial_is_the_largest_deviation_on_a_grid_of_the_ball():
    H, b, _ = quadratics(2, 5, 3, 2)
    points = disc(1.5)
    gradients = np.einsum("tmij,pj->tmpi", H, points) - b[:, :, None, :]
    deviation = ((gradients - gradients.mean(axis=1, keepdims=True)) ** 2).sum(axis=3).mean(axis=1)
    largest = spatial(H, b, 1.5)
    assert (largest >= deviation.max(axis=1) * (1 - 1e-12)).all()
    np.testing.assert_allclose(largest, deviation.max(axis=1), rtol=1e-4)


def test_spatial_with_equal_curvatures_depends_on_no_point():
    H, b, _ = quadratics(3, 4, 5, 3)
    H = np.broadcast_to(H[:, :1], H.shape)
    spread = ((b - b.mean(axis=1, keepdims=True)) ** 2).sum(axis=2).mean(axis=1)
    for radius in (0.1, 10.0):
        np.testing.assert_allclose(spatial(H, b, radius), spread)


def test_temporal_of_moving_targets_is_half_their_squared_distance_from_the_mean():
    targets = np.random.default_rng(4).uniform(-1, 1, size=(50, 1, 2))
    H = np.broadcast_to(np.eye(2), (50, 1, 2, 2))
    expected = ((targets[:, 0] - targets.mean(axis=(0, 1))) ** 2).sum(axis=1) / 2
    np.testing.assert_allclose(temporal(H, targets, radius=2.0), expected, atol=1e-12)


def test_temporal_is_the_gap_to_the_best_of_each_round_on_a_grid_of_the_ball():
    H, b, c = quadratics(5, 6, 3, 2)
    points = disc(0.7)
    values = np.einsum("pi,tij,pj->tp", points, H.mean(axis=1), points) / 2
    values += c.mean(axis=1)[:, None] - b.mean(axis=1) @ points.T
    best = values.sum(axis=0).argmin()
    np.testing.assert_allclose(temporal(H, b, 0.7), values[:, best] - values.min(axis=1), atol=0.02)


def test_temporal_is_zero_when_every_round_is_alike():
    H, b, _ = (np.repeat(part, 7, axis=0) for part in quadratics(6, 1, 3, 4))
    np.testing.assert_allclose(temporal(H, b, 1.0), 0, atol=1e-12)


def test_a_curvature_that_is_not_symmetric_is_refused():
    with pytest.raises(ValueError, match="H must be symmetric"):
        spatial(np.array([[[[1.0, 2.0], [0.0, 1.0]]]]), np.zeros((1, 1, 2)), 1.0)

"""Comparators against brute force, general optimisers and the conditions that only a minimiser meets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedres.checks import Array
from fedres.comparators import best_fixed, joint_minimiser, quadratic_over_ball
from fedres.losses import Logistic, Loss, Softmax, Squared
from fedres.models import Linear


def total(loss: Loss, features: Array, label: Array, weights: Array) -> float:
    model = Linear(features.shape[1], loss.outputs if isinstance(loss, Softmax) else 0)
    return float(loss.value(model.predict(weights, features), label).sum())


def gradient(loss: Loss, features: Array, label: Array, weights: Array) -> Array:
    model = Linear(features.shape[1], loss.outputs if isinstance(loss, Softmax) else 0)
    slope = loss.slope(model.predict(weights, features), label)
    return model.gradient(weights, features, slope).sum(axis=0)


def noisy_signs(rng: np.random.Generator, size: int | tuple[int, ...]) -> Array:
    return rng.choice([-1.0, 1.0], size)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.floats(0.1, 4))
def test_quadratic_over_ball_meets_the_conditions_of_a_global_minimum(seed, dim, radius):
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    H = axes @ np.diag(rng.integers(-2, 4, dim).astype(float)) @ axes.T  # equal, zero and negative eigenvalues
    b = axes @ (rng.normal(size=dim) * (rng.random(dim) < 0.6))  # often orthogonal to the lowest: the hard case
    x = quadratic_over_ball(H, b, radius)
    length = np.linalg.norm(x)
    assert length <= radius * (1 + 1e-9)
    multiplier = (b - H @ x) @ x / (x @ x) if length > radius * (1 - 1e-9) else 0.0
    assert multiplier >= -1e-9
    np.testing.assert_allclose(H @ x + multiplier * x, b, atol=1e-8)
    assert np.linalg.eigvalsh(H)[0] + multiplier >= -1e-8


def test_quadratic_over_ball_goes_to_the_sphere_in_the_hard_case():
    x = quadratic_over_ball(np.diag([-1.0, 1.0]), np.array([0.0, 1.0]), 2.0)
    np.testing.assert_allclose(np.abs(x), [math.sqrt(4 - 0.25), 0.5])


@pytest.mark.parametrize(("H", "b"), [(-np.eye(2), np.zeros(2)), (np.diag([1.0, 0.0]), np.ones(2))])
def test_quadratic_without_a_lower_bound_needs_a_finite_radius(H, b):
    with pytest.raises(ValueError, match="radius must be finite"):
        quadratic_over_ball(H, b, math.inf)


def test_best_squared_weights_are_least_squares_and_of_least_norm():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 5))  # rank 3
    label, offset = rng.normal(size=(2, 30))
    best = best_fixed(features, label, Squared(0.5), offset=offset)
    np.testing.assert_allclose(best, np.linalg.pinv(features) @ (label - offset), atol=1e-10)


def test_example_weights_count_as_repeated_rows():
    rng = np.random.default_rng(2)
    features, label, times = rng.normal(size=(40, 3)), noisy_signs(rng, 40), rng.integers(0, 4, 40)
    for loss in (Squared(), Logistic()):
        repeated = best_fixed(np.repeat(features, times, axis=0), np.repeat(label, times), loss)
        np.testing.assert_allclose(best_fixed(features, label, loss, weights=times), repeated, atol=1e-8)


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax(3)], ids=["squared", "logistic", "softmax"])
@pytest.mark.parametrize("radius", [0.05, 0.3, 50.0])
def test_in_a_ball_the_gradient_points_at_the_minimiser_from_outside(loss, radius):
    rng = np.random.default_rng(3)
    features = rng.normal(size=(200, 4))
    label = rng.integers(0, 3, 200).astype(float) if isinstance(loss, Softmax) else noisy_signs(rng, 200)
    best = best_fixed(features, label, loss, radius=radius)
    slope, length = gradient(loss, features, label, best), np.linalg.norm(best)
    if length < radius * (1 - 1e-9):
        np.testing.assert_allclose(slope, 0, atol=1e-6)
    else:
        assert length == pytest.approx(radius)
        np.testing.assert_allclose(slope, -np.linalg.norm(slope) / radius * best, atol=1e-6)


def test_ridge_adds_half_its_squared_norm_to_the_loss():
    rng = np.random.default_rng(4)
    features, label = rng.normal(size=(30, 3)), noisy_signs(rng, 30)
    for loss in (Squared(), Logistic()):
        best = best_fixed(features, label, loss, ridge=2.0)
        np.testing.assert_allclose(gradient(loss, features, label, best) + 2.0 * best, 0, atol=1e-7)


def test_best_logistic_weights_agree_with_a_general_optimiser():
    rng = np.random.default_rng(5)
    features, label = rng.normal(size=(80, 3)), noisy_signs(rng, 80)
    best = best_fixed(features, label, Logistic())
    expected = minimize(lambda w: total(Logistic(), features, label, w), np.zeros(3), tol=1e-10).x
    np.testing.assert_allclose(best, expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_logistic_minimiser_is_found_at_wild_feature_scales(seed):
    rng = np.random.default_rng(seed)
    features = rng.standard_t(1, size=(60, 3)) * np.array([1e-3, 1.0, 1e5])
    label = noisy_signs(rng, 60)
    best = best_fixed(features, label, Logistic())
    scale = np.abs(features).sum(axis=0)
    np.testing.assert_allclose(gradient(Logistic(), features, label, best) / scale, 0, atol=1e-8)


@pytest.mark.parametrize("offset", [0.5, 5.0, -30.0])  # undamped Newton diverges from 3 on
def test_balanced_labels_are_fitted_by_cancelling_a_far_offset(offset):
    features, label = np.ones((2, 1)), np.array([1.0, -1.0])
    np.testing.assert_allclose(best_fixed(features, label, Logistic(), offset=offset), [-offset])
    held = best_fixed(features, label, Logistic(), offset=offset, ridge=0.3)
    np.testing.assert_allclose(Logistic().slope(held[0] + offset, label).sum(), -0.3 * held[0])


def test_softmax_of_two_classes_is_logistic_with_the_weights_shared_out():
    rng = np.random.default_rng(6)
    features, label, offset = rng.normal(size=(60, 3)), noisy_signs(rng, 60), rng.normal(size=60)
    one = best_fixed(features, label, Logistic(), offset=offset)
    scores = np.stack([-offset / 2, offset / 2], axis=1)
    two = best_fixed(features, (label + 1) / 2, Softmax(2), offset=scores)
    np.testing.assert_allclose(two.reshape(3, 2), np.stack([-one / 2, one / 2], axis=1), atol=1e-8)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(2)], ids=["logistic", "softmax"])
def test_separable_labels_are_refused_unless_something_holds_the_weights(loss):
    features = np.array([[1.0, 0.3], [2.0, -0.5], [-1.0, 0.2], [-0.5, 0.1]])
    label = np.array([1.0, 1.0, -1.0, -1.0]) if isinstance(loss, Logistic) else np.array([1.0, 1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="label must not be separable"):
        best_fixed(features, label, loss)
    assert np.linalg.norm(best_fixed(features, label, loss, radius=7.0)) == pytest.approx(7.0)
    held = best_fixed(features, label, loss, ridge=0.1)
    np.testing.assert_allclose(gradient(loss, features, label, held) + 0.1 * held, 0, atol=1e-8)


def test_labels_separable_in_one_direction_only_are_refused_too():
    rng = np.random.default_rng(7)
    label = noisy_signs(rng, 50)
    features = np.column_stack([rng.normal(size=50), np.where(np.arange(50) < 5, label, 0.0)])
    with pytest.raises(ValueError, match="label must not be separable"):
        best_fixed(features, label, Logistic())


def test_predictions_too_far_out_for_any_curvature_are_refused():
    with pytest.raises(ValueError, match="nor every prediction saturated"):
        best_fixed(np.ones((2, 1)), np.array([1.0, -1.0]), Logistic(), offset=800.0)


def test_best_fixed_refuses_labels_of_another_loss():
    with pytest.raises(ValueError, match="label must be -1 or 1"):
        best_fixed(np.ones((2, 1)), np.array([0.0, 1.0]), Logistic())


def stacked(shared: Array, own: Array) -> Array:
    """The design of the whole system, rows (t, i), columns w^g then all the w_i."""
    rounds, clients, width = own.shape
    blocks = np.zeros((rounds, clients, clients, width))
    blocks[:, np.arange(clients), np.arange(clients)] = own
    return np.concatenate([shared, blocks.reshape(rounds, clients, -1)], axis=2).reshape(rounds * clients, -1)


def joint_problem(seed: int, rounds: int = 25, clients: int = 4) -> tuple[Array, Array, Array, Array, Array]:
    rng = np.random.default_rng(seed)
    shared, own = rng.normal(size=(rounds, clients, 3)), rng.normal(size=(rounds, clients, 2))
    return (
        shared,
        own,
        noisy_signs(rng, (rounds, clients)),
        rng.uniform(0.5, 3, clients),
        rng.random((rounds, clients)) < 0.8,
    )


def test_joint_squared_minimiser_is_least_squares_on_the_stacked_system():
    shared, own, label, client_weights, present = joint_problem(8)
    shared_best, own_best = joint_minimiser(shared, own, label, client_weights=client_weights, present=present)
    rows = np.sqrt(client_weights * present).ravel()
    best = np.linalg.lstsq(rows[:, None] * stacked(shared, own), rows * label.ravel(), rcond=None)[0]
    np.testing.assert_allclose(np.concatenate([shared_best, own_best.ravel()]), best, atol=1e-10)


def test_joint_logistic_minimiser_agrees_with_a_general_optimiser():
    shared, own, label, client_weights, present = joint_problem(9)
    design, scale = stacked(shared, own), (client_weights * present).ravel()

    def value(w: Array) -> float:
        return float(scale @ Logistic().value(design @ w, label.ravel()))

    def slope(w: Array) -> Array:
        return design.T @ (scale * Logistic().slope(design @ w, label.ravel()))

    minimiser = joint_minimiser(shared, own, label, Logistic(), client_weights=client_weights, present=present)
    flat = np.concatenate([minimiser[0], minimiser[1].ravel()])
    np.testing.assert_allclose(slope(flat), 0, atol=1e-9)
    other = minimize(value, np.zeros(flat.size), jac=slope, tol=1e-10).x
    np.testing.assert_allclose(flat, other, atol=1e-6)


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=["squared", "logistic"])
def test_shared_features_that_every_client_also_has_are_left_to_the_clients(loss):
    rng = np.random.default_rng(10)
    features, label = rng.normal(size=(40, 3, 2)), noisy_signs(rng, (40, 3))
    shared, own = joint_minimiser(features, features, label, loss)
    np.testing.assert_allclose(shared, 0, atol=1e-12)
    for i in range(3):
        np.testing.assert_allclose(own[i], best_fixed(features[:, i], label[:, i], loss), atol=1e-8)


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=["squared", "logistic"])
def test_singular_blocks_do_not_change_what_is_predicted(loss):
    shared, own, label, _, _ = joint_problem(11)
    doubled = np.concatenate([own, own[..., :1]], axis=2)
    silent = np.concatenate([shared, np.zeros_like(shared[..., :1])], axis=2)
    plain, singular = joint_minimiser(shared, own, label, loss), joint_minimiser(silent, doubled, label, loss)
    np.testing.assert_allclose(singular[0], [*plain[0], 0.0], atol=1e-8)
    np.testing.assert_allclose(singular[1][:, 0], plain[1][:, 0] / 2, atol=1e-8)
    np.testing.assert_allclose(singular[1][:, 0], singular[1][:, 2], atol=1e-8)


def test_joint_minimiser_refuses_a_client_whose_labels_its_own_features_separate():
    shared, own, label, _, _ = joint_problem(12)
    own[:, 1, 0] = label[:, 1]
    with pytest.raises(ValueError, match="label must not be separable"):
        joint_minimiser(shared, own, label, Logistic())


def test_joint_minimiser_serves_a_thousand_clients():
    rng = np.random.default_rng(13)
    shared, own = rng.normal(size=(20, 1000, 4)), rng.normal(size=(20, 1000, 3))
    truth, personal = rng.normal(size=4), rng.normal(size=(1000, 3))
    minimiser = joint_minimiser(shared, own, shared @ truth + np.einsum("tpk,pk->tp", own, personal))
    np.testing.assert_allclose(minimiser[0], truth, atol=1e-9)
    np.testing.assert_allclose(minimiser[1], personal, atol=1e-9)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from fedres.mirror_maps import Ball, PNorm, Simplex, project_to_ball

vectors = arrays(np.float64, 4, elements=st.floats(-10, 10, allow_subnormal=False))


@given(vectors, st.floats(0.1, 20))
def test_projection_is_the_nearest_point_of_the_ball(point, radius):
    projected = project_to_ball(point, radius)
    assert np.linalg.norm(projected) <= radius * (1 + 1e-12)
    if np.linalg.norm(point) <= radius:
        assert projected == pytest.approx(point, rel=1e-12)
    else:
        assert projected / radius == pytest.approx(point / np.linalg.norm(point), abs=1e-12)


@given(vectors, st.floats(0.01, 3))
def test_the_simplex_step_is_the_minimiser_it_stands_for(gradient, step_size):
    before = np.array([0.1, 0.2, 0.3, 0.4])
    simplex = Simplex()
    after = simplex.point(simplex.advance(simplex.state(before), gradient, step_size))
    assert after.sum() == pytest.approx(1)
    # Lagrange: η g + ln(y/x) is the same in every coordinate, wherever y has not vanished
    held = after > 1e-200
    multiplier = step_size * gradient[held] + np.log(after[held] / before[held])
    assert np.ptp(multiplier) == pytest.approx(0, abs=1e-9)


def test_a_weight_on_the_simplex_comes_back_from_far_below_underflow():
    simplex = Simplex()
    state = simplex.state(np.array([0.5, 0.5]))
    push = np.array([1.0, 0.0])
    for _ in range(2000):
        state = simplex.advance(state, push, 1.0)
    assert simplex.point(state)[0] == 0.0
    for _ in range(2000):
        state = simplex.advance(state, -push, 1.0)
    assert simplex.point(state) == pytest.approx([0.5, 0.5])


@given(vectors, st.sampled_from([1.05, 1.3, 1.7, 2.0]))
def test_the_dual_map_of_a_p_norm_inverts_its_gradient(point, p):
    norm = PNorm(p)
    back = norm.point(norm.state(point))
    assert back == pytest.approx(point, abs=1e-6 * max(1, np.abs(point).max()))


def test_the_p_norm_step_is_the_minimiser_it_stands_for():
    rng = np.random.default_rng(0)
    for p in (1.2, 1.5, 1.9):
        norm = PNorm(p)
        before, gradient = rng.normal(size=3), rng.normal(size=3)
        potential = lambda x, p=p: np.linalg.norm(x, p) ** 2 / (2 * (p - 1))  # noqa: E731
        target = lambda x: gradient @ x + (potential(x) - norm.state(before) @ x) / 0.3  # noqa: B023, E731
        after = norm.point(norm.advance(norm.state(before), gradient, 0.3))
        minimum = minimize(target, after + 0.1, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
        assert after == pytest.approx(minimum.x, abs=1e-4)


def test_p_norm_two_is_gradient_descent():
    rng = np.random.default_rng(1)
    norm, ball = PNorm(2.0), Ball()
    point, gradient = rng.normal(size=5), rng.normal(size=5)
    assert norm.point(norm.advance(norm.state(point), gradient, 0.2)) == pytest.approx(
        ball.advance(point, gradient, 0.2), rel=1e-12
    )


def test_p_norm_maps_survive_huge_and_tiny_vectors():
    norm = PNorm(1.05)
    for scale in (1e-150, 1e150):
        point = scale * np.array([1.0, -2.0, 0.0])
        assert norm.point(norm.state(point)) == pytest.approx(point, rel=1e-6)
    assert norm.point(norm.state(np.zeros(3))).tolist() == [0, 0, 0]


@pytest.mark.parametrize("p", [1.0, 2.1, float("nan")])
def test_a_p_outside_its_range_is_refused(p):
    with pytest.raises(ValueError, match=r"p must be in \(1, 2\]"):
        PNorm(p)


def test_a_ball_without_size_is_refused():
    with pytest.raises(ValueError, match="radius must be a positive number, got 0"):
        Ball(0)

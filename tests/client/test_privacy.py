"""What leaves a device of its local prediction, and the account of it."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from fedres.client.privacy import Privacy, scale_for

finite = st.floats(-1e12, 1e12)


def integrated_delta(noise, ratio, epsilon):
    """Return δ = ∫ max(p − e^ε q, 0) of two noises at a distance of ``ratio`` scales."""
    law = {"gaussian": stats.norm, "laplace": stats.laplace}[noise]

    def excess(x):
        return max(law.pdf(x) - math.exp(epsilon) * law.pdf(x - ratio), 0.0)

    crossing = ratio / 2 - epsilon / ratio if noise == "gaussian" else (ratio - epsilon) / 2
    points = sorted({0.0, ratio, crossing})
    limits = [-40.0, *points, 40.0 + ratio]
    return sum(integrate.quad(excess, a, b, epsabs=1e-14)[0] for a, b in pairwise(limits))


@pytest.mark.parametrize("ratio", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_delta_of_one_upload_is_the_integral_of_the_privacy_loss(noise, ratio, epsilon):
    privacy = Privacy(clip=1.5, noise=noise, scale=3.0 / ratio)
    assert privacy.delta(epsilon) == pytest.approx(integrated_delta(noise, ratio, epsilon), abs=1e-10)


@given(st.floats(0.05, 5), st.integers(1, 1000), st.floats(1e-12, 0.1))
def test_gaussian_epsilon_and_delta_are_inverse_to_each_other(scale, n_uploads, delta):
    privacy = Privacy(clip=0.1, noise="gaussian", scale=scale)
    epsilon = privacy.epsilon(n_uploads, delta)
    if 0 < epsilon < math.inf:
        assert privacy.delta(epsilon, n_uploads) == pytest.approx(delta, rel=1e-6)
    else:
        assert epsilon == math.inf or privacy.delta(0.0, n_uploads) <= delta


@given(st.integers(2, 500), st.floats(1e-9, 0.01))
def test_n_gaussian_uploads_cost_what_one_does_with_a_scale_smaller_by_the_root_of_n(n_uploads, delta):
    many, one = (Privacy(clip=1.0, noise="gaussian", scale=scale) for scale in (20.0, 20.0 / math.sqrt(n_uploads)))
    assert many.epsilon(n_uploads, delta) == pytest.approx(one.epsilon(1, delta), rel=1e-9)


def test_laplace_costs_the_sensitivity_over_the_scale_and_adds_up():
    privacy = Privacy(clip=2.0, noise="laplace", scale=8.0)
    assert privacy.epsilon() == 0.5
    assert privacy.epsilon(10) == 5.0
    assert privacy.epsilon(2, 1e-6) == 1.0  # basic composition is the smaller of the two
    expected = 1000 * 0.01 * math.tanh(0.005) + 0.01 * math.sqrt(2000 * math.log(1e6))
    assert Privacy(clip=1.0, noise="laplace", scale=200.0).epsilon(1000, 1e-6) == pytest.approx(expected)
    assert expected < 10.0


def test_composed_laplace_never_promises_more_than_is_true():
    """The privacy loss of n uploads, drawn: P(loss > ε) ≥ δ(ε), so a bound below the integral would be seen."""
    each, n_uploads, delta, n = 0.5, 50, 1e-2, 20_000
    privacy = Privacy(clip=0.25, noise="laplace", scale=1.0)
    epsilon = privacy.epsilon(n_uploads, delta)
    assert epsilon < n_uploads * each
    x = np.random.default_rng(0).laplace(size=(n, n_uploads))
    loss = (np.abs(x - each) - np.abs(x)).sum(axis=1)
    assert np.maximum(1 - np.exp(epsilon - loss), 0).mean() < delta
    assert privacy.delta(epsilon, n_uploads) == pytest.approx(delta)


@given(st.sampled_from(["gaussian", "laplace"]), st.floats(0.05, 3), st.floats(1e-9, 0.05), st.integers(1, 2000))
def test_the_scale_found_keeps_the_promise_and_a_smaller_one_does_not(noise, epsilon, delta, n_uploads):
    scale = scale_for(noise, 0.01, epsilon, delta, n_uploads)
    kept, broken = (Privacy(clip=0.01, noise=noise, scale=scale * factor) for factor in (1 + 1e-9, 0.999))
    assert kept.epsilon(n_uploads, delta) <= epsilon * (1 + 1e-9) < broken.epsilon(n_uploads, delta)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_more_uploads_cost_more_and_a_larger_scale_or_delta_less(noise):
    privacy = Privacy(clip=1.0, noise=noise, scale=30.0)
    by_uploads = [privacy.epsilon(n, 1e-6) for n in (1, 2, 10, 100, 1000)]
    assert by_uploads == sorted(set(by_uploads))
    by_delta = [privacy.epsilon(500, delta) for delta in (0.0, 1e-9, 1e-6, 1e-3)]
    assert by_delta == sorted(set(by_delta), reverse=True)
    by_scale = [Privacy(clip=1.0, noise=noise, scale=b).epsilon(100, 1e-6) for b in (5.0, 10.0, 40.0)]
    assert by_scale == sorted(set(by_scale), reverse=True)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("factor", [1.0, 0.6])
def test_what_is_released_keeps_the_promise_and_noise_of_a_wrong_scale_does_not(noise, factor):
    """Count how often the two most distant predictions fall above the point where the promise is tight."""
    n, epsilon, delta, rng = 10_000, 1.0, 0.01, np.random.default_rng(1)
    scale = factor * scale_for(noise, 1.0, epsilon, delta)
    privacy = Privacy(clip=1.0, step=scale / 64, noise=noise, scale=scale)
    tight = scale**2 * epsilon / 2 if noise == "gaussian" else 1.0  # p(x − 1) = e^ε p(x + 1) there
    near, far = (sum(privacy.release(x, rng) > tight for _ in range(n)) / n for x in (7.0, -7.0))
    excess = near - math.exp(epsilon) * far - delta
    deviation = math.sqrt((near + math.exp(2 * epsilon) * far) / n)
    assert (excess < 5 * deviation) == (factor == 1.0), excess / deviation


@given(finite, st.floats(1e-3, 1e3), st.floats(1e-6, 10), st.integers(0, 2**32))
def test_what_is_released_is_clipped_then_a_multiple_of_the_step(prediction, clip, step, seed):
    rng = np.random.default_rng(seed)
    released = Privacy(clip=clip, step=step).release(prediction, rng)
    assert abs(released - np.clip(prediction, -clip, clip)) <= step / 2 * (1 + 1e-9)
    noisy = Privacy(clip=clip, step=step, noise="laplace", scale=clip).release(prediction, rng)
    for value in (released, noisy):
        assert value == round(value / step) * step


@given(finite)
def test_nothing_is_changed_unless_asked_for_and_rounding_draws_nothing(prediction):
    rng = np.random.default_rng(0)
    assert Privacy().release(prediction, rng) == prediction
    Privacy(clip=1.0, step=0.5).release(prediction, rng)
    assert rng.random() == np.random.default_rng(0).random()


def test_numbers_too_large_to_round_stay():
    assert Privacy(step=1e-300).release(1e300, np.random.default_rng(0)) == 1e300


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_prediction_that_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="prediction must be finite"):
        Privacy(clip=1.0).release(value, np.random.default_rng(0))


def test_without_noise_nothing_is_promised():
    assert Privacy(clip=1.0, step=0.5).epsilon(1, 0.1) == math.inf
    assert Privacy(clip=1.0, step=0.5).delta(1.0) == 1.0
    assert Privacy(clip=1.0, noise="gaussian", scale=1.0).epsilon(1, 0.0) == math.inf


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"noise": "uniform", "clip": 1.0, "scale": 1.0}, "noise must be one of gaussian, laplace"),
        ({"noise": "laplace", "scale": 1.0}, "clip must be given"),
        ({"noise": "laplace", "clip": 1.0}, "scale must be given"),
        ({"clip": 1.0, "scale": 1.0}, "scale must come with noise"),
        ({"clip": 0.0}, "clip must be positive"),
        ({"step": math.nan}, "step must be positive"),
        ({"clip": 2e6}, "clip must be at most 1e\\+06"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Privacy(**fields)


def test_an_account_needs_uploads_and_a_delta_below_one():
    privacy = Privacy(clip=1.0, noise="gaussian", scale=1.0)
    with pytest.raises(ValueError, match="n_uploads must be an integer of at least 1, got 0"):
        privacy.epsilon(0, 0.1)
    with pytest.raises(ValueError, match=r"delta must be in \[0, 1\), got 1"):
        privacy.epsilon(1, 1.0)
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        privacy.delta(-1.0)
    with pytest.raises(ValueError, match="delta must be in \\(0, 1\\) for gaussian noise"):
        scale_for("gaussian", 1.0, 1.0)

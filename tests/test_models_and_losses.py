import numpy as np
import pytest

from fedres.losses import Logistic, Softmax, Squared
from fedres.models import Linear, Network

CASES = [
    (Linear(5), Squared()),
    (Linear(5), Squared(0.5)),
    (Linear(5), Logistic()),
    (Linear(5, 3), Softmax(3)),
    (Network((5, 4, 1)), Squared()),
    (Network((5, 4, 4, 3)), Softmax(3)),
]


def labels(loss, n, rng):
    if isinstance(loss, Softmax):
        return rng.integers(loss.outputs, size=n).astype(float)
    return rng.choice([-1.0, 1.0], size=n)


@pytest.mark.parametrize(("model", "loss"), CASES)
def test_gradients_are_those_of_finite_differences(model, loss):
    rng = np.random.default_rng(0)
    n, features = 6, rng.normal(size=(6, 5))
    weights, label = rng.normal(size=(n, model.dim)), labels(loss, n, rng)
    slope = loss.slope(model.predict(weights, features), label)
    gradient = model.gradient(weights, features, slope)
    for j in rng.choice(model.dim, size=min(8, model.dim), replace=False):
        bump = np.zeros(model.dim)
        bump[j] = 1e-6
        up, down = (loss.value(model.predict(weights + s * bump, features), label) for s in (1, -1))
        assert gradient[:, j] == pytest.approx((up - down) / 2e-6, abs=1e-6)


@pytest.mark.parametrize(("model", "loss"), CASES)
def test_one_shared_vector_predicts_like_a_copy_for_each_row(model, loss):
    rng = np.random.default_rng(1)
    weights, features, label = rng.normal(size=model.dim), rng.normal(size=(4, 5)), labels(loss, 4, rng)
    copies, view = np.tile(weights, (4, 1)), np.broadcast_to(weights, (4, model.dim))
    shared = model.predict(weights, features)
    assert model.predict(copies, features) == pytest.approx(shared, rel=1e-12)
    assert model.predict(view, features) == pytest.approx(shared, rel=1e-12)
    slope = loss.slope(shared, label)
    assert model.gradient(copies, features, slope) == pytest.approx(model.gradient(view, features, slope), rel=1e-12)


@pytest.mark.parametrize("loss", [Squared(), Squared(0.5), Logistic()])
def test_the_bend_is_the_derivative_of_the_slope_and_never_above_the_curvature(loss):
    prediction, label = np.linspace(-4, 4, 41), np.ones(41)
    difference = (loss.slope(prediction + 1e-6, label) - loss.slope(prediction - 1e-6, label)) / 2e-6
    assert loss.bend(prediction) == pytest.approx(difference, abs=1e-6)
    assert loss.bend(prediction).max() <= loss.curvature + 1e-12


def test_the_bend_of_softmax_is_its_second_derivative_and_within_its_curvature():
    rng = np.random.default_rng(2)
    loss, scores, label = Softmax(3), rng.normal(size=(20, 3)), np.zeros(20)
    for j in range(3):
        bump = 1e-6 * np.eye(3)[j]
        difference = (loss.slope(scores + bump, label) - loss.slope(scores - bump, label)) / 2e-6
        assert loss.bend(scores)[:, :, j] == pytest.approx(difference, abs=1e-6)
    assert np.linalg.eigvalsh(loss.bend(scores)).max() <= loss.curvature


def test_losses_stay_finite_far_from_the_label():
    far = np.array([-1e4, 1e4])
    assert np.isfinite(Logistic().value(far, np.ones(2))).all()
    assert np.isfinite(Logistic().slope(far, np.ones(2))).all()
    assert np.isfinite(Softmax(2).value(np.array([[1e4, -1e4]]), np.ones(1))).all()


def test_labels_a_loss_cannot_read_are_refused():
    with pytest.raises(ValueError, match="label must be -1 or 1 for the logistic loss, got 0"):
        Logistic().check(np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="label must be a class from 0 to 2, got 3"):
        Softmax(3).check(np.array([0.0, 3.0]))
    with pytest.raises(ValueError, match=r"label must be a class from 0 to 2, got 0\.5"):
        Softmax(3).check(np.array([0.5]))


@pytest.mark.parametrize("make", [lambda: Linear(0), lambda: Network((3,)), lambda: Squared(0), lambda: Softmax(1)])
def test_impossible_models_and_losses_are_refused(make):
    with pytest.raises(ValueError, match="must"):
        make()

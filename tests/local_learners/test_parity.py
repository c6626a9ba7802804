"""The twin and Vowpal Wabbit, side by side."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedres.local_learners.linear import LinearLearner
from fedres.local_learners.vw import VWLearner

DIMS_AND_SEEDS = [(1, 0), (16, 1), (16, 2), (100, 3), (256, 4)]


def dense(rng, dim):
    """Return features of which a fifth are 0."""
    return rng.normal(size=dim) * (rng.random(dim) < 0.8)


def sparse(rng, dim):
    """Return up to dim features in any order, some 0, some twice."""
    n = rng.integers(0, dim + 1)
    return rng.integers(0, dim, n), dense(rng, n)


def stream(rng, n, dim, features=dense, labels=(-1.0, 1.0), spread=0.5):
    for _ in range(n):
        yield features(rng, dim), rng.choice(labels), spread * rng.normal()


@pytest.mark.parametrize(("dim", "seed"), DIMS_AND_SEEDS)
@pytest.mark.parametrize(
    ("labels", "features", "spread"),
    [
        ((-1.0, 1.0), dense, 0.0),
        ((0.0, 1.0), dense, 0.5),
        ((-1.0, 1.0), sparse, 0.5),
        ((0.0, 1.0), sparse, 0.0),
    ],  # any two of them meet
)
def test_predictions_are_identical_over_1000_examples(dim, seed, labels, features, spread):
    rng, twin = np.random.default_rng(seed), LinearLearner(dim)
    with VWLearner() as vw:
        for x, label, offset in stream(rng, 1000, dim, features, labels, spread):
            assert twin.predict(x, offset) == vw.predict(x, offset)
            twin.learn(x, label, offset)
            vw.learn(x, label, offset)
        assert twin.score(x) == vw.score(x)
        assert twin.label_range == vw.label_range


@pytest.mark.parametrize(("dim", "seed"), DIMS_AND_SEEDS)
@pytest.mark.parametrize("learning_rate", [0.3, 10.0])
def test_predictions_agree_with_real_valued_labels(dim, seed, learning_rate):
    rng, twin = np.random.default_rng(seed), LinearLearner(dim, learning_rate)
    with VWLearner(learning_rate) as vw:
        for x, label, offset in stream(rng, 1000, dim, labels=rng.normal(size=1000)):
            assert twin.predict(x, offset) == pytest.approx(vw.predict(x, offset), rel=1e-4)
            twin.learn(x, label, offset)
            vw.learn(x, label, offset)


@pytest.mark.parametrize(("dim", "seed"), DIMS_AND_SEEDS)
@pytest.mark.parametrize("features", [dense, sparse])
def test_corrections_are_identical_for_slopes_of_any_size(dim, seed, features):
    rng, twin = np.random.default_rng(seed), LinearLearner(dim)
    with VWLearner() as vw:
        for x, _, _ in stream(rng, 300, dim, features):
            slope = rng.normal() * 10.0 ** rng.integers(-4, 3)
            twin.correct(x, slope)
            vw.correct(x, slope)
            assert twin.score(x) == vw.score(x)
        assert vw.label_range == (0.0, 0.0)


def test_features_too_small_to_square_are_treated_alike():
    twin, rng = LinearLearner(3), np.random.default_rng(5)
    with VWLearner() as vw:
        for _ in range(200):
            x = rng.normal(size=3) * 10.0 ** rng.integers(-25, 20, 3)
            label = rng.choice([-1.0, 1.0])
            assert twin.predict(x) == vw.predict(x)
            twin.learn(x, label)
            vw.learn(x, label)


@pytest.mark.parametrize("features", [dense, sparse])
def test_both_go_on_identically_from_a_state_taken_in_mid_stream(tmp_path, features):
    rng, twin = np.random.default_rng(6), LinearLearner(16)
    with VWLearner() as vw, VWLearner() as set_vw:
        for x, label, offset in stream(rng, 300, 16, features):
            twin.learn(x, label, offset)
            vw.learn(x, label, offset)
        set_twin = LinearLearner(16)
        set_twin.set_state(twin.get_state())
        set_vw.set_state(vw.get_state())
        vw.save(tmp_path / "vw")
        with VWLearner.load(tmp_path / "vw") as loaded:
            for x, label, offset in stream(rng, 300, 16, features):
                learners = (twin, set_twin, vw, set_vw, loaded)
                assert len({learner.predict(x, offset) for learner in learners}) == 1
                for learner in learners:
                    learner.learn(x, label, offset)


NUMBERS = st.floats(-8, 8, width=32).map(lambda number: round(number, 3))
CALLS = st.tuples(st.sampled_from(["learn", "correct", "see"]), NUMBERS, NUMBERS, NUMBERS, NUMBERS)


@settings(max_examples=50, deadline=None)
@given(st.lists(CALLS, max_size=20))
def test_any_mixture_of_calls_leaves_both_with_the_same_predictions(calls):
    twin = LinearLearner(2)
    with VWLearner(bits=10) as vw:
        for name, first, second, number, offset in calls:
            x = [first, second]
            for learner in (twin, vw):
                if name == "learn":
                    learner.learn(x, number, offset)
                else:
                    getattr(learner, name)(*([x, number] if name == "correct" else [number]))
            assert twin.score(x) == vw.score(x)
            assert twin.predict(x, offset) == vw.predict(x, offset)


@pytest.mark.parametrize("importance", [0.0, 0.3, 1.0, 2.5, 40.0])
@pytest.mark.parametrize("features", [dense, sparse])
def test_importance_weights_are_vws_to_the_bit(importance, features):
    rng, twin = np.random.default_rng(7), LinearLearner(16)
    twin.weigh(importance)
    with VWLearner() as vw:
        vw.weigh(importance)
        for t, (x, label, offset) in enumerate(stream(rng, 400, 16, features)):
            assert twin.predict(x, offset) == vw.predict(x, offset)
            for learner in (twin, vw):
                if t % 3:
                    learner.learn(x, label, offset)
                else:
                    learner.correct(x, 0.7 * offset)


def test_an_importance_weight_matters_and_must_not_be_negative():
    models = []
    for importance in (1.0, 4.0):
        learner = LinearLearner(3, 0.1)
        learner.weigh(importance)
        for x, label, _ in stream(np.random.default_rng(8), 30, 3):
            learner.learn(x, label)
        models.append(learner.weights)
    assert np.abs(models[0] - models[1]).max() > 0.01
    with VWLearner() as vw:
        for learner in (LinearLearner(3), vw):
            for wrong in (-1.0, float("nan"), 1e39):
                with pytest.raises(ValueError, match="importance must be"):
                    learner.weigh(wrong)

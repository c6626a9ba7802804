import copy
import math
import pickle
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedres.local_learners.each import Each
from fedres.local_learners.linear import LinearLearner
from fedres.local_learners.protocol import Correction

NUMBERS = st.floats(-10, 10, width=32)
EXAMPLES = st.lists(st.tuples(st.lists(NUMBERS, min_size=3, max_size=3), NUMBERS, NUMBERS), max_size=12)


def taught(examples, dim=3):
    learner = LinearLearner(dim)
    for x, label, offset in examples:
        learner.learn(x, label, offset)
    return learner


def random_examples(seed, dim, n=50):
    rng = np.random.default_rng(seed)
    return list(zip(rng.normal(size=(n, dim)), rng.choice([-1.0, 1.0], n), rng.normal(size=n), strict=True))


def test_the_first_step_is_the_one_by_hand():
    learner = LinearLearner(dim=1)
    learner.learn([2.0], label=1.0)  # e = 1, G = (4·4, 4·1), w = 20·(2/4, 1/2)
    assert learner.weights.tolist() == [10.0, 10.0]
    assert learner.score([2.0]) == 30.0


def test_the_second_step_adds_to_the_sums_of_squares():
    learner = LinearLearner(dim=1, learning_rate=0.5)
    learner.learn([0.0], label=1.0)  # G = 4, w = 1·1/2
    learner.learn([0.0], label=1.0)  # e = 1/2, G = 4 + 1, w = 1/2 + (1/2)/√5
    assert learner.weights[1] == pytest.approx(0.5 + 0.5 / math.sqrt(5), rel=1e-6)


def test_an_error_of_zero_changes_nothing():
    learner = taught(random_examples(0, 3))
    before = learner.get_state()
    learner.learn([1.0, 2.0, 3.0], learner.predict([1.0, 2.0, 3.0]))
    assert learner.get_state() == before


def test_the_joint_prediction_is_clamped_and_never_its_parts():
    learner = LinearLearner(dim=1)
    learner.learn([2.0], label=1.0)
    assert learner.score([2.0]) == 30.0
    assert learner.predict([2.0]) == 1.0
    assert learner.predict([2.0], offset=-29.5) == 0.5
    assert learner.predict([2.0], offset=-99.0) == 0.0


def test_a_fresh_learner_predicts_zero_whatever_the_offset():
    assert LinearLearner(dim=1).predict([1.0], offset=5.0) == 0.0


def test_predicting_and_scoring_do_not_learn():
    learner = taught(random_examples(1, 3))
    before = learner.get_state()
    learner.predict([1.0, 2.0, 3.0], 0.5)
    learner.score([1.0, 2.0, 3.0])
    assert learner.get_state() == before


def test_a_correction_with_the_slope_of_now_is_what_learning_does():
    learner = taught(random_examples(2, 3))
    twin = copy.copy(learner)
    for x, label, offset in random_examples(3, 3):
        twin.correct(x, 2 * (learner.predict(x, offset) - label))
        learner.learn(x, label, offset)
        assert twin.get_state() == learner.get_state()


def test_a_correction_leaves_the_range_of_predictions_alone_and_seeing_a_label_widens_it():
    learner = LinearLearner(dim=1)
    learner.correct([1.0], slope=-7.0)
    assert learner.label_range == (0.0, 0.0)
    learner.see(-2.0)
    learner.see(3.0)
    assert learner.label_range == (-2.0, 3.0)
    assert learner.predict([1.0]) == 3.0


def test_a_feature_of_zero_keeps_its_weight():
    learner = LinearLearner(dim=2)
    learner.learn([0.0, 1.0], label=1.0)
    assert learner.weights.tolist() == [0.0, 10.0, 10.0]


def test_an_index_that_comes_twice_counts_twice_before_its_weight_moves():
    learner = LinearLearner(dim=1)
    learner.learn((np.array([0, 0]), np.array([1.0, 1.0])), label=1.0)  # G = 4 + 4, then two steps of 20/√8
    assert learner.weights[0] == pytest.approx(40 / math.sqrt(8), rel=1e-6)


def test_a_step_too_small_for_its_sum_of_squares_is_not_taken():
    learner = LinearLearner(dim=1)
    learner.correct([1e-10], slope=1e-17)
    assert learner.weights[0] == 0.0


@settings(deadline=None)  # the first call compiles
@given(EXAMPLES)
def test_sparse_features_are_dense_ones_without_the_zeros(examples):
    dense, sparse = LinearLearner(3), LinearLearner(3)
    for x, label, offset in examples:
        indices = np.flatnonzero(x)
        pairs = (indices, np.array(x)[indices])
        assert sparse.predict(pairs, offset) == dense.predict(x, offset)
        dense.learn(x, label, offset)
        sparse.learn(pairs, label, offset)
    assert sparse.get_state() == dense.get_state()


@settings(deadline=None)  # the first call compiles
@given(EXAMPLES)
def test_predictions_stay_within_the_labels_seen(examples):
    learner = taught(examples)
    labels = [0.0, *(label for _, label, _ in examples)]
    for x, _, offset in examples:
        assert min(labels) <= learner.predict(x, offset) <= max(labels)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_any_layout_of_numbers_gives_the_same_bits(dtype):
    table = np.arange(12).reshape(4, 3).astype(dtype)
    learner = taught(random_examples(4, 4), dim=4)
    frozen = table[:, 1].copy()
    frozen.flags.writeable = False
    assert learner.score(table[:, 1]) == learner.score(frozen) == learner.score([1.0, 4.0, 7.0, 10.0])


def test_the_weights_handed_out_are_a_copy():
    learner = taught(random_examples(5, 3))
    before = learner.get_state()
    learner.weights[:] = 0
    assert learner.weights.shape == (4,)
    assert learner.get_state() == before


X = [1.0, 2.0]
REFUSED = [
    (([1.0],), "features must have length 2, got 1"),
    (([[1.0, 2.0]],), "features must have one dimension"),
    ((["a", "b"],), "features must be an array of numbers"),
    (([1.0, math.nan],), "features must be finite in 32 bits, got nan"),
    (([1.0, math.inf],), "features must be finite in 32 bits, got inf"),
    (([1.0, 1e39],), r"features must be finite in 32 bits, got 1e\+39"),
    ((([2], [1.0]),), r"indices must be in \[0, 2\), got 2"),
    ((([-1], [1.0]),), r"indices must be in \[0, 2\), got -1"),
    ((([0.5], [1.0]),), "indices must be integers, got float64"),
    ((([0, 1], [1.0]),), "indices must have the shape of values"),
    ((([0], [1.0], [1.0]),), "features must be"),
    ((([0], [math.nan]),), "features must be finite in 32 bits, got nan"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_features_outside_the_rules_are_refused_and_nothing_changes(arguments, message):
    learner = taught(random_examples(6, 2), dim=2)
    before = learner.get_state()
    for call in (
        learner.score,
        learner.predict,
        lambda x: learner.learn(x, 9.0),
        lambda x: learner.correct(x, 1.0),
    ):
        with pytest.raises(ValueError, match=message):
            call(*arguments)
    assert learner.get_state() == before


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e39])
def test_labels_offsets_and_slopes_that_are_not_finite_are_refused_and_nothing_changes(wrong):
    learner = taught(random_examples(7, 2), dim=2)
    before = learner.get_state()
    for name, call in {
        "label": lambda: learner.learn(X, wrong),
        "offset": lambda: learner.learn(X, 9.0, wrong),
        "slope": lambda: learner.correct(X, 2 * wrong),
    }.items():
        with pytest.raises(ValueError, match=f"{name} must be finite in 32 bits, got"):
            call()
    with pytest.raises(ValueError, match="offset must be finite"):
        learner.predict(X, wrong)
    with pytest.raises(ValueError, match="label must be finite"):
        learner.see(wrong)
    assert learner.get_state() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 0}, "dim must be an integer of at least 1, got 0"),
        ({"dim": 2, "learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        ({"dim": 2, "learning_rate": 1e39}, "learning_rate must be finite in 32 bits"),
    ],
)
def test_settings_outside_the_rules_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LinearLearner(**settings)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda learner: pickle.loads(pickle.dumps(learner))])
@settings(deadline=None)  # the first call compiles
@given(EXAMPLES, EXAMPLES)
def test_a_copy_goes_on_where_the_learner_was_and_apart_from_it(again, first, second):
    learner = taught(first)
    before = learner.get_state()
    other = again(learner)
    for x, label, offset in second:
        other.learn(x, label, offset)
    assert learner.get_state() == before
    assert other.get_state() == taught(first + second).get_state()
    assert other.learning_rate == learner.learning_rate


@settings(deadline=None)  # the first call compiles
@given(EXAMPLES, EXAMPLES)
def test_a_state_set_is_as_if_learning_had_never_stopped(first, second):
    learner = LinearLearner(3)
    learner.set_state(taught(first).get_state())
    for x, label, offset in second:
        learner.learn(x, label, offset)
    assert learner.get_state() == taught(first + second).get_state()


@settings(deadline=None)  # the first call compiles
@given(st.data())
def test_a_state_with_any_byte_changed_or_missing_is_refused(data):
    learner = taught(random_examples(8, 3))
    good = learner.get_state()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    for state in (bytes(bad), good[:at], good + b"\0"):
        with pytest.raises(ValueError, match="state must"):
            learner.set_state(state)
    assert learner.get_state() == good


def test_a_state_of_another_dim_is_refused():
    with pytest.raises(ValueError, match="state must have dim 2, got 3"):
        LinearLearner(2).set_state(LinearLearner(3).get_state())


def test_a_twin_of_100_features_takes_at_most_2_kilobytes():
    x = np.ones(100)
    LinearLearner(100).learn(x, 1.0)
    tracemalloc.start()
    learners = [LinearLearner(100) for _ in range(1000)]
    for learner in learners:
        learner.learn(x, 1.0)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used <= 2048 * len(learners)
    assert sys.getsizeof(learners[0]) + sys.getsizeof(learners[0].get_state()) <= 2048


def test_each_row_belongs_to_its_own_learner():
    rng = np.random.default_rng(9)
    group, alone = Each([LinearLearner(4) for _ in range(3)]), [LinearLearner(4) for _ in range(3)]
    for _ in range(20):
        x, offset, label = rng.normal(size=(3, 4)), rng.normal(size=3), rng.choice([0.0, 1.0], 3)
        slope, present = rng.normal(size=3), rng.random(3) < 0.5
        assert group.predict(x, offset).tolist() == [alone[i].predict(x[i], offset[i]) for i in range(3)]
        assert group.score(x).tolist() == [alone[i].score(x[i]) for i in range(3)]
        group.learn(x, label, offset, present)
        group.correct([Correction(x, slope, ~present)])
        for i, learner in enumerate(alone):
            if present[i]:
                learner.learn(x[i], label[i], offset[i])
            else:
                learner.correct(x[i], slope[i])
    assert [a.get_state() for a in group.learners] == [a.get_state() for a in alone]


def test_rows_of_absent_clients_may_hold_anything():
    group = Each([LinearLearner(1), LinearLearner(1)])
    x, y = np.array([[1.0], [math.nan]]), np.array([1.0, math.nan])
    group.learn(x, y, 0 * y, np.array([True, False]))
    assert group.learners[0].weights[0] != 0
    assert group.learners[1].get_state() == LinearLearner(1).get_state()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.ones((3, 1))}, "features must have 2 axes and 2 rows"),
        ({"label": np.array([1.0, math.nan])}, "label must be finite, got nan"),
        ({"offset": np.ones((2, 1))}, "offset must have 1 axes and 2 rows"),
        ({"present": np.ones(2)}, "present must be 2 booleans, got float64"),
        ({"present": np.ones(3, dtype=bool)}, "present must be 2 booleans"),
    ],
)
def test_a_group_refuses_arrays_outside_the_rules_before_any_client_learns(change, message):
    group = Each([LinearLearner(1), LinearLearner(1)])
    good = {
        "features": np.ones((2, 1)),
        "label": np.ones(2),
        "offset": np.ones(2),
        "present": np.ones(2, dtype=bool),
    }
    with pytest.raises(ValueError, match=message):
        group.learn(**{**good, **change})
    assert {learner.get_state() for learner in group.learners} == {LinearLearner(1).get_state()}


def test_a_group_of_nobody_is_refused():
    with pytest.raises(ValueError, match="learners must hold at least one"):
        Each([])

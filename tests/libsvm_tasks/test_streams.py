import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedres import Federation, Linear, Logistic, Softmax, Squared, global_learner
from libsvm_tasks import streams
from libsvm_tasks.data import Data


def make_classes(sizes, seed=0):
    rng = np.random.default_rng(seed)
    label = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Data("made", rng.normal(size=(len(label), 3)), label, np.arange(len(sizes)))


def make_regression(n_rows=50):
    rng = np.random.default_rng(0)
    return Data("prices", rng.normal(size=(n_rows, 3)), rng.normal(10, 5, n_rows))


sizes = st.integers(1, 40)
seeds = st.integers(0, 999)


@given(sizes, sizes, sizes, seeds)
def test_a_partition_repeats_rows_only_as_often_as_it_must(n_rows, n_clients, n_rounds, seed):
    index = streams.online_partition(make_regression(n_rows), n_clients, n_rounds, seed)
    assert index.shape == (n_clients, n_rounds)
    counts = np.bincount(index.ravel(), minlength=n_rows)
    assert len(counts) == n_rows
    assert counts.max() <= -(-n_clients * n_rounds // n_rows)


def test_a_partition_that_fits_the_dataset_deals_out_every_row_equally_often():
    index = streams.online_partition(make_regression(20), 6, 10, seed=0)
    assert np.bincount(index.ravel()).tolist() == [3] * 20


def test_a_partition_is_shuffled_over_all_rows_of_a_large_dataset():
    index = streams.online_partition(make_regression(10_000), 10, 10, seed=0)
    assert len(np.unique(index)) == 100
    assert abs(index.mean() - 5000) < 5 * 289  # 10⁴/√1200
    assert not np.array_equal(index.ravel(), np.sort(index.ravel()))


@given(sizes, sizes, sizes)
def test_rows_in_time_order_go_round_by_round_and_start_again(n_rows, n_clients, n_rounds):
    index = streams.online_partition(make_regression(n_rows), n_clients, n_rounds, 0, shuffle=False)
    assert index.shape == (n_clients, n_rounds)
    assert index.T.ravel().tolist() == [i % n_rows for i in range(n_clients * n_rounds)]


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: streams.online_partition(make_classes([9] * 4), 5, 30, seed),
        lambda seed: streams.label_drift(make_classes([9] * 4), 5, 30, seed, drift_variance=0.1),
        lambda seed: streams.label_permutation(make_classes([9] * 4), 5, seed),
        lambda seed: streams.model_drift(5, 30, seed, drift_variance=0.1, spread_variance=0.1).features,
        lambda seed: drifted(make_classes([9] * 4), 5, 30, seed, drift_variance=0.1, spread_variance=0.1)[0],
    ],
)
def test_a_seed_decides_everything(make):
    assert np.array_equal(make(7), make(7))
    assert not np.array_equal(make(7), make(8))


def test_examples_are_the_rows_and_labels_of_each_round():
    data = make_classes([5, 6, 7])
    index = streams.online_partition(data, 4, 9, seed=0)
    rounds = list(streams.examples(data, index))
    assert len(rounds) == 9
    for t, example in enumerate(rounds):
        assert np.array_equal(example.features, data.features[index[:, t]])
        assert np.array_equal(example.label, data.label[index[:, t]])


def test_regression_labels_are_scaled_to_the_unit_interval():
    data = Data("prices", np.ones((4, 1)), np.array([-2.0, 0.0, 2.0, 6.0]))
    assert streams.unit_label(data).tolist() == [0, 0.25, 0.5, 1]
    index = np.array([[0, 3], [2, 1]])
    assert [example.label.tolist() for example in streams.examples(data, index)] == [[0, 0.5], [1, 0.25]]


@given(st.integers(1, 9), st.integers(1, 20), seeds)
def test_every_client_has_a_permutation_that_a_new_client_does_not_change(n_classes, n_clients, seed):
    data = make_classes([3] * n_classes)
    permutation = streams.label_permutation(data, n_clients, seed)
    assert np.sort(permutation, axis=1).tolist() == [list(range(n_classes))] * n_clients
    assert np.array_equal(streams.label_permutation(data, n_clients + 1, seed)[:-1], permutation)


def test_permutations_are_uniform():
    permutation = streams.label_permutation(make_classes([1] * 3), 6000, seed=0)
    counts = np.unique(permutation, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 30  # χ², 5 degrees of freedom: 30 is beyond 1 in 10^4


def test_examples_take_each_clients_own_names_of_the_classes():
    data = make_classes([5, 6, 7])
    index = streams.online_partition(data, 4, 9, seed=0)
    permutation = streams.label_permutation(data, 4, seed=1)
    label = np.array([example.label for example in streams.examples(data, index, permutation)]).T
    for client in range(4):
        assert label[client].tolist() == [permutation[client, data.label[row]] for row in index[client]]


def class_shares(data, index):
    return np.bincount(data.label[index].ravel(), minlength=data.n_classes) / index.size


def test_without_drift_classes_come_as_often_as_in_the_dataset():
    data = make_classes([10, 30, 0, 60])
    index = streams.label_drift(data, 100, 200, 0, drift_variance=0)
    assert class_shares(data, index) == pytest.approx([0.1, 0.3, 0, 0.6], abs=5 * 0.5 / np.sqrt(20_000))
    rows = np.bincount(index.ravel(), minlength=100)  # each of 100 rows in one of 100 draws
    assert np.abs(rows - 200).max() < 6 * np.sqrt(200)


def test_violent_drift_leaves_one_class_at_a_time_to_all_clients():
    """With a variance of 1e16 the two largest logits are never close, and any class may have the largest."""
    data = make_classes([25] * 4)
    last = set()
    for seed in range(60):
        label = data.label[streams.label_drift(data, 5, 4, seed, drift_variance=1e16)]
        assert (label == label[0]).all()
        last.add(label[0, -1])
    assert last == {0, 1, 2, 3}


def test_a_spread_gives_clients_different_classes():
    data = make_classes([25] * 4)
    index = streams.label_drift(data, 50, 50, 0, drift_variance=0, spread_variance=100)
    shares = np.array([class_shares(data, row) for row in index])
    assert shares.max(axis=1).mean() > 0.8
    assert len(np.unique(shares.argmax(axis=1))) == 4


def test_a_new_client_changes_nobodys_rows():
    data = make_classes([25] * 4)
    fewer, more = (streams.label_drift(data, n, 20, 0, drift_variance=0.1, spread_variance=1) for n in (5, 6))
    assert np.array_equal(fewer, more[:5])


def test_a_random_walk_adds_its_steps_to_the_start():
    walk = streams.random_walk(np.array([1.0, -1.0]), 20_000, 0.25, np.random.default_rng(0))
    steps = np.diff(walk, axis=0, prepend=[[1.0, -1.0]])
    assert walk.shape == (20_000, 2)
    assert abs(steps.mean()) < 5 * 0.5 / np.sqrt(40_000)
    assert steps.var() == pytest.approx(0.25, rel=5 * np.sqrt(2 / 40_000))
    assert abs(np.corrcoef(steps[:-1, 0], steps[1:, 0])[0, 1]) < 5 / np.sqrt(20_000)


def test_a_walk_without_variance_stays_where_it_is():
    walk = streams.random_walk(np.array([1.0, 2.0]), 5, 0, np.random.default_rng(0))
    assert walk.tolist() == [[1, 2]] * 5


def drifted(data, n_clients, n_rounds, seed, **variances):
    """Return what was added to the features, (T, K, d), and the labels."""
    index = streams.online_partition(data, n_clients, n_rounds, seed=0)
    rounds = list(streams.feature_drift(data, index, seed, **variances))
    added = np.array([example.features - data.features[index[:, t]] for t, example in enumerate(rounds)])
    return added, np.array([example.label for example in rounds]), data.label[index].T


def test_features_drift_together_in_units_of_their_own_deviation():
    data = make_classes([400, 400])
    data.features[:] *= [1, 100, 0]
    added, label, expected = drifted(data, 4, 5000, 0, drift_variance=0.01)
    assert np.array_equal(label, expected)
    assert np.abs(added - added[:, :1]).max() < 1e-9
    steps = np.diff(added[:, 0], axis=0) / data.features.std(axis=0).clip(1e-12)
    assert steps.std(axis=0)[:2] == pytest.approx([0.1, 0.1], rel=5 / np.sqrt(10_000))
    assert not added[..., 2].any()


def test_a_spread_keeps_clients_a_constant_apart():
    data = make_classes([40, 40])
    added, _, _ = drifted(data, 300, 4, 0, drift_variance=0.01, spread_variance=4)
    apart = added - added.mean(axis=1, keepdims=True)
    assert np.abs(apart - apart[0]).max() < 1e-9
    assert (apart[0] / data.features.std(axis=0)).std() == pytest.approx(2, rel=5 / np.sqrt(2 * 900))


def test_no_drift_and_no_spread_leave_the_features_alone():
    added, _, _ = drifted(make_classes([9, 9]), 3, 5, 0, drift_variance=0)
    assert not added.any()


@given(st.integers(1, 6), st.integers(1, 30), st.integers(1, 5), st.integers(1, 7), seeds)
def test_labels_of_a_drifting_model_are_the_signs_of_its_scores(n_clients, n_rounds, n_features, period, seed):
    variances = {"drift_variance": 0.01, "spread_variance": 0.1}
    drift = streams.model_drift(n_clients, n_rounds, seed, n_features=n_features, period=period, **variances)
    assert drift.features.shape == (n_rounds, n_clients, n_features)
    assert drift.weights.shape == (n_rounds, n_features)
    for t, example in enumerate(drift.examples()):
        for k in range(n_clients):
            assert example.label[k] == np.sign(example.features[k] @ (drift.weights[t] + drift.constants[k]))
        assert np.array_equal(drift.weights[t], drift.weights[t - t % period])


def test_a_drifting_model_has_the_variances_it_was_given():
    drift = streams.model_drift(400, 4000, 0, drift_variance=0.01, spread_variance=0.1, n_features=4, period=2)
    steps = np.diff(drift.weights[::2], axis=0)
    assert steps.var() == pytest.approx(0.01, rel=5 * np.sqrt(2 / steps.size))
    assert drift.constants.var() == pytest.approx(0.1, rel=5 * np.sqrt(2 / 1600))
    deviation = drift.features.std(axis=(0, 2))  # 16,000 draws a client: known to 0.6%
    assert 0.47 < deviation.min() ** 2 < 0.6
    assert 1.4 < deviation.max() ** 2 < 1.6


def losses(learner, examples):
    return [round_.loss.mean() for round_ in Federation(learner).run(examples)]


def test_a_federation_learns_digits_from_a_partition():
    features, label = load_digits(return_X_y=True)
    data = Data("digits", features / 16, label, np.arange(10))
    examples = streams.examples(data, streams.online_partition(data, 50, 100, seed=0))
    learner = global_learner("fedogd", model=Linear(64, 10), loss=Softmax(10), n_clients=50, step_size=0.3)
    loss = losses(learner, examples)
    assert np.mean(loss[-20:]) < loss[0] / 3


def test_a_federation_learns_a_regression_in_time_order():
    time = np.linspace(0, 1, 50)
    data = Data("rising", np.column_stack([time, np.ones(50)]), 3 * time + 2)
    index = streams.online_partition(data, 10, 300, 0, shuffle=False)
    learner = global_learner("fedogd", model=Linear(2), loss=Squared(), n_clients=10, step_size=0.3)
    assert np.mean(losses(learner, streams.examples(data, index))[-5:]) < 1e-3


def test_a_federation_follows_a_drifting_model():
    drift = streams.model_drift(20, 500, 0, drift_variance=1e-5)
    learner = global_learner("fedogd", model=Linear(2), loss=Logistic(), n_clients=20, step_size=0.5)
    assert np.mean(losses(learner, drift.examples())[-50:]) < np.log(2) / 2


def test_regression_datasets_have_no_classes_to_permute_or_to_drift():
    data = make_regression()
    index = streams.online_partition(data, 2, 3, seed=0)
    for refused in (
        lambda: streams.label_permutation(data, 2, 0),
        lambda: streams.label_drift(data, 2, 3, 0, drift_variance=1),
        lambda: streams.examples(data, index, np.zeros((2, 2), dtype=int)),
    ):
        with pytest.raises(ValueError, match="prices must be a classification dataset"):
            refused()


def test_labels_that_cannot_be_scaled_are_refused():
    with pytest.raises(ValueError, match="made must be a regression dataset, it has 2 classes"):
        streams.unit_label(make_classes([3, 3]))
    with pytest.raises(ValueError, match=r"flat must have labels that differ, got only 1\.0"):
        streams.unit_label(Data("flat", np.ones((3, 1)), np.ones(3)))


def test_a_permutation_for_other_clients_is_refused():
    data = make_classes([3, 3])
    index = streams.online_partition(data, 4, 3, seed=0)
    with pytest.raises(ValueError, match=r"permutation must have shape \(4, 2\), got \(5, 2\)"):
        streams.examples(data, index, streams.label_permutation(data, 5, 0))


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_clients", 0), ("n_rounds", -1), ("seed", -1), ("drift_variance", -0.1), ("spread_variance", np.nan)],
)
def test_a_bad_setting_is_named(name, value):
    settings = {"n_clients": 2, "n_rounds": 3, "seed": 0, "drift_variance": 0.1} | {name: value}
    for make in (streams.model_drift, lambda **others: streams.label_drift(make_classes([3, 3]), **others)):
        with pytest.raises(ValueError, match=f"^{name} must be .*got {value}"):
            make(**settings)


def test_a_dataset_without_rows_is_refused():
    with pytest.raises(ValueError, match="empty must have at least one row"):
        streams.online_partition(Data("empty", np.ones((0, 2)), np.ones(0)), 2, 3, 0)

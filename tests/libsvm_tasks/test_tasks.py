import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from libsvm_tasks.data import Data
from libsvm_tasks.tasks import Task, paper_task


def make_data(sizes, n_features=5, seed=0):
    """Return a dataset whose first feature is the number of the row, so that a copied row can be traced."""
    rng = np.random.default_rng(seed)
    label = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    features = rng.normal(size=(len(label), n_features))
    features[:, 0] = np.arange(len(label))
    return Data("made", features, label, np.arange(len(sizes)))


def digits():
    features, label = load_digits(return_X_y=True)
    return Data("digits", features, label, np.arange(10))


def same(first: Task, second: Task, *names):
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)


ALL_FIELDS = [field.name for field in dataclasses.fields(Task)]


@st.composite
def tasks(draw):
    data = make_data(draw(st.lists(st.integers(3, 60), min_size=2, max_size=11)), seed=draw(st.integers(0, 99)))
    settings = {
        "n_clients": draw(st.integers(1, 8)),
        "samples": draw(st.integers(1, 30)),
        "seed": draw(st.integers(0, 9999)),
        "n_rounds": draw(st.integers(1, 90)),
        "local_features": draw(st.sampled_from(["half", "all"])),
    }
    try:
        return data, settings, paper_task(data, **settings)
    except ValueError as error:
        assert "n_clients must leave" in str(error)  # noqa: PT017
        assume(False)


def merged_classes(data, task):
    """Return the classes that training or test rows with label −1 come from."""
    test_rows = task.test_features[..., 0].astype(int)
    return set(data.label[task.rows[task.label < 0]]) | set(data.label[test_rows[task.test_label < 0]])


@settings(max_examples=50)
@given(tasks())
def test_no_two_clients_share_a_training_row_and_no_training_row_is_a_test_row(drawn):
    _, _, task = drawn
    assert len(np.unique(task.rows)) == task.rows.size
    assert not np.isin(task.test_features[..., 0], task.rows).any()


@settings(max_examples=50)
@given(tasks())
def test_training_and_test_rows_of_every_client_are_balanced(drawn):
    _, settings, task = drawn
    n_clients, n = settings["n_clients"], task.samples
    assert task.rows.shape == task.label.shape == (n_clients, 2 * n)
    assert min(settings["samples"], 2) <= n <= settings["samples"]
    assert ((task.label == 1).sum(axis=1) == n).all()
    assert ((task.label == -1).sum(axis=1) == n).all()
    assert task.test_label.shape == (n_clients, task.test_features.shape[1])
    assert task.test_label.size > 0
    assert (task.test_label.sum(axis=1) == 0).all()
    assert (np.abs(task.test_label) == 1).all()


@settings(max_examples=50)
@given(tasks())
def test_a_client_tells_the_merged_classes_from_one_other_class(drawn):
    data, settings, task = drawn
    merged = merged_classes(data, task)
    test_class = data.label[task.test_features[..., 0].astype(int)]
    for client in range(settings["n_clients"]):
        own = set(data.label[task.rows[client, task.label[client] > 0]])
        assert len(own) == 1
        assert own == set(test_class[client, task.test_label[client] > 0])
        assert not own & merged
    assert len(merged) <= max(1, 3 * data.n_classes // 10)


@settings(max_examples=50)
@given(tasks())
def test_features_are_the_rows_of_the_dataset_as_they_are(drawn):
    data, _, task = drawn
    assert np.array_equal(task.features, data.features[task.rows])
    assert np.array_equal(task.test_features, data.features[task.test_features[..., 0].astype(int)])
    assert task.features.dtype == task.test_features.dtype == np.float64


@settings(max_examples=50)
@given(tasks())
def test_every_epoch_shows_each_row_of_a_client_once(drawn):
    _, settings, task = drawn
    n_rounds, size = settings["n_rounds"], 2 * task.samples
    assert task.order.shape == (settings["n_clients"], n_rounds)
    for start in range(0, n_rounds, size):
        epoch = np.sort(task.order[:, start : start + size], axis=1)
        assert (np.diff(epoch, axis=1) > 0).all()
        assert epoch.min() >= 0
        assert epoch.max() < size


@given(st.integers(2, 40), st.integers(0, 999))
def test_global_and_local_features_are_two_halves_or_half_and_all(n_features, seed):
    data = make_data([12] * 6, n_features)
    half = paper_task(data, 2, seed=seed)
    everything = paper_task(data, 2, seed=seed, local_features="all")
    assert len(half.global_features) == n_features // 2
    assert sorted([*half.global_features, *half.local_features]) == list(range(n_features))
    assert everything.local_features.tolist() == list(range(n_features))
    assert same(half, everything, *(name for name in ALL_FIELDS if name != "local_features"))


@settings(max_examples=50)
@given(tasks())
def test_the_same_seed_gives_the_same_task(drawn):
    data, settings, task = drawn
    assert same(task, paper_task(data, **settings), *ALL_FIELDS)


def test_another_seed_gives_another_task():
    first, second = (paper_task(digits(), 10, seed=seed) for seed in (0, 1))
    for name in ("rows", "order", "test_features", "global_features"):
        assert not same(first, second, name)


def test_a_longer_run_has_the_same_rows_and_begins_like_a_shorter_one():
    short, long = (paper_task(digits(), 5, seed=3, n_rounds=n_rounds) for n_rounds in (75, 400))
    assert same(short, long, *(name for name in ALL_FIELDS if name != "order"))
    assert np.array_equal(short.order, long.order[:, :75])


@pytest.mark.parametrize(
    ("sizes", "n_clients", "samples", "n"),
    [
        ([50] * 6, 4, 30, 10),  # |A| = 1: 40 training rows for 4 clients
        ([50] * 6, 4, 7, 7),
        ([50] * 7, 2, 99, 40),  # |A| = 2: 80 rows for 2 clients, and buckets of 40
        ([50] * 7, 8, 99, 10),
        ([50] * 10, 3, 30, 30),
    ],
)
def test_n_is_the_largest_that_the_merged_class_and_the_buckets_allow(sizes, n_clients, samples, n):
    assert paper_task(make_data(sizes), n_clients, samples=samples, seed=0).samples == n


def test_buckets_limit_n_when_the_other_classes_are_rare():
    """Whichever class is merged, 40 of 50 rows are left of each other class: 3 buckets of 40, or 6 of 20."""
    data = make_data([50, 50, 50, 50])
    for n_clients, n in ((1, 40), (2, 20), (5, 8)):
        assert paper_task(data, n_clients, samples=99, seed=1).samples == n
    lopsided = make_data([1000, 10, 10, 10])  # merging the large one leaves 3 buckets of 8, 6 of 4, 12 of 2
    n_of = {n_clients: {paper_task(lopsided, n_clients, seed=s).samples for s in range(40)} for n_clients in (3, 5, 6)}
    assert n_of == {3: {2, 8}, 5: {4}, 6: {4}}


def test_classes_too_rare_to_merge_are_drawn_again():
    data = make_data([1000, 1000, 12, 12, 12, 12])
    for seed in range(30):
        task = paper_task(data, 20, seed=seed)
        assert task.samples == 30
        assert merged_classes(data, task) <= {0, 1}


def test_a_rare_class_weighs_as_much_in_the_test_as_a_common_one():
    data = make_data([400, 400, 400, 15])  # the rare class has 12 training and 3 test rows
    seen = 0
    for seed in range(100):
        task = paper_task(data, 8, samples=4, seed=seed)
        assert task.test_features.shape[1] == 100
        for client in np.flatnonzero(data.label[task.rows[:, -1]] == 3):
            counts = np.unique(task.test_features[client, 50:, 0], return_counts=True)[1]
            assert sorted(counts) == [16, 17, 17]
            seen += 1
    assert seen > 0


def test_a_client_has_at_most_50_different_test_rows_of_each_kind():
    task = paper_task(make_data([3000] * 4), 5, seed=0)
    assert task.test_features.shape == (5, 100, 5)
    assert all(len(np.unique(rows)) == 100 for rows in task.test_features[..., 0])


def test_every_class_comes_up_merged_and_as_a_clients_own():
    data = make_data([40] * 7)
    merged, own = np.zeros(7), np.zeros(7)
    for seed in range(350):
        task = paper_task(data, 4, samples=10, seed=seed)
        merged[list(merged_classes(data, task))] += 1
        own += np.bincount(data.label[task.rows[:, -1]], minlength=7)
    assert merged.sum() == 2 * 350  # |A| = floor(0.3·7)
    assert np.abs(merged - 100).max() < 5 * 8.5  # the deviation of Binomial(350, 2/7)
    assert np.abs(own - 200).max() < 5 * 13.1  # of 350 tasks: 4 of 15 buckets, 3 of them of this class in 5 of 7 tasks


def test_every_client_has_rows_of_all_merged_classes():
    data = make_data([400] * 7)
    task = paper_task(data, 4, seed=0)
    for rows in task.rows[:, : task.samples]:
        assert set(data.label[rows]) == merged_classes(data, task)
    assert len(merged_classes(data, task)) == 2


def test_a_task_is_made_from_digits_with_thirty_of_each_kind():
    task = paper_task(digits(), 10, seed=0)
    assert task.samples == 30
    assert task.features.shape == (10, 60, 64)
    assert task.order.shape == (10, 500)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match=r"made must have at least 2 classes, .*got 1"):
        paper_task(make_data([50]), 2, seed=0)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_of_two_or_three_classes_one_is_merged(n_classes):
    data = make_data([60] * n_classes)
    task = paper_task(data, 3, seed=0)
    assert len(merged_classes(data, task)) == 1
    assert set(data.label[task.rows[task.label > 0]]).isdisjoint(merged_classes(data, task))


def test_a_class_without_rows_does_not_count():
    with pytest.raises(ValueError, match=r"at least 2 classes, .*got 1"):
        paper_task(make_data([30, 0]), 2, seed=0)
    data = make_data([30, 0, 30, 30, 30])  # |A| = floor(0.3·4): 24 training rows for 3 clients
    assert all(paper_task(data, 3, seed=seed).samples == 8 for seed in range(20))


def test_a_regression_dataset_is_refused():
    data = Data("prices", np.ones((50, 3)), np.linspace(0, 1, 50))
    with pytest.raises(ValueError, match="prices must be a classification dataset"):
        paper_task(data, 2, seed=0)


@pytest.mark.parametrize("n_clients", [51, 10_000])
def test_more_clients_than_the_rows_can_serve_are_refused(n_clients):
    """Of 6 classes with 100 training rows, one is merged: 50 clients get two rows of it each."""
    data = make_data([125] * 6)
    assert paper_task(data, 50, seed=0).samples == 2
    with pytest.raises(ValueError, match=rf"n_clients must leave .* 600 training rows of made, .*got {n_clients}$"):
        paper_task(data, n_clients, seed=0)


def test_one_feature_cannot_be_split():
    with pytest.raises(ValueError, match="made must have at least 2 features to split, got 1"):
        paper_task(make_data([20] * 6, n_features=1), 2, seed=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_clients", 0), ("n_clients", 2.5), ("samples", 0), ("n_rounds", 0), ("seed", -1), ("local_features", "none")],
)
def test_a_bad_setting_is_named(name, value):
    settings = {"n_clients": 2, "seed": 0} | {name: value}
    with pytest.raises(ValueError, match=rf"^{name} must be .*got {value!r}"):
        paper_task(make_data([20] * 6), **settings)

"""The compiled engine against its readable twin, VW, and closed forms."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libsvm_tasks import engine, readable
from libsvm_tasks.tasks import Task

SCHEMES = ("independent", "central", "fedres")
TIMINGS = list(product(("on-arrival", "aligned"), ("immediate", "aligned")))
UPLINK, DOWNLINK = [0, 3, 1, 0, 7], [2, 0, 4, 0, 1]  # of five clients


def make_task(n_clients=5, n_rounds=60, d=11, *, rows=8, tests=7, seed=0, local="half", labels=(-1.0, 1.0)):
    """Return random rows, a fifth of their features 0."""
    rng = np.random.default_rng(seed)
    columns = rng.permutation(d)
    features = rng.normal(size=(n_clients, rows, d)) * (rng.random((n_clients, rows, d)) < 0.8)
    return Task(
        features=features,
        label=rng.choice(labels, size=(n_clients, rows)),
        order=rng.integers(0, rows, (n_clients, n_rounds)),
        test_features=rng.normal(size=(n_clients, tests, d)),
        test_label=rng.choice([-1.0, 1.0], size=(n_clients, tests)),
        global_features=columns[: d // 2],
        local_features=columns[d // 2 :] if local == "half" else np.arange(d),
        rows=np.arange(n_clients * rows).reshape(n_clients, rows),
        samples=rows // 2,
    )


def assert_same(ours, theirs):
    np.testing.assert_array_equal(ours.predictions, theirs.predictions)
    np.testing.assert_array_equal(ours.curve, theirs.curve)
    np.testing.assert_array_equal(ours.accuracy, theirs.accuracy)
    for name in ("global_weights", "local_weights"):
        if getattr(theirs, name) is not None:
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize("rate", [0.5, 10.0])
@pytest.mark.parametrize("local", ["half", "all"])
@pytest.mark.parametrize("delays", [(0, 0), (4, 0), (0, 4), (UPLINK, DOWNLINK)])
def test_the_engine_is_the_readable_loop_to_the_bit(delays, local, rate):
    task = make_task(local=local)
    options = {"uplink_delay": delays[0], "downlink_delay": delays[1], "curve_every": 25}
    options |= {"learning_rate": rate, "local_learning_rate": 2 * rate}
    for scheme, (timing, local_timing) in product(SCHEMES, TIMINGS):
        options |= {"timing": timing, "local_timing": local_timing}
        for alone in (False, True):
            ours, theirs = (module.run(task, scheme, alone=alone, **options) for module in (engine, readable))
            assert_same(ours, theirs)


@pytest.mark.parametrize(("timing", "local_timing"), TIMINGS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_engine_is_a_loop_over_vw_workspaces_to_the_bit(scheme, timing, local_timing):
    task = make_task(n_clients=3, n_rounds=40, d=9, local="all", seed=1)
    options = {"uplink_delay": [0, 3, 1], "downlink_delay": [2, 0, 0], "timing": timing, "local_timing": local_timing}
    options |= {"alone": local_timing == "immediate"}
    theirs = readable.run(task, scheme, learner="vw", **options)
    assert_same(engine.run(task, scheme, **options), theirs)
    assert theirs.global_weights is None
    assert theirs.local_weights is None


@settings(max_examples=60)
@given(
    st.integers(1, 6),
    st.integers(1, 12),
    st.integers(2, 21),
    st.integers(0, 14),
    st.integers(0, 14),
    st.integers(0, 99),
)
def test_any_number_of_clients_rounds_features_and_any_delay_agree(n_clients, n_rounds, d, alpha, beta, seed):
    task = make_task(n_clients, n_rounds, d, rows=3, tests=seed % 6 + 1, seed=seed, labels=(-1.0, 0.0, 0.3, 1.0))
    for scheme in SCHEMES:
        options = {"uplink_delay": alpha, "downlink_delay": beta, "local_timing": ("immediate", "aligned")[seed % 2]}
        options |= {"alone": seed % 3 == 0}
        assert_same(engine.run(task, scheme, **options), readable.run(task, scheme, **options))


@pytest.mark.parametrize(("timing", "local_timing"), TIMINGS)
@pytest.mark.parametrize("scheme", ["central", "fedres"])
def test_a_summing_server_is_one_adagrad_step_a_round(scheme, timing, local_timing):
    options = {"uplink_delay": UPLINK, "downlink_delay": DOWNLINK, "timing": timing, "local_timing": local_timing}
    options |= {"server": "summed", "learning_rate": 0.1, "local_learning_rate": 0.1}  # rounding grows with the rate
    ours, theirs = (module.run(make_task(), scheme, **options) for module in (engine, readable))
    np.testing.assert_allclose(ours.predictions, theirs.predictions, atol=1e-4)
    np.testing.assert_allclose(ours.global_weights, theirs.global_weights, atol=1e-4)
    assert np.ptp(ours.predictions) > 0.5


def test_one_summed_step_by_hand():
    task = make_task(n_clients=3, n_rounds=1)
    result = engine.run(task, "fedres", server="summed", learning_rate=0.5)
    rows = np.array([task.features[i, task.order[i, 0]][task.global_features] for i in range(3)])
    label = np.array([task.label[i, task.order[i, 0]] for i in range(3)])
    gradient = -2 * label @ np.column_stack([rows, np.ones(3)])
    # AdaGrad's first step is the learning rate, downhill, whatever the size of the gradient
    np.testing.assert_allclose(result.global_weights, -0.5 * np.sign(gradient), rtol=1e-6)


def test_clients_hear_of_a_round_only_after_uplink_and_downlink_delay():
    task, alpha, beta = make_task(n_clients=2, n_rounds=20), 3, 4
    changed = replace(task, label=np.stack([-task.label[0], task.label[1]]))
    options = {"uplink_delay": alpha, "downlink_delay": beta, "learning_rate": 0.1, "local_learning_rate": 0.1}
    runs = [engine.run(either, "fedres", **options) for either in (task, changed)]
    differs = runs[0].predictions[:, 1] != runs[1].predictions[:, 1]
    assert not differs[: 1 + alpha + beta].any()
    assert differs[1 + alpha + beta]


def test_with_no_delay_waiting_one_round_trip_is_no_wait():
    for timing in ("on-arrival", "aligned"):
        runs = [
            engine.run(make_task(), "fedres", timing=timing, local_timing=local) for local in ("immediate", "aligned")
        ]
        assert_same(*runs)


def test_with_one_client_and_no_delay_both_timings_take_the_same_error():
    task = make_task(n_clients=1, n_rounds=30)
    runs = [
        engine.run(task, "fedres", timing=timing, learning_rate=0.1, local_learning_rate=0.1)
        for timing in ("on-arrival", "aligned")
    ]
    np.testing.assert_allclose(runs[0].predictions, runs[1].predictions, atol=1e-5)  # the sums' orders differ
    assert np.ptp(runs[0].predictions) > 0.1


def test_uploads_that_never_arrive_leave_clients_alone():
    task = make_task(local="all", n_rounds=30)
    never = engine.run(task, "fedres", uplink_delay=30)
    np.testing.assert_array_equal(never.predictions, engine.run(task, "independent").predictions)
    assert not never.global_weights.any()
    mean = engine.run(task, "fedres", uplink_delay=30, alone=True)  # of two models that are the same
    np.testing.assert_array_equal(mean.predictions, never.predictions)


def test_with_alone_a_client_predicts_with_the_mean_and_learns_as_without():
    task, rate = make_task(local="all"), {"learning_rate": 0.01, "local_learning_rate": 0.01}  # nothing is clamped
    joint, mean = (engine.run(task, "fedres", alone=alone, **rate) for alone in (False, True))
    independent = engine.run(task, "independent", **rate)
    clear = 5  # by then every client has seen both labels
    assert np.abs(joint.predictions[clear:] - independent.predictions[clear:]).max() > 0.01
    np.testing.assert_allclose(
        mean.predictions[clear:], (joint.predictions + independent.predictions)[clear:] / 2, atol=1e-6
    )
    np.testing.assert_array_equal(mean.global_weights, joint.global_weights)
    np.testing.assert_array_equal(mean.local_weights, joint.local_weights)


def test_runs_leave_no_trace():
    task = make_task()
    before = [engine.run(task, scheme) for scheme in SCHEMES]
    after = [engine.run(task, scheme) for scheme in reversed(SCHEMES)]
    for ours, again in zip(before, reversed(after), strict=True):
        assert_same(ours, again)
    assert_same(before[0], engine.run(task, "independent", uplink_delay=5, timing="aligned", server="summed"))


def test_the_curve_stops_at_the_end():
    task = make_task(n_rounds=60)
    result = engine.run(task, "fedres", curve_every=25)
    assert result.curve.shape == (3, 5)
    np.testing.assert_array_equal(result.curve[-1], result.accuracy)
    first = replace(task, order=task.order[:, :25])
    np.testing.assert_array_equal(result.curve[0], engine.run(first, "fedres").accuracy)


def test_a_prediction_of_0_is_wrong():
    task = make_task(n_rounds=1)
    silent = replace(task, features=np.zeros_like(task.features), label=np.zeros_like(task.label))
    assert not engine.run(silent, "fedres").accuracy.any()


@pytest.mark.parametrize("module", [engine, readable])
@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("fedavg", {}, "scheme must be one of central, fedres, independent, got 'fedavg'"),
        ("fedres", {"timing": "late"}, "timing must be one of aligned, on-arrival, got 'late'"),
        ("fedres", {"local_timing": "late"}, "local_timing must be one of aligned, immediate, got 'late'"),
        ("fedres", {"server": "lazy"}, "server must be one of sequential, summed, got 'lazy'"),
        ("fedres", {"uplink_delay": -1}, "uplink_delay must be an integer of at least 0, got -1"),
        ("fedres", {"downlink_delay": [0, 0, -2, 0, 0]}, "downlink_delay must be an integer of at least 0, got -2"),
        ("central", {"downlink_delay": 1.5}, "downlink_delay must be an integer of at least 0, got 1.5"),
        ("central", {"uplink_delay": [1, 2]}, "uplink_delay must be one number or 5, one per client"),
        ("independent", {"local_learning_rate": 0.0}, "local_learning_rate must be positive"),
        ("independent", {"curve_every": -1}, "curve_every must be an integer of at least 0, got -1"),
    ],
)
def test_bad_settings_are_named(module, scheme, options, message):
    with pytest.raises(ValueError, match=message):
        module.run(make_task(), scheme, **options)


def test_an_unknown_learner_is_named():
    with pytest.raises(ValueError, match="learner must be one of linear, vw, got 'forest'"):
        readable.run(make_task(), "fedres", learner="forest")


def test_bad_data_is_named():
    task = make_task()
    features = task.features.copy()
    features[1, 2, 3] = 1e39
    with pytest.raises(ValueError, match="features must be finite in 32 bits, got inf"):
        engine.run(replace(task, features=features), "independent")
    with pytest.raises(ValueError, match="order must be rows from 0 to 7, got 0 to 8"):
        engine.run(replace(task, order=np.arange(45).reshape(5, 9) % 9), "independent")

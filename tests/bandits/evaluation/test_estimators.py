"""Off-policy estimators: closed forms, properties, and accuracy on digits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_limits

from bandits.evaluation.estimators import ESTIMATORS, Sample, dros, sample, switch_dr
from bandits.evaluation.logs import LoggedEvent
from bandits.evaluation.reward_model import crossfit_rewards
from bandits.evaluation.table import SparseRows, table


@st.composite
def samples(draw):
    n = draw(st.integers(2, 20))
    numbers = [draw(arrays(float, n, elements=st.floats(-10, 10))) for _ in range(3)]
    weight = draw(arrays(float, n, elements=st.floats(0.01, 20)))
    return Sample(numbers[0], weight, numbers[1], numbers[2])


def test_estimates_from_two_events_with_different_numbers_of_actions_are_those_by_hand():
    s = sample(
        reward=[1.0, 3.0],
        propensity=[0.5, 0.25],
        target=[0.25, 0.5],  # weights 1/2 and 2
        chosen=[1, 4],
        offsets=[0, 2, 5],
        target_all=[0.75, 0.25, 0.25, 0.25, 0.5],
        predicted_all=[1.0, 2.0, 4.0, 0.0, 2.0],  # baselines 1.25 and 2; errors -1 and 1
    )
    by_hand = {"ips": 3.25, "snips": 2.6, "dm": 1.625, "dr": 2.375, "sndr": 1.625 + 1.5 / 2.5}
    for name, value in by_hand.items():
        assert ESTIMATORS[name](s).mean() == pytest.approx(value), name
    assert switch_dr(s, threshold=1.0).mean() == pytest.approx((1.25 - 0.5 + 2) / 2)
    assert dros(s, shrinkage=1.0).mean() == pytest.approx((1.25 - 0.4 + 2 + 0.4) / 2)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (([1.0], [0.0], [0.5]), r"propensity must be in \(0, 1\], got 0.0"),
        (([1.0], [0.5], [1.5]), r"target must be in \[0, 1\], got 1.5"),
        (([1.0, 2.0], [0.5], [0.5]), r"propensity must have shape \(2\), got \(1,\)"),
        (([np.nan], [0.5], [0.5]), "reward must be finite, got nan"),
    ],
)
def test_arrays_that_cannot_be_are_refused(arguments, rule):
    with pytest.raises(ValueError, match=rule):
        sample(*arguments)


@pytest.mark.parametrize(("estimator", "name"), [(switch_dr, "threshold"), (dros, "shrinkage")])
def test_negative_hyperparameters_are_refused(estimator, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 0.*got -1"):
        estimator(Sample(*np.ones((4, 2))), -1.0)


@given(samples())
def test_on_policy_ips_and_snips_are_the_mean_reward_and_both_dr_agree(s):
    on = Sample(s.reward, np.ones_like(s.weight), s.predicted, s.baseline)
    values = {name: estimator(on).mean() for name, estimator in ESTIMATORS.items()}
    assert values["ips"] == pytest.approx(s.reward.mean(), abs=1e-9)
    assert values["snips"] == pytest.approx(s.reward.mean(), abs=1e-9)
    assert values["sndr"] == pytest.approx(values["dr"], abs=1e-9)


@given(samples(), st.floats(0.1, 10), st.floats(-5, 5))
def test_snips_ignores_the_scale_of_weights_and_shifts_with_rewards(s, scale, shift):
    moved = Sample(s.reward + shift, s.weight * scale, s.predicted, s.baseline)
    snips = ESTIMATORS["snips"]
    assert snips(moved).mean() == pytest.approx(snips(s).mean() + shift, abs=1e-8)


@given(samples())
def test_with_a_perfect_model_every_dr_is_the_direct_method_event_by_event(s):
    perfect = Sample(s.reward, s.weight, s.reward, s.baseline)
    for name in ("dr", "sndr", "switch-dr", "dros"):
        np.testing.assert_allclose(ESTIMATORS[name](perfect), s.baseline, atol=1e-9)


@given(samples())
def test_switch_and_shrinkage_run_from_the_direct_method_to_dr(s):
    for estimator in (switch_dr, dros):
        np.testing.assert_allclose(estimator(s, 0.0), ESTIMATORS["dm"](s))
        np.testing.assert_allclose(estimator(s, np.inf), ESTIMATORS["dr"](s))


@given(samples())
def test_without_a_model_dr_is_ips_and_self_normalised_dr_is_snips(s):
    plain = Sample(s.reward, s.weight, np.zeros_like(s.reward), np.zeros_like(s.reward))
    np.testing.assert_allclose(ESTIMATORS["dr"](plain), ESTIMATORS["ips"](plain))
    np.testing.assert_allclose(ESTIMATORS["sndr"](plain), ESTIMATORS["snips"](plain))


def test_without_any_weight_the_self_normalised_estimates_do_not_exist():
    s = Sample(np.ones(3), np.zeros(3), np.ones(3), np.ones(3))
    assert np.isnan(ESTIMATORS["snips"](s)).all()
    assert np.isnan(ESTIMATORS["sndr"](s)).all()
    assert switch_dr(s).tolist() == dros(s).tolist() == [1.0, 1.0, 1.0]


def test_the_spread_of_snips_is_the_delta_methods():
    rng = np.random.default_rng(0)
    weight, reward = rng.choice([0.2, 5.0], p=[5 / 6, 1 / 6], size=(4000, 500)), rng.random((4000, 500))
    zeros = np.zeros(500)
    terms = [ESTIMATORS["snips"](Sample(r, w, zeros, zeros)) for r, w in zip(reward, weight, strict=True)]
    claimed = np.mean([contributions.var() / 500 for contributions in terms])
    assert np.var([contributions.mean() for contributions in terms]) == pytest.approx(claimed, rel=0.12)


def test_chosen_hyperparameters_beat_dr_where_weights_are_wild_and_the_model_is_good():
    rng, errors = np.random.default_rng(1), {"dr": [], "switch-dr": [], "dros": []}
    for _ in range(100):
        rare = rng.random(400) < 0.005
        weight = np.where(rare, 100.0, 0.5 / 0.995)
        reward, predicted = 0.5 + rng.normal(size=400), np.full(400, 0.5)
        for name, error in errors.items():
            error.append((ESTIMATORS[name](Sample(reward, weight, predicted, predicted)).mean() - 0.5) ** 2)
    assert np.mean(errors["switch-dr"]) < np.mean(errors["dr"])
    assert np.mean(errors["dros"]) < 0.7 * np.mean(errors["dr"])


def mixed(predicted, alpha):
    """Return ``alpha`` on the predicted class and the rest spread evenly, for each row."""
    probabilities = np.full((predicted.size, 10), (1 - alpha) / 10)
    probabilities[np.arange(predicted.size), predicted] += alpha
    return probabilities


def digits_errors(seed):
    """Return |estimate − truth| / truth of each estimator: digits as a bandit, one classifier logs, one is valued."""
    pixels, label = load_digits(return_X_y=True)
    x, x_log, y, y_log = train_test_split(pixels / 16, label, test_size=0.7, random_state=seed)
    logging = mixed(LogisticRegression(max_iter=1000).fit(x, y).predict(x_log), 0.8)
    target = mixed(KNeighborsClassifier().fit(x, y).predict(x_log), 0.9)
    events, rng = np.arange(y_log.size), np.random.default_rng(seed)
    action = (logging.cumsum(axis=1) < rng.random((y_log.size, 1))).sum(axis=1).clip(max=9)
    reward, truth = (action == y_log).astype(float), target[events, y_log].mean()
    log = digits_log(x_log, action, logging[events, action], reward)
    nothing = SparseRows((), np.zeros(len(log) + 1, int), np.zeros(0, int), np.zeros(0))
    errors = {}
    for kind, seen in (("", log), (" weak", replace(log, context=nothing))):  # a weak model sees no pixels
        pairs = {"chosen": log.chosen, "offsets": log.offsets, "target_all": target.ravel()}
        s = sample(reward, log.propensity, target[events, action], **pairs, predicted_all=crossfit_rewards(seen))
        errors |= {name + kind: abs(f(s).mean() - truth) / truth for name, f in ESTIMATORS.items()}
    return errors


def digits_log(pixels, action, propensity, reward):
    names, ids, none = [f"[{i}]" for i in range(64)], tuple("0123456789"), ({},) * 10
    rows = zip(pixels.tolist(), action.tolist(), propensity.tolist(), reward.tolist(), strict=True)
    return table(LoggedEvent("", dict(zip(names, x, strict=True)), ids, none, a, p, r) for x, a, p, r in rows)


def test_relative_errors_on_digits_are_of_the_published_order():
    with threadpool_limits(1):
        runs = [digits_errors(seed) for seed in range(12)]
    mean = {name: np.mean([run[name] for run in runs]) for name in runs[0]}
    published = {"ips": 0.030, "snips": 0.023, "dr": 0.016, "sndr": 0.022, "dros": 0.016}
    for name, error in published.items():
        assert mean[name] <= 2 * error, (name, mean[name])
    assert mean["dm weak"] > 2 * max(value for name, value in mean.items() if not name.startswith("dm"))
    assert mean["dm"] < mean["dm weak"] / 2

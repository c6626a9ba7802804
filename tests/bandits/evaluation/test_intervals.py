"""Intervals hold their level where clicks are rare, weights are large or users repeat, and always have a width."""

import gc
import itertools
import math
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bandits.evaluation.compare import evaluate
from bandits.evaluation.evidence import fixed_time
from bandits.evaluation.intervals import IntervalKind, Terms, interval, student_limit, upper_limit
from bandits.evaluation.logs import LoggedEvent
from bandits.evaluation.table import table

IDS, EVERY = ("a", "b"), ("ips", "snips", "dm", "dr", "sndr", "switch-dr", "dros")


def make_log(reward, chosen, of_b, users=None):
    """Return events with the actions a and b, the second taken with probability ``of_b``."""
    of_b, users = np.broadcast_to(of_b, len(reward)).tolist(), users if users is not None else [None] * len(reward)
    rows = zip(reward, chosen, of_b, users, strict=True)
    return table(
        LoggedEvent(
            str(i), {}, IDS, ({}, {}), int(k), p if k else 1 - p, float(r), (1 - p, p), user=u and str(u), time=i
        )
        for i, (r, k, p, u) in enumerate(rows)
    )


def never_clicked():
    """600 events; b was taken 127 times and never clicked, a had 12 clicks."""
    chosen = np.arange(600) < 127
    return make_log((np.arange(600) >= 588).astype(float), chosen, 0.2)


def test_an_action_never_clicked_may_still_be_worth_a_little_and_is_no_significant_loss():
    for row in evaluate(never_clicked(), ["constant:b"], estimators=EVERY).rows[1:]:
        assert row.value == pytest.approx(0, abs=1e-3)
        assert row.low <= 1e-6
        # none in 127 has Clopper and Pearson's upper limit of 2.9%
        assert 0.02 < row.high < 0.04, row.estimator
        assert row.difference_low < 0 < row.difference_high, row.estimator


@pytest.mark.parametrize("n", [10, 100, 3000])
@pytest.mark.parametrize("clicks", [0, 1, 7])
def test_for_clicks_of_the_logging_policy_limits_are_clopper_and_pearsons(n, clicks):
    log = make_log(np.arange(n) < clicks, np.arange(n) % 2, 0.5)
    (row,) = evaluate(log, []).rows
    exact = stats.binomtest(clicks, n).proportion_ci(method="exact")
    assert row.high == pytest.approx(exact.high, rel=0.01)
    assert row.low == pytest.approx(exact.low, rel=0.03, abs=1e-9)


@st.composite
def logs(draw):
    n = draw(st.integers(10, 40))
    reward = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0]), min_size=n, max_size=n))
    chosen = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    users = draw(st.one_of(st.none(), st.lists(st.integers(1, 5), min_size=n, max_size=n)))
    return make_log(reward, chosen, draw(st.sampled_from([0.02, 0.3, 0.5])), users)


@settings(deadline=None, max_examples=25)
@given(logs(), st.booleans())
def test_every_interval_has_a_width_and_holds_its_estimate(log, time_uniform):
    evaluation = evaluate(log, ["constant:b", "uniform"], estimators=EVERY, time_uniform=time_uniform, n_folds=2)
    for row in evaluation.rows:
        assert row.high - row.low > 1e-3
        assert math.isnan(row.value) or row.low <= row.value <= row.high
        if row.estimator != "mean" and not math.isnan(row.value):
            assert row.difference_low <= row.difference <= row.difference_high
        if row.policy == "constant:b":
            assert row.difference_high - row.difference_low > 1e-3


@pytest.mark.parametrize("clicks", [0, 3, 50])
def test_looking_every_day_costs_width(clicks):
    log = make_log(np.arange(100) < clicks, np.arange(100) % 2, 0.5)
    once, daily = (evaluate(log, ["constant:b"], estimators=["snips"], time_uniform=t) for t in (False, True))
    for one, uniform in zip(once.rows, daily.rows, strict=True):
        assert uniform.low <= one.low < one.high < uniform.high


@pytest.mark.parametrize(("n", "n_users"), [(12, None), (16, None), (60, None), (20, 5), (60, 10)])
def test_a_time_uniform_interval_holds_the_one_for_a_single_look_however_few_events_there_are(n, n_users):
    rng = np.random.default_rng(n)
    for rate, of_b in itertools.product((0.05, 0.3), (0.5, 0.1, 0.01)):
        of_b = rng.choice([of_b, 0.5], n)
        chosen = rng.random(n) < of_b
        log = make_log(rng.random(n) < rate, chosen, of_b, n_users and rng.integers(0, n_users, n))
        once, daily = (
            evaluate(log, ["constant:b"], estimators=EVERY, time_uniform=t, n_folds=2).rows for t in (False, True)
        )
        for one, uniform in zip(once, daily, strict=True):
            assert uniform.low <= one.low <= one.high <= uniform.high
            assert uniform.difference_low <= one.difference_low <= one.difference_high <= uniform.difference_high


def test_rewards_turned_round_turn_the_interval_round():
    rng = np.random.default_rng(0)
    reward, chosen = rng.random(200) < 0.1, rng.random(200) < 0.2
    one, other = (
        evaluate(make_log(r, chosen, 0.2), ["constant:b"], estimators=["snips"]).rows[1] for r in (reward, 1.0 - reward)
    )
    assert (other.low, other.high) == pytest.approx((1 - one.high, 1 - one.low), abs=1e-6)


def test_choices_that_the_log_could_not_hold_may_be_worth_anything():
    rng = np.random.default_rng(0)
    log = make_log(rng.random(400) < 0.5, np.zeros(400), 0.0)
    row = evaluate(log, ["constant:b"], estimators=["ips"]).rows[1]
    assert (row.low, row.high) == pytest.approx((0, 1), abs=1e-6)
    assert "100.0% of the target's choices" in row.warning
    half = evaluate(log, ["uniform"], estimators=["ips"]).rows[1]
    assert half.high - half.low == pytest.approx(0.5, abs=0.06)


N_LOGS = 50


def enough(n_logs):
    """Return how many must hold: fewer come by chance once in a million."""
    return stats.binom.ppf(1e-6, n_logs, 0.94)


def held(draw, truth, n_logs=N_LOGS, **options):
    """Return how many of the intervals for the value of b, and for its difference to the log, held the truth."""
    rng, value, difference = np.random.default_rng(7), 0, 0
    for _ in range(n_logs):
        row = evaluate(draw(rng), ["constant:b"], estimators=["snips"], **options).rows[1]
        value += row.low <= truth[0] <= row.high
        difference += row.difference_low <= truth[1] <= row.difference_high
    return value, difference


LONG = [pytest.param(*cell, 200, marks=pytest.mark.long) for cell in itertools.product((0.004, 0.014, 0.2), (0.1, 0.5))]


@pytest.mark.parametrize(("rate", "of_b", "n_logs"), [(0.004, 0.1, N_LOGS), (0.2, 0.5, N_LOGS), *LONG])
def test_95_percent_intervals_hold_the_truth_where_clicks_are_rare(rate, of_b, n_logs):
    def draw(rng):
        chosen = rng.random(300) < of_b
        return make_log(rng.random(300) < np.where(chosen, rate, rate / 2), chosen, of_b)

    assert min(held(draw, (rate, (1 - of_b) * rate / 2), n_logs)) >= enough(n_logs)


def test_95_percent_intervals_hold_the_truth_where_30_users_have_many_events():
    def draw(rng):
        user = np.repeat(np.arange(30), 10)
        chosen, likes = rng.random(300) < 0.5, rng.beta(0.3, 0.9, size=30)[user]
        return make_log(rng.random(300) < likes * np.where(chosen, 1, 0.5), chosen, 0.5, user + 1)

    assert min(held(draw, (0.25, 0.0625), 100)) >= enough(100)
    by_event, _ = held(draw, (0.25, 0.0625), 100, by_user=False)
    assert by_event < enough(100)


def test_the_level_is_the_callers():
    def draw(rng):
        return make_log(rng.random(500) < 0.3, rng.random(500) < 0.5, 0.5)

    value, _ = held(draw, (0.3, 0.0), level=0.5)
    assert stats.binom.ppf(1e-6, N_LOGS, 0.5) <= value <= stats.binom.ppf(1 - 1e-6, N_LOGS, 0.56)


def test_time_uniform_intervals_hold_on_all_days_together():
    rng, right = np.random.default_rng(3), 0
    for _ in range(25):
        reward, chosen = rng.random(300) < 0.1, rng.random(300) < 0.5
        days = (evaluate(make_log(reward[:n], chosen[:n], 0.5), [], time_uniform=True) for n in range(30, 301, 54))
        right += all(day.rows[0].low <= 0.1 <= day.rows[0].high for day in days)
    assert right >= stats.binom.ppf(1e-6, 25, 0.95)


def test_few_users_have_students_interval_and_one_user_the_whole_range():
    sums = Terms(np.array([1.0, 3.0, 2.0, 6.0]), np.full(4, 10.0))
    exact = stats.t.interval(0.95, 3, loc=0.3, scale=stats.sem([0.1, 0.3, 0.2, 0.6]))
    assert student_limit(sums, 1.0, 0.95) == pytest.approx(exact[1])
    log = make_log(np.arange(40) % 2, np.arange(40) % 2, 0.5, ["anna"] * 40)
    row = evaluate(log, []).rows[0]
    assert (row.low, row.high) == (0, 1)
    assert "1 users are few" in row.warning


def test_events_without_a_user_are_independent():
    reward, chosen = np.arange(60) % 3 == 0, np.arange(60) % 2
    assert evaluate(make_log(reward, chosen, 0.5), []).n_users == 60
    users = [None, "x", "x"] * 20
    assert evaluate(make_log(reward, chosen, 0.5, users), []).n_users == 21
    assert evaluate(make_log(reward, chosen, 0.5, users), [], by_user=False).n_users == 60


@pytest.mark.parametrize(
    ("rewards", "reward_range"),
    [
        ((0, 0), (0, 1)),
        ((0, 0.7), (0, 1)),
        ((-1, 0), (-1, 0)),
        ((-1, 2), (-1, 2)),
        ((3, 5), (0, 5)),
        ((-9, -3), (-9, 0)),
    ],
)
def test_the_range_of_rewards_is_0_to_1_or_what_the_log_shows(rewards, reward_range):
    log = make_log(np.resize(rewards, 20), np.arange(20) % 2, 0.5)
    assert evaluate(log, []).reward_range == reward_range
    assert evaluate(log, [], reward_range=(-10, 10)).reward_range == (-10, 10)


@pytest.mark.parametrize("bad", [(0.0, 1.0), (0.5, 2.0), (2.0, 2.0)])
def test_a_range_that_does_not_hold_the_rewards_is_refused(bad):
    with pytest.raises(ValueError, match=r"reward_range must have a width and hold all rewards, 0.0 to 2.0, got"):
        evaluate(make_log(np.resize([0, 2], 20), np.arange(20) % 2, 0.5), [], reward_range=bad)


def test_a_level_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\), got 1.0"):
        evaluate(never_clicked(), [], level=1.0)


def test_a_limit_is_where_evidence_is_enough():
    seen, possible = Terms(np.zeros(100), np.ones(100)), Terms(np.array([1.0]), np.ones(1))
    assert upper_limit(seen, possible, 1.0, fixed_time(0.95)) == pytest.approx(0.0364, abs=1e-4)
    assert upper_limit(seen, possible, 0.01, fixed_time(0.95)) == 0.01
    kind = IntervalKind(0.95, False, (0.0, 1.0), np.arange(100))
    assert interval(lambda _: (seen, possible), 0.5, (0.0, 1.0), kind)[1:] == pytest.approx((0, 0.5), abs=1e-9)


def test_a_limit_leaves_none_of_its_arrays_in_memory():
    """SciPy's root finders leave cycles, which only a garbage collection removes."""
    rng = np.random.default_rng(0)
    seen = Terms(rng.random(50), np.ones(50))
    possible = Terms(rng.random(100), np.ones(100))
    left = [weakref.ref(column) for column in (*seen, *possible)]
    gc.disable()
    try:
        assert upper_limit(seen, possible, 1.0, fixed_time(0.95)) < 1.0
        del seen, possible
        assert [column() for column in left] == [None] * 4
    finally:
        gc.enable()

"""Several policies valued on one log; the reward model that some of them need."""

import json
import math

import numpy as np
import pytest

from bandits.evaluation import reward_model
from bandits.evaluation.compare import evaluate
from bandits.evaluation.logs import LoggedEvent
from bandits.evaluation.policies import target_probabilities
from bandits.evaluation.reward_model import crossfit_rewards
from bandits.evaluation.table import table
from fedres.policies import EpsilonGreedy, Softmax

IDS = ("a", "b", "c")


def make_events(n, seed=0, features=({}, {}, {}), all_probabilities=False):
    """Return uniformly logged events: ``a`` pays 0.5 + x/2, ``b`` 0.5 − x/2, ``c`` 0.2, with noise."""
    rng = np.random.default_rng(seed)
    events = []
    for i in range(n):
        x, chosen = rng.uniform(-1, 1), int(rng.integers(3))
        reward = (0.5 + x / 2, 0.5 - x / 2, 0.2)[chosen] + rng.normal(scale=0.1)
        probabilities = (1 / 3,) * 3 if all_probabilities else None
        events.append(LoggedEvent(f"e{i}", {"x": x}, IDS, features, chosen, 1 / 3, reward, probabilities))
    return events


def best(event):
    """The best policy, worth 3/4."""
    return [1.0, 0.0, 0.0] if event.context["x"] > 0 else [0.0, 1.0, 0.0]


def rows_of(evaluation, policy):
    return {row.estimator: row for row in evaluation.rows if row.policy == policy}


def test_every_policy_and_estimator_has_a_row_that_holds_the_truth():
    names = ("ips", "snips", "dm", "dr", "sndr", "switch-dr", "dros")
    policies = ["uniform", "constant:c", best, "greedy", "epsilon-greedy:0.3", "logging"]
    evaluation = evaluate(table(make_events(3000)), policies, estimators=names, level=0.9999)
    truths = {"uniform": 0.4, "constant:c": 0.2, "best": 0.75, "greedy": 0.75, "epsilon-greedy:0.3": 0.645}
    for policy, truth in truths.items():
        rows = rows_of(evaluation, policy)
        assert tuple(rows) == names
        for name in ("ips", "snips", "dr", "sndr"):
            assert rows[name].low <= truth <= rows[name].high, (policy, name)
        assert rows["dr"].high - rows["dr"].low < rows["ips"].high - rows["ips"].low
    assert all(row.n == 3000 and row.warning == "" for row in evaluation.rows)


def test_the_logging_policy_comes_first_as_the_plain_mean_of_its_rewards():
    log = table(make_events(200))
    evaluation = evaluate(log, ["uniform"], estimators=["ips"])
    logging, uniform = evaluation.rows
    assert (logging.policy, logging.estimator, logging.difference, logging.ess) == ("logging", "mean", 0.0, 200)
    assert logging.value == pytest.approx(log.reward.mean())
    # uniform is what logged: its weights are 1, and the paired difference has no noise at all
    assert (uniform.value, uniform.low, uniform.high) == pytest.approx((logging.value, logging.low, logging.high))
    assert (uniform.difference, uniform.difference_low, uniform.difference_high) == pytest.approx((0, 0, 0), abs=1e-8)
    assert (uniform.ess, uniform.largest_weight) == pytest.approx((200, 1))


def test_a_paired_difference_is_the_difference_of_values():
    evaluation = evaluate(table(make_events(500)), [best], estimators=["ips", "snips", "dr"])
    for row in evaluation.rows[1:]:
        assert row.difference == pytest.approx(row.value - evaluation.rows[0].value)
        assert row.difference_low < row.difference < row.difference_high
        assert row.difference_low > 0


def test_the_interval_of_a_shrunken_estimate_is_that_of_dr_and_holds_the_estimate():
    rows = rows_of(evaluate(table(make_events(300)), [best], estimators=["dr", "switch-dr", "dros"]), "best")
    dr = rows.pop("dr")
    for row in rows.values():
        assert (row.low, row.high) == (min(row.value, dr.low), max(row.value, dr.high))
        assert row.difference_low <= min(row.difference, dr.difference_low)
        assert row.difference_high >= max(row.difference, dr.difference_high)


def test_no_event_is_scored_by_a_model_that_saw_its_reward():
    events = make_events(60)
    changed = list(events)
    changed[7] = LoggedEvent("e7", events[7].context, IDS, ({},) * 3, events[7].chosen, 1 / 3, 1e6)
    before, after = (crossfit_rewards(table(some)).reshape(60, 3) for some in (events, changed))
    own_fold = np.arange(60) % 5 == 7 % 5
    np.testing.assert_allclose(after[own_fold], before[own_fold])
    assert (np.abs(after[~own_fold] - before[~own_fold]).max(axis=1) > 1).all()


def test_the_reward_model_learns_contexts_per_action_and_features_over_actions():
    predicted = crossfit_rewards(table(make_events(3000))).reshape(-1, 3)
    x = np.array([event.context["x"] for event in make_events(3000)])
    np.testing.assert_allclose(predicted, np.column_stack([0.5 + x / 2, 0.5 - x / 2, np.full(3000, 0.2)]), atol=0.05)
    rng = np.random.default_rng(0)
    prices = rng.uniform(size=(400, 2))  # every id is new, so only features can tell
    unseen = [
        LoggedEvent(str(i), {}, (f"{i}x", f"{i}y"), ({"price": p}, {"price": q}), 0, 0.5, 2 * p)
        for i, (p, q) in enumerate(prices)
    ]
    np.testing.assert_allclose(crossfit_rewards(table(unseen)).reshape(-1, 2), 2 * prices, atol=0.2)


def test_both_ways_to_solve_a_ridge_regression_agree():
    rng = np.random.default_rng(0)
    events = [
        LoggedEvent(
            str(i), dict(zip("pqrst", rng.normal(size=5), strict=True)), IDS, ({},) * 3, i % 3, 0.5, rng.normal()
        )
        for i in range(60)
    ]
    design = reward_model._design(table(events).context)
    rows, train = np.arange(60), np.arange(60) % 4 != np.arange(4)[:, None]
    targets = np.where(train, rng.normal(size=60), 0.0)
    direct = reward_model._ridge_direct(design, rows, train, targets, 0.5)
    np.testing.assert_allclose(reward_model._ridge_iterative(design, rows, train, targets, 0.5), direct, atol=1e-7)
    x, inside = design.dense(rows), train[2]
    by_hand = np.linalg.solve(x[inside].T @ x[inside] + 0.5 * np.eye(6), x[inside].T @ targets[2, inside])
    np.testing.assert_allclose(direct[2], by_hand, atol=1e-10)


def test_names_past_the_limit_share_columns_and_frequent_ones_keep_their_own(monkeypatch):
    monkeypatch.setattr(reward_model, "MAX_NAMES", 2)
    monkeypatch.setattr(reward_model, "HASHED_COLUMNS", 3)
    context = [{"x": event.context["x"], f"user=u{i}": 1.0} for i, event in enumerate(make_events(300))]
    events = [
        LoggedEvent(e.event_id, flat, IDS, e.features, e.chosen, 1 / 3, e.reward)
        for e, flat in zip(make_events(300), context, strict=True)
    ]
    log = table(events)
    assert reward_model._columns(log.context).max() <= 2 + 3
    assert reward_model._columns(log.context)[0] == 1
    predicted = crossfit_rewards(log).reshape(-1, 3)
    assert np.corrcoef(predicted[:, 0], [flat["x"] for flat in context])[0, 1] > 0.9


def test_named_policies_have_the_probabilities_of_their_formulas():
    log = table([LoggedEvent("e", {}, IDS, ({},) * 3, 0, 0.5, 1.0), LoggedEvent("f", {}, ("a",), ({},), 0, 1.0, 1.0)])
    rewards = np.array([0.5, 1.0, 0.0, 0.3])

    def probabilities(policy):
        return target_probabilities(log, policy, lambda: rewards).tolist()

    assert probabilities("uniform") == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1])
    assert probabilities("greedy") == [0, 1, 0, 1]
    assert probabilities("epsilon-greedy:0.3") == pytest.approx([0.1, 0.8, 0.1, 1])
    assert probabilities("constant:c") == [0, 0, 1, 1]  # the second event does not offer c
    assert probabilities("squarecb:4") == pytest.approx([1 / 5, 1 - 1 / 5 - 1 / 7, 1 / 7, 1])
    assert probabilities("squarecb:0") == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1])


def test_a_policy_from_a_file_is_that_policy(tmp_path):
    events, path = make_events(50), tmp_path / "policy.jsonl"
    lines = [{"event_id": e.event_id, "probabilities": best(e)} for e in reversed(events)]
    path.write_text("\n".join(map(json.dumps, [*lines, {"event_id": "unknown"}])))
    from_file, python = evaluate(table(events), [f"file:{path}", best], estimators=["ips"]).rows[1:]
    assert (from_file.value, from_file.low) == (python.value, python.low)


def test_a_policy_file_that_does_not_fit_the_log_is_refused_with_its_place(tmp_path):
    log, path = table(make_events(20)), tmp_path / "policy.jsonl"
    path.write_text('{"event_id": "e0", "probabilities": [1, 0, 0]}\n')
    with pytest.raises(ValueError, match=r"policy.jsonl must have a line for every event, got none for 'e1'"):
        evaluate(log, [f"file:{path}"])
    path.write_text('\n{"event_id": "e0", "probabilities": [1, 0]}\n')
    with pytest.raises(ValueError, match=r"policy.jsonl, line 2: probabilities must have one entry .* got 2"):
        evaluate(log, [f"file:{path}"])


def broken(event):
    return [0.5, 0.2, 0.1]


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        ("best", "policy must be one of logging, uniform, first, likeliest, constant:ACTION_ID, .* got 'best'"),
        ("uniform:3", "policy must be one of .* got 'uniform:3'"),
        ("constant:", "policy must be one of .* got 'constant:'"),
        ("constant:d", "constant must be an action of the log, got 'd'"),
        ("epsilon-greedy:x", r"epsilon must be in \[0, 1\], got 'x'"),
        ("epsilon-greedy:1.2", r"epsilon must be in \[0, 1\], got 1.2"),
        ("squarecb:-1", "gamma must be at least 0 and finite, got -1.0"),
        (broken, r"broken must be at least 0 and sum to 1, got \[0.5, 0.2, 0.1\] for event 'e0'"),
    ],
)
def test_a_policy_that_is_none_is_refused(policy, rule):
    with pytest.raises(ValueError, match=rule):
        evaluate(table(make_events(20)), [policy])


def test_calls_that_make_no_sense_are_refused():
    log = table(make_events(20))
    with pytest.raises(ValueError, match=r"estimator must be one of .* got 'magic'"):
        evaluate(log, ["uniform"], estimators=["magic"])
    with pytest.raises(ValueError, match=r"default_reward must be None for a log that is loaded, got 1.0"):
        evaluate(log, ["uniform"], default_reward=1.0)
    with pytest.raises(ValueError, match="log must have at least 10 events with a reward, got 9"):
        evaluate(table(make_events(9)), ["uniform"])
    with pytest.raises(ValueError, match="n_folds must be at most the number of events, 20, got 21"):
        evaluate(log, ["greedy"], n_folds=21)


@pytest.mark.parametrize("all_probabilities", [False, True])
def test_a_target_that_wants_what_the_log_never_took_is_called_out(all_probabilities):
    never_c = [
        LoggedEvent(
            e.event_id, e.context, IDS, e.features, i % 2, 0.5, 1.0, (0.5, 0.5, 0.0) if all_probabilities else None
        )
        for i, e in enumerate(make_events(200))
    ]
    evaluation = evaluate(table(never_c), ["uniform", "constant:c", "constant:a"])
    assert (
        "33.3% of the target's choices are actions that the log never took"
        in rows_of(evaluation, "uniform")["snips"].warning
    )
    row = rows_of(evaluation, "constant:c")["snips"]
    assert "100.0% of the target's choices" in row.warning
    assert math.isnan(row.value)
    assert rows_of(evaluation, "constant:a")["snips"].warning == ""


def test_the_document_is_plain_json_with_null_for_what_is_no_number(tmp_path):
    path, lines = tmp_path / "log.jsonl", []
    for i in range(30):
        actions = [{"id": "a", "features": {}}, {"id": "b", "features": {}}]
        record = {"event_id": str(i), "context": {}, "actions": actions, "action": "a", "probability": 0.5}
        lines.append(json.dumps(record | {"reward": None if i % 3 == 0 else i % 2}))
    path.write_text("\n".join(lines))
    evaluation = evaluate(path, ["constant:b"], estimators=["snips"])
    document = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
    assert (document["n"], document["n_without_reward"], document["default_reward"]) == (20, 10, None)
    assert [row["value"] for row in document["rows"]] == [0.5, None]
    assert evaluate(path, [], default_reward=2.0).rows[0].value == pytest.approx(1.0)


def test_the_first_and_the_likeliest_action_are_policies():
    log = table(
        [
            LoggedEvent("1", {}, ("a", "b"), ({}, {}), 1, 0.7, 1.0, (0.3, 0.7)),
            LoggedEvent("2", {}, ("b", "c", "d"), ({}, {}, {}), 0, 0.4, 0.0, (0.4, 0.4, 0.2)),
        ]
    )
    assert target_probabilities(log, "first", None).tolist() == [1, 0, 1, 0, 0]
    assert target_probabilities(log, "likeliest", None).tolist() == [0, 1, 0.5, 0.5, 0]
    unknown = table([LoggedEvent("1", {}, ("a", "b"), ({}, {}), 1, 0.7, 1.0)])
    with pytest.raises(ValueError, match="likeliest must have a log with the probabilities of all actions"):
        target_probabilities(unknown, "likeliest", None)


def test_policies_and_their_classes_are_valued_as_by_their_names():
    log = table(make_events(300))
    names = [row.policy for row in evaluate(log, [EpsilonGreedy(0.25), Softmax, "greedy", best]).rows[1::2]]
    assert names == ["epsilon-greedy:epsilon=0.25", "softmax", "greedy", "best"]
    by_object, by_name = evaluate(log, [EpsilonGreedy(0.25)]).rows[1:], evaluate(log, ["epsilon-greedy:0.25"]).rows[1:]
    assert [row.value for row in by_object] == [row.value for row in by_name]


def test_an_evaluation_is_a_frame_a_page_and_a_picture():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    evaluation = evaluate(table(make_events(40)), [best, "uniform"], estimators=["ips"])
    frame = evaluation.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.policy.tolist() == ["logging", "best", "uniform"]
    assert frame.value.tolist() == [row.value for row in evaluation.rows]
    page = evaluation._repr_html_()
    assert f'<td style="text-align: right">{evaluation.rows[1].value:.4f}</td>' in page
    assert "effective sample size" in page  # the warning
    axes = evaluation.plot()
    assert [text.get_text() for text in axes.get_yticklabels()] == ["logging, mean", "best, ips", "uniform, ips"]
    pyplot.close(axes.figure)

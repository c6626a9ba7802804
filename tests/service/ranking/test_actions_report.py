"""What a loop decides: rewards by action with their intervals, and which action goes to which context."""

from array import array

import numpy as np
import pytest

from service.plugins.reports.actions import action_reports, segments_of
from service.plugins.reports.report import FinishedDecision, traffic_of


def decision(k, action, reward, user):
    probabilities = array("d", [1.0])
    return FinishedDecision(f"e{k}", k, user, False, action, 0, probabilities, probabilities, 1, 0, reward)


def test_the_reward_of_an_action_has_an_interval_in_which_a_user_is_one_observation():
    rng = np.random.default_rng(0)
    rewards = rng.random(400)
    alone = action_reports([decision(k, "tea", rewards[k], f"u{k}") for k in range(400)])[0]
    assert (alone.events, alone.users) == (400, 400)
    assert alone.mean == pytest.approx(rewards.mean())
    half = 1.96 * rewards.std(ddof=1) / 20
    assert alone.reward.high - alone.mean == pytest.approx(half, rel=0.01)
    together = action_reports([decision(k, "tea", rewards[k // 10], f"u{k // 10}") for k in range(400)])[0]
    assert together.users == 40
    assert together.reward.high - together.mean == pytest.approx(
        1.96 * rewards[:40].std(ddof=1) / np.sqrt(40), rel=0.01
    )
    assert action_reports([decision(k, "tea", 1.0, "anna") for k in range(400)])[0].reward is None
    assert action_reports([]) == []


def test_shares_are_of_the_newest_fifth_and_of_those_before():
    taken = ["tea"] * 60 + ["juice"] * 20 + ["juice"] * 20
    juice, tea = sorted(
        action_reports([decision(k, action, 1.0, f"u{k}") for k, action in enumerate(taken)]),
        key=lambda one: one.action,
    )
    assert (tea.share_now, tea.share_before) == (0.0, 0.75)
    assert (juice.share_now, juice.share_before) == (1.0, 0.25)


def row(action, reward, is_control=False):
    return {"action": action, "reward": reward, "is_control": is_control}


def test_segments_show_what_was_taken_by_the_values_of_the_strongest_features_of_the_context():
    rows = [row("tea", 1.0), row("tea", 0.0), row("juice", 1.0), row("juice", 1.0), row("tea", 0.0, is_control=True)]
    columns = [
        ("context", "segment", 1.0, ["old", "old", "new", "old", "new"]),
        ("context", "weak", 0.0, ["a", "b", "a", "b", "a"]),
        ("context", "constant", 0.5, ["a", "a", "a", "a", "a"]),
        ("action", "price", 0.9, [1.0, 2.0, 1.0, 2.0, 1.0]),
    ]
    [segment] = segments_of(rows, columns)
    assert (segment.feature, segment.actions) == ("segment", ["tea", "juice"])
    new, old = segment.rows
    assert [(new.value, new.events), (old.value, old.events)] == [("new", 1), ("old", 3)]
    assert [(cell.share, cell.reward) for cell in old.cells] == [(0.6667, 0.5), (0.3333, 1.0)]
    assert [(cell.share, cell.reward) for cell in new.cells] == [(0.0, None), (1.0, 1.0)]


def test_many_numbers_are_shown_in_thirds():
    rows = [row("tea", 1.0) for _ in range(30)]
    [segment] = segments_of(rows, [("context", "hour", 1.0, [float(k) for k in range(30)])])
    assert [one.events for one in segment.rows] == [10, 10, 10]
    assert [one.value[:2] for one in segment.rows] == ["1:", "2:", "3:"]


def test_evenness_is_that_of_all_actions_also_where_most_are_not_named():
    taken = [decision(k, f"a{k}", 1.0, None) for k in range(40)]
    traffic = traffic_of(taken, np.zeros(40, int), 1)
    assert traffic.actions[-1] is None
    assert traffic.evenness == [1.0]
    assert traffic_of([decision(k, "a", 1.0, None) for k in range(9)], np.zeros(9, int), 2).evenness == [0.0, None]

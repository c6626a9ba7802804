"""A policy of another package, by name: in bandits, replays and evaluation."""

import json

import numpy as np
import pytest

from bandits import FederatedBandit, arms
from bandits.evaluation import LoggedEvent, evaluate, table
from fedres.policies import POLICIES, name_of, policy, policy_names
from libsvm_tasks import bandit

SOURCE = '''
from dataclasses import dataclass
import numpy as np
from fedres.policies import Policy

@dataclass(frozen=True)
class Halves(Policy):
    """The best with probability ``share``, all others alike; nothing is learned from every third decision."""
    share: float = 0.5
    def probabilities(self, means, widths, n):
        p = np.full(len(means), (1 - self.share) / max(len(means) - 1, 1))
        p[means.argmax()] = 1 - p.sum() + p[0]
        return p
    def learns(self, n):
        return n % 3 > 0

@dataclass(frozen=True)
class Wrong(Policy):
    def probabilities(self, means, widths, n):
        return np.full(len(means), 0.4)

class NoPolicy: pass
'''


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    (tmp_path / "odd_policies.py").write_text(SOURCE)
    info = tmp_path / "odd_policies-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-policies\nVersion: 1\n")
    points = ("halves = odd_policies:Halves", "wrong = odd_policies:Wrong", "no-policy = odd_policies:NoPolicy")
    (info / "entry_points.txt").write_text("\n".join(["[fedres.policies]", *points]))
    monkeypatch.syspath_prepend(tmp_path)


def test_it_is_known_by_its_name():
    assert policy_names() == [*POLICIES, "halves", "no-policy", "wrong"]
    assert (policy("halves:0.7").share, name_of(policy("halves"))) == (0.7, "halves")
    with pytest.raises(ValueError, match="epsilon is not an option of halves, which has share"):
        policy("halves", epsilon=0.1)
    with pytest.raises(ValueError, match=r"odd_policies:NoPolicy must be a dataclass that extends fedres.policies.Pol"):
        policy("no-policy")


@pytest.mark.parametrize("model", ["adagrad", "linucb", "residual-kalman"])
def test_a_bandit_draws_by_it_and_learns_when_it_says(model):
    rng, learned = np.random.default_rng(0), []
    with FederatedBandit("halves", share=0.7, model=model) as bandit:
        for t in range(60):
            decision = bandit.decide("anna", arms(rng.normal(size=2), 4), exclude=[t % 4])
            allowed = np.delete(np.arange(4), t % 4)
            best = allowed[decision.scores[allowed].argmax()]
            assert decision.action in allowed
            assert decision.probability == pytest.approx(0.7 if decision.action == best else 0.15)
            bandit.reward(decision.id, float(decision.action == 0))
            bandit.end_round()
            learned.append(bandit.model_version)
    assert learned == np.cumsum(np.arange(1, 61) % 3 > 0).tolist()


def test_a_replay_takes_it_by_name_step_by_step():
    small = {"clients": 2, "rounds": 60, "rollouts": 1, "schemes": ["fedres"]}
    policies = ["halves:share=0.4", policy("halves", share=0.4), "halves:0.1"]
    by_name, by_hand, other = bandit("digits", policies=policies, **small)
    assert by_name == by_hand
    assert (by_name["policy"], other["policy"]) == ("halves:share=0.4", "halves:0.1")
    assert by_name["reward"] != other["reward"]


def test_a_log_values_it_by_name():
    rng, events = np.random.default_rng(0), []
    for k in range(400):
        action = int(rng.integers(3))
        reward = float(rng.random() < (0.8, 0.2, 0.2)[action])
        events.append(
            LoggedEvent(f"e{k}", {}, ("a", "b", "c"), ({"a": 1.0}, {"b": 1.0}, {"c": 1.0}), action, 1 / 3, reward)
        )
    row = evaluate(table(events), ["halves:0.9"], estimators=["snips"]).rows[1]
    assert row.policy == "halves:0.9"
    assert row.low < 0.9 * 0.8 + 0.1 * 0.2 < row.high
    assert row.value > 0.55


def test_probabilities_that_do_not_add_up_are_refused():
    bandit = FederatedBandit("wrong")
    with pytest.raises(
        ValueError, match=r"probabilities of wrong must be 3 numbers that are at least 0 and add up to 1"
    ):
        bandit.decide("anna", arms([1.0], 3))


def test_loops_know_our_own_alone(tmp_path):
    from service.errors import ApiError
    from service.settings import read_settings

    with pytest.raises(ApiError, match="policy"):
        read_settings(json.loads('{"policy": "halves"}'))

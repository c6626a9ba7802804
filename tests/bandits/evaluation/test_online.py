"""What the service's model would have earned on a log, learning from event to event."""

import json

import numpy as np
import pytest

from bandits.evaluation import evaluate, online
from bandits.evaluation.logs import LoggedEvent
from bandits.evaluation.online import hosted_policy, play
from bandits.evaluation.table import table
from fedres.policies import EpsilonGreedy, LinUCB, OptimisticSquareCB, SquareCB
from fedres.progress import ignore_progress
from fedres.scoring.features import Named, Preparer

IDS = ("a", "b", "c")
LOGGED = (0.6, 0.2, 0.2)


def world(n, seed, users=20):
    """Return a log of a policy that prefers ``a``, and the true chance of every (event, action) pair.

    ``b`` suits those from de and ``c`` the others; every user likes one of the actions better still.
    """
    rng = np.random.default_rng(seed)
    tastes, events, chances = rng.integers(3, size=users), [], []
    for i in range(n):
        user, country = int(rng.integers(users)), ("de", "fr")[rng.integers(2)]
        chance = np.array([0.2, 0.6 if country == "de" else 0.1, 0.1 if country == "de" else 0.6])
        chance[tastes[user]] += 0.3
        chosen = int(rng.choice(3, p=LOGGED))
        reward = float(rng.random() < chance[chosen])
        context = {f"country={country}": 1.0}
        event = LoggedEvent(f"e{i}", context, IDS, ({},) * 3, chosen, LOGGED[chosen], reward, LOGGED, user=f"u{user}")
        events.append(event)
        chances.append(chance)
    return table(events), np.concatenate(chances)


def played(log, name="fedres"):
    return play(log, hosted_policy(name), (0.0, 1.0), ignore_progress)


def test_estimates_of_a_policy_that_learns_are_right_on_average_and_intervals_hold_the_truth(monkeypatch):
    errors, held = {"ips": [], "dr": []}, []
    for seed in range(12):
        log, chance = world(400, seed)
        result = played(log)
        monkeypatch.setattr("bandits.evaluation.compare.play", lambda *_, result=result: result)
        truth = log.per_event(result.probabilities * chance).mean()
        for row in evaluate(log, ["fedres"], estimators=list(errors)).rows[1:]:
            errors[row.estimator].append(row.value - truth)
            held.append(row.low <= truth <= row.high)
    for estimator, error in errors.items():
        assert abs(np.mean(error)) < 4 * np.std(error) / np.sqrt(len(error)), estimator
    assert np.std(errors["dr"]) < np.std(errors["ips"])
    assert np.mean(held) >= 0.85


def test_a_policy_that_learns_is_worth_more_than_the_log():
    log, _ = world(2000, seed=1)
    logging, fedres = evaluate(log, ["fedres"], estimators=["dr"]).rows
    assert fedres.policy == "fedres"
    assert fedres.difference_low > 0.1
    assert fedres.low > logging.high


def test_probabilities_and_expected_rewards_follow_from_the_past_alone():
    log, _ = world(120, seed=2)
    other, _ = world(120, seed=2)
    other.reward[60:] = 1 - other.reward[60:]
    (before, expected), (again, also_expected) = played(log), played(other)
    past = slice(0, 3 * 61)  # the reward of an event is not known when it is decided
    assert (before[past] == again[past]).all()
    assert (expected[past] == also_expected[past]).all()
    assert (before[past.stop :] != again[past.stop :]).any()
    assert before[: 3 * 16] == pytest.approx(1 / 3)  # nothing is known before 16 rewards
    assert log.per_event(before) == pytest.approx(1)


def test_features_are_hashed_as_by_the_service():
    actions = [("tea", {"hot": True, "price": 2.5}), ("süß", {"tags": {"new": "yes"}})]
    flat = ({"hot": 1.0, "price": 2.5}, {"tags.new=yes": 1.0})
    event = LoggedEvent("e", {"weather=cold": 1.0, "hour": 9.0}, ("tea", "süß"), flat, 0, 0.5, 1.0)
    request = online._Requests(table([event])).of(0)
    features = [
        ("context", None, {"weather": "cold", "hour": 9}),
        *[("actions", name, body) for name, body in actions],
    ]
    named = [Named(place, name, json.dumps(body).encode()) for place, name, body in features]
    rows = Preparer().hash_all(named)
    for column, kind in (("hashes", np.uint32), ("values", np.float32), ("fields", np.uint32)):
        expected = np.frombuffer(b"".join(getattr(row, column) for row in rows), kind)
        assert (getattr(request, column) == expected).all(), column
    assert request.starts.tolist() == np.cumsum([row.size for row in rows]).tolist()


def test_a_name_may_say_how_the_model_explores():
    assert hosted_policy("fedres") == hosted_policy("optimistic-squarecb") == OptimisticSquareCB(300.0, 0.002)
    assert hosted_policy("fedres:epsilon-greedy") == EpsilonGreedy(0.1)  # what loops have
    assert hosted_policy("fedres:epsilon-greedy:0.3") == EpsilonGreedy(0.3)
    assert hosted_policy("fedres:squarecb:floor=0.1") == SquareCB(10.0, 0.1)
    assert hosted_policy("optimistic-squarecb:gamma=100") == OptimisticSquareCB(100.0, 0.002)
    assert hosted_policy("fedres:linucb") == LinUCB()
    with pytest.raises(ValueError, match="depends on more than scores"):
        hosted_policy("fedres:explore-every")
    log, _ = world(40, seed=0)
    with pytest.raises(ValueError, match="fedres:linucb"):
        evaluate(log, ["linucb"])


def test_numbers_too_large_for_the_service_are_refused():
    events = [LoggedEvent(f"e{i}", {"size": 1e30}, IDS, ({},) * 3, 0, 0.5, 1.0) for i in range(10)]
    with pytest.raises(ValueError, match=r"features must be at most 1e\+15 in size for fedres, got 1e\+30"):
        evaluate(table(events), ["fedres"])

"""Named features: the service in one process."""

import copy

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandits import Action, AdaGrad, Bandit, EpsilonGreedy, Federated, Kalman, LinearUCB, arms
from bandits.actions import named_actions
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of
from fedres.policies.kernels import explore, pick
from fedres.scoring.features import Preparer
from fedres.scoring.flattening import FeatureError

DRINKS = [Action("tea", hot=True, price=2.5), Action("juice", hot=False, price=3), Action("soda", price=2)]


def liking(user, context, drink):
    """Return the chance that a drink is liked: hot ones in the cold, and juice by Anna."""
    hot = drink["features"].get("hot", False)
    return 0.1 + 0.6 * (hot == (context["weather"] == "cold")) + 0.3 * (user == "anna" and drink["id"] == "juice")


def visits(bandit, n, seed=0, users=("anna", "bob", None)):
    """Let users decide about changing offers, rewarded at once; return the decisions."""
    rng = np.random.default_rng(seed)
    decisions = []
    for _ in range(n):
        user = users[rng.integers(len(users))]
        context = {"weather": ["cold", "hot"][rng.integers(2)], "hour": int(rng.integers(24))}
        offer = [DRINKS[k] for k in rng.permutation(3)[: rng.integers(1, 4)]]
        decision = bandit.decide(user, context, offer)
        assert offer[decision.place]["id"] == decision.action
        decisions.append((decision.action, decision.probability, decision.scores.tolist()))
        bandit.reward(decision, float(rng.random() < liking(user, context, offer[decision.place])))
    return decisions


def test_a_bandit_learns_which_named_action_suits_whom():
    bandit = Bandit(seed=1)
    visits(bandit, 600)
    cold = bandit.decide("bob", {"weather": "cold"}, DRINKS)
    hot = bandit.decide("bob", {"weather": "hot"}, DRINKS)
    anna = bandit.decide("anna", {"weather": "hot"}, DRINKS)
    assert cold.scores[0] > cold.scores[2] + 0.2
    assert hot.scores[0] < hot.scores[2] - 0.2
    assert anna.scores[1] - anna.scores[2] > hot.scores[1] - hot.scores[2]


def test_decisions_are_those_of_the_service_model():
    """Beside a straight use of the model on the request as the service hashes it."""
    bandit = Bandit(seed=4)
    model = ResidualKalman()
    rule = bandit.policy.rule((0.0, 1.0))
    personal = {}
    rng = np.random.default_rng(2)
    for t in range(60):
        user = [None, "anna", "bob"][t % 3]
        context = {"weather": "cold" if t % 4 else "hot", "tags": ["a", "b"][: t % 3], "place": {"floor": t % 5}}
        request = named_actions(context, DRINKS).request
        prediction = model.predict(request, None if user is None else personal.get(user, NO_MODEL))
        chances = np.empty(3)
        explore(rule, 0, model.learned, prediction.means, prediction.widths, np.ones(3, np.bool_), chances)
        decision = bandit.decide(user, context, DRINKS)
        assert decision.scores.tolist() == prediction.means.tolist()
        assert decision.probability == chances[decision.place]
        assert pick(chances, 0.5) in range(3)
        reward = float(rng.random() < 0.5)
        bandit.reward(decision, reward)
        if user is None:
            model.learn(events_of([(request, decision.place, reward, -1)]))
        else:
            events = events_of([(request, decision.place, reward, 0)])
            (personal[user],) = model.learn(events, [personal.get(user, NO_MODEL)])


@given(st.dictionaries(st.text(min_size=1).filter(lambda name: name[0] != "_"), st.integers(-9, 9) | st.text()))
def test_features_are_hashed_as_those_of_a_request(features):
    try:
        hashed = named_actions({}, {"one": features}).request
    except (FeatureError, ValueError):
        return
    named = Preparer(crosses=False).prepare(b"{}", [("one", msgspec.json.encode(features))])
    assert hashed.hashes.tolist() == named.hashes.tolist()
    assert hashed.values.tolist() == named.values.tolist()


def test_actions_come_and_go_and_may_be_excluded():
    bandit = Bandit()
    assert bandit.decide("anna", {}, ["tea"]).action == "tea"
    assert bandit.decide("anna", {}, {"tea": {}, 7: {"price": 3}}, exclude=["tea"]).action == 7
    assert bandit.decide("anna", None, [Action("soda")]).probability == 1
    with pytest.raises(ValueError, match="exclude must name actions that are offered, got 'coffee'"):
        bandit.decide("anna", {}, DRINKS, exclude=["coffee"])
    with pytest.raises(ValueError, match="exclude must leave an action"):
        bandit.decide("anna", {}, ["tea"], exclude=["tea"])


def test_a_saved_bandit_goes_on_with_named_features(tmp_path):
    bandit = Bandit(policy="epsilon-greedy:0.2", seed=3)
    visits(bandit, 50)
    waiting = bandit.decide("anna", {"weather": "cold"}, DRINKS)
    bandit.save(tmp_path / "drinks.bandit")
    again = Bandit.load(tmp_path / "drinks.bandit")
    assert again.policy == EpsilonGreedy(0.2)
    for each in (bandit, again):
        each.reward(waiting.id, 1.0)
    assert visits(bandit, 50, seed=1) == visits(again, 50, seed=1)


def test_nobody_has_no_personal_model():
    bandit = Bandit()
    visits(bandit, 100, users=(None,))
    assert bandit.clients == [None]
    assert not bandit._model.owns
    with pytest.raises(ValueError, match="client must have decided before"):
        bandit.leave(None)


@pytest.mark.parametrize("model", [AdaGrad(), LinearUCB(), Federated("fedogd"), Kalman(scheme="independent")])
def test_nobody_is_refused_where_every_model_is_of_a_client(model):
    with pytest.raises(ValueError, match="client must be named"):
        Bandit(model).decide(None, arms([1.0], 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.decide("anna", {"hour": float("nan")}, ["tea"]), "context.hour must be a finite number"),
        (lambda b: b.decide("anna", {"hour": 1e300}, ["tea"]), "context: hour must be within"),
        (lambda b: b.decide("anna", {}, []), "actions must hold at least one action"),
        (lambda b: b.decide("anna", {}, ["tea", "tea"]), "actions must have different ids, got 'tea' twice"),
        (lambda b: b.decide("anna", {}, ["tea"], private={"mood": 1}), "private must not be given"),
        (lambda b: Bandit("adagrad").decide("anna", {}, ["tea"]), "model must be Kalman.. for named features"),
        (lambda b: Bandit("kalman"), "model must be one of adagrad, linucb, residual-kalman"),
        (lambda b: Bandit(policy="greedyy"), "greedyy"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name_and_changes_nothing(call, message):
    bandit = Bandit()
    visits(bandit, 30)
    before = copy.deepcopy(bandit._model.to_arrays())
    with pytest.raises((ValueError, TypeError), match=message):
        call(bandit)
    after = bandit._model.to_arrays()
    assert all((before[name] == after[name]).all() for name in before)
    assert bandit.clients.count("anna") <= 1

"""residual-kalman as a model of bandits; tests/service/ranking/test_kalman_loops.py compares it with a hosted loop."""

import numpy as np
import pytest

from bandits import FederatedBandit, arms, policy
from bandits.models.compiled import AdaGradModel
from bandits.models.kalman import KalmanModel
from bandits.models.least_squares import LeastSquaresModel
from bandits.replay import replay
from bandits.streams import Multiclass
from fedres.policies import POLICIES


def contexts(n, seed=0):
    """Yield (user, context, rewards of three actions): users like different actions."""
    rng = np.random.default_rng(seed)
    for k in range(n):
        user, x = k % 3, np.round(rng.normal(size=4), 2)
        yield user, x, np.array([x[0] > 0, x[1] > 0.3, user == 1]).astype(float)


def stream(n_rounds=60, same=True):
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, size=40)
    features = np.round(4 * (rng.normal(size=(40, 5)) + np.eye(3, 5)[label])) / 4
    names, columns = np.array([[0, 1, 2], [2, 0, 1]]), np.arange(5)
    table = rng.integers(0, 40, size=(n_rounds, 2))
    return Multiclass(features, label, table, names, columns if same else columns[::2], columns)


def step(rounds, chosen, **options):
    made = []
    with FederatedBandit(chosen, seed=1, **options) as bandit:
        for chunk in rounds:
            for r, p in np.ndindex(chunk.rewards.shape[:2]):
                x = rounds.shared.actions(rounds.n_actions, chunk.shared[r, p])
                decision = bandit.decide(p, x)
                bandit.reward(decision.id, chunk.rewards[r, p, decision.action])
                made.append((decision.action, decision.probability))
    return [np.reshape(part, (rounds.n_rounds, 2)).tolist() for part in zip(*made, strict=True)]


@pytest.mark.parametrize("scheme", ["independent", "central", "fedres"])
@pytest.mark.parametrize(("name", "delay"), [*((name, 0) for name in POLICIES), ("optimistic-squarecb", 3)])
def test_a_replay_makes_the_decisions_of_the_bandit(scheme, name, delay):
    chosen = policy(name, **({"epsilon": 0.2} if name == "explore-every" else {}))
    outcome = replay(stream(), chosen, scheme, model="residual-kalman", delay=delay, seed=1)
    action, probability = step(stream(), chosen, model="residual-kalman", scheme=scheme, uplink_delay=delay)
    assert action == outcome.action.tolist()
    assert probability == outcome.probability.tolist()


@pytest.mark.parametrize("name", ["epsilon-greedy", "explore-every", "optimistic-squarecb", "softmax"])
def test_least_squares_serve_any_policy(name):
    chosen = policy(name)
    outcome = replay(stream(), chosen, model="linucb", seed=1)
    action, probability = step(stream(), chosen, model="linucb")
    assert action == outcome.action.tolist()
    assert probability == pytest.approx(outcome.probability, abs=1e-12)


def test_sharing_and_personal_parts_both_pay():
    """Clients name two classes in three differently: one model for all cannot be right, and alone learns slowly."""
    earned = {
        scheme: replay(stream(400), policy("optimistic-squarecb"), scheme).reward[200:].mean()
        for scheme in ("central", "fedres")
    }
    assert earned["fedres"] > earned["central"] + 0.1


def test_private_features_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="private must be as shared, or not given, for residual-kalman"):
        replay(stream(same=False), policy("optimistic-squarecb"))
    with pytest.raises(ValueError, match=r"model must know widths for optimistic-squarecb, .* got 'adagrad'"):
        FederatedBandit("optimistic-squarecb", model="adagrad")
    with pytest.raises(ValueError, match="residual-kalman must have no global_learner"):
        FederatedBandit("greedy", model="residual-kalman", rates=(1.0, 1.0))
    with pytest.raises(ValueError, match="model must be one of adagrad, linucb, residual-kalman, got 'vw'"):
        FederatedBandit(model="vw")


X = arms(np.zeros(4), 3)
MODELS = {
    "adagrad": lambda scheme: AdaGradModel(scheme, (X.dim, X.dim), X.stride, (0.5, 0.5)),
    "linucb": lambda scheme: LeastSquaresModel(scheme, X, X, 0.5),
    "residual-kalman": KalmanModel,
}


@pytest.mark.parametrize("scheme", ["independent", "central", "fedres"])
@pytest.mark.parametrize("name", list(MODELS))
def test_a_model_goes_on_from_its_arrays(scheme, name):
    one, other = MODELS[name](scheme), MODELS[name](scheme)
    for slot in range(3):
        one.join(slot)
    learned = [*contexts(80)]
    for user, x, rewards in learned[:50]:
        one.play([(user, user, arms(x, 3), arms(x, 3), rewards[user])])
    other.load_arrays(one.to_arrays())
    for user, x, rewards in learned[50:]:
        offered = arms(x, 3)
        for mine, theirs in zip(
            one.predict(user, offered, offered), other.predict(user, offered, offered), strict=True
        ):
            assert mine is theirs is None or mine.tolist() == theirs.tolist()
        for model in (one, other):
            model.play([(user, 2, offered, offered, rewards[2])])
    assert {name: array.tobytes() for name, array in one.to_arrays().items()} == {
        name: array.tobytes() for name, array in other.to_arrays().items()
    }

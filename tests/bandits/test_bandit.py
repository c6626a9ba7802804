"""A bandit made of objects: a model and a policy; as a file, it goes on where it stopped."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
from bandit_play import D, play

from bandits import (
    AdaGrad,
    Bandit,
    EpsilonGreedy,
    Federated,
    FederatedBandit,
    Greedy,
    Kalman,
    Kind,
    LinearUCB,
    LinUCB,
    OptimisticSquareCB,
    SquareCB,
    arms,
    rows,
)
from bandits.models.protocol import decide_by
from fedres import Linear
from fedres.global_learners import FedOGD
from fedres.policies import Policy, name_of

KINDS = {
    "kalman": (Kalman(), OptimisticSquareCB()),
    "kalman, late": (Kalman(delay=3, scheme="central"), EpsilonGreedy(0.2)),
    "kalman, alone": (Kalman(scheme="independent"), OptimisticSquareCB()),
    "adagrad": (AdaGrad(), EpsilonGreedy(0.2)),
    "adagrad, late": (AdaGrad(rates=(0.1, 0.3), delay=4), SquareCB()),
    "linear ucb": (LinearUCB(half_life=30.0), LinUCB()),
    "linear ucb, late": (LinearUCB(delay=2), LinUCB()),
}


def offered(rng):
    return arms(np.round(rng.normal(size=3), 2), 4)


def visits(bandit, n, seed, clients=("anna", 7, ("shop", "bob"))):
    """Let clients decide; every third reward never comes, others come two decisions late. Return the decisions."""
    rng, made, late = np.random.default_rng(seed), [], []
    for t in range(n):
        decision = bandit.decide(clients[int(rng.integers(len(clients)))], offered(rng))
        made.append((decision.id, decision.action, decision.probability, decision.scores.tolist()))
        late.append((decision, float(rng.random())))
        if t > 1 and t % 3:
            bandit.reward(*late.pop(0))
    return made


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_bandit_goes_on_as_if_it_had_not_been(kind, rounds, tmp_path):
    bandit = Bandit(*KINDS[kind], seed=5, reward_range=(-1.0, 1.0), rounds=rounds)
    visits(bandit, 40, seed=0)
    bandit.leave("anna")
    bandit.save(tmp_path / "shop.bandit")
    loaded = Bandit.load(tmp_path / "shop.bandit")
    assert (loaded.clients, loaded.waiting) == (bandit.clients, bandit.waiting)
    assert set(loaded.clients) == {7, ("shop", "bob")}
    assert (loaded.model, loaded.policy, loaded.model_version) == (bandit.model, bandit.policy, bandit.model_version)
    for b in (bandit, loaded):
        b.rewards((number, 0.5) for number in b.waiting)  # of anna, too, who left
    assert visits(loaded, 40, seed=1) == visits(bandit, 40, seed=1)
    assert loaded.model_version == bandit.model_version


def test_a_bandit_that_has_decided_nothing_is_saved_too(tmp_path):
    Bandit(AdaGrad(), Greedy(), seed=3).save(str(tmp_path / "new"))
    assert visits(Bandit.load(tmp_path / "new"), 20, 0) == visits(Bandit(AdaGrad(), Greedy(), seed=3), 20, 0)


def test_a_damaged_file_and_another_are_refused_and_a_save_replaces_the_last(tmp_path):
    path = tmp_path / "shop.bandit"
    bandit = Bandit()
    for n in (5, 6):
        visits(bandit, n, seed=n)
        bandit.save(path)
    assert Bandit.load(path).waiting == bandit.waiting
    assert [file.name for file in tmp_path.iterdir()] == ["shop.bandit"]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="state must be undamaged"):
        Bandit.load(path)
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="state must start with"):
        Bandit.load(path)


@dataclass(frozen=True)
class Nameless(Policy):
    def probabilities(self, means, widths, n):
        return np.full(len(means), 1 / len(means))


def test_what_cannot_be_saved_is_refused_and_nothing_is_written(tmp_path):
    stepped, nameless, odd = Bandit(Federated(capacity=2)), Bandit(Kalman(), Nameless()), Bandit()
    for bandit in (stepped, nameless):
        bandit.decide("anna", arms([1.0], 2))
    odd.decide(frozenset("anna"), arms([1.0], 2))
    for bandit, message in (
        (
            stepped,
            r"model must be Kalman\(\), LinearUCB\(\) or AdaGrad\(\), or have to_arrays .* to be saved, got Federated",
        ),
        (nameless, "policy must have a name, by an entry point of fedres.policies, to be saved, got Nameless"),
        (odd, "text, numbers or tuples of them as clients to be saved, got frozenset"),
    ):
        with pytest.raises(ValueError, match=message):
            bandit.save(tmp_path / "shop.bandit")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["kalman", "adagrad", "linear ucb"])
def test_a_reward_is_learned_at_once_or_when_its_round_is_over(kind):
    at_once, in_rounds = (Bandit(*KINDS[kind], rounds=rounds) for rounds in (False, True))
    x = arms([0.5], 2)
    for client in range(20):
        for bandit in (at_once, in_rounds):
            bandit.reward(bandit.decide(client, x, exclude=[client % 2]), float(client % 2))
    assert (at_once.model_version, in_rounds.model_version) == (20, 0)
    assert np.ptp(at_once.decide("anna", x).scores) > 0
    assert np.ptp(in_rounds.decide("anna", x).scores) == 0
    in_rounds.end_round()
    assert in_rounds.model_version == 1


@pytest.mark.parametrize(
    ("by_names", "by_objects"),
    [
        ({}, (Kalman(), OptimisticSquareCB())),
        ({"policy": "linucb", "half_life": 9.0, "alpha": 1.0}, (LinearUCB(half_life=9.0), LinUCB(1.0, half_life=9.0))),
        ({"model": "adagrad", "uplink_delay": 1, "downlink_delay": 2}, (AdaGrad(delay=3), EpsilonGreedy())),
        ({"local_learner": "vw", "capacity": 2}, (Federated(local_learner="vw", capacity=2), EpsilonGreedy())),
        ({"global_learner": "fedogd", "scheme": "central"}, (Federated("fedogd", scheme="central"), EpsilonGreedy())),
    ],
)
def test_names_and_objects_make_the_same_bandit(by_names, by_objects):
    named, made = FederatedBandit(seed=2, **by_names), Bandit(*by_objects, seed=2, rounds=True)
    assert (named.model, named.policy) == (made.model, made.policy)


def test_a_learner_may_be_an_object():
    learner = FedOGD(model=Linear(D), n_clients=3, step_size=0.05)
    named = FederatedBandit("greedy", global_learner="fedogd", capacity=3, hyperparameters={"step_size": 0.05})
    with Bandit(Federated(learner), Greedy(), rounds=True) as made, named:
        assert made.model.capacity == 3
        assert play(made, 30) == play(named, 30)
    with pytest.raises(ValueError, match="learner must have a model of 4 features, got 3"):
        Bandit(Federated(learner)).decide("anna", rows(np.ones((2, 4))))
    with pytest.raises(ValueError, match="hyperparameters must come with a name, got them beside FedOGD"):
        Federated(learner, hyperparameters={"step_size": 0.1})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Bandit("kalman"), ValueError, "model must be one of adagrad, linucb, residual-kalman, got 'kalman'"),
        (lambda: Bandit(Kalman), ValueError, r"model must be Kalman\(\), .* got <class"),
        (
            lambda: Bandit(Kalman(), "greedily"),
            ValueError,
            "policy must be one of .*, got 'greedily'",
        ),
        (lambda: Bandit(AdaGrad(), OptimisticSquareCB()), ValueError, "model must know widths for optimistic-squarecb"),
        (lambda: Bandit(Kalman(), epsilon=0.1), TypeError, "unexpected keyword argument 'epsilon'"),
        (lambda: Kalman(dealy=3), TypeError, "unexpected keyword argument 'dealy'"),
        (lambda: Kalman(delay=-1), ValueError, "delay must be an integer of at least 0, got -1"),
        (lambda: LinearUCB(ridge=0.0), ValueError, "ridge must be positive and finite, got 0"),
        (lambda: AdaGrad(rates=(1.0,)), ValueError, "rates must be two, shared and personal"),
        (lambda: AdaGrad(scheme="alone"), ValueError, "scheme must be one of central, fedres, independent"),
    ],
)
def test_what_is_no_bandit_is_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_policy_is_what_suits_the_model_unless_given():
    suited = {type(kind).__name__: name_of(Bandit(kind).policy) for kind in (Kalman(), AdaGrad(), LinearUCB())}
    assert suited == {"Kalman": "optimistic-squarecb", "AdaGrad": "epsilon-greedy", "LinearUCB": "linucb"}


class Means:
    """A model of one's own: the mean reward of each arm, for all clients."""

    reusable = True

    def __init__(self):
        self.sums = np.zeros((2, 4))
        self.version = 0
        self.waiting = deque()

    def join(self, slot):
        pass

    leave = join

    def close(self):
        pass

    def predict(self, slot, shared, private):
        return self.sums[0] / np.maximum(self.sums[1], 1), None

    def decide(self, slot, shared, private, allowed, rule, drawn):
        return decide_by(EpsilonGreedy(0.3), self, slot, shared, private, allowed, drawn)

    def progress(self, slot, n):
        return n

    def play(self, samples):
        for _, action, _, _, reward in samples:
            self.sums[:, action] += reward, 1
        self.version += 1

    def to_arrays(self):
        return {"sums": self.sums}

    def load_arrays(self, arrays):
        self.sums = arrays["sums"]


@dataclass(frozen=True, kw_only=True)
class MeanKind(Kind):
    name = "mean"
    suits = "epsilon-greedy"
    size: int = 4

    def start(self, shared, private):
        return Means()


def test_a_model_of_ones_own_is_saved_and_loaded(tmp_path):
    bandit = Bandit(MeanKind(), seed=1)
    visits(bandit, 30, seed=0)
    bandit.save(tmp_path / "own.bandit")
    again = Bandit.load(tmp_path / "own.bandit", model=MeanKind())
    assert visits(again, 30, seed=1) == visits(bandit, 30, seed=1)
    with pytest.raises(ValueError, match=r"model must be given to load a bandit with 'mean': Bandit.load\(path, model"):
        Bandit.load(tmp_path / "own.bandit")
    for other in (MeanKind(size=5), Kalman()):
        with pytest.raises(ValueError, match="model must be the one that was saved, mean with"):
            Bandit.load(tmp_path / "own.bandit", model=other)

"""Clients of a bandit come, leave and come back; nobody else notices."""

import numpy as np
import pytest
from bandit_play import PRIVATE, D, bandit_of, decide, decide_first, play, problem

from bandits import FederatedBandit, arms, rows
from bandits.actions import none
from bandits.models.compiled import AdaGradModel
from bandits.models.federation import FederationModel
from bandits.models.kalman import KalmanModel
from bandits.models.least_squares import LeastSquaresModel
from fedres.global_learners import GLOBAL_LEARNERS
from fedres.policies import name_of
from libsvm_tasks import bandit as replay_bandit


def test_with_the_defaults_any_number_of_clients_may_join():
    for bandit in (FederatedBandit(), FederatedBandit(model="adagrad")):
        for client in range(250):
            bandit.reward(bandit.decide(client, arms([1.0, 0.5], 3)).id, 1.0)
        assert len(bandit.clients) == 250


@pytest.mark.parametrize(
    ("options", "policy", "model"),
    [
        ({}, "optimistic-squarecb", KalmanModel),
        ({"model": "residual-kalman"}, "optimistic-squarecb", KalmanModel),
        ({"model": "linucb"}, "linucb", LeastSquaresModel),
        ({"model": "adagrad"}, "epsilon-greedy", AdaGradModel),
        ({"rates": (0.5, 0.5)}, "epsilon-greedy", AdaGradModel),
        ({"global_learner": "fedomd"}, "epsilon-greedy", FederationModel),
        ({"uplink_delay": [0, 1], "capacity": 2}, "epsilon-greedy", FederationModel),
        ({"policy": "greedy"}, "greedy", AdaGradModel),
    ],
)
def test_model_and_policy_are_what_suits_the_other_unless_given(options, policy, model):
    with FederatedBandit(**options) as bandit:
        bandit.decide("anna", arms([1.0, 0.5], 3))
        assert (name_of(bandit.policy), type(bandit._model)) == (policy, model)


@pytest.mark.parametrize("kind", ["readable", "vw"])
def test_more_clients_than_seats_are_refused_and_nobody_else_notices(kind):
    with bandit_of(kind) as bandit, bandit_of(kind) as twin:
        for b in (bandit, twin):
            play(b, 8, clients="abcd")
        with pytest.raises(ValueError, match="capacity must be at least the number of clients, got 4"):
            decide_first(bandit, "e")
        assert bandit.clients == ["a", "b", "c", "d"]
        assert play(bandit, 12, seed=1, clients="abcd") == play(twin, 12, seed=1, clients="abcd")


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_client_that_leaves_and_comes_back_starts_empty(kind):
    with bandit_of(kind, scheme="independent") as bandit:
        play(bandit, 60)
        probe = list(map(rows, next(problem(1, seed=5))[:2]))
        assert bandit.decide("anna", probe[0], private=probe[1]).scores.any()
        bandit.leave("anna")
        assert bandit.clients == ["bob"]
        stranger = bandit.decide("cleo", probe[0], private=probe[1])
        back = bandit.decide("anna", probe[0], private=probe[1])
        assert stranger.scores.tolist() == back.scores.tolist()
        assert len(set(stranger.scores.round(12))) == 1 or kind == "least squares"


def assert_nothing_is_handed_on(bandit):
    """Whoever takes the place of a client that left scores as somebody in a new place, and goes on to do so."""
    play(bandit, 40)
    bandit.leave("anna")
    spread = 0.0
    for t, (shared, private, expected) in enumerate(problem(12, seed=5)):
        others = {0, 1, 2} - {t % 3}  # so that both take the same action
        used, new = (decide(bandit, who, rows(shared), rows(private), others) for who in ("cleo", "dora"))
        assert used.scores == pytest.approx(new.scores, abs=1e-9)
        bandit.rewards((decision.id, expected[decision.action]) for decision in (used, new))
        spread += np.ptp(used.scores)
    assert spread > 1


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_used_place_hands_nothing_on(kind):
    with bandit_of(kind) as bandit:
        assert_nothing_is_handed_on(bandit)


@pytest.mark.parametrize("name", list(GLOBAL_LEARNERS))
def test_no_global_learner_hands_a_used_place_on(name):
    hyperparameters = {"fedomd": {"sync": 50}, "fedsea": {"period": 50}}.get(name, {})
    options = {"global_learner": name, "local_learner": "linear", "capacity": 4, "hyperparameters": hyperparameters}
    with FederatedBandit("epsilon-greedy", **options) as bandit:
        assert_nothing_is_handed_on(bandit)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that offers a learner by entry points; its clients keep state, so that no place is used again."""
    source = "from fedres.global_learners import FedOGD\nclass Still(FedOGD): keeps_state = True\n"
    (tmp_path / "still_bandit.py").write_text(source)
    info = tmp_path / "still_bandit-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: still-bandit\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fedres.global_learners]\nstill = still_bandit:Still\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
def test_a_learner_of_an_installed_package_serves_a_bandit_as_ours_do():
    ours, theirs = (
        FederatedBandit("epsilon-greedy", global_learner=name, capacity=4, hyperparameters={"step_size": 0.1})
        for name in ("fedogd", "still")
    )
    assert play(theirs, 30) == play(ours, 30)
    for bandit in (ours, theirs):
        bandit.leave("anna")
    probe = list(map(rows, next(problem(1))[:2]))
    for client in "cde":
        ours.decide(client, probe[0], private=probe[1])
    theirs.decide("c", probe[0], private=probe[1]), theirs.decide("d", probe[0], private=probe[1])
    with pytest.raises(ValueError, match="clients that ever join, with this global learner, got 4"):
        theirs.decide("e", probe[0], private=probe[1])
    with pytest.raises(ValueError, match=r"global_learner must be one of .*still, got 'stil'"):
        FederatedBandit("greedy", global_learner="stil")


@pytest.mark.usefixtures("installed")
def test_a_replay_takes_a_learner_of_an_installed_package_by_name():
    small = {"clients": 2, "rounds": 40, "rollouts": 1, "schemes": ["fedres"], "policies": ["epsilon-greedy"]}
    [ours], [theirs] = (replay_bandit("digits", global_learner=name, **small) for name in ("fedogd", "still"))
    assert theirs["reward"] == ours["reward"]


def test_a_used_place_counts_decisions_from_one():
    bandit = FederatedBandit("explore-every", epsilon=0.2, local_learner="linear")
    for _ in range(3):
        bandit.decide("anna", arms([1.0], 2))
    bandit.leave("anna")
    for _ in range(5):
        assert bandit.model_version == 0
        bandit.reward(bandit.decide("cleo", arms([1.0], 2)).id, 1.0)
    bandit.end_round()
    assert bandit.model_version == 1


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_reward_for_a_client_that_left_is_taken_and_not_learned(kind):
    with bandit_of(kind) as bandit, bandit_of(kind) as twin:
        for b in (bandit, twin):
            play(b, 20)
        probe = list(map(rows, next(problem(1, seed=5))[:2]))
        late, _ = (b.decide("anna", probe[0], private=probe[1]).id for b in (bandit, twin))
        for b in (bandit, twin):
            b.leave("anna")
            b.decide("cleo", probe[0], private=probe[1])
        bandit.reward(late, 1.0)
        assert play(bandit, 12, seed=1, clients=("bob", "cleo")) == play(twin, 12, seed=1, clients=("bob", "cleo"))


def test_a_new_client_changes_nobody_elses_draws():
    alone, crowd = (FederatedBandit("epsilon-greedy", epsilon=1.0, local_learner="linear", seed=5) for _ in range(2))
    rng = np.random.default_rng(0)
    for t in range(100):
        actions = arms(rng.normal(size=D), 5)
        if t >= 10:
            crowd.decide(f"new {t % 7}", actions)
        for client in ("anna", "bob"):
            assert alone.decide(client, actions).action == crowd.decide(client, actions).action


def test_seeds_and_clients_draw_differently():
    def drawn(seed, client):
        bandit = FederatedBandit("epsilon-greedy", epsilon=1.0, local_learner="linear", seed=seed)
        for other in range(client):
            bandit.decide(other, none(4))
        return [bandit.decide("anna", none(4)).action for _ in range(40)]

    assert drawn(1, 0) == drawn(1, 0)
    assert len({tuple(drawn(seed, client)) for seed in range(3) for client in range(3)}) == 9

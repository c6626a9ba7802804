"""The bandit that applications talk to: decisions, rewards in any order, refusals."""

import numpy as np
import pytest
from bandit_play import KINDS, LOCAL, PRIVATE, D, bandit_of, decide, decide_first, play, problem

from bandits import FederatedBandit, UnknownDecisionError, arms, policy, rows, sparse
from fedres.global_learners import GLOBAL_LEARNERS
from fedres.policies import POLICIES


def reference(chosen, decision, n, learned):
    """Return the probabilities of all actions of a client's n-th decision, after so many rewards."""
    scores, k, name = decision.scores, len(decision.scores), type(chosen).__name__
    if name == "LinUCB":
        scores = scores + chosen.alpha * decision.widths
    if name == "OptimisticSquareCB":
        scores = np.maximum(scores, 0) + decision.widths
    best = scores == scores.max()
    p = best / best.sum()
    if name == "ExploreEvery" and n % round(1 / chosen.epsilon) == 0:
        p = np.full(k, 1 / k)
    if name == "EpsilonGreedy":
        p = chosen.epsilon / k + (1 - chosen.epsilon) * p
    if "SquareCB" in name:
        p = np.where(best, 0.0, 1 / (k + chosen.gamma * np.sqrt(learned) * (scores.max() - scores)))
        p = p + best * (1 - p.sum()) / best.sum()
    if name == "Softmax":
        p = np.exp((scores - scores.max()) / chosen.temperature)
        p = p / p.sum()
    return (1 - chosen.floor) * p + chosen.floor / k


OPTIONS = {
    "epsilon-greedy": {"epsilon": 0.3},
    "squarecb": {"gamma": 2.0},
    "optimistic-squarecb": {"gamma": 2.0},
    "linucb": {"floor": 0.1},
    "greedy": {"floor": 0.1},
    "softmax": {"temperature": 0.3},
}


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_decision_carries_the_probability_it_was_really_drawn_with(name):
    """Two of the actions are the same, so that there are ties to draw from under every policy."""
    chosen, rng, n_rounds = policy(name, **OPTIONS.get(name, {})), np.random.default_rng(4), 1200
    bandit = FederatedBandit(chosen, seed=11)
    values, hits = np.empty((n_rounds, 3)), np.empty(n_rounds, dtype=int)
    for t in range(n_rounds):
        x = rng.normal(size=(2, D))
        decision = bandit.decide("anna", rows(x[[0, 1, 1]]))
        learned = t if name == "optimistic-squarecb" else t + 1  # residual-kalman counts rewards
        values[t], hits[t] = reference(chosen, decision, t + 1, learned), decision.action
        assert decision.probability == pytest.approx(values[t, decision.action], abs=1e-12)
        bandit.reward(decision.id, float(rng.random() < 0.5 + 0.4 * np.tanh(x[min(decision.action, 1), 0])))
    edges = np.unique(np.quantile(values[values > 0], np.linspace(0, 1, 9)).round(9))
    for low, high in zip(edges, [*edges[1:], 2.0], strict=True):
        inside = (values >= low - 1e-9) & (values < high - 1e-9)
        expected = (values * inside).sum(axis=1)
        observed = np.take_along_axis(inside, hits[:, None], 1).sum()
        assert abs(observed - expected.sum()) < 4.5 * np.sqrt((expected * (1 - expected)).sum()) + 1e-6
    assert len(edges) >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_sparse_of_the_same_numbers_make_the_same_decisions(kind):
    rng = np.random.default_rng(0)
    with bandit_of(kind) as dense, bandit_of(kind) as thin:
        for t in range(60):
            table = rng.normal(size=(1 + t % 4, 5)) * (rng.random((1 + t % 4, 5)) < 0.6)
            pairs = [(np.flatnonzero(row), row[row != 0]) for row in table]
            one, two = dense.decide(t % 3, rows(table)), thin.decide(t % 3, sparse(pairs, dim=5))
            assert (one.action, one.probability) == (two.action, pytest.approx(two.probability, abs=1e-12))
            assert one.scores == pytest.approx(two.scores, abs=1e-12)
            reward = float(rng.random())
            dense.reward(one.id, reward)
            thin.reward(two.id, reward)


def test_before_anything_is_learned_all_actions_share():
    decision = FederatedBandit("epsilon-greedy", local_learner="linear").decide("anna", arms([1.0], 4))
    assert decision.probability == 0.25
    assert decision.scores.tolist() == [0, 0, 0, 0]


def test_without_any_model_all_scores_are_0_whatever_the_memory_held_before():
    bandit = FederatedBandit("epsilon-greedy", scheme="independent", local_learner="linear", seed=0)
    for n in range(5):
        np.full(3, n + 0.5)
        decision = bandit.decide("anna", rows(np.ones((3, 2))), private=rows(np.zeros((3, 0))))
        assert (decision.scores.tolist(), decision.probability) == ([0, 0, 0], 1 / 3)


@pytest.mark.parametrize("kind", KINDS)
def test_one_action_is_chosen_for_sure(kind):
    with bandit_of(kind) as bandit:
        for _ in range(5):
            decision = bandit.decide("anna", rows([[1.0, 2.0]]))
            assert (decision.action, decision.probability) == (0, 1.0)
            bandit.reward(decision.id, 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_actions_may_change_from_one_decision_to_the_next(kind):
    rng, uniform = np.random.default_rng(0), {"policy": "epsilon-greedy", "epsilon": 1.0}
    model = {"least squares": "linucb", "residual-kalman": kind}.get(kind, "adagrad")
    with bandit_of(kind, **uniform, model=model) as bandit:
        for n in (2, 5, 1, 4, 4, 3):
            decision = bandit.decide("anna", rows(rng.normal(size=(n, D))))
            assert (decision.scores.size, decision.probability) == (n, 1 / n)
            bandit.reward(decision.id, 1.0)


@pytest.mark.parametrize("name", list(POLICIES))
def test_excluded_actions_are_never_chosen(name):
    bandit, rng = FederatedBandit(name, local_learner="linear"), np.random.default_rng(0)
    for _ in range(300):
        exclude = set(rng.choice(4, size=rng.integers(0, 4), replace=False).tolist())
        decision = bandit.decide("anna", rows(rng.normal(size=(4, D))), exclude=exclude)
        assert decision.action not in exclude
        assert len(exclude) < 3 or decision.probability == 1
        bandit.reward(decision.id, float(decision.action == 0))


def test_rewards_in_any_order_and_in_batches_count_as_if_they_had_come_one_by_one():
    one, other = bandit_of("compiled"), bandit_of("compiled")
    rng = np.random.default_rng(0)
    for _ in range(20):
        contexts = {client: rng.normal(size=D) for client in ("anna", "bob", "cleo")}
        first = {client: one.decide(client, arms(x, 3)) for client, x in contexts.items()}
        second = {client: other.decide(client, arms(x, 3)) for client, x in contexts.items()}
        assert [d.action for d in first.values()] == [d.action for d in second.values()]
        rewards = [(d.id, float(rng.random())) for d in first.values()]
        for pair in rewards:
            one.reward(*pair)
        other.rewards(reversed(rewards))
    assert one.model_version == other.model_version == 19


@pytest.mark.parametrize("kind", PRIVATE)
def test_late_rewards_are_learned_one_a_round_and_missing_ones_do_no_harm(kind):
    with bandit_of(kind) as bandit:
        made = [bandit.decide("anna", rows(x), private=rows(z)) for x, z, _ in problem(30)]
        assert bandit.waiting == [d.id for d in made]
        assert bandit.model_version == 0
        late = made[20:5:-3]
        bandit.rewards((d.id, 1.0) for d in late)
        for _ in range(8):
            bandit.end_round()
        assert bandit.model_version == len(late)
        assert len(bandit.waiting) == 30 - len(late)
        assert decide_first(bandit, "anna").scores.any()


@pytest.mark.parametrize("kind", PRIVATE)
def test_learning_beats_chance(kind):
    with bandit_of(kind, **({} if kind == "least squares" else {"epsilon": 0.1})) as bandit:
        chosen = [action for action, _, _ in play(bandit, 400)]
    expected = np.array([e for _, _, e in problem(400)])
    late = expected[np.arange(200, 400), chosen[200:]].mean()
    assert late > expected[200:].mean() + 0.5 * (expected[200:].max(axis=1).mean() - expected[200:].mean())


@pytest.mark.parametrize("name", list(GLOBAL_LEARNERS))
@pytest.mark.parametrize("scheme", ["fedres", "central"])
def test_every_global_learner_runs_and_learns(name, scheme):
    options = {"epsilon": 0.1, "scheme": scheme, "global_learner": name, "local_learner": "linear", "capacity": 2}
    with FederatedBandit("epsilon-greedy", **options) as bandit:
        chosen = [action for action, _, _ in play(bandit, 300)]
    expected = np.array([e for _, _, e in problem(300)])
    late = expected[np.arange(150, 300), chosen[150:]].mean()
    assert late > expected[150:].mean() + 0.4 * (expected[150:].max(axis=1).mean() - expected[150:].mean())


def test_explore_every_explores_at_each_clients_own_b_th_decision_and_learns_from_those_only():
    bandit, rng, count = (
        FederatedBandit("explore-every", epsilon=0.2, local_learner="linear"),
        np.random.default_rng(0),
        {},
    )
    for _ in range(200):
        client = int(rng.integers(3))
        n = count[client] = count.get(client, 0) + 1
        decision = bandit.decide(client, arms(rng.normal(size=D), 4))
        before, best = bandit.model_version, decision.scores == decision.scores.max()
        assert decision.probability == (0.25 if n % 5 == 0 else 1 / best.sum())
        bandit.reward(decision.id, 0.9)
        bandit.end_round()
        assert bandit.model_version - before == (n % 5 == 0)


def test_rewards_are_scaled_from_their_range_and_scores_back_to_it():
    wide, plain = bandit_of("compiled", reward_range=(-5, 15)), bandit_of("compiled")
    rng = np.random.default_rng(0)
    for _ in range(50):
        x, reward = arms(rng.normal(size=D), 3), float(rng.random())
        one, two = wide.decide("anna", x), plain.decide("anna", x)
        assert (one.action, one.probability) == (two.action, pytest.approx(two.probability))
        assert one.scores == pytest.approx(-5 + 20 * two.scores)
        wide.reward(one.id, -5 + 20 * reward)
        plain.reward(two.id, (-5 + 20 * reward + 5) / 20)
    for edge in (-5, 15):
        wide.reward(wide.decide("anna", x).id, edge)


BAD_CALLS = {
    "an id never made": (lambda b, d: b.reward(10**6, 1.0), "got 1000000: it was never made"),
    "an id of another kind": (lambda b, d: b.reward("x", 1.0), "got 'x': it was never made"),
    "a second reward": (lambda b, d: b.reward(0, 1.0), "got 0: it was rewarded already, or waited too long"),
    "one id twice": (lambda b, d: b.rewards([(d, 1.0), (d, 0.0)]), "waits for its reward"),
    "a bad one in a batch": (lambda b, d: b.rewards([(d, 1.0), (10**6, 0.0)]), "was never made"),
    "NaN": (lambda b, d: b.reward(d, float("nan")), r"reward must be in \[0, 1\], got nan for decision"),
    "no number": (lambda b, d: b.reward(d, None), r"reward must be in \[0, 1\], got None for decision"),
    "too much": (lambda b, d: b.reward(d, 1.5), r"reward must be in \[0, 1\], got 1.5 for decision"),
    "NaN features": (
        lambda b, d: decide(b, "anna", np.full((3, D), np.nan), np.ones((3, LOCAL))),
        "must be finite",
    ),
    "infinite features": (
        lambda b, d: decide(b, "bob", np.ones((3, D)), np.full((3, LOCAL), np.inf)),
        "must be finite",
    ),
    "past 32 bits": (
        lambda b, d: decide(b, "new", np.full((3, D), 1e39), np.ones((3, LOCAL))),
        "finite in 32 bits",
    ),
    "other width": (lambda b, d: decide(b, "anna", np.ones((3, D + 1)), np.ones((3, LOCAL))), "as before"),
    "no private": (lambda b, d: b.decide("new", np.ones((3, D))), "as before"),
    "arms of that size": (lambda b, d: decide(b, "anna", arms([], D), np.ones((D, LOCAL))), "as before"),
    "other actions": (
        lambda b, d: decide(b, "anna", np.ones((3, D)), np.ones((2, LOCAL))),
        "as many actions as shared",
    ),
    "all excluded": (
        lambda b, d: decide(b, "bob", np.ones((2, D)), np.ones((2, LOCAL)), exclude=[0, 1]),
        "exclude must leave an action, got all 2",
    ),
    "unknown excluded": (
        lambda b, d: decide(b, "new", np.ones((2, D)), np.ones((2, LOCAL)), exclude=[2]),
        "exclude must name actions below 2, got 2",
    ),
    "words": (lambda b, d: decide(b, "anna", [["a"] * D] * 3, np.ones((3, LOCAL))), "actions must be numbers"),
    "a stranger leaves": (lambda b, d: b.leave("nobody"), "client must have decided before, got 'nobody'"),
}


@pytest.mark.parametrize("kind", ["compiled", "readable", "least squares"])
@pytest.mark.parametrize("what", BAD_CALLS)
def test_a_bad_call_is_refused_by_name_and_changes_nothing(kind, what):
    call, message = BAD_CALLS[what]
    with bandit_of(kind) as bandit, bandit_of(kind) as twin:
        assert play(bandit, 12) == play(twin, 12)
        waits = [decide_first(b, "cleo").id for b in (bandit, twin)]
        with pytest.raises(ValueError, match=message):
            call(bandit, waits[0])
        for b in (bandit, twin):
            b.reward(waits[0], 1.0)
        assert play(bandit, 12, seed=1, clients=("bob", "cleo", "dora")) == play(
            twin, 12, seed=1, clients=("bob", "cleo", "dora")
        )
        assert bandit.clients == twin.clients
        assert bandit.waiting == twin.waiting


def test_a_client_that_cannot_be_named_does_not_settle_the_features():
    bandit = bandit_of("compiled")
    with pytest.raises(TypeError):
        bandit.decide(["anna"], rows(np.ones((2, 7))))
    assert bandit.decide("anna", rows(np.ones((2, 3)))).id == 0


def test_a_reward_for_an_unknown_decision_has_an_error_of_its_own():
    with pytest.raises(UnknownDecisionError):
        bandit_of("compiled").reward(0, 1.0)


def test_only_so_many_decisions_wait_for_their_reward():
    bandit = bandit_of("compiled", max_waiting=3)
    made = [bandit.decide("anna", arms([1.0], 2)).id for _ in range(5)]
    assert bandit.waiting == made[2:]
    with pytest.raises(ValueError, match="waited too long"):
        bandit.reward(made[0], 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "ucb"}, "policy must be one of"),
        ({"policy": "epsilon-greedy", "epsilon": 1.5}, r"epsilon must be in \[0, 1\], got 1.5"),
        ({"model": "adagrad", "epsilo": 0.5}, "epsilo is not an option of epsilon-greedy"),
        ({"epsilon": 0.5}, "epsilon is not an option of optimistic-squarecb"),
        ({"scheme": "alone"}, "scheme must be one of central, fedres, independent, got 'alone'"),
        ({"global_learner": "sgd"}, "global_learner must be one of .*, got 'sgd'"),
        ({"local_learner": "tree"}, "local_learner must be one of linear, vw, got 'tree'"),
        ({"capacity": 0}, "capacity must be an integer of at least 1, got 0"),
        ({"uplink_delay": -1}, "uplink_delay must be whole numbers of rounds, one or 100, got -1"),
        ({"uplink_delay": 1.5}, "uplink_delay must be whole numbers of rounds, one or 100, got 1.5"),
        ({"downlink_delay": [1, 2], "capacity": 3}, r"downlink_delay must be .* one or 3, got \[1, 2\]"),
        ({"rates": (1.0, 0.0)}, "rates must be positive and finite, got 0"),
        ({"rates": (1.0,)}, "rates must be two, shared and personal, got"),
        ({"reward_range": (1.0, 1.0)}, "reward_range must be .*, got"),
        ({"reward_range": (0.0, float("inf"))}, "reward_range must be .*, got"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"seed": 2**63}, "seed must fit 63 bits, got 9223372036854775808"),
        ({"max_waiting": 0}, "max_waiting must be an integer of at least 1, got 0"),
        ({"policy": "linucb", "global_learner": "fedogd"}, "linucb must have no global_learner"),
        ({"policy": "linucb", "rates": (1.0, 1.0)}, "linucb must have no global_learner"),
        ({"policy": "linucb", "uplink_delay": [1, 2], "capacity": 2}, "linucb must have .* one delay for all"),
    ],
)
def test_bad_settings_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        FederatedBandit(**options)


@pytest.mark.parametrize("local_learner", ["linear", "vw"])
def test_hyperparameters_reach_the_shared_model(local_learner):
    def later(**hyperparameters):
        options = {"local_learner": local_learner, "capacity": 2, "hyperparameters": hyperparameters}
        with FederatedBandit("epsilon-greedy", **options) as bandit:
            return play(bandit, 20)[-1][2]

    assert later() != later(learning_rate=1e-3)
    with pytest.raises(ValueError, match="rate is not a hyperparameter of 'fedres-adagrad'"):
        later(rate=1.0)


def test_a_shared_model_that_diverges_is_an_error_and_no_arbitrary_choice():
    bandit = FederatedBandit(
        "epsilon-greedy",
        epsilon=0.0,
        scheme="central",
        global_learner="fedogd",
        hyperparameters={"step_size": 1e200},
        capacity=1,
    )

    def go_on():
        for _ in range(10):
            bandit.reward(bandit.decide("a", arms([1.0, 2.0], 2)).id, 1.0)

    with np.errstate(all="ignore"), pytest.raises(ValueError, match="finite"):
        go_on()

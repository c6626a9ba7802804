"""The models behind a bandit: who learns what, and that the compiled one is the readable one."""

import numpy as np
import pytest

from bandits.actions import arms, none, rows, sparse
from bandits.federated import FederatedBandit
from bandits.models.compiled import AdaGradModel
from bandits.models.federation import AloneModel, FederationModel, Seat
from bandits.models.kalman import KalmanModel
from bandits.models.kinds import AdaGrad, Federated, LinearUCB, default_rates
from bandits.models.least_squares import LeastSquaresModel
from bandits.models.protocol import SCHEMES
from fedres import LinearLearner, VWLearner, global_learner
from fedres.local_learners.trusted import Trusted
from fedres.local_learners.vw import bits_for
from fedres.policies import EpsilonGreedy, LinUCB, OptimisticSquareCB

K, RATES = 3, (0.7, 0.4)


def feed(model, n_rounds, seed=0, probe=None):
    """Play rounds with some of the clients present, and fractional rewards; return the probes' scores by round."""
    rng, seen = np.random.default_rng(seed), []
    probe = arms([0.3, -1.0], 2) if probe is None else probe
    for slot in range(K):
        model.join(slot)
    for _ in range(n_rounds):
        present = np.flatnonzero(rng.random(K) < 0.7)
        offered = [arms(rng.normal(size=2), 2) for _ in present]
        model.play(
            [(int(k), int(rng.integers(2)), x, x, float(rng.random())) for k, x in zip(present, offered, strict=True)]
        )
        seen.append([model.predict(slot, probe, probe)[0] for slot in range(K)])
    return np.array(seen)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("delays", [(0, 0), (3, 0), (1, 2)])
@pytest.mark.parametrize("local_learner", ["linear", "vw"])
def test_the_compiled_model_is_the_readable_one(scheme, delays, local_learner):
    actions = arms([1.0, 1.0], 2)
    compiled = AdaGradModel(scheme, (6, 6), 3, RATES, sum(delays))
    up, down = delays
    plain = Federated(scheme=scheme, local_learner=local_learner, uplink_delay=up, downlink_delay=down, rates=RATES)
    readable = plain.start(actions, actions)
    one, two = feed(compiled, 60), feed(readable, 60)
    readable.close()
    assert one == pytest.approx(two, abs=1e-6)
    assert delays[1] or compiled.version == readable.version
    assert one[-1].std() > 0.01


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_learned_with_the_next_decision_is_learned_as_if_at_once(scheme):
    """Features of both sides are one object or two, and of the same indices as the last ones or of others."""
    rng, spread = np.random.default_rng(0), 0.0
    late, prompt = (AdaGradModel(scheme, (3, 3), 0, RATES) for _ in range(2))
    for t in range(60):
        table = rng.normal(size=(2, 3))
        x = rows(table) if t % 5 else sparse([(np.arange(3), row) for row in table], 3)
        z = rows(rng.normal(size=(2, 3))) if t % 4 == 0 else x
        allowed = np.array([True, False]) if t % 7 == 0 else None
        made = []
        for model in (late, prompt):
            if t < K:
                model.join(t)
            made.append(model.decide(t % K, x, z, allowed, EpsilonGreedy(0.1).rule(), (t, 0, 0)))
            model.play([(t % K, made[0][0], x, z, float(t % 2))])
        prompt.predict(0, x, z)
        (one, p, scores, _), (two, q, others, _) = made
        assert (one, p, scores.tolist()) == (two, q, others.tolist())
        spread += np.ptp(scores)
    assert late.version == prompt.version == (0 if scheme == "independent" else 60)
    assert spread > 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_names_and_options_stand_for_models(scheme):
    actions = arms([1.0, 1.0], 2)
    cases = [
        (AdaGradModel, {"policy": EpsilonGreedy()}),
        (LeastSquaresModel, {"policy": LinUCB()}),
        (LeastSquaresModel, {"policy": EpsilonGreedy(), "model": "linucb"}),
        (KalmanModel, {"policy": OptimisticSquareCB()}),
        (AdaGradModel, {"policy": EpsilonGreedy(), "uplink_delay": np.int64(2)}),
        (AloneModel if scheme == "independent" else FederationModel, {"uplink_delay": [0, 1, 2], "capacity": K}),
    ]
    for kind, options in cases:
        assert type(FederatedBandit(scheme=scheme, **options).model.start(actions, actions)) is kind


def test_delays_of_each_clients_own_slow_its_uploads_only():
    x = arms([1.0], 2)
    model = Federated(uplink_delay=[0, 4, 0], capacity=K).start(x, x)
    for slot in range(K):
        model.join(slot)
    model.play([(1, 0, x, x, 1.0)])
    versions = [model.version]
    for _ in range(5):
        model.play([])
        versions.append(model.version)
    assert versions == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("kind", [AdaGrad(), Federated(capacity=K), Federated(local_learner="vw", capacity=K)])
def test_a_side_without_features_has_no_model(kind):
    for shared, private in ((arms([1.0], 2), none(2)), (none(2), arms([1.0], 2))):
        model = kind.start(shared, private)
        model.join(0)
        for t in range(20):
            model.play([(0, t % 2, shared, private, float(t % 2))])
        assert np.diff(model.predict(0, shared, private)[0])[0] > 0.5
        model.close()


def test_linucb_on_no_features_at_all_takes_any_number_of_actions():
    model = LeastSquaresModel("central", none(2), none(2), 0.5)
    model.join(0)
    assert model.blocks == 1
    assert [numbers.tolist() for numbers in model.predict(0, none(7), none(7))] == [[0] * 7] * 2


def test_linucb_refuses_what_would_not_fit_in_memory():
    with pytest.raises(ValueError, match="linucb must have at most 4000 weights a model, got 4001"):
        LinearUCB().start(rows(np.ones((1, 4001))), rows(np.ones((1, 2))))


def test_the_first_step_reaches_as_far_whatever_the_size_of_the_features():
    for size in (1e-3, 1.0, 1e4):
        actions = rows(np.full((2, 3), size))
        shared, personal = default_rates(actions, actions)
        assert shared * 3 * size == pytest.approx(2)
        assert personal * (3 * size + 1) == pytest.approx(3)
    assert default_rates(none(2), none(2)) == (2, 3)


def test_an_empty_seat_adds_nothing_and_learns_nothing():
    seat, x = Seat(), np.ones(2)
    for call in (lambda: seat.learn(x, 1.0), lambda: seat.correct(x, 1.0), lambda: seat.see(1.0)):
        call()
    assert (seat.score(x), seat.predict(x, 0.25)) == (0.0, 0.25)
    seat.learner = LinearLearner(2)
    seat.learn(x, 1.0)
    assert seat.score(x) > 0
    seat.empty()
    assert seat.score(x) == 0


def test_a_workspace_is_closed_when_its_client_leaves_and_when_the_model_closes():
    made = []

    def make():
        made.append(VWLearner(bits=10))
        return Trusted(made[-1])

    model = FederationModel(global_learner("fedres-adagrad", dim=2, n_clients=2), make, (2, 2))
    for slot in range(2):
        model.join(slot)
    model.leave(0)
    with pytest.raises(RuntimeError, match="closed"):
        made[0].score(np.ones(2))
    assert made[1].score(np.ones(2)) == 0
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        made[1].score(np.ones(2))


@pytest.mark.parametrize("dim", [1, 348, 349, 5000, 116_060, 116_061])
def test_as_few_bits_are_taken_as_hold_the_features(dim):
    bits = bits_for(dim)
    with VWLearner(bits=bits) as learner:
        learner.learn(np.ones(dim), 1.0)
    if bits > 10:
        with VWLearner(bits=bits - 1) as learner, pytest.raises(ValueError, match="indices must"):
            learner.score(np.ones(dim))

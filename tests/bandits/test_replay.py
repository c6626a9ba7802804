"""The compiled replay against the bandit that is stepped by hand."""

from dataclasses import dataclass

import numpy as np
import pytest

from bandits import FederatedBandit, policy
from bandits.replay import replay
from bandits.streams import Chunk, Multiclass, Realizable
from fedres.policies import POLICIES


def classes():
    """Return a classification stream with features that 32-bit floats hold exactly."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, size=40)
    features = np.round(4 * (rng.normal(size=(40, 5)) + np.eye(3, 5)[label])) / 4
    names = np.array([[0, 1, 2], [2, 0, 1]])
    return Multiclass(features, label, rng.integers(0, 40, size=(30, 2)), names, np.arange(0, 5, 2), np.arange(5))


@dataclass(frozen=True)
class Fractional:
    """A stream whose rewards are its expected rewards."""

    of: Realizable

    def __getattr__(self, name):
        return getattr(self.of, name)

    def __iter__(self):
        for chunk in self.of:
            yield Chunk(chunk.shared, chunk.private, chunk.expected, chunk.expected)


STREAMS = {
    "realizable": Realizable(n_rounds=40, n_clients=3),
    "fractional": Fractional(Realizable(n_rounds=25, n_clients=2, seed=1)),
    "classes": classes(),
}


def step(stream, chosen, scheme, delay, **options):
    """Return actions and probabilities of a bandit that plays the stream decision by decision."""
    made = []
    with FederatedBandit(chosen, scheme=scheme, uplink_delay=delay, seed=1, **options) as bandit:
        for chunk in stream:
            for r, p in np.ndindex(chunk.rewards.shape[:2]):
                shared = stream.shared.actions(stream.n_actions, chunk.shared[r, p])
                private = stream.private.actions(stream.n_actions, chunk.private[r, p])
                decision = bandit.decide(p, shared, private=private)
                bandit.reward(decision.id, chunk.rewards[r, p, decision.action])
                made.append((decision.action, decision.probability))
    return [np.reshape(part, (stream.n_rounds, stream.n_clients)) for part in zip(*made, strict=True)]


SCHEMES = ("independent", "central", "fedres")
PAIRED = [  # any two of stream, policy, scheme and delay meet
    (stream, name, scheme, delay)
    for s, stream in enumerate(STREAMS)
    for p, name in enumerate(POLICIES)
    for k, scheme in enumerate(SCHEMES)
    for d, delay in enumerate((0, 3))
    if (s + p + k) % 3 == d
]


@pytest.mark.parametrize(("stream", "name", "scheme", "delay"), PAIRED)
def test_a_replay_makes_the_decisions_of_the_bandit(stream, name, scheme, delay):
    chosen = policy(name, **({"epsilon": 0.2} if name == "explore-every" else {}))
    model = "linucb" if chosen.needs_widths else "adagrad"
    outcome = replay(STREAMS[stream], chosen, scheme, model=model, delay=delay, seed=1)
    for local_learner in ["linear"] if chosen.needs_widths else ["linear", "vw"]:
        options = {"model": model, "local_learner": local_learner, "capacity": STREAMS[stream].n_clients}
        action, probability = step(STREAMS[stream], chosen, scheme, delay, **options)
        assert action.tolist() == outcome.action.tolist()
        assert probability == pytest.approx(outcome.probability, abs=1e-6)


@pytest.mark.parametrize("stream", ["realizable", "classes"])
def test_a_replay_forgets_and_spreads_as_the_bandit_does(stream):
    chosen = policy("linucb", half_life=7.0, floor=0.3)
    outcome = replay(STREAMS[stream], chosen, "fedres", delay=2, seed=1)
    action, probability = step(STREAMS[stream], chosen, "fedres", 2, capacity=STREAMS[stream].n_clients)
    assert action.tolist() == outcome.action.tolist()
    assert probability == pytest.approx(outcome.probability, abs=1e-12)
    assert probability.min() == pytest.approx(0.3 / STREAMS[stream].n_actions)
    assert (replay(STREAMS[stream], policy("linucb", floor=0.3), delay=2, seed=1).action != outcome.action).any()


def test_up_and_down_delays_add_up():
    stream, chosen = STREAMS["realizable"], policy("squarecb")
    outcome = replay(stream, chosen, delay=3, seed=1)
    action, _ = step(stream, chosen, "fedres", 1, downlink_delay=2, local_learner="linear")
    assert action.tolist() == outcome.action.tolist()


def test_clients_may_have_delays_of_their_own():
    stream, chosen = STREAMS["realizable"], policy("epsilon-greedy")
    even = step(stream, chosen, "fedres", [2, 2, 2], local_learner="linear", capacity=3)
    uneven = step(stream, chosen, "fedres", [0, 9, 2], local_learner="linear", capacity=3)
    assert even[0].tolist() == replay(stream, chosen, delay=2, seed=1).action.tolist()
    assert uneven[0].tolist() != even[0].tolist()


def test_an_outcome_is_judged_by_what_the_stream_knows():
    stream = Realizable(n_rounds=50, n_clients=4, n_actions=3)
    outcome = replay(stream, policy("epsilon-greedy", epsilon=1.0))
    (chunk,) = stream
    taken = np.take_along_axis(chunk.expected, outcome.action[..., None], 2)[..., 0]
    assert outcome.regret == pytest.approx(chunk.expected.max(axis=2) - taken)
    assert outcome.reward.tolist() == np.take_along_axis(chunk.rewards, outcome.action[..., None], 2)[..., 0].tolist()
    assert outcome.probability == pytest.approx(np.full((50, 4), 1 / 3))


def test_chunks_do_not_show():
    """4,096 decisions make a chunk: the longer stream's first chunk is the whole shorter stream."""
    short, long = (Realizable(n_rounds=n, n_clients=64, n_actions=2) for n in (64, 130))
    one, two = (replay(stream, policy("squarecb"), delay=5) for stream in (short, long))
    assert two.action.shape == (130, 64)
    assert one.action.tolist() == two.action[:64].tolist()
    late = two.regret[66:].mean()
    assert late < two.regret[:20].mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "alone"}, "scheme must be one of central, fedres, independent, got 'alone'"),
        ({"delay": -1}, "delay must be an integer of at least 0, got -1"),
        ({"delay": 0.5}, "delay must be an integer of at least 0, got 0.5"),
        ({"seed": 2**63}, "seed must fit 63 bits"),
    ],
)
def test_bad_settings_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        replay(STREAMS["realizable"], policy("linucb"), **options)

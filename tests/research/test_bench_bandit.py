from __future__ import annotations

import io
from functools import partial

import numpy as np
import pytest
from rich.console import Console

from libsvm_tasks.bandit_peers import VWPrepared, VWText
from research import bench_bandit
from research.bench_bandit import ACTIONS, FEATURES, FEWEST, FIRST, Contestant, loop, make_stream, measure, table

INSTALLED = [peer for peer in bench_bandit.peers() if peer.version is not None]


class Constant:
    """Always takes action 3; keeps what it was shown and told."""

    def __init__(self, n_actions, n_features):
        self.seen, self.rewards = [], []

    def context(self, x):
        return x.sum()

    def step(self, context):
        self.seen.append(context)
        return 3

    def learn(self, reward):
        self.rewards.append(reward)


class Broken(Constant):
    def step(self, context):
        raise AttributeError("np.float_ is gone")


def test_a_stream_pays_one_action_a_round_and_is_the_same_for_everybody():
    stream, again = make_stream(500), make_stream(500)
    assert stream.contexts.shape == (500, FEATURES)
    assert stream.rewards.shape == (500, ACTIONS)
    assert (stream.rewards.sum(axis=1) == 1).all()
    assert (stream.contexts == again.contexts).all()
    assert (stream.rewards == again.rewards).all()


def test_the_loop_shows_each_context_tells_its_reward_and_begins_again_at_the_end():
    stream, runner = make_stream(7), Constant(ACTIONS, FEATURES)
    play = loop(lambda n_actions, n_features: runner, stream)
    earned = np.concatenate([play(5), play(5)])
    rounds = np.arange(10) % 7
    assert runner.seen == pytest.approx(stream.contexts.sum(axis=1)[rounds])
    assert earned.tolist() == runner.rewards == stream.rewards[rounds, 3].tolist()


def test_the_reward_reported_is_that_of_the_first_rounds():
    stream = make_stream(FIRST + 1000)
    row = measure(Contestant("constant", "1", partial(loop, Constant)), stream, seconds=0, repeats=1)
    assert row["reward"] == pytest.approx(stream.rewards[:FIRST, 3].mean())
    assert row["rounds_per_second"] > 0


def test_timings_have_enough_rounds_and_as_many_repeats_as_asked():
    played = []

    def play(n_rounds):
        played.append(n_rounds)
        return np.zeros(n_rounds)

    measure(Contestant("counting", "1", lambda stream: play), make_stream(1), seconds=0, repeats=3)
    assert played == [FIRST, FEWEST, FEWEST, FEWEST, FEWEST]


def test_vw_decides_the_same_from_prepared_examples_as_from_text():
    stream = make_stream(1000)
    assert (loop(VWPrepared, stream)(1000) == loop(VWText, stream)(1000)).all()


@pytest.mark.filterwarnings("default")  # what another library warns of is not ours to mend
@pytest.mark.parametrize("peer", INSTALLED, ids=lambda peer: peer.name)
def test_every_installed_peer_learns(peer):
    earned = peer.prepare(make_stream(1000))(1000)
    # Chance earns 1/10: the mean of 500 rounds exceeds 0.16 less than once in 10^5.
    assert earned[500:].mean() > 0.16


def test_what_is_not_installed_or_fails_is_noted_and_the_others_are_measured(monkeypatch):
    contestants = [
        Contestant("absent", None, partial(loop, Constant)),
        Contestant("broken", "2", partial(loop, Broken)),
        Contestant("constant", "3", partial(loop, Constant)),
    ]
    monkeypatch.setattr(bench_bandit, "ours", list)
    monkeypatch.setattr(bench_bandit, "peers", lambda: contestants)
    calls = []
    absent, broken, constant = bench_bandit.measure_all(lambda done, total: calls.append((done, total)), seconds=0)
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert absent["note"] == "not installed"
    assert broken["note"] == "failed: AttributeError: np.float_ is gone"
    assert absent["reward"] is broken["reward"] is broken["rounds_per_second"] is None
    assert constant["note"] == ""
    assert constant["rounds_per_second"] > 0


def test_the_table_shows_figures_or_the_reason_for_none():
    rows = [
        {"contestant": "fast", "version": "1.2", "rounds_per_second": 12345.6, "reward": 0.4567, "note": ""},
        {"contestant": "absent", "version": None, "rounds_per_second": None, "reward": None, "note": "not installed"},
    ]
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table(rows))
    text = console.export_text()
    assert "12,346" in text
    assert "0.457" in text
    assert "not installed" in text

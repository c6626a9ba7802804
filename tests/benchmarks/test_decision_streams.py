"""The suite of decision streams: rounds are sound and the same for all players, and every player plays."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "decision_streams.py"
NAMES = ["digits", "same", "permuted", "shuffled", "news", "wide", "raw"]


@pytest.fixture(scope="module")
def script():
    spec = spec_from_file_location("decision_streams", SCRIPT)
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rounds(script, stream, seed, n=50):
    return [*islice(script.STREAMS[stream](np.random.default_rng(seed)), n)]


@pytest.mark.parametrize("stream", NAMES)
def test_rounds_are_sound_and_the_seeds_alone_decide_them(script, stream):
    found, again, other = (rounds(script, stream, seed) for seed in (1, 1, 2))
    assert [(r.user, r.context, r.actions) for r in found] == [(r.user, r.context, r.actions) for r in again]
    assert [r.context for r in found] != [r.context for r in other]
    for each in found:
        assert each.chances.shape == (len(each.actions),)
        assert ((each.chances >= 0) & (each.chances <= 1)).all()
        assert all(next(iter(action)).startswith("_id=") for action in each.actions)


@pytest.mark.parametrize("stream", ["news", "wide"])
def test_readers_click_on_2_to_30_percent(script, stream):
    rates = np.array([r.chances for r in rounds(script, stream, 0, 500)])
    assert 0.02 <= rates.min() < 0.03
    assert 0.25 < rates.max() <= 0.3


def test_all_streams_are_looked_at_here(script):
    assert [*script.STREAMS] == NAMES


@pytest.mark.parametrize("player", ["kalman", "adagrad", "vw"])
@pytest.mark.parametrize("stream", ["digits", "raw"])
def test_every_player_plays_and_repeats_itself(script, stream, player):
    figures = [script.play(stream, script.PLAYERS[player](), 5, 60)[0] for _ in range(2)]
    assert figures[0] == figures[1]
    assert -1 <= figures[0] <= 1


def test_the_best_choices_have_the_figure_1(script):
    class Best:
        def decide(self, now, draw):
            return int(now.chances.argmax())

        def learn(self, reward):
            pass

    assert script.play("news", Best(), 5, 100)[0] == pytest.approx(1)
    assert script.play("digits", Best(), 5, 100)[0] == 1


@pytest.mark.slow
def test_residual_kalman_learns_digits(script):
    assert script.play("digits", script.Kalman(), 5)[0] > 0.8

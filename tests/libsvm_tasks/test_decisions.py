"""The suite of decision streams: rounds are sound and the same for all players, and every player plays."""

import json
from itertools import islice

import numpy as np
import pytest
from typer.testing import CliRunner

from libsvm_tasks.decisions import report, speed
from libsvm_tasks.decisions.players import PLAYERS, Kalman
from libsvm_tasks.decisions.rounds import Round, Stream
from libsvm_tasks.decisions.suite import STREAMS, Piece, play, play_piece, run
from libsvm_tasks.decisions.worlds import News
from libsvm_tasks.load import available
from service.cli import app

DATASETS = {"pendigits", "satimage", "letter", "usps", "letter-permuted", "satimage-permuted"}
BUILT_IN = [name for name in STREAMS if name not in DATASETS]


def rounds(stream, seed, n=50):
    if stream in DATASETS and not available(stream.removesuffix("-permuted")):
        pytest.skip(f"needs the dataset {stream.removesuffix('-permuted')}")
    return [*islice(STREAMS[stream].rounds(np.random.default_rng(seed)), n)]


@pytest.mark.parametrize("stream", [*STREAMS])
def test_rounds_are_sound_and_the_seeds_alone_decide_them(stream):
    found, again, other = (rounds(stream, seed) for seed in (1, 1, 2))
    assert [(r.user, r.context, r.actions) for r in found] == [(r.user, r.context, r.actions) for r in again]
    assert [r.context for r in found] != [r.context for r in other]
    for each in found:
        assert each.chances.shape == (len(each.actions),)
        assert ((each.chances >= 0) & (each.chances <= 1)).all()
        assert all(next(iter(action)).startswith("_id=") for action in each.actions)
        assert each.request.starts[-1] == each.request.hashes.size == each.request.values.size


@pytest.mark.parametrize("stream", ["news", "wide"])
def test_readers_click_on_2_to_30_percent(stream):
    rates = np.array([r.chances for r in rounds(stream, 0, 500)])
    assert 0.02 <= rates.min() < 0.03
    assert 0.25 < rates.max() <= 0.3


def test_articles_come_and_go_and_tastes_change():
    steady, churn, drift = (
        [*News(rounds=400, readers=4, **how)(np.random.default_rng(0))] for how in ({}, {"churn": 50}, {"drift": True})
    )
    assert {next(iter(a)) for r in steady for a in r.actions} == {f"_id=article{k}" for k in range(10)}
    assert len({next(iter(a)) for r in churn for a in r.actions}) == 17
    assert all((a.chances == b.chances).all() for a, b in zip(steady[:200], drift[:200], strict=True))
    assert not any((a.chances == b.chances).all() for a, b in zip(steady[200:], drift[200:], strict=True))


def test_only_the_first_rounds_of_late_readers_count_in_a_cold_start():
    found = [*News(rounds=2000, readers=400, zipf=True, late=True)(np.random.default_rng(0))]
    before = {r.user for r in found[:1000]}
    counted = [r.user for r in found if r.counts]
    assert counted
    assert not before & {*counted}
    assert max(counted.count(user) for user in {*counted}) <= 5


class Memory:
    """Always takes the first action, and writes down when it learns."""

    def __init__(self):
        self.now, self.learned = 0, []

    def decide(self, now, draw):
        self.now += 1
        return 0, self.now

    def learn(self, token, reward):
        self.learned.append((token, self.now, reward))


@pytest.mark.parametrize("delay", [0, 7])
def test_rewards_arrive_when_the_stream_says(delay):
    player = Memory()
    play(Stream(News(rounds=100), "", delay=delay, by_chance=True), player, 3)
    assert [(token, now) for token, now, _ in player.learned] == [(k, k + delay) for k in range(1, 100 - delay)]


def test_clicks_come_at_once_and_zeros_late_and_some_rewards_never():
    player = Memory()
    play(Stream(News(rounds=400, least=0.2, most=0.9), "", zero_delay=20, by_chance=True), player, 3)
    assert {now - token for token, now, reward in player.learned if reward} == {0}
    assert {now - token for token, now, reward in player.learned if not reward} == {20}
    player = Memory()
    play(Stream(News(rounds=400), "", missing=0.5, by_chance=True), player, 3)
    assert 150 < len(player.learned) < 250


@pytest.mark.parametrize(
    ("stream", "player"),
    [
        (stream, name)
        for stream in ("digits", "raw")
        for name, player in PLAYERS.items()
        if player.plays(STREAMS[stream])
    ],
)
def test_every_player_plays_and_repeats_itself(stream, player):
    entry = PLAYERS[player]
    if not entry.installed:
        pytest.skip(f"{player} needs the package {entry.package}, which is not part of the extra dev")
    figures = [play(STREAMS[stream], entry.make(STREAMS[stream]), 5, 60) for _ in range(2)]
    assert figures[0] == figures[1]
    assert -1 <= figures[0] <= 1


def test_linucb_takes_a_number_that_is_0_from_the_start():
    player = PLAYERS["linucb"].make(STREAMS["raw"])
    now = Round("u", {"hour": 0.0}, [{"_id=a": 1.0, "price": 0.0}, {"_id=b": 1.0, "price": 2.0}], np.ones(2))
    action, token = player.decide(now, 0.0)
    player.learn(token, 1.0)
    assert player.decide(now, 0.0)[0] == action


def test_the_best_choices_have_the_figure_1():
    class Best(Memory):
        def decide(self, now, draw):
            return int(now.chances.argmax()), None

    assert play(STREAMS["news"], Best(), 5, 100) == pytest.approx(1)
    assert play(STREAMS["digits"], Best(), 5, 100) == 1


@pytest.mark.slow
def test_residual_kalman_learns_digits():
    assert play(STREAMS["digits"], Kalman(), 5) > 0.8


def test_a_piece_that_is_in_the_journal_is_not_played_again(tmp_path):
    journal = tmp_path / "journal.jsonl"
    first = run(["raw"], ["residual-kalman", "linucb"], [1, 2], events=30, journal=journal)
    lines = journal.read_text()
    assert run(["raw"], ["residual-kalman", "linucb"], [1, 2], events=30, journal=journal) == first
    assert journal.read_text() == lines
    assert first["raw"]["linucb"][1] == play_piece(Piece("raw", "linucb", 2, 30))["figure"]


def test_differences_are_paired_with_the_better_form_of_vw():
    row = {"residual-kalman": [0.5, 0.7], "vw-squarecb": [0.4, 0.5], "vw-squarecb-cubic": [0.2, 0.3]}
    assert report.difference(row) == pytest.approx([0.1, 0.2])
    assert report.shown(report.difference(row), "+") == "+.150 ± .050"
    assert "| raw | .600 ± .100 | +.150 ± .050 | .450 ± .050 |" in report.markdown(
        {"raw": row}, ["residual-kalman", "vw-squarecb"], {}
    )


def test_the_cost_of_a_decision_is_measured():
    found = speed.measure(repeats=1)
    assert found["decide_us"] > 0
    assert found["learn_us"] > 0
    assert 1000 < found["personal_bytes"] <= 4096


def test_the_command_prints_a_table_and_writes_json(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    out = tmp_path / "out.json"
    words = ["--streams", "raw,news", "--players", "residual-kalman,linucb", "--seeds", "1,2", "--events", "40"]
    result = CliRunner().invoke(app, ["bench", "decisions", *words, "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert all(word in result.output for word in ("raw", "news", "residual-kalman", "linucb", "±"))
    content = json.loads(out.read_text())
    assert content["seeds"] == [1, 2]
    assert len(content["figures"]["news"]["linucb"]) == 2
    wrong = CliRunner().invoke(app, ["bench", "decisions", "--streams", "moon"])
    assert wrong.exit_code == 2
    assert "streams must be one of" in wrong.output

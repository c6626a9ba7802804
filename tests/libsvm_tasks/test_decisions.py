"""The suite of decision streams: rounds are sound and the same for all players, and every player plays."""

import json
import lzma
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from needs import lacks
from typer.testing import CliRunner

from libsvm_tasks.decisions import report, speed
from libsvm_tasks.decisions.players import PLAYERS, VW_TUNED, KalmanPlayer, PopularityPlayer
from libsvm_tasks.decisions.real import judged_prompts, movielens
from libsvm_tasks.decisions.rounds import DecisionRound, DecisionStream
from libsvm_tasks.decisions.suite import STREAMS, Piece, absent, play, play_piece, players_of, run
from libsvm_tasks.decisions.worlds import News
from service.cli import app

MOVIELENS_LINES = {
    "u.data": [f"{person}\t{film}\t{1 + (person + film) % 5}\t0" for person in range(4) for film in range(1, 31)],
    "u.item": [f"{film}|Fílm|{'' if film == 3 else '01-Jan-1995'}||http://x|{film % 2}|1" for film in range(1, 31)],
    "u.user": ["1|24|M|writer|1", "2|53|F|other|2", "3|30|F|writer|3"],
    "u.genre": ["Drama|0", "War|1"],
}


@pytest.fixture(scope="module")
def real_files(tmp_path_factory):
    """Write tiny files of the real formats to a folder for FEDRES_DATA, beside the datasets that are here."""
    folder = tmp_path_factory.mktemp("data")
    if data_folder := os.environ.get("FEDRES_DATA"):
        for path in Path(data_folder).glob("*.svm*"):
            (folder / path.name).symlink_to(path.resolve())
    (folder / "real").mkdir()
    for name, lines in MOVIELENS_LINES.items():
        with lzma.open(folder / "real" / f"movielens-100k.{name}.xz", "wt", encoding="latin-1") as file:
            file.write("\n".join([*lines, "", ""]))
    rows = [
        {"prompt": f"Add {k} and {k}, please!", "models": {f"maker/model-{m}": _answer(k, m) for m in range(4)}}
        for k in range(60)
    ]
    (folder / "real" / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    movielens.cache_clear()
    judged_prompts.cache_clear()
    yield folder
    movielens.cache_clear()
    judged_prompts.cache_clear()


@pytest.fixture(autouse=True)
def real_files_are_there(real_files, monkeypatch):
    monkeypatch.setenv("FEDRES_DATA", str(real_files))


def _answer(prompt, model):
    return {"reward": (prompt + model) % 3 / 2, "cost": model / 100}


def rounds(stream, seed, n=50):
    if reason := absent(stream):
        lacks(f"files of the stream {stream}", reason)
    return [*islice(STREAMS[stream].rounds(np.random.default_rng(seed)), n)]


@pytest.mark.parametrize("stream", [*STREAMS])
def test_rounds_are_sound_and_the_seeds_alone_decide_them(stream):
    played, again, other = (rounds(stream, seed) for seed in (1, 1, 2))
    assert [(r.user, r.context, r.actions) for r in played] == [(r.user, r.context, r.actions) for r in again]
    assert [(r.context, r.actions) for r in played] != [(r.context, r.actions) for r in other]
    for each in played:
        assert each.chances.shape == (len(each.actions),)
        assert ((each.chances >= 0) & (each.chances <= 1)).all()
        assert all(next(iter(action)).startswith("_id=") for action in each.actions)
        assert each.request.starts[-1] == each.request.hashes.size == each.request.values.size


def test_films_are_those_the_person_rated_and_five_stars_are_a_reward():
    for each in rounds("movies", 1):
        person = int(each.user[1:])
        assert person > 0  # nobody in u.user is person 0
        films = [int(next(iter(action)).removeprefix("_id=film")) for action in each.actions]
        assert len({*films}) == 8
        assert each.chances.tolist() == [float((person + film) % 5 == 4) for film in films]
        assert each.context["age"] in (24, 53, 30)
        for film, action in zip(films, each.actions, strict=True):
            own = ["genre=Drama"] * (film % 2) + ["genre=War"] + ["year"] * (film != 3)
            assert [*action][1:] == own


def test_films_have_ids_only_or_features_only():
    assert all([len(a) for a in r.actions] == [1] * 8 for r in rounds("movies-ids", 1))
    for each in rounds("movies-features", 1):
        assert [next(iter(action)) for action in each.actions] == [f"_id={place}" for place in range(8)]
        assert all("genre=War" in action for action in each.actions)


def test_a_film_that_was_chosen_is_never_offered_to_that_person_again():
    class First(Memory):
        def decide(self, now, draw):
            film = now.user, next(iter(now.actions[2]))
            assert not {(now.user, next(iter(action))) for action in now.actions} & {*self.learned}
            self.learned.append(film)
            return 2, None

        def learn(self, token, reward):
            pass

    player = First()
    play(STREAMS["movies-fresh"], player, 1)
    assert len(player.learned) == len({*player.learned}) == 3 * (30 - 7)  # until fewer than 8 are left of 30


def test_prompts_reward_quality_less_cost_as_a_share_of_the_range():
    for each in rounds("prompts", 1):
        number = next(int(word.removeprefix("word=")) for word in each.context if word[5:].isdigit())
        assert {*each.context} == {"word=add", f"word={number}", "word=and", "word=please"}
        models = [int(next(iter(action))[-1]) for action in each.actions]
        worth = [(number + m) % 3 / 2 - m / 10 for m in models]
        assert each.chances.tolist() == pytest.approx([(w + 0.3) / 1.3 for w in worth])
    assert {*rounds("prompts-features", 1)[0].actions[1]} >= {"_id=1", "maker=maker", "part=model"}


def test_graded_rewards_arrive_as_they_are():
    player = Memory()
    play(STREAMS["prompts"], player, 1)
    assert len({reward for _, _, reward in player.learned}) > 2


def test_a_person_listens_to_two_of_eight_artists():
    for each in rounds("artists", 1):
        assert each.chances.sum() == 2
        assert len({next(iter(action)) for action in each.actions}) == 8


def test_models_change_places_half_way():
    played = rounds("routing", 1, None)
    means = [np.mean([r.chances for r in half], axis=0) for half in (played[:5000], played[5000:])]
    assert sorted(means[0]) == pytest.approx(sorted(means[1]), abs=0.02)
    assert means[0] != pytest.approx(means[1], abs=0.02)


def test_streams_without_their_files_are_skipped_with_a_reason(monkeypatch, tmp_path):
    words = ["bench", "decisions", "--streams", "movies,raw", "--players", "linucb", "--seeds", "1", "--events", "20"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("FEDRES_DATA", str(tmp_path))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "movies is skipped: movielens-100k.u.data was not found" in result.output
    assert str(tmp_path / "real") in result.output.replace("\n", "")
    monkeypatch.delenv("FEDRES_DATA")
    assert "FEDRES_DATA is not set" in absent("prompts")
    with pytest.raises(ValueError, match="streams must have their files here, got movies: movielens"):
        run(["movies"], ["linucb"], [1])


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
    played = [*News(rounds=2000, readers=400, zipf=True, late=True)(np.random.default_rng(0))]
    before = {r.user for r in played[:1000]}
    counted = [r.user for r in played if r.counts]
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
    play(DecisionStream(News(rounds=100), "", delay=delay, by_chance=True), player, 3)
    assert [(token, now) for token, now, _ in player.learned] == [(k, k + delay) for k in range(1, 100 - delay)]


def test_clicks_come_at_once_and_zeros_late_and_some_rewards_never():
    player = Memory()
    play(DecisionStream(News(rounds=400, least=0.2, most=0.9), "", zero_delay=20, by_chance=True), player, 3)
    assert {now - token for token, now, reward in player.learned if reward} == {0}
    assert {now - token for token, now, reward in player.learned if not reward} == {20}
    player = Memory()
    play(DecisionStream(News(rounds=400), "", missing=0.5, by_chance=True), player, 3)
    assert 150 < len(player.learned) < 250


@pytest.mark.parametrize(
    ("stream", "player"),
    [
        (stream, name)
        for place, (name, player) in enumerate(PLAYERS.items())
        for stream in (("digits", "raw")[place % 2 :: 2] if name in VW_TUNED else ("digits", "raw"))
        if player.plays(STREAMS[stream])
    ],  # forms of VW that differ in their options alone are on either stream
)
def test_every_player_plays_and_repeats_itself(stream, player):
    entry = PLAYERS[player]
    if not entry.installed:
        lacks(f"the package {entry.package}", "pip install 'fedres[peers]'")
    figures = [play(STREAMS[stream], entry.make(STREAMS[stream]), 5, 30) for _ in range(2)]
    assert figures[0] == figures[1]
    assert -1 <= figures[0] <= 1


def test_linucb_takes_a_number_that_is_0_from_the_start():
    player = PLAYERS["linucb"].make(STREAMS["raw"])
    now = DecisionRound("u", {"hour": 0.0}, [{"_id=a": 1.0, "price": 0.0}, {"_id=b": 1.0, "price": 2.0}], np.ones(2))
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
    assert play(STREAMS["digits"], KalmanPlayer(), 5) > 0.8


def test_a_piece_that_is_in_the_journal_is_not_played_again(tmp_path):
    journal = tmp_path / "journal.jsonl"
    first = run(["raw"], ["residual-kalman", "linucb"], [1, 2], events=30, journal=journal)
    lines = journal.read_text()
    assert run(["raw"], ["residual-kalman", "linucb"], [1, 2], events=30, journal=journal) == first
    assert journal.read_text() == lines
    assert first["raw"]["linucb"][1] == play_piece(Piece("raw", "linucb", 2, 30))["figure"]


def test_differences_are_paired_with_the_best_form_of_vw_in_hindsight():
    row = {"residual-kalman": [0.5, 0.7], "vw-squarecb": [0.4, 0.3], "vw-greedy-cubic-l2": [0.4, 0.5]}
    assert report.difference(row) == pytest.approx([0.1, 0.2])
    assert report.shown(report.difference(row), "+") == "+0.150 ± 0.050"
    assert "| raw | 0.600 ± 0.100 | +0.150 ± 0.050 | 0.350 ± 0.050 | 0.450 ± 0.050 |" in report.markdown({"raw": row})


def test_of_many_forms_of_vw_the_table_shows_the_defaults_and_the_best_with_its_name():
    row = {"uniform": [0.0], "vw-squarecb": [0.4], "vw-greedy": [0.5], "vw-regcbopt-l2": [0.3]}
    assert report.markdown({"raw": row, "news": {"uniform": [0.1]}}).splitlines() == [
        "| stream | uniform | vw-squarecb | VW best in hindsight |",
        "| --- | --- | --- | --- |",
        "| raw | 0.000 | 0.400 | 0.500 (vw-greedy, of 3 forms) |",
        "| news | 0.100 |  |  |",
    ]


def test_vw_all_names_four_policies_in_two_forms_with_three_rates():
    names = [name for name in players_of("linucb,vw-all,linucb") if PLAYERS[name].plays(STREAMS["news"])]
    assert len(names) == 1 + 4 * 2 * 3
    assert {*names} >= {"linucb", "vw-squarecb", "vw-epsilon02-cubic-l0.1", "vw-regcbopt-l2"}
    alone = [name for name in VW_TUNED if PLAYERS[name].plays(STREAMS["words"])]
    assert len(alone) == 4 * 2 * 3  # no crosses with a user: pairs of an action's features instead
    assert {name for name in alone if "cubic" in name} == set()
    assert "vw-squarecb" in players_of("all")
    assert "vw-greedy" not in players_of("all")


def test_popularity_takes_what_earned_most_and_uniform_takes_all():
    now = DecisionRound("u", {}, [{"_id=a": 1.0}, {"_id=b": 1.0}, {"_id=c": 1.0}], np.ones(3))
    player, uniform = PopularityPlayer(), PLAYERS["uniform"].make(STREAMS["news"])
    assert [player.decide(now, draw)[0] for draw in (0.0, 0.5, 0.99)] == [0, 1, 2]
    player.learn("_id=b", 1.0)
    player.learn("_id=a", 0.0)
    assert player.decide(now, 0.9)[0] == 1
    assert [uniform.decide(now, draw)[0] for draw in (0.0, 0.5, 0.99)] == [0, 1, 2]


def test_figures_in_a_csv_file_are_not_played_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "decisions.csv"
    words = ["bench", "decisions", "--streams", "prompts", "--seeds", "1,2", "--csv", str(path), "--players"]
    assert CliRunner().invoke(app, [*words, "uniform"]).exit_code == 0
    text = path.read_text()
    assert text.startswith("stream,player,seed,figure\nprompts,uniform,1,")
    path.write_text(text.replace(text.rpartition(",")[2], "0.5000\n"))
    again = CliRunner().invoke(app, [*words, "uniform,popularity"])
    assert again.exit_code == 0, again.output
    figures = report.read_csv(path)
    assert figures["prompts", "uniform", 2] == 0.5
    assert [player for _, player, _ in figures] == ["uniform", "uniform", "popularity", "popularity"]
    wrong = CliRunner().invoke(app, [*words, "uniform", "--events", "5"])
    assert wrong.exit_code == 2
    assert "csv must come with" in wrong.output


def test_the_table_of_the_docs_is_that_of_their_figures():
    folder = Path(__file__).parents[2] / "docs" / "results"
    figures = report.by_stream(report.read_csv(folder / "decisions.csv"))
    assert report.markdown(figures) in (folder / "decisions.md").read_text(encoding="utf-8")


def test_the_cost_of_a_decision_is_measured():
    costs = speed.measure(repeats=1)
    assert costs["decide_us"] > 0
    assert costs["learn_us"] > 0
    assert 1000 < costs["personal_bytes"] <= 8192
    # More ids than there are blocks take no more memory.
    assert speed.catalogue_bytes(600) == speed.catalogue_bytes(2_000) < 64e6


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

"""Pages of films: none is shown twice, figures are what they say, and every player plays a small generated world."""

import json
from pathlib import Path

import numpy as np
import pytest
from needs import lacks
from typer.testing import CliRunner

from libsvm_tasks.decisions import pages
from libsvm_tasks.decisions.pages import PLAYERS, Figures, Piece, absent, play, play_piece, players_of, rows_of
from libsvm_tasks.decisions.real import Movies
from service.cli import app


def world(people=40, films=120, rated=60, seed=3):
    """Return people who like one of four genres, the same for all of an age; even films are better than others."""
    rng = np.random.default_rng(seed)
    genres, likes = rng.integers(4, size=films), rng.integers(4, size=people)
    seen = {person: rng.permutation(films)[:rated] for person in range(people)}
    chances = {p: 0.1 + 0.5 * (genres[own] == likes[p]) + 0.2 * (own % 2 == 0) for p, own in seen.items()}
    return Movies(
        {person: {f"age={likes[person]}": 1.0} for person in range(people)},
        {film: {f"genre={genres[film]}": 1.0} for film in range(films)},
        seen,
        {person: (rng.random(rated) < chances[person]).astype(float) for person in range(people)},
    )


class Memory(pages.UniformPages):
    def __init__(self):
        self.shown = []

    def learn(self, now, shown, rewards):
        self.shown += [(now.user, next(iter(now.actions[action]))) for action in shown]
        assert rewards.tolist() == now.chances[shown].tolist()


def test_half_of_what_people_rated_is_shown_and_nothing_twice():
    player = Memory()
    play(world(), player, 1)
    assert len(player.shown) == len({*player.shown}) == 40 * 30


def test_a_player_is_offered_no_more_candidates_than_it_takes():
    class Few(Memory):
        def choose(self, now, draws):
            assert len(now.actions) <= 15
            return super().choose(now, draws)

    play(world(), Few(), 1, most=15)


def test_the_best_pages_have_an_ndcg_of_1_and_reversed_ones_less():
    class Best(Memory):
        def choose(self, now, draws):
            return pages.top(now.chances, draws)

    class Reversed(Best):
        def choose(self, now, draws):
            return super().choose(now, draws)[::-1]

    best, backwards = play(world(), Best(), 1), play(world(), Reversed(), 1)
    assert best.ndcg == pytest.approx(1)
    assert backwards.ndcg < 1
    assert backwards.five_stars == pytest.approx(best.five_stars, abs=0.02)


@pytest.mark.parametrize("player", ["recommend", "rank", "best", "popularity", "als", "vw-greedy-alone", "vw-squarecb"])
def test_players_learn_and_repeat_themselves(player, monkeypatch):
    entry = PLAYERS[player]
    if pages.find_spec(entry.package) is None:
        lacks(f"the package {entry.package}", "pip install 'fedres[peers]'")
    monkeypatch.setattr(pages.ALS, "EVERY", 200)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    small = world()
    figures = [play(small, entry.make(), 1, entry.most) for _ in range(2)]
    assert figures[0] == figures[1]
    assert figures[0].five_stars > play(small, pages.UniformPages(), 1).five_stars


@pytest.mark.parametrize("player", [*pages.VW_FORMS])
def test_vowpal_wabbit_takes_the_options_of_every_form(player):
    pytest.importorskip("vowpalwabbit")
    assert play(world(), PLAYERS[player].make(), 1, 15, pages=2).five_stars >= 0


def test_recommend_knows_tastes_that_popularity_does_not():
    small = world()
    assert play(small, pages.Recommend(), 1).five_stars > play(small, pages.PopularPages(), 1).five_stars + 0.05


def test_rows_pair_differences_by_seed():
    figures = {
        ("recommend", 1): Figures(0.3, 0.4),
        ("recommend", 2): Figures(0.5, 0.4),
        ("uniform", 1): Figures(0.2, 0.1),
        ("uniform", 2): Figures(0.2, 0.1),
        ("rank", 1): Figures(0.2, 0.1),  # not played with seed 2
    }
    assert rows_of(figures, [1, 2]) == [
        ["recommend", "0.400 ± 0.100", "", "0.400 ± 0.000", ""],
        ["uniform", "0.200 ± 0.000", "+0.200 ± 0.100", "0.100 ± 0.000", "+0.300 ± 0.000"],
    ]


def test_the_table_of_the_docs_is_that_of_their_figures():
    folder = Path(__file__).parents[2] / "docs" / "results"
    table = pages.markdown(pages.read_csv(folder / "recommend.csv"), [431, 432, 433])
    assert table in (folder / "recommend.md").read_text(encoding="utf-8")


def test_the_command_resumes_from_its_file_and_names_who_cannot_play(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pages, "movielens", world)
    monkeypatch.setattr(pages, "absent", lambda name: "it needs 'fedres[vw]'" if name == "rank" else None)
    csv, out = tmp_path / "pages.csv", tmp_path / "out.json"
    csv.write_text("player,seed,five_stars,ndcg\nuniform,1,0.1000,0.2000\n")
    words = ["bench", "recommend", "--players", "uniform,popularity,rank", "--seeds", "1", "--csv", str(csv)]
    result = CliRunner().invoke(app, [*words, "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "rank is skipped: it needs 'fedres[vw]'" in result.output
    header, popularity, uniform = csv.read_text().splitlines()
    assert (header, uniform) == ("player,seed,five_stars,ndcg", "uniform,1,0.1000,0.2000")
    assert popularity.startswith("popularity,1,0.")
    assert {row["player"] for row in json.loads(out.read_text())["recommend"]} == {"uniform", "popularity"}
    assert not csv.with_suffix(".unfinished.jsonl").exists()


def test_players_without_their_package_or_the_files_say_why(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDRES_DATA", str(tmp_path))
    assert "movielens-100k.u.data was not found" in absent("recommend")
    monkeypatch.setattr(pages.load, "absent", lambda name: None)
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    assert "implicit is not installed" in absent("als")
    assert {*players_of("all")} >= {"recommend", "als", "vw-greedy-alone", "uniform"}
    with pytest.raises(ValueError, match="players must be one of"):
        players_of("moon")


def test_a_piece_is_a_player_with_a_seed(monkeypatch):
    monkeypatch.setattr(pages, "movielens", world)
    figures = play_piece(Piece("popularity", 2, 5))
    assert figures["five_stars"] == play(world(), pages.PopularPages(), 2, pages=5).five_stars
